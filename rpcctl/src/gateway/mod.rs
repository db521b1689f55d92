//! `gateway`: the methods of a server as JSON over HTTP.
//!
//! | file | owns |
//! |---|---|
//! | `mod.rs` | the port, its limits, and paths |
//! | `catalog.rs` | what is known of the server's methods |
//! | `calls.rs` | one request: arguments, the call, its answer or stream |
//! | `answer.rs` | status codes, headers and errors |
//! | `openapi.rs` | the description for clients of HTTP |
//!
//! Invariants:
//! 1. At most [`MOST_CONNECTIONS`] connections are open, and `--max-requests` requests in progress.
//! 2. A request head is complete within [`HEAD_TIMEOUT`] and has at most [`MOST_HEAD_BYTES`]; a
//!    body that is read whole, or the first line of a stream, is complete within [`BODY_TIMEOUT`],
//!    and within the time of its call. No body or line is longer than `--max-body`.
//! 3. A page of a browser cannot call: requests need a content type that makes the browser ask
//!    first, and at loopback a host that names this machine.

mod answer;
mod calls;
mod catalog;
mod openapi;

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::body::Body as HttpBody;
use axum::extract::Request;
use axum::http::{Method as Verb, StatusCode, header};
use axum::response::Response;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use rpc_core::client::ConnectivityState;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use self::answer::{refusal, with_body, with_json};
use self::catalog::{Catalog, Entry};
use crate::options::{Common, Gateway as Options};
use crate::target::Target;

/// Most open connections; further ones wait to be accepted.
const MOST_CONNECTIONS: usize = 4096;
/// Time limit for the head of a request, and for an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for a body that is read whole.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum length of a request head, bytes.
const MOST_HEAD_BYTES: usize = 64 << 10;
/// Pause before the next attempt when the system is out of connections.
const PAUSE: Duration = Duration::from_millis(100);
/// How long requests in progress may take after the signal to stop.
const DRAIN: Duration = Duration::from_secs(10);

/// What all requests share.
struct Gateway {
    target: Target,
    catalog: Catalog,
    requests: Arc<Semaphore>,
    /// Longest body, and longest line of a stream, bytes.
    max_body: usize,
    /// Default time limit of a call.
    timeout: Option<Duration>,
    is_local: bool,
}

/// Serves until Ctrl-C or SIGTERM.
pub(crate) async fn gateway(options: &Options, common: &Common) -> Result<()> {
    let signal = rpc_core::signal::shutdown();
    let target = Target::connect(&options.address, common).await?;
    let gateway = Arc::new(Gateway {
        target,
        catalog: Catalog::default(),
        requests: Arc::new(Semaphore::new(options.max_requests as usize)),
        max_body: usize::try_from(options.max_body)?,
        timeout: common.timeout,
        is_local: options.listen.ip().is_loopback(),
    });
    gateway.catalog.load(&gateway.target).await?;
    let listener = TcpListener::bind(options.listen).await;
    let listener = listener.with_context(|| format!("cannot listen at {}", options.listen))?;
    let address = listener.local_addr()?;
    if !gateway.is_local {
        eprintln!(
            "warning: everybody who reaches {address} can call the methods of {}: HTTP is neither \
             encrypted nor authenticated here",
            options.address
        );
    }
    let mut out = io::stdout();
    writeln!(out, "READY http://{address}")?;
    out.flush()?;
    serve(listener, &gateway, signal).await;
    Ok(())
}

