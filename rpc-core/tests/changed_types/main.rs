//! Types that differ at the two ends of a connection: each kind of change, with the old and the new
//! types in either role, on every software device, with both codecs.

#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(unreachable_pub, reason = "the modules of the versions are generated")]

mod arguments;
mod calls;
mod converted;
mod elsewhere;
mod layers;
mod more_rows;
mod raced;
mod rows;
mod streams;
mod versions;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rpc_core::service::Dispatch;
use rpc_core::{Channel, Codec, Server, Status};

const CODECS: [Codec; 2] = [Codec::Bincode, Codec::Postcard];

/// An unused address of each device.
fn addresses() -> [String; 3] {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("changed-types-{}-{number}", std::process::id());
    [format!("mem://{name}"), format!("shm://{name}"), "tcp://127.0.0.1:0".to_owned()]
}

/// Serves a service, and gives a channel to it for each device and codec.
async fn channels<D: Dispatch>(make: impl Fn() -> D) -> Vec<Channel> {
    let mut channels = Vec::new();
    for address in addresses() {
        let server = Server::builder().add_service(make()).bind(&*address).await.unwrap();
        let address = server.local_address().to_string();
        tokio::spawn(server.serve());
        for codec in CODECS {
            let channel = Channel::builder().codec(codec).connect(&address).await.unwrap();
            channels.push(channel);
        }
    }
    channels
}

/// Runs a test under a hard time limit.
fn run(test: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.unwrap();
    runtime.block_on(async {
        let test = tokio::time::timeout(Duration::from_secs(60), test);
        test.await.expect("the test takes too long");
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
}

#[track_caller]
fn assert_has(status: &Status, parts: &[&str]) {
    for part in parts {
        assert!(status.message().contains(part), "{part:?} is not in {status}");
    }
}
