//! Interceptors of a channel, and what it adds to each of its calls.
//!
//! Invariants:
//! 1. They see calls, not attempts: a call that is tried again, hedged or sent on another connection
//!    has one `before` and one `after`.
//! 2. Whose `before` has let a call pass gets one `after`, with no lock held: [`Watch`] sees to it.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use rpc_transport::engine::clock;
use rpc_transport::message::received::Message;

use super::{Ended, Ending, Extensions, ItemCounters, guarded};
use crate::metadata::Metadata;
use crate::service::MethodDescriptor;
use crate::status::Status;

/// What is done before and after each call of a channel, on the task that makes it: see
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

    /// When the call is first awaited or started, before anything of it is sent.
    ///
    /// # Errors
    /// The status that the call ends with: nothing is sent.
    fn before(&self, call: &mut Outbound<'_>) -> Result<(), Status> {
        let _ = call;
        Ok(())
    }

    /// When the call has ended, after its last attempt; of a stream, when its end has been read.
    fn after(&self, call: &Ended<'_>) {
        let _ = call;
    }
}

/// A call that is about to leave.
pub struct Outbound<'a> {
    method: &'static MethodDescriptor,
    metadata: &'a mut Metadata,
    deadline: &'a mut Option<Instant>,
    extensions: &'a mut Extensions,
    request_bytes: u64,
}

impl Outbound<'_> {
    /// The method.
    #[must_use]
    pub fn method(&self) -> &'static MethodDescriptor {
        self.method
    }

    /// The metadata that goes with the call.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        self.metadata
    }

    /// The same, to be changed.
    #[must_use]
    pub fn metadata_mut(&mut self) -> &mut Metadata {
        self.metadata
    }

    /// When the call ends at the latest: the earliest of its own deadline, the channel's, and that
    /// of the handler that makes it.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        *self.deadline
    }

    /// Brings the deadline forward; a later one changes nothing.
    pub fn shorten_deadline(&mut self, deadline: Instant) {
        *self.deadline = Some(self.deadline.map_or(deadline, |other| other.min(deadline)));
    }

    /// Length of the encoded arguments, bytes.
    #[must_use]
    pub fn request_bytes(&self) -> u64 {
        self.request_bytes
    }

    /// Puts a value beside the call, for `after`: [`Ended::extension`].
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        self.extensions.insert(value);
    }
}

impl fmt::Debug for Outbound<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbound")
            .field("method", &self.method.name)
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}

/// What a channel does with each of its calls.
#[derive(Clone, Default)]
pub(crate) struct Around {
    /// For calls that do not say otherwise.
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

    /// The call is about to leave.
    ///
    /// # Errors
    /// The status that it ends with instead.
    pub(crate) fn begin(
        self: &Arc<Self>,
        method: &'static MethodDescriptor,
        metadata: &mut Metadata,
        deadline: &mut Option<Instant>,
        request_bytes: u64,
    ) -> Result<Option<Box<Watch>>, Status> {
        for (name, value) in self.metadata.iter_bytes() {
            if metadata.bytes(name).is_none() {
                metadata.insert(name, value.clone()).map_err(|error| {
                    Status::from(error).with_prefix(format_args!("{}: ", method.name))
                })?;
            }
        }
        if self.chain.is_empty() {
            return Ok(None);
        }
        let mut watch = Box::new(Watch {
            around: Arc::clone(self),
            passed: 0,
            method,
            began: clock::now(),
            request_bytes,
            extensions: Extensions::new(),
            items: method.has_streams().then(ItemCounters::default),
        });
        for interceptor in &self.chain {
            let extensions = &mut watch.extensions;
            let mut call = Outbound { method, metadata, deadline, extensions, request_bytes };
            let before = guarded(|| interceptor.name(), method, || interceptor.before(&mut call));
            if let Err(status) = before.and_then(|passed| passed) {
                let panicked = watch.end(Ending::Status(&status), None);
                return Err(panicked.unwrap_or(status));
            }
            watch.passed += 1;
        }
        Ok(Some(watch))
    }
}

impl fmt::Debug for Around {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.chain.iter().map(|interceptor| interceptor.name()).collect();
        f.debug_struct("Around").field("metadata", &self.metadata).field("chain", &names).finish()
    }
}

/// Tells the interceptors that a call has passed how it ended, once.
pub(crate) struct Watch {
    around: Arc<Around>,
    /// How many have let the call pass and wait for its end.
    passed: usize,
    method: &'static MethodDescriptor,
    began: Instant,
    request_bytes: u64,
    extensions: Extensions,
    items: Option<ItemCounters>,
}

impl Watch {
    /// Ends the call, and gives what takes the place of its outcome if an interceptor has panicked.
    pub(crate) fn end(&mut self, ending: Ending<'_>, reply: Option<&Message>) -> Option<Status> {
        let passed = std::mem::take(&mut self.passed);
        let reply_metadata = reply.map_or(&[][..], Message::marked);
        let bytes = reply.map_or(0, |message| message.len() as u64 + message.tail_bytes());
        let call = Ended {
            method: self.method,
            ending,
            began: self.began,
            request_bytes: self.request_bytes,
            reply_bytes: bytes - reply_metadata.len() as u64,
            reply_metadata,
            items: self.items.as_ref(),
            extensions: &self.extensions,
        };
        let mut panicked = None;
        for interceptor in self.around.chain[..passed].iter().rev() {
            let after = || interceptor.after(&call);
            if let Err(status) = guarded(|| interceptor.name(), self.method, after) {
                panicked = Some(status);
            }
        }
        panicked
    }

    pub(crate) fn items(&self) -> Option<&ItemCounters> {
        self.items.as_ref()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.passed > 0 {
            self.end(Ending::Cancelled, None);
        }
    }
}