async fn serve(listener: TcpListener, gateway: &Arc<Gateway>, signal: impl Future<Output = ()>) {
    let connections = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let mut signal = std::pin::pin!(signal);
    loop {
        let accept = async {
            let place = Arc::clone(&connections).acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = &mut signal => break,
            accepted = accept => accepted,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let gateway = Arc::clone(gateway);
        let service = service_fn(move |request: Request<hyper::body::Incoming>| {
            let gateway = Arc::clone(&gateway);
            async move {
                let request = request.map(HttpBody::new);
                Ok::<_, std::convert::Infallible>(gateway.answer(request).await)
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(MOST_HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        tokio::spawn(async move {
            // A bad request gets a response; peers that are gone are ignored.
            let _ = connection.await;
            drop(place);
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(DRAIN, graceful.shutdown()).await;
}

impl Gateway {
    async fn answer(self: &Arc<Self>, request: Request) -> Response {
        if self.is_local && !names_this_machine(&request) {
            let text = "the host of the request must be localhost or a loopback address";
            return refusal(StatusCode::FORBIDDEN, text);
        }
        let path = request.uri().path().to_owned();
        match (request.method(), path.as_str()) {
            (&Verb::GET, "/") => self.list(),
            (&Verb::GET, "/healthz") => self.health(),
            (&Verb::GET, "/openapi.json") => self.openapi(),
            (&Verb::POST, path) => match path.strip_prefix('/').and_then(|it| it.split_once('/')) {
                Some((service, method)) if !service.is_empty() && !method.contains('/') => {
                    self.post(&format!("{service}.{method}"), request).await
                }
                _ => refusal(StatusCode::NOT_FOUND, "the path of a method is /Service/method"),
            },
            (_, "/" | "/healthz" | "/openapi.json") => {
                refusal(StatusCode::METHOD_NOT_ALLOWED, "this path takes GET")
            }
            (_, path) if path.matches('/').count() == 2 => {
                refusal(StatusCode::METHOD_NOT_ALLOWED, "methods take POST")
            }
            _ => refusal(StatusCode::NOT_FOUND, "GET / lists the methods"),
        }
    }

    async fn post(self: &Arc<Self>, name: &str, request: Request) -> Response {
        let Ok(place) = Arc::clone(&self.requests).try_acquire_owned() else {
            let text = "the gateway has as many requests in progress as it takes";
            return refusal(StatusCode::SERVICE_UNAVAILABLE, text);
        };
        let entry = match self.catalog.get(name) {
            Some(entry) => Ok(entry),
            None => self.catalog.search(&self.target, name).await,
        };
        match entry.as_deref() {
            Ok(Entry::Callable(method)) => {
                calls::call(Arc::clone(self), Arc::clone(method), request, place).await
            }
            Ok(Entry::Unusable(why)) => refusal(StatusCode::NOT_IMPLEMENTED, why.as_str()),
            Err(error) => {
                let status = match self.target.channel.state() {
                    ConnectivityState::Ready => StatusCode::NOT_FOUND,
                    _ => StatusCode::SERVICE_UNAVAILABLE,
                };
                refusal(status, format!("{error:#}"))
            }
        }
    }

    fn list(&self) -> Response {
        let mut text = String::new();
        for (name, entry) in self.catalog.all() {
            if let (Entry::Callable(_), Some((service, method))) = (&*entry, name.rsplit_once('.'))
            {
                text.push_str(&format!("POST /{service}/{method}\n"));
            }
        }
        text.push_str("GET /openapi.json\nGET /healthz\n");
        with_body(StatusCode::OK, "text/plain; charset=utf-8", text)
    }

    fn health(&self) -> Response {
        match self.target.channel.state() {
            ConnectivityState::Ready => with_body(StatusCode::OK, "text/plain", "ok\n"),
            state => {
                let text = format!("the gateway is not connected to the server: {state:?}\n");
                with_body(StatusCode::SERVICE_UNAVAILABLE, "text/plain", text)
            }
        }
    }

    fn openapi(&self) -> Response {
        let all = self.catalog.all();
        let methods = all.iter().filter_map(|(_, entry)| match &**entry {
            Entry::Callable(method) => Some(&**method),
            Entry::Unusable(_) => None,
        });
        with_json(StatusCode::OK, &openapi::document(methods, &self.target.address))
    }
}

/// Whether the request was made for this machine: a page of another name, whose address was changed
/// to loopback, was not.
fn names_this_machine(request: &Request) -> bool {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let host = host.or_else(|| request.uri().authority().map(|it| it.as_str()));
    let Some(host) = host else { return false };
    if host.parse::<SocketAddr>().is_ok_and(|it| it.ip().is_loopback()) {
        return true;
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost")
        || [name, bare].iter().any(|it| it.parse::<IpAddr>().is_ok_and(|it| it.is_loopback()))
}
