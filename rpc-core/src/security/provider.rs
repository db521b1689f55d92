//! The cryptography: ring, by rustls.
//!
//! Owns the choice of suites, and the keys of sealed frames and records. Their numbers belong to
//! the sealing of `rpc-transport`. Frames have path 0 and records path 1 of multipath QUIC, so that
//! no nonce is used twice.

use std::sync::Arc;

use rpc_transport::protocol::frame::HEADER_BYTES;
use rpc_transport::protocol::lock::{FrameKey, RecordError, RecordKey, SealError, TAG_BYTES};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{cipher_suite, default_provider};
use rustls::quic::PacketKey;

/// Suites in the order of preference. AES-128 comes first: AES-256 costs 15 to 20 % more from 4 KiB
/// on, and rustls puts it first.
pub(super) fn provider() -> Arc<CryptoProvider> {
    let cipher_suites = vec![
        cipher_suite::TLS13_AES_128_GCM_SHA256,
        cipher_suite::TLS13_AES_256_GCM_SHA384,
        cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(CryptoProvider { cipher_suites, ..default_provider() })
}

/// SHA-256 of some bytes.
pub(super) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    if let Some(suite) = cipher_suite::TLS13_AES_128_GCM_SHA256.tls13() {
        hash.copy_from_slice(suite.common.hash_provider.hash(bytes).as_ref());
    }
    hash
}

/// The key of one direction, and where the next ones come from.
pub(super) struct DirectionKey {
    packet: Arc<dyn PacketKey>,
    next: Box<dyn FnMut() -> Box<dyn PacketKey> + Send>,
}

impl DirectionKey {
    pub(super) fn new(
        packet: Box<dyn PacketKey>,
        next: impl FnMut() -> Box<dyn PacketKey> + Send + 'static,
    ) -> Self {
        Self { packet: packet.into(), next: Box::new(next) }
    }
}

impl FrameKey for DirectionKey {
    fn seal(
        &self,
        number: u64,
        header: &[u8; HEADER_BYTES],
        payload: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], SealError> {
        let tag = self.packet.encrypt_in_place(number, header, payload);
        let tag = tag.map_err(|_| SealError::Key)?;
        tag.as_ref().try_into().map_err(|_| SealError::Key)
    }

    fn open(
        &self,
        number: u64,
        header: &[u8; HEADER_BYTES],
        sealed: &mut [u8],
    ) -> Result<(), SealError> {
        let opened = self.packet.decrypt_in_place(number, header, sealed);
        opened.map(|_| ()).map_err(|_| SealError::Forged)
    }

    fn advance(&mut self) {
        self.packet = (self.next)().into();
    }

    fn record_key(&self) -> Arc<dyn RecordKey> {
        Arc::new(PathKey(Arc::clone(&self.packet)))
    }
}

/// The path of records.
const RECORDS: u32 = 1;

/// The key of records.
struct PathKey(Arc<dyn PacketKey>);

impl RecordKey for PathKey {
    fn seal(&self, number: u64, record: &mut [u8]) -> Result<[u8; TAG_BYTES], RecordError> {
        let tag = self.0.encrypt_in_place_for_path(RECORDS, number, &[], record);
        let tag = tag.map_err(|_| RecordError)?;
        tag.as_ref().try_into().map_err(|_| RecordError)
    }

    fn open(&self, number: u64, sealed: &mut [u8]) -> Result<(), RecordError> {
        let opened = self.0.decrypt_in_place_for_path(RECORDS, number, &[], sealed);
        opened.map(|_| ()).map_err(|_| RecordError)
    }
}

#[cfg(test)]
mod tests {
    use rpc_transport::protocol::credit::Grant;
    use rpc_transport::protocol::frame::{Kind, RECORD_BYTES, header};
    use rpc_transport::protocol::lock::{Opener, Sealer};
    use rustls::crypto::cipher::{AeadKey, Iv};

    use super::*;

    /// AES-256, as rustls makes other keys of secrets alone.
    fn key(byte: u8) -> Box<dyn PacketKey> {
        let suite = cipher_suite::TLS13_AES_256_GCM_SHA384.tls13().unwrap();
        suite.quic.unwrap().packet_key(AeadKey::from([byte; 32]), Iv::from([3; 12]))
    }

    /// A table of `docs/wire-format.md`.
    #[test]
    fn sealed_frame_is_the_golden_vector() {
        let mut sealer = Sealer::new(Box::new(DirectionKey::new(key(7), || key(8))), 5);
        let grant = Grant { data: 2, ..Grant::default() };
        let mut frame = [&header(Kind::Data, grant)[..], b"call", &[0; TAG_BYTES]].concat();
        sealer.seal(&mut frame).unwrap();
        #[rustfmt::skip]
        let golden = [
            0x81, 0, 2, 0, 0, 0, 0, 0,
            0x98, 0xdd, 0xcf, 0x4d,
            0x94, 0x11, 0xb9, 0x53, 0xe3, 0xa4, 0xec, 0xe3,
            0x8c, 0x68, 0xd5, 0xb0, 0xb4, 0x99, 0xb2, 0xfe,
        ];
        assert_eq!(frame, golden);
        let mut opener = Opener::new(Box::new(DirectionKey::new(key(7), || key(8))), 5);
        assert_eq!(opener.open(None, &mut frame), Ok(HEADER_BYTES + 4));
        assert_eq!(frame[HEADER_BYTES..][..4], *b"call");
    }

    /// As `docs/wire-format.md` says; another implementation of AES-GCM gives the same. A frame
    /// with the same number and key has another nonce.
    #[test]
    fn sealed_records_are_the_golden_vector() {
        let mut sealer = Sealer::new(Box::new(DirectionKey::new(key(7), || key(8))), 0);
        let mut bytes = vec![7; RECORD_BYTES + 4];
        let tags = sealer.seal_records(&mut bytes).unwrap();
        assert_eq!((tags.epoch, tags.first, tags.tags.len()), (0, 0, 2));
        assert_eq!(bytes[..4], [0x7f, 0x25, 0xa8, 0x7a]);
        assert_eq!(bytes[RECORD_BYTES..], [0x23, 0xd1, 0x4e, 0xe3]);
        #[rustfmt::skip]
        let tag = [
            0xfc, 0x45, 0xdc, 0xe7, 0xfa, 0xe5, 0x4c, 0xca,
            0x5a, 0xe8, 0xd1, 0xdc, 0xee, 0xd3, 0x4c, 0xa6,
        ];
        assert_eq!(tags.tags[1], tag);
        let direction = DirectionKey::new(key(7), || key(8));
        let mut last = [&bytes[RECORD_BYTES..], &tags.tags[1][..]].concat();
        assert_eq!(direction.record_key().open(0, &mut last.clone()), Err(RecordError));
        direction.record_key().open(1, &mut last).unwrap();
        assert_eq!(last[..4], [7; 4]);
        let mut frame = [7; 4];
        direction.seal(1, &[0; 8], &mut frame).unwrap();
        assert_ne!(frame, bytes[RECORD_BYTES..]);
    }
}
