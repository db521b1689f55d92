//! An HTTP port: its listener, and the limits on number and lifetime of its connections.
//!
//! Owns the listener and its connections. hyper reads requests and writes responses; the paths are
//! in `http.rs`. Connections are generic over their stream, so that TLS can be added.
//!
//! Invariants:
//! 1. At most [`MOST_CONNECTIONS`] are open. One more replaces the oldest one without a complete
//!    request head, or if there is none, the oldest.
//! 2. A request head must be complete within [`HEAD_TIMEOUT`] and has at most [`MOST_HEAD_BYTES`];
//!    a connection ends after [`LIFETIME`].
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

use crate::hosts::Hosts;

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

/// The owner of the port, for errors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    /// Its name, for people.
    pub(crate) name: &'static str,
    /// Its builder type.
    pub(crate) builder: &'static str,
}

/// A listening port.
pub(crate) struct Port {
    listener: TcpListener,
    pub(crate) address: SocketAddr,
    pub(crate) hosts: Hosts,
}

impl Port {
    /// Listens at `address`.
    ///
    /// # Errors
    /// It cannot listen, or one of `hosts` is not a host name.
    pub(crate) async fn bind(
        owner: Owner,
        address: SocketAddr,
        hosts: &[String],
    ) -> io::Result<Self> {
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
        Hosts::new(owner, address, hosts)?;
        let listener = TcpListener::bind(address).await.map_err(named)?;
        let address = listener.local_addr()?;
        let hosts = Hosts::new(owner, address, hosts)?;
        Ok(Self { listener, address, hosts })
    }

    /// Answers until the future is dropped, which ends all connections.
    pub(crate) async fn serve(self, router: Router) {
        let mut tasks = JoinSet::new();
        let mut held: VecDeque<Held> = VecDeque::with_capacity(MOST_CONNECTIONS);
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
            let task = tasks.spawn(answer(stream, router.clone(), Arc::clone(&has_asked)));
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
