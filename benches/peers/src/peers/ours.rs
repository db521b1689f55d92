//! This framework. Default settings except for the poll mode: `shm`, `tcp` and `mem` wait in the
//! default mode (poll for a while, then sleep), `shm-busy` always polls and `shm-event` never does.
//! `shm-bulk` sends registered memory where the others send `Bytes`, and `tcp-tls` encrypts with
//! certificates at both ends. With feature `rdma` also over verbs.

use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use rpc_core::security::Tls;
use rpc_core::{Bulk, BulkPool, Channel, ChannelBuilder, Context, PollMode, Server};
use rpc_perf::cores::{self, CpuPair};
use rpc_perf::pages::{PAGE_BYTES, look};
use rpc_perf::server_process::ServerProcess;

use crate::certificates::{Certificates, SERVER_NAME};
use crate::columns::Numbers;
use crate::measure::{self, Client, FILL, LARGE_BYTES, Plan};
use crate::row::{Row, block_on, served};
use crate::server;

const PEER: &str = "rpc-over-rdma";
const TCP: &str = "tcp://127.0.0.1:0";

pub(crate) fn rows() -> Vec<Row> {
    let overs = ["shm", "shm-busy", "shm-event", "shm-bulk", "tcp", "tcp-tls"];
    let mut rows = served(PEER, overs, measure_process, serve);
    #[cfg(feature = "rdma")]
    rows.extend(served(PEER, ["rdma", "rdma-busy", "rdma-bulk"], measure_process, serve));
    rows.push(Row { peer: PEER, over: "mem", measure: measure_thread, serve: None });
    rows
}

#[rpc_core::service]
trait Echo {
    async fn echo(&self, data: &[u8]) -> Vec<u8>;
    async fn put(&self, data: Bytes) -> u64;
    async fn get(&self) -> Bytes;
    async fn put_bulk(&self, data: Bulk) -> u64;
    async fn get_bulk(&self) -> Bulk;
}

/// Its results were made in advance.
struct Store {
    bytes: Bytes,
    bulk: OnceLock<Bulk>,
}

impl Store {
    fn new() -> Self {
        Self { bytes: vec![FILL; LARGE_BYTES].into(), bulk: OnceLock::new() }
    }
}

impl Echo for Store {
    async fn echo(&self, data: &[u8]) -> Vec<u8> {
        data.to_vec()
    }

    async fn put(&self, data: Bytes) -> u64 {
        look(&data)
    }

    async fn get(&self) -> Bytes {
        self.bytes.clone()
    }

    async fn put_bulk(&self, data: Bulk) -> u64 {
        look_at(&data)
    }

    async fn get_bulk(&self) -> Bulk {
        let context = Context::current();
        let made =
            || context.bulk_pool().map_or_else(|| vec![FILL; LARGE_BYTES].into(), registered);
        self.bulk.get_or_init(made).clone()
    }
}

/// A payload in registered memory, or in memory of its own if the pool has no room.
fn registered(pool: &BulkPool) -> Bulk {
    match pool.take(LARGE_BYTES) {
        Ok(mut buffer) => {
            buffer.fill(FILL);
            buffer.freeze()
        }
        Err(_) => vec![FILL; LARGE_BYTES].into(),
    }
}

fn look_at(data: &Bulk) -> u64 {
    let mut byte = [0];
    let mut sum = 0;
    for at in (0..data.len()).step_by(PAGE_BYTES) {
        data.read_at(at, &mut byte).expect("the payload can be read");
        sum += u64::from(byte[0]);
    }
    sum
}

fn mode(row: Row) -> PollMode {
    match row.over.split_once('-') {
        Some((_, "busy")) => PollMode::Busy,
        Some((_, "event")) => PollMode::Event,
        _ => PollMode::default(),
    }
}

async fn bind(row: Row, place: &str) -> Result<Server> {
    let builder = Server::builder().add_service(EchoServer::new(Store::new()));
    let builder = builder.poll_mode(mode(row));
    if row.over == "tcp-tls" {
        let certificates = Path::new(place);
        return Ok(builder.tls(tls(certificates, "server")?).bind(TCP).await?);
    }
    Ok(builder.bind(place).await?)
}

