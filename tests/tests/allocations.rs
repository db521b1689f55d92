//! In the steady state, serving a small call allocates nothing.
#![allow(missing_docs, unsafe_code, reason = "a counting allocator, and an example service")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Instant;

use rpc_core::identity::Identity;
use rpc_core::service::{Decoding, Dispatch, MethodDescriptor, Reply, Request};
use rpc_core::{Context, Metadata};
use rpc_transport::device::PeerIdentity;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;
use tests::CODECS;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// Counts each thread's requests to the system's allocator.
struct Counting;

fn count() {
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often `body` allocates.
fn allocations(body: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    body();
    ALLOCATIONS.get() - before
}

#[rpc_core::service]
pub trait Echo {
    async fn echo(&self, payload: &[u8]) -> Result<rpc_core::bytes::Bytes, u8>;
    async fn count(&self, payload: &[u8], key: &str) -> u64;
    async fn later(&self, payload: &[u8]) -> u64;
    async fn owned(&self, payload: Vec<u8>) -> u64;
}

struct Service;

/// Pending once.
struct Yield(bool);

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        cx.waker().wake_by_ref();
        if std::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Echo for Service {
    async fn echo(&self, payload: &[u8]) -> Result<rpc_core::bytes::Bytes, u8> {
        assert_eq!(payload.len(), 64);
        // A static payload, since the copy would be the service's own allocation.
        Ok(rpc_core::bytes::Bytes::from_static(&[7; 64]))
    }

    async fn count(&self, payload: &[u8], key: &str) -> u64 {
        assert!(Context::current_deadline().is_some());
        (payload.len() + key.len()) as u64
    }

    async fn later(&self, payload: &[u8]) -> u64 {
        Yield(false).await;
        assert_eq!(Context::current().method_name(), "");
        payload.len() as u64
    }

    async fn owned(&self, payload: Vec<u8>) -> u64 {
        payload.len() as u64
    }
}

/// One call as a server serves it: message in, reply out.
fn serve(
    server: &dyn Dispatch,
    method: usize,
    codec: rpc_core::Codec,
    args: &[u8],
    caller: &Arc<Identity>,
) {
    let context = Context::new()
        .with_deadline(Some(Instant::now()))
        .with_metadata(Metadata::new())
        .with_identity(Arc::clone(caller));
    let request = Request::new(Message::copied(args), codec, Decoding::OwnTypes, context);
    let mut handler = server.dispatch(method, request);
    let mut cx = TaskContext::from_waker(Waker::noop());
    let reply = loop {
        if let Poll::Ready(reply) = handler.poll_caught(&mut cx) {
            break reply;
        }
    };
    assert!(matches!(reply, Reply::Ok(_)));
}

#[test]
fn serving_a_small_call_allocates_nothing() {
    let server = EchoServer::new(Service);
    let methods: &[&MethodDescriptor] = server.descriptor().methods;
    let caller = Arc::new(Identity::from(PeerIdentity::SameProcess));
    for codec in CODECS {
        let mut args = OutBuf::new();
        codec.encode(&[7_u8; 64][..], &mut args).unwrap();
        let mut two = OutBuf::new();
        codec.encode(&(&[7_u8; 64][..], "key"), &mut two).unwrap();
        for (method, args, expected) in [(0, &args, 0), (1, &two, 0), (2, &args, 0), (3, &args, 1)]
        {
            let name = methods[method].name;
            // The first calls fill the free lists, and their entries grow to the needed size.
            for _ in 0..10 {
                serve(&server, method, codec, args, &caller);
            }
            let seen = allocations(|| {
                for _ in 0..100 {
                    serve(&server, method, codec, args, &caller);
                }
            });
            assert_eq!(seen, 100 * expected, "{name} with {codec:?}");
        }
    }
}

#[test]
fn many_handlers_at_once_allocate_nothing_either() {
    let server = EchoServer::new(Service);
    let codec = rpc_core::Codec::default();
    let mut args = OutBuf::new();
    codec.encode(&[7_u8; 64][..], &mut args).unwrap();
    let mut handlers = Vec::with_capacity(32);
    let mut round = || {
        for _ in 0..32 {
            let message = Message::copied(&args);
            let request = Request::new(message, codec, Decoding::OwnTypes, Context::new());
            handlers.push(server.dispatch(2, request));
        }
        let mut cx = TaskContext::from_waker(Waker::noop());
        for handler in &mut handlers {
            assert!(handler.poll_caught(&mut cx).is_pending());
        }
        for mut handler in handlers.drain(..) {
            assert!(handler.poll_caught(&mut cx).is_ready());
        }
    };
    for _ in 0..10 {
        round();
    }
    assert_eq!(allocations(round), 0);
}

#[test]
fn encoding_a_small_call_allocates_nothing() {
    for codec in CODECS {
        let encode = || {
            let mut out = OutBuf::new();
            codec.encode(&([7_u8; 32], "key"), &mut out).unwrap();
        };
        encode();
        assert_eq!(allocations(encode), 0, "{codec:?}");
    }
}
