//! An HTTP port: its listener, and the limits on number and lifetime of its connections.
//!
//! Owns the listener and its connections. hyper reads requests and writes responses; the paths are
//! in `http.rs`, TLS in `secure.rs`.
//!
//! Invariants:
//! 1. At most [`MOST_CONNECTIONS`] are open. One more replaces the oldest one without a complete
//!    request head, or if there is none, the oldest.
//! 2. A TLS handshake and a request head must each be complete within [`HEAD_TIMEOUT`]. A head has
//!    at most [`MOST_HEAD_BYTES`]; a connection ends [`LIFETIME`] after its handshake.
//! 3. A connection answers one request, whose body is not read.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};

use crate::hosts::{Hosts, Owner, is_loopback};

/// Maximum number of open connections.
const MOST_CONNECTIONS: usize = 32;
/// Maximum lifetime of a connection.
const LIFETIME: Duration = Duration::from_secs(10);
/// Time limit for receiving the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum length of a request head, bytes.
const MOST_HEAD_BYTES: usize = 16 * 1024;
/// Pause before the next attempt when the system is out of connections.
const PAUSE: Duration = Duration::from_millis(100);

/// Who may use a port.
#[derive(Clone, Default)]
pub(crate) struct Terms {
    /// Host names, in addition to the loopback ones.
    pub(crate) hosts: Vec<String>,
    /// Everybody, whatever the address.
    pub(crate) is_public: bool,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<rpc_core::security::Tls>,
}

impl Terms {
    /// Whether each client proves who it is.
    fn knows_its_clients(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.as_ref().is_some_and(rpc_core::security::Tls::knows_its_clients);
        #[cfg(not(feature = "tls"))]
        false
    }
}

/// A listening port.
pub(crate) struct Port {
    listener: TcpListener,
    #[cfg(feature = "tls")]
    secure: Option<Arc<crate::secure::Secure>>,
    /// Everybody who reaches the address may ask, and that is beyond this machine.
    pub(crate) is_public: bool,
    pub(crate) address: SocketAddr,
    pub(crate) hosts: Hosts,
}

impl Port {
    /// Listens at `address`.
    ///
    /// # Errors
    /// It cannot listen, a host is not a host name, the certificates are of no use, or others could
    /// reach it without proving who they are.
    pub(crate) async fn bind(owner: Owner, address: SocketAddr, terms: Terms) -> io::Result<Self> {
        let named = |error: io::Error| {
            let advice = match error.kind() {
                io::ErrorKind::AddrInUse => "; choose another port",
                io::ErrorKind::AddrNotAvailable => "; give an IP address of this host",
                io::ErrorKind::PermissionDenied => "; choose a port from 1024 on",
                _ => "",
            };
            let name = owner.name;
            let text = format!("{name}: cannot listen at {address}: {error}{advice}");
            io::Error::new(error.kind(), text)
        };
        Hosts::new(owner, address, &terms.hosts)?;
        let is_public = !is_loopback(address.ip()) && !terms.knows_its_clients();
        if is_public && !terms.is_public {
            let Owner { name, builder } = owner;
            let text = format!(
                "{name}: everybody who reaches {address} could read it: choose a loopback address, \
                 have clients prove who they are by `{builder}::tls`, or allow it by \
                 `{builder}::public`"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        #[cfg(feature = "tls")]
        let secure = terms.tls.map(crate::secure::Secure::new).transpose()?.map(Arc::new);
        let listener = TcpListener::bind(address).await.map_err(named)?;
        let address = listener.local_addr()?;
        let hosts = Hosts::new(owner, address, &terms.hosts)?;
        Ok(Self {
            listener,
            #[cfg(feature = "tls")]
            secure,
            is_public,
            address,
            hosts,
        })
    }

    /// The scheme of its URL.
    pub(crate) fn scheme(&self) -> &'static str {
        #[cfg(feature = "tls")]
        if self.secure.is_some() {
            return "https";
        }
        "http"
    }

    /// Answers until the future is dropped, which ends all connections.
    pub(crate) async fn serve(self, router: Router) {
        let mut tasks = JoinSet::new();
        let mut held: VecDeque<Held> = VecDeque::with_capacity(MOST_CONNECTIONS);
        // Not among the connections, which are counted. It ends when this is dropped.
        #[cfg(feature = "tls")]
        let mut reloads = JoinSet::new();
        #[cfg(feature = "tls")]
        if let Some(secure) = self.secure.clone() {
            reloads.spawn(async move { secure.reload().await });
        }
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::debug!(%error, "cannot accept an HTTP connection");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            while tasks.try_join_next().is_some() {}
            held.retain(|held| !held.task.is_finished());
            if held.len() >= MOST_CONNECTIONS {
                give_way(&mut held);
                // Requests that have arrived meanwhile are read before a connection is chosen.
                tokio::task::yield_now().await;
            }
            let has_asked = Arc::new(AtomicBool::new(false));
            let (router, asks) = (router.clone(), Arc::clone(&has_asked));
            #[cfg(feature = "tls")]
            let secure = self.secure.clone();
            let task = tasks.spawn(async move {
                #[cfg(feature = "tls")]
                if let Some(secure) = secure {
                    if let Some(stream) = secure.accept(stream, HEAD_TIMEOUT).await {
                        answer(stream, router, asks).await;
                    }
                    return;
                }
                answer(stream, router, asks).await;
            });
            held.push_back(Held { task, has_asked });
        }
    }
}

/// A connection.
struct Held {
    task: AbortHandle,
    /// The head of its request has arrived.
    has_asked: Arc<AtomicBool>,
}

/// Ends the least valuable connection.
fn give_way(held: &mut VecDeque<Held>) {
    let silent = held.iter().position(|held| !held.has_asked.load(Ordering::Relaxed));
    if let Some(held) = held.remove(silent.unwrap_or(0)) {
        held.task.abort();
    }
}

/// Answers the one request of a connection.
async fn answer<S>(stream: S, router: Router, has_asked: Arc<AtomicBool>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| {
        has_asked.store(true, Ordering::Relaxed);
        service.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MOST_HEAD_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    // A bad request gets a response; peers that are gone or slow are ignored.
    let _ = tokio::time::timeout(LIFETIME, connection).await;
}
