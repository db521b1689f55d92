//! Initial metadata: sent before the items of a stream.
//!
//! Owns the metadata that a handler has set and the stream's pump (`stream/pump.rs`) has not taken
//! yet. Metadata that is never taken is sent with the reply.

use super::{CURRENT, Caller, Context};
use crate::metadata::{Metadata, MetadataError};

/// The progress of the stream of a handler's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    No,
    /// The initial metadata has been sent.
    Metadata,
    /// An item, or the end, has been sent.
    Items,
}

impl Context {
    /// Sends a named value before the first item of the handler's stream of results, replacing an
    /// earlier one of that name. All values are sent together: when the stream next waits, or with
    /// the first item. So an `async fn` that returns a stream may set values until it returns, and
    /// await in between. The caller reads them with
    /// [`Streaming::initial_metadata`](crate::stream::Streaming::initial_metadata); a caller of an
    /// earlier version gets them with the reply. If the method has a single result, or refuses the
    /// call, they are part of the reply's metadata. The same rules for where to call it apply as
    /// for [`set_reply_metadata`](Context::set_reply_metadata).
    ///
    /// ```
    /// # #[rpc_core::service] pub trait Log { fn lines(&self) -> impl Stream<Item = String>; }
    /// use rpc_core::stream::{self, Stream};
    /// use rpc_core::{Channel, Context};
    ///
    /// struct File;
    ///
    /// impl Log for File {
    ///     fn lines(&self) -> impl Stream<Item = String> {
    ///         Context::set_initial_metadata("version", "7").expect("a good name, and little");
    ///         stream::iter(["one".to_owned()])
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let log = LogClient::new(Channel::to(LogServer::new(File)).await?);
    /// let mut lines = log.lines().await?;
    /// assert_eq!(lines.initial_metadata().await.text("version"), Some("7"));
    /// assert_eq!(lines.try_next().await?.as_deref(), Some("one"));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`set_reply_metadata`](Context::set_reply_metadata); also when initial metadata has been
    /// sent ([`MetadataError::InitialTwice`]), or an item has ([`MetadataError::InitialLate`]).
    pub fn set_initial_metadata(
        name: &str,
        value: impl Into<bytes::Bytes>,
    ) -> Result<(), MetadataError> {
        let found = Self::peek(|context| {
            let begun = match context.caller {
                Caller::Connected(_, begun) => begun,
                Caller::Unknown | Caller::Named(_) => Begun::No,
            };
            (begun, context.extras.as_deref().cloned())
        });
        let (begun, extras) = found.ok_or(MetadataError::NoCall)?;
        match begun {
            Begun::No => {}
            Begun::Metadata => return Err(MetadataError::InitialTwice),
            Begun::Items => return Err(MetadataError::InitialLate),
        }
        let mut extras = extras.unwrap_or_default();
        extras.initial.insert(name, value)?;
        Self::replace_extras(extras);
        Ok(())
    }

    /// Whether there is initial metadata that has not been sent.
    #[inline]
    pub(crate) fn has_initial() -> bool {
        Self::peek(|context| {
            context.extras.as_ref().is_some_and(|extras| !extras.initial.is_empty())
        })
        .unwrap_or_default()
    }

    /// Takes the initial metadata, to send it.
    #[cold]
    pub(crate) fn take_initial() -> Metadata {
        let extras = Self::peek(|context| context.extras.as_deref().cloned()).flatten();
        let mut extras = extras.unwrap_or_default();
        let initial = std::mem::take(&mut extras.initial);
        Self::replace_extras(extras);
        Self::set_begun(Begun::Metadata);
        initial
    }

    /// Records the progress of the stream of results.
    pub(crate) fn set_begun(now: Begun) {
        let _ = CURRENT.try_with(|current| {
            if let Some(Self { caller: Caller::Connected(_, begun), .. }) =
                &mut **current.borrow_mut()
            {
                *begun = now;
            }
        });
    }
}
