//! The certificates of a server for an HTTP port of its process.

use std::net::SocketAddr;
use std::sync::Arc;

use rpc_transport::device::PeerIdentity;
use rpc_transport::protocol::lock::Protection;
use rustls::{ServerConfig, ServerConnection};

use super::keeper::read_again;
use super::leaf::read;
use super::pem::TlsError;
use super::tls::Tls;
use crate::identity::{Identity, Proof};

#[doc(hidden)]
impl Tls {
    /// For handshakes with HTTP clients, which are checked as clients of a server are.
    pub fn http_server(&self) -> Result<Arc<ServerConfig>, TlsError> {
        if self.live().has_raw_keys() {
            let text = "HTTP clients know certificates alone: use `Tls::from_pem`";
            return Err(TlsError(text.to_owned()));
        }
        self.server(b"http/1.1")
    }

    /// Reloads now and then, as a server that has this does. It ends at once if nobody wants that,
    /// else never.
    pub async fn reload_for_http(&self) {
        let Some(period) = self.reload_every else { return };
        loop {
            tokio::time::sleep(period).await;
            read_again(self).await;
        }
    }

    /// Whether each client has proven who it is.
    pub fn knows_its_clients(&self) -> bool {
        !self.allows_anonymous
    }

    /// Asks the user about a client whose handshake is complete.
    pub fn admit_http(&self, peer: SocketAddr, http: &ServerConnection) -> Result<(), TlsError> {
        let leaf = http.peer_certificates().and_then(<[_]>::first);
        let suite = http.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str());
        let proof = Proof {
            certificate: leaf.and_then(|leaf| read(leaf)).map(|(certificate, _)| certificate),
            protection: Protection::Encrypt,
            suite: suite.unwrap_or_default(),
            shown: None,
            generation: self.live().generation(),
            binding: None,
        };
        let peer = Identity::from(PeerIdentity::Network(peer)).proven(Some(Arc::new(proof)));
        self.ask(&peer).map_err(|failure| TlsError(failure.to_string()))
    }
}
