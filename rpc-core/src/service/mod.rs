//! The interface of a service: its methods, and how a request becomes a reply.
//!
//! Owns the interface between generated dispatch and the server. Knows nothing of connections: a
//! [`Request`] comes from a session or from a test.

pub(crate) mod handler;
mod pooled_future;

use std::sync::Arc;

pub use rpc_schema::hash::{method_id, signature_hash};
pub use rpc_transport::message::outgoing::OutBuf;
pub use rpc_transport::message::payload::Payload;
pub use rpc_transport::message::received::Message;

pub use self::handler::Handler;
use crate::codec::Codec;
use crate::context::Context;
pub use crate::learnt::{LearntMethod, LearntTypes, TooManyMethods};
pub use crate::method::MethodDescriptor;
pub use crate::reply::{Reply, ReplyKind, ReplyParts, Value};
pub use crate::resolution::{Decoding, Planned};
use crate::stream::item_counts::ItemCounters;
use crate::stream::stream_ref::Streams;

/// Describes a service to both sides. Lives in a `static` of the generated code.
#[derive(Debug)]
#[non_exhaustive]
pub struct ServiceDescriptor {
    /// Its name: the trait's, unless `#[service(name = "...")]` says otherwise.
    pub name: &'static str,
    /// Its methods, in the order of [`Dispatch::dispatch`].
    pub methods: &'static [&'static MethodDescriptor],
    /// Its documentation: that of the trait.
    pub docs: &'static str,
}

impl ServiceDescriptor {
    /// Describes a service.
    #[must_use]
    pub const fn new(name: &'static str, methods: &'static [&'static MethodDescriptor]) -> Self {
        Self { name, methods, docs: "" }
    }

    /// Sets [`ServiceDescriptor::docs`].
    #[must_use]
    pub const fn documented(mut self, docs: &'static str) -> Self {
        self.docs = docs;
        self
    }

    /// The position of the method with that id.
    #[must_use]
    pub fn position(&self, id: u32) -> Option<usize> {
        self.methods.iter().position(|method| method.id == id)
    }
}

/// A type of a service: the generated server and clients.
pub trait Described {
    /// Describes the service.
    fn service() -> &'static ServiceDescriptor;
}

/// Checks at compile time that methods of one service have distinct ids.
///
/// # Panics
/// When two have the same.
#[doc(hidden)]
pub const fn assert_distinct_ids<const N: usize>(names: [&str; N]) {
    // A hash table with chaining, so that a thousand methods stay within the compiler's limit for
    // constant evaluation. Positions are stored plus one; 0 ends a chain. `first` has the first
    // method of each bucket, `next` the next method in the same bucket.
    let (mut first, mut next, mut ids) = ([0; N], [0; N], [0; N]);
    let mut at = 0;
    while at < N {
        let id = method_id(names[at]);
        let bucket = id as usize % N;
        let mut other = first[bucket];
        while other > 0 {
            assert!(
                ids[other - 1] != id,
                "two methods of this service have the same id; give one of them another name on \
                 the wire with #[rpc(name = \"...\")]"
            );
            other = next[other - 1];
        }
        (ids[at], next[at], first[bucket]) = (id, first[bucket], at + 1);
        at += 1;
    }
}

/// A service that can be called. Generated servers implement it; so can a layer around one.
///
/// # Example
/// A layer that asks for a token:
/// ```
/// use rpc_core::Status;
/// use rpc_core::service::{Dispatch, Handler, Reply, Request, ServiceDescriptor};
///
/// struct WithToken<D>(D);
///
/// impl<D: Dispatch> Dispatch for WithToken<D> {
///     fn descriptor(&self) -> &'static ServiceDescriptor {
///         self.0.descriptor()
///     }
///
///     fn dispatch(&self, method: usize, request: Request) -> Handler {
///         if request.context.metadata().text("token") == Some("s3cret") {
///             return self.0.dispatch(method, request);
///         }
///         Handler::ready(Reply::Status(Status::unauthenticated("this service wants a token")))
///     }
/// }
///
/// # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
/// # struct Polite;
/// # impl Greeter for Polite {
/// #     async fn greet(&self) -> String { "Good day".into() }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let service = WithToken(GreeterServer::new(Polite));
/// let server = rpc_core::Server::builder().add_service(service).bind("mem://layer").await?;
/// tokio::spawn(server.serve());
/// let greeter = GreeterClient::connect("mem://layer").await?;
/// assert_eq!(greeter.greet().await.unwrap_err().code(), rpc_core::Code::Unauthenticated);
/// assert_eq!(greeter.greet().metadata("token", "s3cret").await?, "Good day");
/// # Ok(()) }
/// ```
pub trait Dispatch: Send + Sync + 'static {
    /// The service's name and methods.
    fn descriptor(&self) -> &'static ServiceDescriptor;

