//! Large payloads over encrypted connections, and somebody on the way who changes them.

#![allow(missing_docs, reason = "tests")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rpc_core::bulk::BulkReader;
use rpc_core::security::Tls;
use rpc_core::stream::Streaming;
use rpc_core::{Bulk, Channel, ChannelBuilder, Code, LinkConfig, Server, Status};
use test_kit::Watchdog;
use test_kit::certificates::{Authority, Leaf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SERVER: &str = "spiffe://prod.example/ns/shop/sa/kv";
const CLIENT: &str = "spiffe://prod.example/ns/shop/sa/cart";

#[rpc_core::service]
trait Mill {
    /// Reads it by some way, and returns what it has read.
    async fn grind(&self, way: u8, data: Bulk) -> Result<Bulk, Status>;
    /// As a string of bytes.
    async fn decode(&self, data: Vec<u8>) -> Vec<u8>;
    /// While it arrives.
    async fn pour(&self, data: BulkReader) -> Result<Bulk, Status>;
    /// Sends it on while it arrives.
    async fn forward(&self, data: BulkReader) -> Result<Bulk, Status>;
    /// Takes pieces.
    async fn collect(&self, data: Streaming<Bulk>) -> Result<Bulk, Status>;
}

/// Ways to read a payload in [`Mill::grind`].
const WAYS: u8 = 9;

struct Stones {
    /// How each read ended.
    ends: Arc<Mutex<Vec<Result<(), Code>>>>,
    next: Option<MillClient>,
}

impl Stones {
    fn ended<T>(&self, read: Result<T, Status>) -> Result<T, Status> {
        let end = read.as_ref().map(drop).map_err(Status::code);
        self.ends.lock().unwrap().push(end);
        read
    }

    async fn read(&self, way: u8, data: Bulk) -> Result<Bulk, Status> {
        assert!(data.is_remote() && data.as_slice().is_none());
        Ok(match way {
            // Sent back unread.
            0 => data,
            1 => data.to_vec()?.into(),
            2 => data.into_vec()?.into(),
            3 => data.detach()?,
            4 => data.to_bytes()?.into(),
            5 => {
                let mut all = vec![1; usize::try_from(data.len()).unwrap()];
                for (at, part) in (0..).step_by(10_007).zip(all.chunks_mut(10_007)) {
                    data.read_at(at, part)?;
                }
                all.into()
            }
            6 => {
                let mut all = Vec::new();
                AsyncReadExt::read_to_end(&mut data.reader(), &mut all).await.map_err(failed)?;
                all.into()
            }
            7 => {
                let path = std::env::temp_dir().join(format!("rpc-mill-{}", std::process::id()));
                let options = File::options().read(true).write(true).create_new(true).clone();
                let mut file = options.open(&path).unwrap();
                std::fs::remove_file(&path).unwrap();
                data.write_to(&file).map_err(failed)?;
                file.seek(SeekFrom::Start(0)).unwrap();
                let mut all = Vec::new();
                file.read_to_end(&mut all).unwrap();
                all.into()
            }
            // Sent on unread to another server.
            _ => self.next.as_ref().unwrap().grind(1, data).await?,
        })
    }
}

fn failed(error: std::io::Error) -> Status {
    match error.kind() {
        std::io::ErrorKind::InvalidData => Status::new(Code::DataLoss, error.to_string()),
        _ => panic!("{error}"),
    }
}

impl Mill for Stones {
    async fn grind(&self, way: u8, data: Bulk) -> Result<Bulk, Status> {
        let read = self.read(way, data).await;
        self.ended(read)
    }

    async fn decode(&self, data: Vec<u8>) -> Vec<u8> {
        data
    }

    async fn pour(&self, mut data: BulkReader) -> Result<Bulk, Status> {
        let mut all = Vec::new();
        let read = AsyncReadExt::read_to_end(&mut data, &mut all).await;
        self.ended(read.map_err(failed))?;
        Ok(all.into())
    }

    async fn forward(&self, data: BulkReader) -> Result<Bulk, Status> {
        let next = self.next.as_ref().unwrap();
        let collected = next.collect(data.into_pieces()).await.map_err(Status::from);
        self.ended(collected)
    }

    async fn collect(&self, data: Streaming<Bulk>) -> Result<Bulk, Status> {
        let mut all = Vec::new();
        let read = data.into_reader().read_to_end(&mut all).await;
        read.map_err(|error| Status::aborted(error.to_string()))?;
        Ok(all.into())
    }
}

fn tls(leaf: &Leaf, authority: &Authority) -> Tls {
    Tls::from_pem_bytes(&leaf.cert, &leaf.key, authority.pem()).unwrap()
}

/// A server that knows another one.
struct World {
    address: String,
    client: Tls,
    ends: Arc<Mutex<Vec<Result<(), Code>>>>,
}

impl World {
    async fn new() -> Self {
        let ca = Authority::new("ca");
        let server = tls(&ca.issue(&[SERVER]), &ca);
        let client = tls(&ca.issue(&[CLIENT]), &ca);
        let ends = Arc::default();
        let serve = async |next| {
            let mill = MillServer::new(Stones { ends: Arc::clone(&ends), next });
            let link = LinkConfig::default().assembly_bytes(3 << 20);
            let server = Server::builder().tls(server.clone()).link(link).add_service(mill);
            let server = server.bind("tcp://127.0.0.1:0").await.unwrap();
            let address = server.local_address().to_string();
            tokio::spawn(server.serve());
            address
        };
        let channel = Channel::builder().tls(client.clone().expect_peer(SERVER));
        let next = MillClient::new(channel.connect(&serve(None).await).await.unwrap());
        let address = serve(Some(next)).await;
        Self { address, client, ends }
    }

    fn client(&self) -> ChannelBuilder {
        Channel::builder().tls(self.client.clone().expect_peer(SERVER))
    }

    fn take_ends(&self) -> Vec<Result<(), Code>> {
        std::mem::take(&mut *self.ends.lock().unwrap())
    }
}

fn run<F: Future<Output = ()>>(what: &'static str, test: F) {
    let _watchdog = Watchdog::start(what);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(test);
}

fn pattern(len: usize) -> Vec<u8> {
    (0_u32..).take(len).map(|at| at.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect()
}

/// Sends payloads until both ends have offered memory.
async fn warm_up(mill: &MillClient) {
    for _ in 0..3 {
        let back = mill.decode(vec![3; 500_000]).await.unwrap();
        assert_eq!(back, [3; 500_000]);
    }
}

#[test]
fn every_way_out_gives_what_was_sent() {
    run("ways out", async {
        let world = World::new().await;
        let mill = MillClient::new(world.client().connect(&world.address).await.unwrap());
        warm_up(&mill).await;
        for len in [100_000, 1_000_001] {
            let bytes = pattern(len);
            for way in 0..WAYS {
                let back = mill.grind(way, bytes.clone().into()).await.unwrap();
                assert!(back.to_vec().unwrap() == bytes, "way {way}");
            }
            assert_eq!(mill.decode(bytes.clone()).await.unwrap(), bytes);
            let buffer = mill.channel().bulk_pool().take(len).unwrap();
            let back = mill.grind(1, bytes.clone().into()).into(buffer).await.unwrap();
            assert!(back.as_slice() == Some(&bytes[..]), "into a buffer");
        }
        let bytes = pattern(5_000_000);
        let poured = mill.pour(Bulk::from(bytes.clone()).reader()).await;
        assert!(poured.unwrap().to_vec().unwrap() == bytes);
        let forwarded = mill.forward(Bulk::from(bytes.clone()).reader()).await;
        assert!(forwarded.unwrap().to_vec().unwrap() == bytes);
    });
}

/// Acknowledgement and head of a packet on the wire, and a span behind those of a WRITE.
const HEAD_BYTES: usize = 8;
const SPAN_BYTES: usize = 24;
/// The operation of a packet with a part of a WRITE.
const WRITE: u8 = 2;

/// Passes one connection on to a server, and changes a bit of what the client writes, this many
/// bytes from now on.
async fn proxy(to: SocketAddr, change_at: Arc<AtomicUsize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (near, _) = listener.accept().await.unwrap();
        let far = TcpStream::connect(to).await.unwrap();
        near.set_nodelay(true).unwrap();
        far.set_nodelay(true).unwrap();
        let (mut near_read, mut near_write) = near.into_split();
        let (mut far_read, mut far_write) = far.into_split();
        tokio::spawn(async move { tokio::io::copy(&mut far_read, &mut near_write).await });
        // What the set-up sends is no packet.
        let (mut bytes, mut rest) = (vec![0; 64 << 10], Vec::new());
        while let Ok(len @ 1..) = near_read.read(&mut bytes).await {
            let mut out = Vec::new();
            if change_at.load(Ordering::SeqCst) == usize::MAX && rest.is_empty() {
                out.extend_from_slice(&bytes[..len]);
            } else {
                rest.extend_from_slice(&bytes[..len]);
                while let Some(packet) = take_packet(&mut rest) {
                    out.extend(changed(packet, &change_at));
                }
            }
            if far_write.write_all(&out).await.is_err() {
                break;
            }
        }
    });
    address
}

