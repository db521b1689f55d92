//! tarpc: bincode over length-delimited frames; `TCP_NODELAY`. Byte strings are `Bytes`, which
//! bincode takes as a whole.

use anyhow::Result;
use bytes::Bytes;
use futures::StreamExt;
use rpc_perf::cores::CpuPair;
use rpc_perf::pages::look;
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::{client, context, serde_transport};

use crate::columns::Numbers;
use crate::measure::{self, Client, FILL, LARGE_BYTES, Plan};
use crate::row::{Row, block_on, served};
use crate::server;
use crate::socket_file::SocketFile;

pub(crate) fn rows() -> Vec<Row> {
    served("tarpc", ["tcp", "unix"], measure, serve)
}

#[tarpc::service]
trait Echo {
    async fn echo(data: Bytes) -> Bytes;
    async fn put(data: Bytes) -> u64;
    async fn get() -> Bytes;
}

#[derive(Clone)]
struct Store(Bytes);

impl Echo for Store {
    async fn echo(self, _: context::Context, data: Bytes) -> Bytes {
        data
    }

    async fn put(self, _: context::Context, data: Bytes) -> u64 {
        look(&data)
    }

    async fn get(self, _: context::Context) -> Bytes {
        self.0
    }
}

fn serve(row: Row, place: &str) -> Result<()> {
    let store = Store(vec![FILL; LARGE_BYTES].into());
    block_on(async {
        if row.over == "tcp" {
            let mut incoming = serde_transport::tcp::listen(place, Bincode::default).await?;
            server::ready(incoming.local_addr())?;
            while let Some(transport) = incoming.next().await {
                let transport = transport?;
                transport.get_ref().set_nodelay(true)?;
                let requests = BaseChannel::with_defaults(transport).execute(store.clone().serve());
                tokio::spawn(requests.for_each(spawned));
            }
        } else {
            let mut incoming = serde_transport::unix::listen(place, Bincode::default).await?;
            server::ready(place)?;
            while let Some(transport) = incoming.next().await {
                let requests =
                    BaseChannel::with_defaults(transport?).execute(store.clone().serve());
                tokio::spawn(requests.for_each(spawned));
            }
        }
        Ok(())
    })
}

/// Each request is a task, as in tarpc's documentation.
async fn spawned(handler: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(handler);
}

fn measure(row: Row, plan: &Plan, cpus: CpuPair) -> Result<Numbers> {
    let socket = SocketFile::new(row);
    let place = if row.over == "tcp" { "127.0.0.1:0" } else { socket.path() };
    let server = server::start(row, place, cpus)?;
    let config = client::Config::default();
    block_on(async {
        let client = if row.over == "tcp" {
            let transport =
                serde_transport::tcp::connect(server.address(), Bincode::default).await?;
            transport.get_ref().set_nodelay(true)?;
            EchoClient::new(config, transport).spawn()
        } else {
            let transport =
                serde_transport::unix::connect(server.address(), Bincode::default).await?;
            EchoClient::new(config, transport).spawn()
        };
        measure::all(Caller { client, payload: vec![FILL; LARGE_BYTES].into() }, plan).await
    })
}

#[derive(Clone)]
struct Caller {
    client: EchoClient,
    payload: Bytes,
}

impl Client for Caller {
    async fn echo(&self, data: &[u8]) -> Result<bool> {
        let sent = Bytes::copy_from_slice(data);
        Ok(self.client.echo(context::current(), sent).await? == data)
    }

    async fn put(&self) -> Result<u64> {
        Ok(self.client.put(context::current(), self.payload.clone()).await?)
    }

    async fn get(&self) -> Result<u64> {
        Ok(look(&self.client.get(context::current()).await?))
    }
}
