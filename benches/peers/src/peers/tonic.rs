//! tonic: gRPC without compression, messages of one `bytes` field that prost takes without a copy;
//! `TCP_NODELAY`, and HTTP/2 windows that hold four large payloads. `tcp-tls` has certificates at
//! both ends, checked by rustls with ring.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use ::tonic::body::Body;
use ::tonic::server::{NamedService, UnaryService};
use ::tonic::transport::{
    Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig,
};
use ::tonic::{Request, Response, Status};
use anyhow::Result;
use bytes::Bytes;
use http::uri::PathAndQuery;
use rpc_perf::cores::CpuPair;
use rpc_perf::pages::look;
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tonic_prost::ProstCodec;

use crate::certificates::{self, Certificates, SERVER_NAME};
use crate::columns::Numbers;
use crate::measure::{self, Client, FILL, LARGE_BYTES, Plan};
use crate::row::{Row, block_on, served};
use crate::server;
use crate::socket_file::SocketFile;

/// Windows of a stream and of a connection.
const WINDOW_BYTES: u32 = 8 << 20;

const TCP: &str = "127.0.0.1:0";
const ECHO: &str = "/peers.Echo/Echo";
const PUT: &str = "/peers.Echo/Put";
const GET: &str = "/peers.Echo/Get";

pub(crate) fn rows() -> Vec<Row> {
    served("tonic", ["tcp", "tcp-tls", "unix"], measure, serve)
}

/// The message type of both directions.
#[derive(Clone, PartialEq, prost::Message)]
struct Data {
    #[prost(bytes = "bytes", tag = "1")]
    data: Bytes,
    #[prost(uint64, tag = "2")]
    sum: u64,
}

/// The effect of a method.
#[derive(Clone)]
enum Method {
    Echo,
    Put,
    Get(Bytes),
}

impl UnaryService<Data> for Method {
    type Response = Data;
    type Future = Ready<Result<Response<Data>, Status>>;

    fn call(&mut self, request: Request<Data>) -> Self::Future {
        let data = request.into_inner().data;
        ready(Ok(Response::new(match self {
            Self::Echo => Data { data, sum: 0 },
            Self::Put => Data { data: Bytes::new(), sum: look(&data) },
            Self::Get(large) => Data { data: large.clone(), sum: 0 },
        })))
    }
}

/// The service, in the form that the generator would produce.
#[derive(Clone)]
struct Echo(Bytes);

impl NamedService for Echo {
    const NAME: &'static str = "peers.Echo";
}

impl tower_service::Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = match request.uri().path() {
            ECHO => Method::Echo,
            PUT => Method::Put,
            GET => Method::Get(self.0.clone()),
            _ => return Box::pin(ready(Ok(Status::unimplemented("no such method").into_http()))),
        };
        Box::pin(async move {
            let codec = ProstCodec::<Data, Data>::default();
            Ok(tonic::server::Grpc::new(codec).unary(method, request).await)
        })
    }
}

fn serve(row: Row, place: &str) -> Result<()> {
    block_on(async {
        let (mut builder, mut place) = (Server::builder(), place);
        if row.over == "tcp-tls" {
            let (identity, authority) = identity(place, "server")?;
            let tls = ServerTlsConfig::new().identity(identity).client_ca_root(authority);
            (builder, place) = (builder.tls_config(tls)?, TCP);
        }
        let router = builder
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .add_service(Echo(vec![FILL; LARGE_BYTES].into()));
        if row.over.starts_with("tcp") {
            let listener = TcpListener::bind(place).await?;
            server::ready(listener.local_addr()?)?;
            router.serve_with_incoming(TcpListenerStream::new(listener)).await?;
        } else {
            let listener = UnixListener::bind(place)?;
            server::ready(place)?;
            router.serve_with_incoming(UnixListenerStream::new(listener)).await?;
        }
        Ok(())
    })
}

fn measure(row: Row, plan: &Plan, cpus: CpuPair) -> Result<Numbers> {
    let (socket, certificates) = (SocketFile::new(row), Certificates::of(row)?);
    let (place, scheme) = match row.over {
        "tcp" => (TCP, "http"),
        "tcp-tls" => (certificates.place(), "https"),
        _ => (socket.path(), "unix"),
    };
    let server = server::start(row, place, cpus)?;
    block_on(async {
        let mut endpoint = Endpoint::from_shared(format!("{scheme}://{}", server.address()))?;
        if row.over == "tcp-tls" {
            let (identity, authority) = identity(place, "client")?;
            let tls = ClientTlsConfig::new().identity(identity).ca_certificate(authority);
            endpoint = endpoint.tls_config(tls.domain_name(SERVER_NAME))?;
        }
        let channel = endpoint
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .connect()
            .await?;
        let client = tonic::client::Grpc::new(channel);
        measure::all(Caller { client, payload: vec![FILL; LARGE_BYTES].into() }, plan).await
    })
}

/// A certificate with its key, and the authority.
fn identity(certificates: &str, role: &str) -> Result<(Identity, Certificate)> {
    let read = |name: &str| certificates::read(certificates, name);
    let identity = Identity::from_pem(read(role)?, read(&format!("{role}-key"))?);
    Ok((identity, Certificate::from_pem(read("ca")?)))
}

#[derive(Clone)]
struct Caller {
    client: tonic::client::Grpc<Channel>,
    payload: Bytes,
}

impl Caller {
    async fn call(&self, path: &'static str, data: Bytes) -> Result<Data> {
        let mut client = self.client.clone();
        client.ready().await?;
        let codec = ProstCodec::<Data, Data>::default();
        let request = Request::new(Data { data, sum: 0 });
        Ok(client.unary(request, PathAndQuery::from_static(path), codec).await?.into_inner())
    }
}

impl Client for Caller {
    async fn echo(&self, data: &[u8]) -> Result<bool> {
        Ok(self.call(ECHO, Bytes::copy_from_slice(data)).await?.data == data)
    }

    async fn put(&self) -> Result<u64> {
        Ok(self.call(PUT, self.payload.clone()).await?.sum)
    }

    async fn get(&self) -> Result<u64> {
        Ok(look(&self.call(GET, Bytes::new()).await?.data))
    }
}
