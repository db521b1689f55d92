//! ruapc: `MessagePack`, its default; byte strings are `serde_bytes`, which it takes as a whole. It
//! sets `TCP_NODELAY` itself. With feature `rdma` over RDMA as well, with its default settings; it
//! sets up those connections over TCP.

use std::sync::Arc;

use anyhow::Result;
use rpc_perf::cores::CpuPair;
use rpc_perf::pages::look;
use ruapc::{Context, Endpoint, Router, Server, SocketPoolConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::columns::Numbers;
use crate::measure::{self, FILL, LARGE_BYTES, Plan};
use crate::row::{Row, block_on, served};
use crate::server;

pub(crate) fn rows() -> Vec<Row> {
    #[cfg(not(feature = "rdma"))]
    let overs = ["tcp"];
    #[cfg(feature = "rdma")]
    let overs = ["tcp", "rdma"];
    served("ruapc", overs, measure, serve)
}

/// The message type of both directions.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
struct Data {
    #[serde(with = "serde_bytes")]
    #[schemars(with = "Vec<u8>")]
    data: Vec<u8>,
    sum: u64,
}

#[ruapc::service]
trait Echo {
    async fn echo(&self, _: &Context, data: &Data) -> ruapc::Result<Data>;
    async fn put(&self, _: &Context, data: &Data) -> ruapc::Result<Data>;
    async fn get(&self, _: &Context, data: &Data) -> ruapc::Result<Data>;
}

/// Its results were made in advance, but have to be copied into each reply.
struct Store(Data);

impl Echo for Store {
    async fn echo(&self, _: &Context, data: &Data) -> ruapc::Result<Data> {
        Ok(data.clone())
    }

    async fn put(&self, _: &Context, data: &Data) -> ruapc::Result<Data> {
        Ok(Data { data: Vec::new(), sum: look(&data.data) })
    }

    async fn get(&self, _: &Context, _: &Data) -> ruapc::Result<Data> {
        Ok(self.0.clone())
    }
}

/// A large payload.
fn large() -> Data {
    Data { data: vec![FILL; LARGE_BYTES], sum: 0 }
}

fn serve(_: Row, place: &str) -> Result<()> {
    block_on(async {
        let mut router = Router::default();
        Arc::new(Store(large())).ruapc_export(&mut router);
        let server = Server::create(router, &SocketPoolConfig::default())?;
        server::ready(server.listen(place.parse()?).await?)?;
        server.join().await;
        Ok(())
    })
}

fn measure(row: Row, plan: &Plan, cpus: CpuPair) -> Result<Numbers> {
    let server = server::start(row, "127.0.0.1:0", cpus)?;
    block_on(async {
        let address = server.address().parse()?;
        let endpoint = match row.over {
            #[cfg(feature = "rdma")]
            "rdma" => Endpoint::rdma(ruapc::Transport::TCP, [address])?,
            _ => Endpoint::tcp([address])?,
        };
        let context = Context::create(&SocketPoolConfig::default())?.with_endpoint(endpoint);
        measure::all(Caller { context, payload: Arc::new(large()) }, plan).await
    })
}

#[derive(Clone)]
struct Caller {
    context: Context,
    payload: Arc<Data>,
}

impl measure::Client for Caller {
    async fn echo(&self, data: &[u8]) -> Result<bool> {
        let sent = Data { data: data.to_vec(), sum: 0 };
        Ok(ruapc::Client::default().echo(&self.context, &sent).await?.data == data)
    }

    async fn put(&self) -> Result<u64> {
        Ok(ruapc::Client::default().put(&self.context, &self.payload).await?.sum)
    }

    async fn get(&self) -> Result<u64> {
        let asked = Data::default();
        Ok(look(&ruapc::Client::default().get(&self.context, &asked).await?.data))
    }
}
