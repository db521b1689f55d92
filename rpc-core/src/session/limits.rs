//! How much one end of a session takes on.

use std::time::Duration;

use rpc_transport::protocol::config::ConfigError;

use super::streams::StreamLimits;

/// Most slots that any end uses or announces.
pub(super) const MAX_CALLS: u32 = 1 << 24;

/// Bounds of one end of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLimits {
    /// Calls of this end that may be in flight at once; the peer may allow fewer. Default 65,536.
    /// 0: this end makes no calls.
    pub max_outgoing_calls: u32,
    /// Further calls that may wait until one of those has ended; where the peer allows fewer, the
    /// difference may wait as well. Default 65,536.
    pub max_waiting_calls: u32,
    /// Calls of the peer that this end accepts in flight at once; announced in the hello. 0: this
    /// end takes no calls. Default 1,024.
    pub max_incoming_calls: u32,
    /// Bounds of streams; `None`: this end speaks none.
    pub streams: Option<StreamLimits>,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            max_outgoing_calls: 65_536,
            max_waiting_calls: 65_536,
            max_incoming_calls: 1024,
            streams: Some(StreamLimits::default()),
        }
    }
}

impl SessionLimits {
    /// Checks what the wire cannot express: by the names of the builder's options.
    ///
    /// # Errors
    /// [`ConfigError`] for the first one out of range.
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        let Self { max_outgoing_calls, max_waiting_calls, max_incoming_calls, .. } = *self;
        for (field, count) in [
            ("max_calls", max_outgoing_calls),
            ("max_waiting_calls", max_waiting_calls),
            ("max_calls_per_connection", max_incoming_calls),
        ] {
            check_most(
                field,
                count.into(),
                MAX_CALLS.into(),
                "open more connections for more calls",
            )?;
        }
        Ok(())
    }
}

/// Shortest time after which a connection may be closed that has no calls, or has lasted so long.
const MIN_IDLE: Duration = Duration::from_millis(1);

/// Checks how long a connection may be without calls, or may last.
///
/// # Errors
/// [`ConfigError`] if it is below 1 ms.
pub(crate) fn check_least(field: &'static str, limit: Option<Duration>) -> Result<(), ConfigError> {
    match limit {
        Some(limit) if limit < MIN_IDLE => Err(ConfigError {
            field,
            value: format!("{limit:?}"),
            allowed: format!("{MIN_IDLE:?} or more"),
            advice: "minutes suit most, None switches it off",
        }),
        _ => Ok(()),
    }
}

/// Checks a value that the wire bounds.
///
/// # Errors
/// [`ConfigError`] if it is more.
pub(crate) fn check_most(
    field: &'static str,
    value: u64,
    most: u64,
    advice: &'static str,
) -> Result<(), ConfigError> {
    if value <= most {
        return Ok(());
    }
    Err(ConfigError { field, value: value.to_string(), allowed: format!("0 to {most}"), advice })
}
