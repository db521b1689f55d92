//! capnp-rpc: byte strings are `Data`, which is read in place and written once; buffered streams,
//! as its documentation recommends; `TCP_NODELAY`.

use std::rc::Rc;

use anyhow::Result;
use capnp::message::ReaderOptions;
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::twoparty::VatNetwork;
use capnp_rpc::{RpcSystem, new_client_from_rc};
use futures::io::{BufReader, BufWriter};
use rpc_perf::cores::CpuPair;
use rpc_perf::pages::look;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};

use crate::columns::Numbers;
use crate::echo_capnp::echo;
use crate::measure::{self, FILL, LARGE_BYTES, Plan};
use crate::row::{Row, block_on, served};
use crate::server;
use crate::socket_file::SocketFile;

pub(crate) fn rows() -> Vec<Row> {
    served("capnp-rpc", ["tcp", "unix"], measure, serve)
}

/// Its results were made in advance.
struct Store(Vec<u8>);

impl echo::Server for Store {
    async fn echo(
        self: Rc<Self>,
        params: echo::EchoParams,
        mut results: echo::EchoResults,
    ) -> Result<(), capnp::Error> {
        results.get().set_data(params.get()?.get_data()?);
        Ok(())
    }

    async fn put(
        self: Rc<Self>,
        params: echo::PutParams,
        mut results: echo::PutResults,
    ) -> Result<(), capnp::Error> {
        results.get().set_sum(look(params.get()?.get_data()?));
        Ok(())
    }

    async fn get(
        self: Rc<Self>,
        _: echo::GetParams,
        mut results: echo::GetResults,
    ) -> Result<(), capnp::Error> {
        results.get().set_data(&self.0);
        Ok(())
    }
}

/// The two halves of a stream in the library's types.
fn network(
    (reader, writer): (impl AsyncRead + Unpin + 'static, impl AsyncWrite + Unpin + 'static),
    side: Side,
) -> Box<dyn capnp_rpc::VatNetwork<Side>> {
    let (reader, writer) = (BufReader::new(reader.compat()), BufWriter::new(writer.compat_write()));
    Box::new(VatNetwork::new(reader, writer, side, ReaderOptions::new()))
}

fn serve(row: Row, place: &str) -> Result<()> {
    block_on(async {
        let store: echo::Client = new_client_from_rc(Rc::new(Store(vec![FILL; LARGE_BYTES])));
        let serve_one = |network| {
            tokio::task::spawn_local(RpcSystem::new(network, Some(store.clone().client)));
        };
        if row.over == "tcp" {
            let listener = TcpListener::bind(place).await?;
            server::ready(listener.local_addr()?)?;
            loop {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                serve_one(network(stream.into_split(), Side::Server));
            }
        }
        let listener = UnixListener::bind(place)?;
        server::ready(place)?;
        loop {
            serve_one(network(listener.accept().await?.0.into_split(), Side::Server));
        }
    })
}

fn measure(row: Row, plan: &Plan, cpus: CpuPair) -> Result<Numbers> {
    let socket = SocketFile::new(row);
    let place = if row.over == "tcp" { "127.0.0.1:0" } else { socket.path() };
    let server = server::start(row, place, cpus)?;
    block_on(async {
        let network = if row.over == "tcp" {
            let stream = TcpStream::connect(server.address()).await?;
            stream.set_nodelay(true)?;
            network(stream.into_split(), Side::Client)
        } else {
            network(UnixStream::connect(server.address()).await?.into_split(), Side::Client)
        };
        let mut system = RpcSystem::new(network, None);
        let client: echo::Client = system.bootstrap(Side::Server);
        tokio::task::spawn_local(system);
        measure::all(Caller { client, payload: vec![FILL; LARGE_BYTES].into() }, plan).await
    })
}

#[derive(Clone)]
struct Caller {
    client: echo::Client,
    payload: Rc<[u8]>,
}

impl measure::Client for Caller {
    async fn echo(&self, data: &[u8]) -> Result<bool> {
        let mut request = self.client.echo_request();
        request.get().set_data(data);
        Ok(request.send().promise.await?.get()?.get_data()? == data)
    }

    async fn put(&self) -> Result<u64> {
        let mut request = self.client.put_request();
        request.get().set_data(&self.payload);
        Ok(request.send().promise.await?.get()?.get_sum())
    }

    async fn get(&self) -> Result<u64> {
        Ok(look(self.client.get_request().send().promise.await?.get()?.get_data()?))
    }
}
