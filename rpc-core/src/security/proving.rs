//! What a handshake has proven, and what a connection keeps of it.
//!
//! Invariant: chains that are equal are kept once, as long as a connection has them.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use rpc_transport::device::PeerIdentity;
use rpc_transport::lock::Mutex;
use rpc_transport::protocol::lock::{FailureReason, HandshakeFailure, Protection};
use rustls::pki_types::CertificateDer;
use rustls::quic::Connection;

use super::leaf::read;
use super::provider::sha256;
use super::tls::Tls;
use crate::identity::{Binding, Certificate, Identity, Proof, Shown};

const BINDING: &[u8] = b"EXPORTER-rpc-rdma-channel-binding";

/// The chains of all connections of a server or a channel.
#[derive(Default)]
pub(super) struct Kept(Mutex<HashMap<[u8; 32], Weak<Shown>>>);

impl Kept {
    fn keep(&self, chain: &[CertificateDer<'_>]) -> Arc<Shown> {
        let hashes: Vec<_> = chain.iter().flat_map(|der| sha256(der)).collect();
        let hash = sha256(&hashes);
        let mut all = self.0.lock();
        if let Some(known) = all.get(&hash).and_then(Weak::upgrade) {
            return known;
        }
        if all.len() == all.capacity() {
            all.retain(|_, known| known.strong_count() > 0);
        }
        let shown = Arc::new(Shown(chain.iter().map(|der| der.to_vec()).collect()));
        all.insert(hash, Arc::downgrade(&shown));
        shown
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept({})", self.0.lock().len())
    }
}

/// What a handshake that is complete has proven; `generation` is that of the files at its start,
/// and `peer` what the transport knows, where the user is asked in here.
pub(super) fn prove(
    tls: &Tls,
    kept: &Kept,
    (protection, generation): (Protection, u64),
    peer: Option<&PeerIdentity>,
    connection: &Connection,
) -> Result<Arc<Proof>, HandshakeFailure> {
    let chain = connection.peer_certificates().unwrap_or_default();
    let certificate = match chain {
        [] => None,
        [key, ..] if tls.live().has_raw_keys() => Some(Certificate::of_key(sha256(key))),
        [leaf, ..] => match read(leaf) {
            Some((certificate, _)) => Some(certificate),
            // It was read when it was verified.
            None => return Err(internal("the peer's certificate cannot be read")),
        },
    };
    let binding = connection.export_keying_material([0; 32], BINDING, None);
    let binding = Binding(binding.map_err(|_| internal("there is no channel binding"))?);
    let suite = connection.negotiated_cipher_suite();
    let suite = suite.and_then(|suite| suite.suite().as_str()).unwrap_or_default();
    let proof = Arc::new(Proof {
        certificate,
        protection,
        suite,
        shown: (!chain.is_empty()).then(|| kept.keep(chain)),
        generation,
        binding: Some(binding),
    });
    if let Some(peer) = peer {
        tls.ask(&Identity::from(peer.clone()).proven(Some(Arc::clone(&proof))))?;
    }
    Ok(proof)
}

/// This end failed.
pub(super) fn internal(text: &str) -> HandshakeFailure {
    let text = format!("the TLS handshake failed at this end: {text}");
    HandshakeFailure::new(FailureReason::Internal, text, "the handshake failed")
}
