//! A link that carries 20 kB a second, in virtual time: slow, and not dead.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rpc_transport::connect::schemes;
use rpc_transport::engine::security::Security;
use rpc_transport::engine::spin::PollMode;
use rpc_transport::protocol::config::LinkConfig;
use rpc_transport::protocol::lock::Protection;
use rpc_transport::protocol::lock::fake::FakeFactory;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::yield_now;
use tokio::time::{Instant, advance, pause};

use crate::probe::{Habit, Probe};
use crate::world::{End, fresh_address, run_on_one_thread, shard};

/// Bytes that the link holds in transit.
const BUFFER: u32 = 16 << 10;
const TICK: Duration = Duration::from_millis(100);
/// Bytes that it carries each way in a tick.
const TICK_BYTES: usize = 2000;
const SECOND: Duration = Duration::from_secs(1);

/// One direction of the link.
#[derive(Default)]
struct Direction {
    /// Read, and not yet written.
    held: Vec<u8>,
}

impl Direction {
    /// Carries what the sockets give and take at once; returns how many bytes have come.
    fn carry(&mut self, from: &TcpStream, to: &TcpStream) -> usize {
        let mut bytes = [0; TICK_BYTES];
        let room = TICK_BYTES - self.held.len();
        let come = at_once(from.try_read(&mut bytes[..room]));
        self.held.extend_from_slice(&bytes[..come]);
        let gone = at_once(to.try_write(&self.held));
        self.held.drain(..gone);
        come
    }
}

fn at_once(result: io::Result<usize>) -> usize {
    match result {
        Ok(count) => count,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
        Err(error) => panic!("the link is lost: {error}"),
    }
}

/// The link: its sockets at the client's and at the server's side.
struct Link {
    near: TcpStream,
    far: TcpStream,
    up: Direction,
    down: Direction,
}

impl Link {
    /// Carries a tick's bytes; returns how many have come from the client.
    fn tick(&mut self) -> usize {
        self.down.carry(&self.far, &self.near);
        self.up.carry(&self.near, &self.far)
    }

    /// Takes a tick's bytes of the client, which the host acknowledges, and drops them.
    fn withhold(&mut self) -> usize {
        at_once(self.near.try_read(&mut [0; TICK_BYTES]))
    }
}

/// A connection of a client and a server through such a link.
async fn linked(config: LinkConfig, security: Option<[Security; 2]>) -> ([End; 2], Link) {
    let mut listener = schemes::listen(&fresh_address("tcp")).await.unwrap();
    let behind = listener.local_address().to_string().replace("tcp://", "").parse().unwrap();
    let front = small_socket();
    front.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let front: TcpListener = front.listen(1).unwrap();
    let address = format!("tcp://{}", front.local_addr().unwrap()).parse().unwrap();
    let resolved = schemes::resolve(&address).await.unwrap();
    let (client, ours) = shard(resolved.outgoing.device(), &config, 1, PollMode::Event);
    let (server, theirs) = shard(resolved.outgoing.device(), &config, 1, PollMode::Event);
    tokio::spawn(ours);
    tokio::spawn(theirs);
    let [near, far] = [Probe::new(Habit::Keep), Probe::new(Habit::Keep)];
    let records = [near.record(), far.record()];
    let [near_security, far_security] = match &security {
        Some([near, far]) => [Some(near), Some(far)],
        None => [None, None],
    };
    let set_up = async {
        let (outgoing, limit) = (resolved.outgoing, 60 * SECOND);
        let connect = client.connect_with(outgoing, &address, &config, limit, near, near_security);
        let accept = async {
            let incoming = listener.incoming().await.unwrap();
            server.accept_with(incoming, &config, far, far_security).await.unwrap()
        };
        let (near, far) = tokio::join!(connect, accept);
        (near.unwrap().key, far.key)
    };
    let mut set_up = Box::pin(set_up);
    let join = async {
        let near = front.accept().await.unwrap().0;
        let far = small_socket().connect(behind).await.unwrap();
        near.set_nodelay(true).unwrap();
        far.set_nodelay(true).unwrap();
        Link { near, far, up: Direction::default(), down: Direction::default() }
    };
    let mut link = tokio::select! {
        link = join => link,
        _ = &mut set_up => panic!("there is no link yet"),
    };
    let (near, far) = loop {
        tokio::select! {
            biased;
            keys = &mut set_up => break keys,
            () = yield_now() => drop(link.tick()),
        }
    };
    let [ours, theirs] = records;
    let near = End { shard: client.clone(), key: near, record: ours };
    let far = End { shard: server.clone(), key: far, record: theirs };
    drop(set_up);
    ([near, far], link)
}

fn small_socket() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(BUFFER).unwrap();
    socket
}

/// A regression: it was given up after 25 seconds. A tick passes when bytes have come, since the
/// kernel's own time is not virtual.
#[test]
fn large_message_arrives_over_a_slow_link() {
    run_on_one_thread("slow link", async {
        let ([client, server], mut link) = linked(LinkConfig::default(), None).await;
        pause();
        let began = Instant::now();
        let message = vec![7; 4 << 20];
        client.send(&message);
        while server.events().received == 0 {
            let closed = [client.events().closed, server.events().closed].concat();
            assert!(closed.is_empty(), "after {:?}: {closed:?}", began.elapsed());
            if link.tick() > 0 {
                advance(TICK).await;
            } else {
                yield_now().await;
            }
        }
        assert_eq!(server.next().await.len(), message.len());
        assert!(began.elapsed() > 150 * SECOND, "the link was slow");
        for end in [client, server] {
            end.shard.shutdown_now();
        }
    });
}

/// Somebody on the way keeps all that an end sends, and has it acknowledged little by little: that
/// puts the end off for as long as it puts off that of a silent peer.
#[test]
fn forged_acknowledgements_hold_no_sealed_close() {
    run_on_one_thread("withheld close", async {
        let factory = |name| {
            let protection = Protection::Encrypt;
            Security::new(Arc::new(FakeFactory { protection, ..FakeFactory::new(1, name) }))
        };
        let security = [factory("client").expecting("server"), factory("server")];
        let config = LinkConfig::default().keep_alive(None).receive_buffer_bytes(64 << 10);
        let ([client, server], mut link) = linked(config, Some(security)).await;
        // The window grows to what takes minutes to withhold.
        for _ in 0..2 {
            client.send(&vec![7; 4 << 20]);
        }
        while server.events().received < 2 {
            link.tick();
            yield_now().await;
        }
        pause();
        client.send(&vec![7; 4 << 20]);
        let (began, mut seen_at) = (Instant::now(), std::time::Instant::now());
        client.shard.release(client.key);
        while client.events().released == 0 {
            // The kernel's own time is not virtual: it may take some to pass bytes on.
            let is_due = link.withhold() > 0 || seen_at.elapsed() > SECOND / 2;
            if is_due {
                seen_at = std::time::Instant::now();
                advance(SECOND / 4).await;
            }
            yield_now().await;
        }
        let lasted = began.elapsed();
        assert!(lasted > 20 * SECOND && lasted < 50 * SECOND, "{lasted:?}");
        assert_eq!(server.events().received, 2);
        for end in [client, server] {
            end.shard.shutdown_now();
        }
    });
}
