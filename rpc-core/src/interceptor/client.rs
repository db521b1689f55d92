//! Interceptors of a channel, and the metadata that it adds to each of its calls.
//!
//! Invariants:
//! 1. They see calls, not attempts: a call that is retried, hedged or sent on another connection
//!    has one `before` and one `after`.
//! 2. An interceptor whose `before` accepted a call gets one `after`, with no lock held: the code
//!    that begins a call ends it with [`Around::end`].

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use rpc_transport::engine::clock;

use super::{Begun, Ended, Extensions, Found, after, before};
use crate::metadata::{Metadata, MetadataError};
use crate::reply::CallOutcome;
use crate::service::MethodDescriptor;
use crate::status::Status;
use crate::stream::item_counts::ItemCounters;

/// Runs before and after each call of a channel, on the task that makes the call: see
/// [the module](super).
///
/// # Example
/// ```
/// use rpc_core::interceptor::{ClientInterceptor, Ended, Outbound};
/// use rpc_core::{Channel, Status};
///
/// struct SlowCalls;
///
/// impl ClientInterceptor for SlowCalls {
///     fn before(&self, call: &mut Outbound<'_>) -> Result<(), Status> {
///         call.metadata_mut().insert("tenant", "blue").map_err(Status::from)
///     }
///
///     fn after(&self, call: &Ended<'_>) {
///         if call.elapsed().as_millis() > 100 {
///             eprintln!("{} took {:?}: {:?}", call.method().name, call.elapsed(), call.code());
///         }
///     }
/// }
///
/// # async fn connect() -> Result<(), rpc_core::ConnectError> {
/// let channel = Channel::builder().interceptor(SlowCalls).connect("auto://10.0.0.7:7471").await?;
/// # drop(channel); Ok(()) }
/// ```
pub trait ClientInterceptor: Send + Sync + 'static {
    /// Its name in logs and in `Debug` of the builder. Default: the type's.
    fn name(&self) -> &str {
        std::any::type_name::<Self>()
    }

    /// Called when the call is first awaited or started, before any of it is sent.
    ///
    /// # Errors
    /// The status with which the call ends; nothing is sent.
    fn before(&self, call: &mut Outbound<'_>) -> Result<(), Status> {
        let _ = call;
        Ok(())
    }

    /// Called when the call has ended, after its last attempt; for a stream, when its end has been
    /// read.
    fn after(&self, call: &Ended<'_>) {
        let _ = call;
    }
}

/// A call that is about to be sent.
pub struct Outbound<'a> {
    begun: &'a Begun,
    metadata: &'a mut Metadata,
    deadline: &'a mut Option<Instant>,
    extensions: &'a mut Extensions,
}

impl Outbound<'_> {
    /// The method.
    #[must_use]
    pub fn method(&self) -> &'static MethodDescriptor {
        self.begun.method
    }

    /// The metadata sent with the call.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        self.metadata
    }

    /// The metadata sent with the call, mutable.
    #[must_use]
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        self.metadata
    }

    /// The deadline of the call: the earliest of its own, the channel's, and that of the calling
    /// handler.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        *self.deadline
    }

    /// Brings the deadline forward; a later one is ignored.
    pub fn shorten_deadline(&mut self, deadline: Instant) {
        *self.deadline = Some(self.deadline.map_or(deadline, |other| other.min(deadline)));
    }

    /// Length of the encoded arguments, bytes.
    #[must_use]
    pub fn request_bytes(&self) -> u64 {
        self.begun.request_bytes
    }

    /// Attaches a value to the call, for `after`: [`Ended::extension`].
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.extensions.insert(value);
    }
}

impl fmt::Debug for Outbound<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbound")
            .field("method", &self.begun.method.name)
            .field("metadata", self.metadata())
            .finish_non_exhaustive()
    }
}

/// What a channel adds to each of its calls: metadata and interceptors.
#[derive(Clone, Default)]
pub(crate) struct Around {
    /// Default metadata, which a call can override.
    pub(crate) metadata: Metadata,
    chain: Vec<Arc<dyn ClientInterceptor>>,
}

