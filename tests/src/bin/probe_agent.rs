//! Runs programs for the end-to-end tests of another machine (`tests::agent`). Takes the address to
//! listen at; prints `READY address`, then serves until it is killed.

use tests::process::{self, READY};
use tokio::net::TcpListener;

#[tokio::main(worker_threads = 2)]
async fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(address).await?;
    process::say(READY, listener.local_addr()?);
    tests::agent::serve(listener).await
}
