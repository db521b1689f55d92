//! `--metrics ADDRESS`: the numbers of a server over HTTP, for Prometheus.
//!
//! Answers one request per connection, and knows one path; nothing else of HTTP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rpc_core::StatsHandle;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// Connections that are answered at once; more wait in the listener.
const AT_ONCE: usize = 8;
/// Longest request, bytes.
const MOST_BYTES: usize = 8 * 1024;
/// Longest time for a request and its answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Answers as long as the program runs.
///
/// # Errors
/// It cannot listen there.
pub async fn listen(
    address: SocketAddr,
    stats: StatsHandle,
) -> io::Result<(SocketAddr, JoinHandle<()>)> {
    let named = |error: io::Error| {
        let advice = match error.kind() {
            io::ErrorKind::AddrInUse => "; choose another port",
            io::ErrorKind::AddrNotAvailable => "; give an IP address of this host",
            io::ErrorKind::PermissionDenied => "; choose a port from 1024 on",
            _ => "",
        };
        let text = format!("--metrics {address}: cannot listen there: {error}{advice}");
        io::Error::new(error.kind(), text)
    };
    let listener = TcpListener::bind(address).await.map_err(named)?;
    let address = listener.local_addr()?;
    Ok((address, tokio::spawn(answer_all(listener, stats))))
}

async fn answer_all(listener: TcpListener, stats: StatsHandle) {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    while let Ok(place) = Arc::clone(&places).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let stats = stats.clone();
                tokio::spawn(async move {
                    let _place = place;
                    // Who does not read is not waited for.
                    let _ = tokio::time::timeout(TIMEOUT, answer(stream, &stats)).await;
                });
            }
            // No file descriptor left, for one: it may pass.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn answer(mut stream: TcpStream, stats: &StatsHandle) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() >= MOST_BYTES || stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let (status, body) = match path(&request) {
        b"/metrics" => ("200 OK", stats.stats().prometheus_text()),
        _ => ("404 Not Found", "the metrics are at /metrics\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

/// What a request asks for, without the part behind `?`; empty if that cannot be told.
fn path(request: &[u8]) -> &[u8] {
    let target = request.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    target.split(|byte| *byte == b'?').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rpc_core::Server;

    use super::*;
    use crate::testing::limited;

    async fn here() -> SocketAddr {
        let server = Server::builder().bind("mem://").await.unwrap();
        listen("127.0.0.1:0".parse().unwrap(), server.stats_handle()).await.unwrap().0
    }

    async fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        // A request that is too long may be answered by a reset.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    }

    #[tokio::test]
    async fn the_numbers_are_there_for_who_asks() {
        limited(async {
            let address = here().await;
            for _ in 0..3 {
                let answer = ask(address, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
                let (head, body) = answer.split_once("\r\n\r\n").unwrap();
                assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
                assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
                assert!(body.contains("\nrpc_server_connections 0\n"), "{body}");
            }
        })
        .await;
    }

    #[tokio::test]
    async fn requests_without_an_end_are_bounded() {
        limited(async {
            let address = here().await;
            assert_eq!(ask(address, &[b'x'; MOST_BYTES]).await, "");
            let next = ask(address, b"GET /metrics?x=1 HTTP/1.0\r\n\r\n").await;
            assert!(next.contains("rpc_server_set_ups 0"), "{next}");
        })
        .await;
    }

    #[tokio::test]
    async fn other_paths_are_not_found_and_the_right_one_is_named() {
        limited(async {
            let address = here().await;
            for request in ["GET / HTTP/1.1\r\n\r\n", "GET /metricsx HTTP/1.1\r\n\r\n", "\r\n\r\n"]
            {
                let answer = ask(address, request.as_bytes()).await;
                assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "{request}: {answer}");
                assert!(answer.ends_with("the metrics are at /metrics\n"), "{answer}");
            }
        })
        .await;
    }

    #[tokio::test]
    async fn an_address_that_is_taken_is_named() {
        limited(async {
            let address = here().await;
            let server = Server::builder().bind("mem://").await.unwrap();
            let error = listen(address, server.stats_handle()).await.unwrap_err();
            assert!(error.to_string().starts_with(&format!("--metrics {address}: ")), "{error}");
            assert!(error.to_string().ends_with("; choose another port"), "{error}");
        })
        .await;
    }
}
