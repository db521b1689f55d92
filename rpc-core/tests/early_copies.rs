//! Payloads that a method owns are copied while they arrive; those that it reads in place are not.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use rpc_core::service::{Dispatch, Handler, Request, ServiceDescriptor};
use rpc_core::{Bulk, Server};

#[rpc_core::service]
trait Store {
    async fn own(&self, data: Bytes) -> u64;
    async fn read(&self, data: Bulk) -> u64;
}

struct Service;

impl Store for Service {
    async fn own(&self, data: Bytes) -> u64 {
        data.len() as u64
    }

    async fn read(&self, data: Bulk) -> u64 {
        data.len()
    }
}

/// Notes of each request whether its tail was copied out of the arena before it is decoded.
struct Watch<D>(D, Arc<AtomicBool>);

impl<D: Dispatch> Dispatch for Watch<D> {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        self.0.descriptor()
    }

    fn dispatch(&self, method: usize, request: Request) -> Handler {
        let is_copied = request.message.tail().unwrap().is_private();
        self.1.store(is_copied, Ordering::Relaxed);
        self.0.dispatch(method, request)
    }
}

/// Calls until the tail of a request was copied, or was not. Earlier ones may have been sent before
/// there was an arena, or while the one before them was still held.
async fn until(is_copied: bool, watched: &AtomicBool, call: impl AsyncFn()) -> bool {
    for _ in 0..100 {
        call().await;
        if watched.load(Ordering::Relaxed) == is_copied {
            return true;
        }
    }
    false
}

#[tokio::test]
async fn owned_payloads_are_copied_while_they_arrive() {
    let watched = Arc::new(AtomicBool::new(false));
    let service = Watch(StoreServer::new(Service), Arc::clone(&watched));
    let server = Server::builder().add_service(service).bind("mem://early-copies").await.unwrap();
    tokio::spawn(server.serve());
    let client = StoreClient::connect("mem://early-copies").await.unwrap();
    let payload = Bytes::from(vec![7; 512 << 10]);
    let read = async || assert_eq!(client.read(Bulk::from(payload.clone())).await, Ok(512 << 10));
    let own = async || assert_eq!(client.own(payload.clone()).await, Ok(512 << 10));
    assert!(until(false, &watched, &read).await, "there is an arena");
    for _ in 0..10 {
        read().await;
        assert!(!watched.load(Ordering::Relaxed), "a payload that is read in place was copied");
    }
    assert!(until(true, &watched, &own).await, "no owned payload was copied early");
}
