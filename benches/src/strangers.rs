//! A client with a good certificate connects to a server that strangers flood with handshakes: how
//! long its connects take, of those on an idle server.
//!
//! The strangers have no certificate of the server's authority. They show as much as is not refused
//! before signatures are checked. Each tries again a while after it was refused, as strangers who
//! never pause take the cores that all three programs of this bench share. They come from an IPv4
//! address, and the good client from an IPv6 one, as from another host. It also comes from theirs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rpc_core::security::Tls;
use rpc_core::server::Allow;
use rpc_core::{Channel, Server};
use rpc_perf::server_process::ServerProcess;
use test_kit::certificates::{Authority, Leaf, rcgen};

use crate::ours::{EchoClient, echo_server};
use crate::report::{at_most, histogram, quantile, row};

/// Strangers: nearly as many as a listener allows set-ups.
const STRANGERS: usize = 250;
/// Slowest connects beside strangers, of those on an idle server.
const BAR: f64 = 3.0;
const SERVER: &str = "spiffe://bench.example/server";

/// Serves echo with the certificates in a directory, to IPv4 and IPv6.
pub(crate) async fn serve(address: &str, directory: &str) -> Result<()> {
    let allow = Allow::nobody().rule(&["anyone"], &["*"])?;
    let builder = Server::builder().tls(load(directory, "server")?).allow(allow);
    let server = builder.add_service(echo_server()).bind(address).await?;
    println!("READY {}", server.local_address());
    server.serve().await?;
    Ok(())
}

/// Connects as `who` again and again, many at a time, until the process is killed.
pub(crate) async fn flood(
    address: &str,
    directory: &str,
    who: &str,
    pause: Duration,
) -> Result<()> {
    let tls = load(directory, who)?.expect_peer(SERVER);
    let count = Arc::new(AtomicU64::new(0));
    for number in 0..STRANGERS {
        let (tls, address, count) = (tls.clone(), address.to_owned(), Arc::clone(&count));
        tokio::spawn(async move {
            tokio::time::sleep(pause.mul_f64(number as f64 / STRANGERS as f64)).await;
            loop {
                let _refused = Channel::builder().tls(tls.clone()).connect(&address).await;
                if count.fetch_add(1, Ordering::Relaxed) + 1 == STRANGERS as u64 {
                    println!("READY {STRANGERS}");
                }
                tokio::time::sleep(pause).await;
            }
        });
    }
    std::future::pending().await
}

pub(crate) async fn run(duration: Duration, pause_millis: u64) -> Result<()> {
    let directory =
        std::env::temp_dir().join(format!("rpc-bench-strangers-{}", std::process::id()));
    write(&directory)?;
    let outcome = measure(&directory.display().to_string(), duration, pause_millis).await;
    std::fs::remove_dir_all(&directory)?;
    outcome
}

async fn measure(directory: &str, duration: Duration, pause_millis: u64) -> Result<()> {
    println!("connects of a good client beside {STRANGERS} strangers, over tcp: p50, p99");
    let pause = pause_millis.to_string();
    let arguments = ["serve", "strangers", "tcp://[::]:0", directory];
    let server = ServerProcess::start(arguments)?;
    let port = server.address().rsplit_once(':').context("no port")?.1;
    let [far, near] = ["[::1]", "127.0.0.1"].map(|host| format!("tcp://{host}:{port}"));
    let client = load(directory, "client")?.expect_peer(SERVER);
    connects(&client, &far, duration / 4).await?;
    let idle = connects(&client, &far, duration).await?;
    row("idle server", text(idle), "");
    for (who, shows) in [("foreign", "a foreign certificate"), ("forged", "a forged chain of 8")] {
        let _flood = ServerProcess::start(["flood", &near, directory, who, &pause])?;
        let beside = connects(&client, &far, duration).await?;
        row(
            format!("beside strangers with {shows}"),
            text(beside),
            at_most(beside[1] / idle[1], BAR),
        );
        let same = connects(&client, &near, duration).await?;
        row("  from the address of the strangers", text(same), format!("{:.3}", same[1] / idle[1]));
    }
    Ok(())
}

fn text([p50, p99]: [f64; 2]) -> String {
    format!("{p50:.2}, {p99:.2} ms")
}

/// The median and the 99th percentile, milliseconds, each with a call.
async fn connects(tls: &Tls, address: &str, duration: Duration) -> Result<[f64; 2]> {
    let (mut histogram, began) = (histogram(), Instant::now());
    while began.elapsed() < duration {
        let start = Instant::now();
        let channel = Channel::builder().tls(tls.clone()).connect(address).await?;
        histogram.record(u64::try_from(start.elapsed().as_nanos())?)?;
        EchoClient::new(channel).echo(&[7; 64]).await?;
    }
    Ok([0.5, 0.99].map(|at| quantile(&histogram, at) / 1e6))
}

fn load(directory: &str, who: &str) -> Result<Tls> {
    let path = |name: &str| Path::new(directory).join(name);
    let (cert, key) = (format!("{who}.pem"), format!("{who}-key.pem"));
    Ok(Tls::from_pem(path(&cert), path(&key), path("ca.pem"))?)
}

/// Certificates for all. The authority has a key of P-384, whose signatures cost most.
fn write(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory)?;
    let strong = || rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384);
    let [ours, pretender] =
        [Authority::with_key("ca", strong()?), Authority::with_key("ca", strong()?)];
    std::fs::write(directory.join("ca.pem"), ours.pem())?;
    let above: Vec<_> = (0..7).map(|at| pretender.intermediate(&format!("X{at}"))).collect();
    let mut forged = above[0].issue(&["spiffe://bench.example/stranger"]);
    forged.cert += &above.iter().map(Authority::pem).collect::<String>();
    let good = |name: &str| ours.issue(&[&*format!("spiffe://bench.example/{name}")]);
    let foreign = pretender.issue(&["spiffe://bench.example/stranger"]);
    for (name, Leaf { cert, key }) in [
        ("server", good("server")),
        ("client", good("client")),
        ("foreign", foreign),
        ("forged", forged),
    ] {
        std::fs::write(directory.join(format!("{name}.pem")), cert)?;
        std::fs::write(directory.join(format!("{name}-key.pem")), key)?;
    }
    Ok(())
}
