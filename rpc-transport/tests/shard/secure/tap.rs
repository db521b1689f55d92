//! Somebody on the way between two ends of tcp: reads everything, and changes what the client
//! sends.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use rpc_transport::address::Address;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Acknowledgement and head of a packet on the wire.
const HEAD_BYTES: usize = 8;
/// The operation of a packet with a whole SEND.
const SEND: u8 = 1;
/// That of a packet with a part of a WRITE.
const WRITE: u8 = 2;

/// What becomes of a packet of the client, which begins with its head.
type Change = Box<dyn FnMut(Vec<u8>) -> Vec<Vec<u8>> + Send>;

/// What the tap has, shared with its tasks.
#[derive(Default)]
struct Held {
    seen: Vec<u8>,
    /// Of the packets with one operation.
    change: Option<(u8, Change)>,
}

pub(super) struct Tap {
    pub(super) address: Address,
    held: Arc<Mutex<Held>>,
    task: JoinHandle<()>,
}

impl Tap {
    /// Waits for one client, whom it connects with `to`.
    pub(super) async fn new(to: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
        let held = Arc::<Mutex<Held>>::default();
        let ours = Arc::clone(&held);
        let task = tokio::spawn(async move {
            let (near, _) = listener.accept().await.unwrap();
            let far = TcpStream::connect(to).await.unwrap();
            near.set_nodelay(true).unwrap();
            far.set_nodelay(true).unwrap();
            let (near_read, near_write) = near.into_split();
            let (far_read, far_write) = far.into_split();
            tokio::join!(
                forward(near_read, far_write, &ours, true),
                forward(far_read, near_write, &ours, false)
            );
        });
        Self { address, held, task }
    }

    /// From now on this is what becomes of each SEND of the client. Nothing may be under way.
    pub(super) fn change(&self, change: impl FnMut(Vec<u8>) -> Vec<Vec<u8>> + Send + 'static) {
        self.held.lock().unwrap().change = Some((SEND, Box::new(change)));
    }

    /// From now on this is what becomes of each part of a WRITE of the client. Nothing may be under
    /// way.
    pub(super) fn change_writes(
        &self,
        change: impl FnMut(Vec<u8>) -> Vec<Vec<u8>> + Send + 'static,
    ) {
        self.held.lock().unwrap().change = Some((WRITE, Box::new(change)));
    }

    /// Whether these bytes have passed, in either direction.
    pub(super) fn has_seen(&self, bytes: &[u8]) -> bool {
        let held = self.held.lock().unwrap();
        held.seen.windows(bytes.len()).any(|window| window == bytes)
    }

    /// Bytes that have passed.
    pub(super) fn seen_bytes(&self) -> usize {
        self.held.lock().unwrap().seen.len()
    }

    pub(super) async fn end(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

async fn forward(
    mut read: OwnedReadHalf,
    mut write: OwnedWriteHalf,
    held: &Mutex<Held>,
    is_client: bool,
) {
    let (mut bytes, mut rest) = (vec![0; 64 << 10], Vec::new());
    while let Ok(len @ 1..) = read.read(&mut bytes).await {
        let out = {
            let mut held = held.lock().unwrap();
            held.seen.extend_from_slice(&bytes[..len]);
            match &mut held.change {
                Some(change) if is_client => {
                    rest.extend_from_slice(&bytes[..len]);
                    take_packets(&mut rest, change)
                }
                _ => bytes[..len].to_vec(),
            }
        };
        if write.write_all(&out).await.is_err() {
            break;
        }
    }
    let _ = write.shutdown().await;
}

/// Takes the packets that are whole.
fn take_packets(rest: &mut Vec<u8>, (op, change): &mut (u8, Change)) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(head) = rest.first_chunk::<HEAD_BYTES>() {
        let len = HEAD_BYTES + usize::from(u16::from_le_bytes([head[6], head[7]]));
        if rest.len() < len {
            break;
        }
        let packet: Vec<u8> = rest.drain(..len).collect();
        let changed = if packet[4] == *op { change(packet) } else { vec![packet] };
        out.extend(changed.concat());
    }
    out
}
