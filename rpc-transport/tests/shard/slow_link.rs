//! A link that carries 20 kB a second, in virtual time: slow, and not dead.

use std::time::Duration;

use rpc_transport::connect::schemes;
use rpc_transport::engine::spin::PollMode;
use rpc_transport::protocol::config::LinkConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::time::{Instant, pause, sleep};

use crate::probe::{Habit, Probe};
use crate::world::{End, fresh_address, run_on_one_thread, shard};

/// What the link holds on its way, bytes.
const BUFFER: u32 = 16 << 10;
const TICK: Duration = Duration::from_millis(100);
/// Bytes that it carries in a tick.
const TICK_BYTES: usize = 2000;
const SECOND: Duration = Duration::from_secs(1);

/// Carries one direction; slowly, once told to.
async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, slow: watch::Receiver<bool>) {
    let mut bytes = [0; TICK_BYTES];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
        if *slow.borrow() {
            sleep(TICK).await;
        }
    }
}

/// A connection of a client and a server through such a link, which is quick at first.
async fn link(slow: watch::Receiver<bool>) -> [End; 2] {
    let config = LinkConfig::default();
    let mut listener = schemes::listen(&fresh_address("tcp")).await.unwrap();
    let behind = listener.local_address().to_string().replace("tcp://", "").parse().unwrap();
    let front = TcpSocket::new_v4().unwrap();
    front.set_recv_buffer_size(BUFFER).unwrap();
    front.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let front: TcpListener = front.listen(1).unwrap();
    let address = format!("tcp://{}", front.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(async move {
        let (near, _) = front.accept().await.unwrap();
        let far = TcpSocket::new_v4().unwrap();
        far.set_recv_buffer_size(BUFFER).unwrap();
        let far = far.connect(behind).await.unwrap();
        let ((from_near, to_near), (from_far, to_far)) = (near.into_split(), far.into_split());
        let up = carry(from_near, to_far, slow.clone());
        tokio::join!(up, carry(from_far, to_near, slow));
    });
    let resolved = schemes::resolve(&address).await.unwrap();
    let (client, ours) = shard(resolved.outgoing.device(), &config, 1, PollMode::Event);
    let (server, theirs) = shard(resolved.outgoing.device(), &config, 1, PollMode::Event);
    tokio::spawn(ours);
    tokio::spawn(theirs);
    let [near, far] = [Probe::new(Habit::Keep), Probe::new(Habit::Keep)];
    let records = [near.record(), far.record()];
    let connect = client.connect(resolved.outgoing, &address, &config, 60 * SECOND, near);
    let accept = async {
        let incoming = listener.incoming().await.unwrap();
        server.accept(incoming, &config, far).await.unwrap()
    };
    let (near, far) = tokio::join!(connect, accept);
    let [ours, theirs] = records;
    [
        End { shard: client, key: near.unwrap().key, record: ours },
        End { shard: server, key: far.key, record: theirs },
    ]
}

/// It was given up after 25 seconds.
#[test]
fn a_large_message_over_a_slow_link_arrives_however_long_it_takes() {
    run_on_one_thread("slow link", async {
        let (slow, is_slow) = watch::channel(false);
        let [client, server] = link(is_slow).await;
        pause();
        slow.send(true).unwrap();
        let began = Instant::now();
        let message = vec![7; 4 << 20];
        client.send(&message);
        assert_eq!(server.next().await.len(), message.len());
        assert!(began.elapsed() > 150 * SECOND, "the link was slow");
        for end in [client, server] {
            assert!(end.events().closed.is_empty(), "{:?}", end.events().closed);
            end.shard.shutdown_now();
        }
    });
}
