//! TLS of a port: its handshakes.

use std::io;
use std::time::Duration;

use rpc_core::security::Tls;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// What clients of a port have to prove.
pub(crate) struct Secure {
    tls: Tls,
    acceptor: TlsAcceptor,
}

impl Secure {
    /// # Errors
    /// The certificates are of no use for HTTP.
    pub(crate) fn new(tls: Tls) -> io::Result<Self> {
        let config = tls.http_server();
        let config = config.map_err(|it| io::Error::new(io::ErrorKind::InvalidInput, it))?;
        Ok(Self { tls, acceptor: TlsAcceptor::from(config) })
    }

    /// Reads the files of the certificates now and then, if that is wanted.
    pub(crate) async fn reload(&self) {
        self.tls.reload_for_http().await;
    }

    /// The connection behind its handshake; `None` if that fails, takes too long or is refused.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        within: Duration,
    ) -> Option<TlsStream<TcpStream>> {
        let peer = stream.peer_addr().ok()?;
        let error = match tokio::time::timeout(within, self.acceptor.accept(stream)).await {
            Ok(Ok(stream)) => match self.tls.admit_http(peer, stream.get_ref().1) {
                Ok(()) => return Some(stream),
                Err(error) => error.to_string(),
            },
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the handshake takes too long".to_owned(),
        };
        tracing::debug!(%peer, error, "an HTTP client is refused");
        None
    }
}