impl Around {
    pub(crate) fn intercept(&mut self, interceptor: Arc<dyn ClientInterceptor>) {
        self.chain.push(interceptor);
    }

    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.metadata.is_empty() && self.chain.is_empty()
    }

    /// Runs the interceptors' `before` on a call that is about to be sent.
    ///
    /// # Errors
    /// The status with which the call ends instead.
    #[inline(always)]
    pub(crate) fn begin(
        &self,
        watch: &mut Watch,
        method: &'static MethodDescriptor,
        metadata: &mut Metadata,
        deadline: &mut Option<Instant>,
        request_bytes: u64,
    ) -> Result<(), Status> {
        watch.has_begun = true;
        if !self.metadata.is_empty() {
            self.add_metadata(metadata).map_err(|error| {
                Status::from(error).with_prefix(format_args!("{}: ", method.name))
            })?;
        }
        if self.chain.is_empty() {
            return Ok(());
        }
        let items = method.has_streams().then(Arc::default);
        let Watch { begun, extensions, .. } = watch;
        let now = Begun { method, at: clock::now(), request_bytes, items };
        debug_assert!(begun.is_none(), "a call begins once");
        // There is nothing to drop.
        std::mem::forget(begun.take());
        let begun = &*begun.insert(now);
        let mut call = Outbound { begun, metadata, deadline, extensions };
        let mut others = self.chain.iter();
        while let Some(interceptor) = others.next() {
            let run = || interceptor.before(&mut call);
            if let Err(status) = before(|| interceptor.name(), method, run) {
                let passed = self.chain.len() - others.len() - 1;
                return Err(self.refused(passed, watch, status));
            }
        }
        Ok(())
    }

    /// An interceptor refused the call: reports the end to those before it.
    #[cold]
    fn refused(&self, passed: usize, watch: &mut Watch, status: Status) -> Status {
        let mut panicked = None;
        if let Some(begun) = watch.begun.take() {
            let call = Ended {
                begun: &begun,
                found: Found::Status(&status),
                extensions: &watch.extensions,
            };
            tell(&self.chain[..passed], &call, &mut panicked);
        }
        panicked.unwrap_or(status)
    }

    /// Adds the channel's metadata, except for names that the call sets itself.
    #[cold]
    fn add_metadata(&self, metadata: &mut Metadata) -> Result<(), MetadataError> {
        for (name, value) in self.metadata.iter_bytes() {
            if metadata.bytes(name).is_none() {
                metadata.insert(name, value.clone())?;
            }
        }
        Ok(())
    }

    /// Reports the end of the call to the interceptors, if it has begun. If one of them panics, its
    /// status replaces the outcome.
    #[inline(always)]
    pub(crate) fn end(
        &self,
        watch: &Watch,
        method: &'static MethodDescriptor,
        found: &mut CallOutcome,
    ) {
        if let Some(begun) = &watch.begun {
            let mut panicked = None;
            let call = Ended { begun, found: Found::Outcome(found), extensions: &watch.extensions };
            tell(&self.chain, &call, &mut panicked);
            if panicked.is_some() {
                replace(found, &mut panicked, method);
            }
        }
    }
}

/// Reports the end of a call to interceptors.
#[inline(always)]
fn tell(passed: &[Arc<dyn ClientInterceptor>], call: &Ended<'_>, panicked: &mut Option<Status>) {
    for interceptor in passed.iter().rev() {
        after(|| interceptor.name(), call.begun.method, || interceptor.after(call), panicked);
    }
}

/// Replaces the outcome of the call after an interceptor's panic.
#[cold]
#[inline(never)]
fn replace(
    found: &mut CallOutcome,
    panicked: &mut Option<Status>,
    method: &'static MethodDescriptor,
) {
    if let Some(status) = panicked.take() {
        *found = Some(Err(status.of_call(method)));
    }
}

impl fmt::Debug for Around {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.chain.iter().map(|interceptor| interceptor.name()).collect();
        f.debug_struct("Around").field("metadata", &self.metadata).field("chain", &names).finish()
    }
}

/// The interceptors' view of a call, to be ended by [`Around::end`].
#[derive(Default)]
pub(crate) struct Watch {
    /// Whether the channel's additions were made, even without interceptors: further attempts of
    /// the call keep them.
    has_begun: bool,
    /// Set while the interceptors, all of the chain, wait for the end of the call.
    begun: Option<Begun>,
    extensions: Extensions,
}

impl Watch {
    /// Whether [`Around::begin`] has been called for the call.
    #[inline]
    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Drops what belongs to the call.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.has_begun = false;
        self.begun = None;
        if !self.extensions.is_empty() {
            self.extensions = Extensions::new();
        }
    }

    pub(crate) fn items(&self) -> Option<&ItemCounters> {
        self.begun.as_ref()?.items.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Dispatch;

    #[crate::service]
    trait Quick {
        async fn reply(&self);
    }

    struct Replies;

    impl Quick for Replies {
        async fn reply(&self) {}
    }

    /// Regression: in a channel with metadata and no interceptors, each attempt of a call began
    /// anew.
    #[test]
    fn a_call_begins_with_only_metadata() {
        let method = QuickServer::new(Replies).descriptor().methods[0];
        let mut around = Around::default();
        around.metadata.insert("tenant", "blue").unwrap();
        let mut watch = Watch::default();
        let (mut metadata, mut deadline) = (Metadata::new(), None);
        assert!(!watch.has_begun());
        around.begin(&mut watch, method, &mut metadata, &mut deadline, 0).unwrap();
        assert!(watch.has_begun(), "attempts are part of it");
        assert_eq!(metadata.text("tenant"), Some("blue"));
    }
}
