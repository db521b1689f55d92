//! Options for connecting and listening through verbs.

use std::sync::LazyLock;
use std::time::Duration;

/// Environment variable that overrides [`SetupOptions::ack_timeout`]; read once per process.
pub const ACK_TIMEOUT_VARIABLE: &str = "RPC_RDMA_ACK_TIMEOUT";

/// Environment variable that overrides [`SetupOptions::traffic_class`]; read once per process.
pub const TRAFFIC_CLASS_VARIABLE: &str = "RPC_RDMA_TOS";

/// How connections are set up, and when an unresponsive peer is given up. `Default` suits a network
/// within one building.
///
/// A peer that does not acknowledge is detected after about `4.096 us * 2^ack_timeout *
/// (retry_count + 1)`: 1.9 s by default, and 2 to 4 s on NICs, which wait up to twice as long.
/// Keep-alive decides whether a quiet peer is dead.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SetupOptions {
    /// Longest wait for resolving an address, and again for resolving a route. Default 2 s.
    pub resolve_timeout: Duration,
    /// Longest wait for the peer's answer to a connection request. rdma_cm itself has no such limit
    /// and may try for a minute. Default 10 s.
    pub connect_timeout: Duration,
    /// Longest wait for the peer's confirmation after accepting. Default 10 s.
    pub accept_timeout: Duration,
    /// Time without an acknowledgement after which a packet is sent again, as the exponent of
    /// `4.096 us * 2^n`, 1 to 31. Default 16 (268 ms), or the value of `RPC_RDMA_ACK_TIMEOUT`. A
    /// smaller value has no effect on ConnectX-5 and later, whose firmware uses at least 16; on an
    /// emulated machine use 17.
    pub ack_timeout: u8,
    /// How often a packet is sent again, 0 to 6. Default 6. On some devices 7 means forever, so it
    /// is treated as 6.
    pub retry_count: u8,
    /// Most READs in flight per connection in either direction, if the device and the peer agree. 0
    /// turns READ off. Default 4.
    pub read_depth: u8,
    /// The type of service (IPv4) or traffic class (IPv6) of packets: DSCP in the upper 6 bits, ECN
    /// in the lower 2. On RoCE it chooses the priority, and so whether switches drop packets or
    /// pause the sender: networks for RDMA often use 106 (DSCP 26 with ECN). The side that connects
    /// decides for both directions. Default `None`: the system's value, or that of `RPC_RDMA_TOS`
    /// (0 to 255).
    pub traffic_class: Option<u8>,
    /// Most connection requests that wait at a listener; more are refused, and their clients have
    /// to try again. Default 1024, the most that Linux allows unless configured otherwise.
    pub backlog: u16,
}

impl Default for SetupOptions {
    fn default() -> Self {
        Self {
            resolve_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(10),
            accept_timeout: Duration::from_secs(10),
            ack_timeout: *ACK_TIMEOUT,
            retry_count: 6,
            read_depth: 4,
            traffic_class: *TRAFFIC_CLASS,
            backlog: 1024,
        }
    }
}

/// The smallest value that ConnectX-5 and later use. Connections survive half a second without a
/// link.
const DEFAULT_ACK_TIMEOUT: u8 = 16;

static ACK_TIMEOUT: LazyLock<u8> = LazyLock::new(|| {
    let Ok(text) = std::env::var(ACK_TIMEOUT_VARIABLE) else { return DEFAULT_ACK_TIMEOUT };
    parse_ack_timeout(&text).unwrap_or_else(|| {
        tracing::warn!("{ACK_TIMEOUT_VARIABLE}={text} is not a number from 1 to 31, ignored");
        DEFAULT_ACK_TIMEOUT
    })
});

static TRAFFIC_CLASS: LazyLock<Option<u8>> = LazyLock::new(|| {
    let text = std::env::var(TRAFFIC_CLASS_VARIABLE).ok()?;
    let number = text.parse().ok();
    if number.is_none() {
        tracing::warn!("{TRAFFIC_CLASS_VARIABLE}={text} is not a number from 0 to 255, ignored");
    }
    number
});

/// The traffic class that connections of this process request, from `RPC_RDMA_TOS`.
pub(super) fn traffic_class() -> Option<u8> {
    *TRAFFIC_CLASS
}

fn parse_ack_timeout(text: &str) -> Option<u8> {
    text.parse().ok().filter(|value| (1..=31).contains(value))
}

/// The part of the options that the QP itself needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct QpTimers {
    pub(super) ack_timeout: u8,
    pub(super) retry_count: u8,
}

impl SetupOptions {
    pub(super) fn timers(&self) -> QpTimers {
        // 0 would switch the timer off, and a dead peer would never be detected.
        let ack_timeout = self.ack_timeout.clamp(1, 31);
        QpTimers { ack_timeout, retry_count: self.retry_count.min(6) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_option_makes_a_qp_wait_for_ever() {
        let options = SetupOptions { ack_timeout: 0, retry_count: 7, ..SetupOptions::default() };
        let timers = options.timers();
        assert_eq!((timers.ack_timeout, timers.retry_count), (1, 6));
        let options = SetupOptions { ack_timeout: 200, ..SetupOptions::default() };
        assert_eq!(options.timers().ack_timeout, 31);
    }

    #[test]
    fn link_down_for_half_a_second_is_survived() {
        let timers =
            SetupOptions { ack_timeout: DEFAULT_ACK_TIMEOUT, ..SetupOptions::default() }.timers();
        let tries = u32::from(timers.retry_count) + 1;
        let given_up = Duration::from_nanos(4096 << timers.ack_timeout) * tries;
        assert!(
            given_up > Duration::from_millis(1500) && given_up < Duration::from_secs(4),
            "{given_up:?}"
        );
    }

    #[test]
    fn the_variable_takes_what_a_qp_takes() {
        assert_eq!(parse_ack_timeout("17"), Some(17));
        for bad in ["", "0", "32", "-1", "fast", "999"] {
            assert_eq!(parse_ack_timeout(bad), None, "{bad}");
        }
    }
}
