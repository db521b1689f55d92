//! A server under load, and its page: `cargo run -p rpc-over-rdma-admin --example admin`.

use std::time::Duration;

use rpc_admin::{Admin, Recent};
use rpc_core::{Channel, Server, Status};

#[rpc_core::service]
trait Store {
    async fn get(&self, key: u64) -> Result<u64, Status>;
    async fn put(&self, key: u64, value: &[u8]) -> u64;
    async fn scan(&self, from: u64) -> u64;
}

struct Shelf;

impl Store for Shelf {
    async fn get(&self, key: u64) -> Result<u64, Status> {
        match key % 50 {
            0 => Err(Status::not_found(format!("no such key: {key}"))),
            _ => Ok(key),
        }
    }

    async fn put(&self, key: u64, value: &[u8]) -> u64 {
        tokio::time::sleep(Duration::from_millis(key % 7)).await;
        value.len() as u64
    }

    async fn scan(&self, from: u64) -> u64 {
        tokio::time::sleep(Duration::from_millis(20 + from % 200)).await;
        from
    }
}

async fn load(store: StoreClient, pace: Duration) {
    for key in 0_u64.. {
        // Failures are shown on the page.
        let _ = store.get(key).await;
        let _ = store.put(key, &vec![7; 20_000]).await;
        if key % 20 == 0 {
            let _ = store.scan(key).await;
        }
        tokio::time::sleep(pace).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port = match std::env::args().nth(1) {
        Some(port) => {
            port.parse().map_err(|_| format!("`{port}` is not a port; usage: admin [PORT]"))?
        }
        None => 9180,
    };
    tracing_subscriber::fmt().init();
    let recent = Recent::new();
    let server = Server::builder()
        .interceptor(recent.clone())
        .add_service(StoreServer::new(Shelf))
        .bind("tcp://127.0.0.1:0")
        .await?;
    let address = server.local_address().to_string();
    let stats = server.stats_handle();
    tokio::spawn(server.serve());
    let mut admin = Admin::new(stats).title("store").recent(recent);
    for pace in [1, 3, 9, 27] {
        let channel = Channel::builder().connect(&address).await?;
        if pace == 1 {
            admin = admin.channel("channel", &channel);
        }
        tokio::spawn(load(StoreClient::new(channel), Duration::from_millis(pace)));
    }
    let admin = admin.bind(([127, 0, 0, 1], port)).await?;
    println!("{}", admin.url());
    Ok(admin.serve().await?)
}