fn tls(certificates: &Path, role: &str) -> Result<Tls> {
    let file = |end| certificates.join(format!("{role}{end}"));
    Ok(Tls::from_pem(file(".pem"), file("-key.pem"), certificates.join("ca.pem"))?)
}

fn serve(row: Row, place: &str) -> Result<()> {
    block_on(async {
        let server = bind(row, place).await?;
        server::ready(server.local_address())?;
        Ok(server.serve().await?)
    })
}

fn measure_process(row: Row, plan: &Plan, cpus: CpuPair) -> Result<Numbers> {
    let (server, certificates) = start(row, cpus)?;
    block_on(async {
        let channel = builder(row, &certificates)?.connect(server.address()).await?;
        measure(row, channel, plan).await
    })
}

/// The server of a row as a process, and its certificates.
pub(crate) fn start(row: Row, cpus: CpuPair) -> Result<(ServerProcess, Certificates)> {
    let certificates = Certificates::of(row)?;
    let place = match row.over {
        "tcp" => TCP.to_owned(),
        "tcp-tls" => certificates.place().to_owned(),
        over if over.starts_with("rdma") => {
            format!("rdma://{}:0", crate::server::rdma_device_address()?)
        }
        over => format!("shm://peers-{}-{over}", std::process::id()),
    };
    Ok((server::start(row, &place, cpus)?, certificates))
}

/// For channels to that server.
pub(crate) fn builder(row: Row, certificates: &Certificates) -> Result<ChannelBuilder> {
    let builder = Channel::builder().poll_mode(mode(row));
    if row.over == "tcp-tls" {
        let tls = tls(Path::new(certificates.place()), "client")?;
        return Ok(builder.tls(tls.server_name(SERVER_NAME)));
    }
    Ok(builder)
}

/// The server is a thread.
fn measure_thread(row: Row, plan: &Plan, cpus: CpuPair) -> Result<Numbers> {
    let (listens, address) = std::sync::mpsc::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || {
        cores::pin(cpus.server);
        block_on(async {
            let server = bind(row, "mem://").await?;
            listens.send(server.local_address().to_string())?;
            server.serve_until(async { drop(stopped.await) }).await?;
            Ok(())
        })
    });
    let address = address.recv().context("the server has ended early")?;
    let measured = block_on(async { measure(row, Channel::connect(&address).await?, plan).await });
    drop(stop);
    thread.join().map_err(|_| anyhow::anyhow!("the server panicked"))??;
    measured
}

async fn measure(row: Row, channel: Channel, plan: &Plan) -> Result<Numbers> {
    let client = EchoClient::new(channel);
    if row.over.ends_with("-bulk") {
        let mut numbers = Numbers::default();
        let payload = registered(&client.channel().bulk_pool());
        measure::large_calls(WithBulk { client, payload }, plan, &mut numbers).await?;
        return Ok(numbers);
    }
    measure::all(with_bytes(client.channel().clone()), plan).await
}

/// A client whose payloads are `Bytes`.
pub(crate) fn with_bytes(channel: Channel) -> impl Client {
    WithBytes { client: EchoClient::new(channel), payload: vec![FILL; LARGE_BYTES].into() }
}

#[derive(Clone)]
struct WithBytes {
    client: EchoClient,
    payload: Bytes,
}

impl Client for WithBytes {
    async fn echo(&self, data: &[u8]) -> Result<bool> {
        Ok(self.client.echo(data).await? == data)
    }

    async fn put(&self) -> Result<u64> {
        Ok(self.client.put(self.payload.clone()).await?)
    }

    async fn get(&self) -> Result<u64> {
        Ok(look(&self.client.get().await?))
    }
}

#[derive(Clone)]
struct WithBulk {
    client: EchoClient,
    payload: Bulk,
}

impl Client for WithBulk {
    async fn echo(&self, data: &[u8]) -> Result<bool> {
        Ok(self.client.echo(data).await? == data)
    }

    async fn put(&self) -> Result<u64> {
        Ok(self.client.put_bulk(self.payload.clone()).await?)
    }

    async fn get(&self) -> Result<u64> {
        Ok(look_at(&self.client.get_bulk().await?))
    }
}