    /// Starts the method at that position of the descriptor's list. Decoding happens when the
    /// handler is first polled. A position out of range gives `Unimplemented`.
    fn dispatch(&self, method: usize, request: Request) -> Handler;
}

impl<D: Dispatch + ?Sized> Dispatch for Arc<D> {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        (**self).descriptor()
    }

    fn dispatch(&self, method: usize, request: Request) -> Handler {
        (**self).dispatch(method, request)
    }
}

/// A request on its way to a handler.
#[derive(Debug)]
#[non_exhaustive]
pub struct Request {
    /// The encoded arguments.
    pub message: Message,
    /// The codec of the arguments; the reply uses the same.
    pub codec: Codec,
    /// How the arguments are decoded.
    pub decoding: Decoding,
    /// The call's deadline, metadata, peer and method.
    pub context: Context,
    /// Its streams, for a method that has some.
    pub(crate) streams: Option<Box<Streams>>,
}

impl Request {
    /// Makes a request.
    #[must_use]
    pub fn new(message: Message, codec: Codec, decoding: Decoding, context: Context) -> Self {
        Self { message, codec, decoding, context, streams: None }
    }

    /// Has the items of its streams counted, if it has some.
    pub(crate) fn count_items(&mut self) -> Option<Arc<ItemCounters>> {
        let stream = &mut self.streams.as_mut()?.stream;
        Some(Arc::clone(stream.counters.get_or_insert_default()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::method::{NEXT_INDEX, method_in_use};

    #[test]
    fn hashes_are_fnv_1a() {
        // Published test values of FNV-1a.
        assert_eq!(method_id(""), 0x811c_9dc5);
        assert_eq!(method_id("a"), 0xe40c_292c);
        assert_eq!(method_id("foobar"), 0xbf9c_f968);
        assert_eq!(signature_hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(signature_hash("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(signature_hash("foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn each_method_in_use_has_a_number() {
        static METHODS: [MethodDescriptor; 3] = [
            MethodDescriptor::new("A.a", "() -> ()", &[]),
            MethodDescriptor::new("A.b", "() -> ()", &[]),
            MethodDescriptor::new("A.c", "() -> ()", &[]),
        ];
        let assign = |at: usize| std::thread::spawn(move || METHODS[at].dense_index());
        let threads: Vec<_> = [0, 1, 2, 2, 1, 0, 0, 2].map(assign).into();
        let seen: Vec<u32> = threads.into_iter().map(|t| t.join().unwrap()).collect();
        let [a, b, c] = [0, 1, 2].map(|at: usize| METHODS[at].dense_index());
        assert_eq!(seen, [a, b, c, c, b, a, a, c]);
        assert!(a != b && b != c && c != a, "{seen:?}");
        assert!(seen.iter().all(|&index| index < NEXT_INDEX.load(Ordering::Relaxed)));
        for (index, method) in [a, b, c].into_iter().zip(&METHODS) {
            assert_eq!(method_in_use(index).map(|found| found.name), Some(method.name));
        }
    }

    #[test]
    #[should_panic(expected = "have the same id")]
    fn methods_with_one_id_are_refused() {
        assert_distinct_ids(["A.a", "A.b", "A.a"]);
    }

    #[test]
    fn methods_of_one_bucket_have_distinct_ids() {
        assert_distinct_ids(["A.a", "A.b", "A.c", "A.d", "A.e"]);
        assert_distinct_ids([]);
    }
}
