//! Several servers behind a name, over `mem://` and virtual time; dead ones over `tcp://` as well.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use rpc_core::client::ConnectivityState;
use rpc_core::client::resolve::{Dns, Resolve, ResolveError, Resolving, StaticList};
use rpc_core::{Channel, Code, Server};
use tokio::task::JoinHandle;

#[rpc_core::service]
trait Named {
    /// Returns the server's number after its delay.
    async fn name(&self) -> u64;
    #[rpc(idempotent)]
    async fn name_again(&self) -> u64;
}

struct Numbered {
    number: u64,
    takes: Duration,
    calls: Arc<AtomicU64>,
}

impl Named for Numbered {
    async fn name(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(self.takes).await;
        self.number
    }

    async fn name_again(&self) -> u64 {
        self.name().await
    }
}

struct Running {
    calls: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

async fn serve(address: &str, number: u64, takes_ms: u64) -> Running {
    serve_at(address, number, takes_ms).await.0
}

/// With the address that it has.
async fn serve_at(address: &str, number: u64, takes_ms: u64) -> (Running, String) {
    let calls = Arc::<AtomicU64>::default();
    let takes = Duration::from_millis(takes_ms);
    let service = NamedServer::new(Numbered { number, takes, calls: Arc::clone(&calls) });
    let server = Server::builder().add_service(service).bind(address).await.unwrap();
    let address = server.local_address().to_string();
    let task = tokio::spawn(async move { server.serve().await.unwrap() });
    (Running { calls, task }, address)
}

impl Running {
    fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// A resolver whose answer the test changes.
#[derive(Clone, Default)]
struct Book(Arc<Mutex<Vec<String>>>, Arc<AtomicU64>);

impl Book {
    fn write<const N: usize>(&self, addresses: [&str; N]) {
        *self.0.lock() = addresses.map(str::to_owned).to_vec();
    }
}

impl Resolve for Book {
    fn name(&self) -> String {
        "the book".to_owned()
    }

