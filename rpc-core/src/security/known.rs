//! Chains of certificates that were verified, so that a peer that connects again costs fewer
//! verifications of signatures.
//!
//! Remembers the chains for as long as this end trusts the authorities that they were verified
//! with. Verifies nothing, and never reads a clock.
//!
//! Invariants:
//! 1. A chain is known by all of its bytes and the role of its peer. Its first certificate picks
//!    the authorities.
//! 2. It is known only while all of its certificates are valid, needed or not, and its authority.
//! 3. The key and the name of the peer are not part of it: each handshake checks them.

use std::collections::HashMap;
use std::time::SystemTime;

use rpc_transport::lock::Mutex;
use rpc_transport::protocol::lock::Role;
use rustls::pki_types::{CertificateDer, UnixTime};

use super::der;
use super::provider::sha256;

/// Chains that are known at once.
const MOST: usize = 256;

/// SHA-256 of a chain and the role of its peer.
pub(super) type Key = [u8; 32];

/// The chains, and the first and last second at which each is valid.
#[derive(Default)]
pub(super) struct Known(Mutex<HashMap<Key, [u64; 2]>>);

/// The key of a chain.
pub(super) fn key(
    peer: Role,
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Key {
    let mut bytes = vec![peer as u8];
    for der in [end_entity].into_iter().chain(intermediates) {
        bytes.extend_from_slice(&der.len().to_le_bytes());
        bytes.extend_from_slice(der);
    }
    sha256(&bytes)
}

impl Known {
    /// Whether this chain was verified and is valid now.
    pub(super) fn has(&self, key: &Key, now: UnixTime) -> bool {
        let dates = self.0.lock().get(key).copied();
        dates.is_some_and(|[first, last]| (first..=last).contains(&now.as_secs()))
    }

    /// This chain is verified with an `authority` that is valid within these seconds. One with
    /// dates that cannot be read is not kept.
    pub(super) fn add(
        &self,
        key: Key,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        authority: [u64; 2],
    ) {
        let [mut first, mut last] = authority;
        for der in [end_entity].into_iter().chain(intermediates) {
            let Some([begins, ends]) = dates(der) else { return };
            (first, last) = (first.max(begins), last.min(ends));
        }
        let mut all = self.0.lock();
        if all.len() >= MOST {
            // All of them are verified once more.
            all.clear();
        }
        all.insert(key, [first, last]);
    }
}

/// The first and last second at which a certificate is valid.
fn dates(certificate: &[u8]) -> Option<[u64; 2]> {
    let fields = der::head(certificate)?;
    Some([seconds(fields.not_before?)?, seconds(fields.not_after?)?])
}

/// Since 1970.
pub(super) fn seconds(at: SystemTime) -> Option<u64> {
    at.duration_since(SystemTime::UNIX_EPOCH).ok().map(|since| since.as_secs())
}
