//! Somebody on the way between ends of TLS over tcp: records, replays, crosses and leaves open what
//! they send.

#![allow(missing_docs, reason = "tests")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use rpc_core::identity::FailureReason;
use rpc_core::security::Tls;
use rpc_core::stats::StatsHandle;
use rpc_core::{Channel, ConnectError, Server};
use test_kit::Watchdog;
use test_kit::certificates::Authority;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const KV: &str = "spiffe://prod.example/ns/shop/sa/kv";
const CART: &str = "spiffe://prod.example/ns/shop/sa/cart";

#[rpc_core::service]
trait Counter {
    async fn add(&self) -> u32;
}

#[derive(Default)]
struct Shelf(Arc<AtomicU32>);

impl Counter for Shelf {
    async fn add(&self) -> u32 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// A server, and what its clients need.
struct World {
    at: String,
    stats: StatsHandle,
    count: Arc<AtomicU32>,
    client: Tls,
}

impl World {
    async fn new() -> Self {
        let ca = Authority::new("ca");
        let tls = |id| {
            let leaf = ca.issue(&[id]);
            Tls::from_pem_bytes(&leaf.cert, &leaf.key, ca.pem()).unwrap()
        };
        let shelf = Shelf::default();
        let count = Arc::clone(&shelf.0);
        let server = Server::builder().tls(tls(KV)).add_service(CounterServer::new(shelf));
        let server = server.bind("tcp://127.0.0.1:0").await.unwrap();
        let (at, stats) = (server.local_address().to_string(), server.stats_handle());
        tokio::spawn(server.serve());
        Self { at, stats, count, client: tls(CART).expect_peer(KV) }
    }

    async fn connect(&self, at: &str) -> Result<CounterClient, ConnectError> {
        let channel = Channel::builder().tls(self.client.clone()).connect(at).await?;
        Ok(CounterClient::new(channel))
    }

    async fn dial(&self) -> TcpStream {
        TcpStream::connect(self.at.strip_prefix("tcp://").unwrap()).await.unwrap()
    }

    /// All that a client sends, from its set-up to its end; the set-up alone comes first.
    async fn record(&self) -> Vec<Vec<u8>> {
        let (listener, address) = listen().await;
        let sent = Arc::<Mutex<Vec<Vec<u8>>>>::default();
        let pass = async {
            let (near, far) = (listener.accept().await.unwrap().0, self.dial().await);
            let (near_read, near_write) = near.into_split();
            let (far_read, far_write) = far.into_split();
            let up = forward(near_read, far_write, |bytes| sent.lock().unwrap().push(bytes));
            tokio::join!(up, forward(far_read, near_write, drop));
        };
        let call = async {
            let counter = self.connect(&address).await.unwrap();
            counter.add().await.unwrap();
        };
        tokio::join!(pass, call);
        sent.lock().unwrap().clone()
    }
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    (listener, address)
}

/// Forwards until the end.
async fn forward(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut seen: impl FnMut(Vec<u8>),
) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut bytes).await {
        seen(bytes[..len].to_vec());
        if to.write_all(&bytes[..len]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}

#[tokio::test]
async fn a_replayed_session_calls_nothing() {
    let _watchdog = Watchdog::start("replay");
    let world = World::new().await;
    let recorded = world.record().await.concat();
    for _ in 0..3 {
        let mut server = world.dial().await;
        let denied = world.stats.stats().denied;
        // The server may end it before it has all.
        let _ = server.write_all(&recorded).await;
        let mut answer = Vec::new();
        let _ = server.read_to_end(&mut answer).await;
        while world.stats.stats().denied == denied {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(world.count.load(Ordering::Relaxed), 1);
    assert_eq!(world.stats.stats().accepted, 1);
    assert_eq!(world.connect(&world.at).await.unwrap().add().await, Ok(2));
}

/// Two clients whose set-ups go to one connection of the server and the rest to another: each
/// handshake would be right by itself.
#[tokio::test]
async fn crossed_sessions_are_found() {
    let _watchdog = Watchdog::start("splice");
    let world = World::new().await;
    let (listener, address) = listen().await;
    let pass = async {
        let mut pairs = Vec::new();
        for _ in 0..2 {
            let (mut near, mut far) = (listener.accept().await.unwrap().0, world.dial().await);
            let mut bytes = vec![0; 4096];
            let len = near.read(&mut bytes).await.unwrap();
            far.write_all(&bytes[..len]).await.unwrap();
            pairs.push((near, far));
        }
        for (near, far) in &mut pairs {
            let mut bytes = vec![0; 4096];
            let len = far.read(&mut bytes).await.unwrap();
            near.write_all(&bytes[..len]).await.unwrap();
        }
        let [(near, far), (other_near, other_far)] = pairs.try_into().unwrap();
        let [mut a, mut b, mut c, mut d] = [near, other_far, other_near, far];
        // What an end leaves behind is of no interest.
        let _ = tokio::join!(
            tokio::io::copy_bidirectional(&mut a, &mut b),
            tokio::io::copy_bidirectional(&mut c, &mut d)
        );
        // The clients say how it has ended.
        std::future::pending::<()>().await;
    };
    let meet = async { tokio::join!(world.connect(&address), world.connect(&address)) };
    let (one, other) = tokio::select! {
        found = meet => found,
        () = pass => panic!("the clients still connect"),
    };
    for outcome in [one, other] {
        match outcome {
            Err(ConnectError::Handshake { failure, .. }) => {
                assert_eq!(failure.reason, FailureReason::SetUpChanged, "{failure}");
            }
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("a crossed session is taken"),
        }
    }
    assert_eq!((world.count.load(Ordering::Relaxed), world.stats.stats().accepted), (0, 0));
}

/// More than a server keeps in set-up at once.
#[tokio::test]
async fn half_open_handshakes_hold_nobody_up() {
    const CROWD: u32 = 400;
    let _watchdog = Watchdog::start("half-open handshakes");
    let world = World::new().await;
    let set_up = world.record().await.swap_remove(0);
    let counter = world.connect(&world.at).await.unwrap();
    let mut crowd = Vec::new();
    for number in 0..CROWD {
        let mut stranger = world.dial().await;
        // Those before it may have to go for it.
        let _ = stranger.write_all(&set_up).await;
        crowd.push(stranger);
        if number % 20 == 0 {
            counter.add().await.unwrap();
            let late = world.connect(&world.at).await.unwrap();
            late.add().await.unwrap();
        }
    }
    assert_eq!(world.count.load(Ordering::Relaxed), 1 + 2 * CROWD.div_ceil(20));
    assert_eq!(world.stats.stats().accepted, 2 + u64::from(CROWD.div_ceil(20)));
    drop(crowd);
    counter.add().await.unwrap();
}
