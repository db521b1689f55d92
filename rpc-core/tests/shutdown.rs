//! Servers that shut down while clients connect.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rpc_core::{Channel, Server};

/// Connects repeatedly until the server has ended; returns the connected channels.
async fn storm(address: String, ended: Arc<AtomicBool>) -> Vec<Channel> {
    let mut channels = Vec::new();
    while !ended.load(Ordering::SeqCst) {
        match Channel::connect(&address).await {
            Ok(channel) => channels.push(channel),
            Err(_) => tokio::task::yield_now().await,
        }
    }
    channels
}

/// Every accepted client, whenever it connected, is notified of the shutdown.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_shutdown_under_load_leaves_no_connection() {
    for round in 0..20 {
        let address = format!("mem://shutdown-storm-{round}");
        let server =
            Server::builder().grace(Duration::from_secs(3600)).bind(&address).await.unwrap();
        let stop = server.shutdown_handle();
        let serving = tokio::spawn(server.serve());
        let ended = Arc::new(AtomicBool::new(false));
        let storms: Vec<_> =
            (0..4).map(|_| tokio::spawn(storm(address.clone(), Arc::clone(&ended)))).collect();
        for _ in 0..round * 5 {
            tokio::task::yield_now().await;
        }
        stop.shutdown();
        serving.await.unwrap().unwrap();
        ended.store(true, Ordering::SeqCst);
        for storm in storms {
            for channel in storm.await.unwrap() {
                while channel.close_cause().is_none() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
        }
    }
}