    fn resolve(&self) -> Resolving<'_> {
        self.1.fetch_add(1, Ordering::SeqCst);
        let addresses = self.0.lock().clone();
        Box::pin(async move {
            let failed = |error| ResolveError::new("the book", format!("{error}"));
            addresses.iter().map(|address| address.parse().map_err(failed)).collect()
        })
    }
}

fn client(resolver: impl Resolve) -> NamedClient {
    NamedClient::new(Channel::builder().connect_balanced(resolver).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_slow_server_gets_few_calls() {
    let addresses = ["mem://spread-1", "mem://spread-2", "mem://spread-3"];
    let mut servers = Vec::new();
    for (number, (address, takes)) in (0..).zip(addresses.iter().zip([1, 1, 50])) {
        servers.push(serve(address, number, takes).await);
    }
    let client = client(StaticList::new(addresses).unwrap());
    for _ in 0..200 {
        for name in join_all((0..8).map(|_| client.name())).await {
            name.unwrap();
        }
    }
    let calls: Vec<_> = servers.iter().map(Running::calls).collect();
    assert_eq!(calls.iter().sum::<u64>(), 1600);
    assert!(calls[0] > 400 && calls[1] > 400, "{calls:?}");
    assert!(calls[2] < 400, "{calls:?}");
    assert_eq!(client.channel().state(), ConnectivityState::Ready);
}

#[tokio::test(start_paused = true)]
async fn a_dead_end_point_fails_no_call() {
    let addresses = ["mem://dead-1", "mem://dead-2", "mem://dead-3"];
    let first = serve(addresses[0], 0, 1).await;
    let second = serve(addresses[1], 1, 1).await;
    // The third address never has a server.
    let client = client(StaticList::new(addresses).unwrap());
    for _ in 0..100 {
        client.name().await.unwrap();
    }
    assert!(first.calls() > 10 && second.calls() > 10);
    let calls: Vec<_> = (0..20).map(|_| client.name_again().start()).collect();
    first.kill().await;
    for call in calls {
        call.await.expect("what was at the first goes to the second");
    }
    for _ in 0..100 {
        assert_eq!(client.name().await, Ok(1));
    }
    // It comes back, and is found.
    let first = serve(addresses[0], 0, 1).await;
    while first.calls() == 0 {
        client.name().await.unwrap();
    }
}

/// One address has no listener; another one accepts connections but stays silent.
#[tokio::test]
async fn dead_end_points_over_tcp_fail_no_call() {
    let far = Duration::from_secs(100);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    // Bound, to reserve the port, but not listening.
    let not_listening = tokio::net::TcpSocket::new_v4().unwrap();
    not_listening.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let gone = not_listening.local_addr().unwrap();
    let silent_address = format!("tcp://{}", silent.local_addr().unwrap());
    let (first, first_address) = serve_at("tcp://127.0.0.1:0", 1, 1).await;
    let (second, second_address) = serve_at("tcp://127.0.0.1:0", 2, 1).await;
    let all = [silent_address, format!("tcp://{gone}"), first_address, second_address];
    // Longer than any call waits.
    let builder = Channel::builder().connect_timeout(10 * far);
    let client = builder.connect_balanced(StaticList::new(all).unwrap()).unwrap();
    let client = NamedClient::new(client);
    // Nothing is connected yet.
    for name in join_all((0..50).map(|_| client.name().timeout(far))).await {
        assert!(matches!(name, Ok(1 | 2)), "{name:?}");
    }
    while first.calls() == 0 || second.calls() == 0 {
        client.name().timeout(far).await.unwrap();
    }
    let calls: Vec<_> = (0..20).map(|_| client.name_again().timeout(far).start()).collect();
    first.kill().await;
    for call in calls {
        call.await.expect("what was at the first goes to the second");
    }
    let before = second.calls();
    for _ in 0..100 {
        assert_eq!(client.name_again().timeout(far).await, Ok(2));
    }
    assert!(second.calls() >= before + 100);
    second.kill().await;
    // No server is left: each dead end point is named.
    let status = loop {
        match client.name().timeout(Duration::from_millis(200)).await {
            Err(status) if status.message().contains(&gone.to_string()) => break status,
            _ => {}
        }
    };
    assert!(status.message().contains("tcp://"), "{status}");
    drop(silent);
}

#[tokio::test(start_paused = true)]
async fn servers_come_and_go_as_the_resolver_says() {
    let book = Book::default();
    let client = client(book.clone());
    let status = client.name().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.is_retryable(), "{status}");
    assert!(status.message().contains("the book resolves to no address"), "{status}");
    let waiting = tokio::spawn(client.name().wait_for_ready(true).start());
    let first = serve("mem://book-1", 1, 1).await;
    book.write(["mem://book-1"]);
    assert_eq!(waiting.await.unwrap(), Ok(1));
    // The server moves.
    let _second = serve("mem://book-2", 2, 1).await;
    book.write(["mem://book-2"]);
    tokio::time::sleep(Duration::from_secs(10)).await;
    first.kill().await;
    assert_eq!(client.name_again().wait_for_ready(true).await, Ok(2));
    // A resolver that fails changes nothing.
    book.write(["nonsense"]);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(client.name().await, Ok(2));
}

#[tokio::test(start_paused = true)]
async fn nobody_is_stormed_when_all_are_dead() {
    let book = Book::default();
    book.write(["mem://gone-1", "mem://gone-2"]);
    let client = client(book.clone());
    for _ in 0..1000 {
        let status = client.name().await.unwrap_err();
        assert!(status.message().contains("nothing is listening at mem://gone-1"), "{status}");
        assert!(status.message().contains("nothing is listening at mem://gone-2"), "{status}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(client.channel().state(), ConnectivityState::TransientFailure);
    let asked = book.1.load(Ordering::SeqCst);
    assert!(asked <= 12, "ten seconds: {asked}");
}

#[tokio::test]
async fn bad_names_have_clear_errors() {
    for (text, words) in [
        ("shm://name", "only host names can be looked up in DNS"),
        ("tcp://", "host:port"),
        ("nowhere", "a scheme is missing"),
    ] {
        let error = Dns::new(text).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains(text), "{error}");
    }
    assert!(StaticList::new(["tcp://a:1", "b"]).is_err());
    let client = client(Dns::new("tcp://no-such-host.invalid:1").unwrap());
    let status = client.name().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("tcp://no-such-host.invalid:1"), "{status}");
    let addresses = Dns::new("tcp://localhost:7").unwrap().resolve().await.unwrap();
    assert!(addresses.iter().all(|it| it.address().to_string().ends_with(":7")), "{addresses:?}");
    assert!(!addresses.is_empty());
}