fn take_packet(rest: &mut Vec<u8>) -> Option<Vec<u8>> {
    let head = rest.first_chunk::<HEAD_BYTES>()?;
    let len = HEAD_BYTES + usize::from(u16::from_le_bytes([head[6], head[7]]));
    (rest.len() >= len).then(|| rest.drain(..len).collect())
}

fn changed(mut packet: Vec<u8>, change_at: &AtomicUsize) -> Vec<u8> {
    let behind = HEAD_BYTES + SPAN_BYTES;
    if packet[4] == WRITE && packet.len() > behind {
        let (at, len) = (change_at.load(Ordering::SeqCst), packet.len() - behind);
        if at < len {
            packet[behind + at] ^= 4;
            change_at.store(usize::MAX - 1, Ordering::SeqCst);
        } else if at < usize::MAX - 1 {
            change_at.store(at - len, Ordering::SeqCst);
        }
    }
    packet
}

/// The reader fails with DATA_LOSS, no handler sees other bytes, and the connection ends.
#[test]
fn a_changed_payload_is_data_loss() {
    run("changed payloads", async {
        let world = World::new().await;
        let to = world.address.strip_prefix("tcp://").unwrap().parse().unwrap();
        let bytes = pattern(900_000);
        for (round, way) in (0..WAYS + 2).enumerate() {
            let change_at = Arc::new(AtomicUsize::new(usize::MAX));
            let address = format!("tcp://{}", proxy(to, Arc::clone(&change_at)).await);
            let mill = MillClient::new(world.client().connect(&address).await.unwrap());
            warm_up(&mill).await;
            world.take_ends();
            change_at.store(70_000 * round, Ordering::SeqCst);
            let error = match way {
                WAYS => mill.decode(bytes.clone()).await.unwrap_err().code(),
                way if way < WAYS => {
                    let ground = mill.grind(way, bytes.clone().into()).await;
                    Status::from(ground.unwrap_err()).code()
                }
                _ => {
                    let long = pattern(5_000_000);
                    let poured = mill.pour(Bulk::from(long).reader()).await;
                    Status::from(poured.unwrap_err()).code()
                }
            };
            // The connection may end before the answer has come.
            assert!(matches!(error, Code::DataLoss | Code::Unavailable), "way {way}: {error:?}");
            for end in world.take_ends() {
                // Unread, it is its next reader that fails: the answer.
                assert!(end == Err(Code::DataLoss) || way == 0, "way {way}: {end:?}");
            }
        }
    });
}
