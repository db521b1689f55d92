//! A handshake of three messages with a keyed checksum, for tests. It protects nothing.
//!
//! The client sends a nonce with its parameters. The server answers with its nonce in clear, then
//! with its parameters and a proof. The client answers with its proof.

use std::sync::{Arc, Mutex, PoisonError};

use sha2::{Digest, Sha256};

use super::driver::{
    Handshake, HandshakeFactory, Level, PARAMETERS_BYTES, Protection, Role, Secured, Start,
};
use super::sealing::{FrameKey, FrameKeys, RecordError, RecordKey, SealError, TAG_BYTES};
use crate::device::handshake_failure::{FailureReason, HandshakeFailure};
use crate::protocol::frame::HEADER_BYTES;

const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const SERVER_PROOF: u8 = 8;
const CLIENT_PROOF: u8 = 20;
const NONCE_BYTES: usize = 8;
/// In place of a header.
const RECORD: &[u8; HEADER_BYTES] = b"a record";

/// The identity that a fake handshake proves: the name that the peer was made with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FakeIdentity(pub String);

/// A key that is a checksum. It hides bytes from nobody but a search for them.
#[derive(Debug, Clone)]
pub struct FakeKey {
    key: u64,
    from: Role,
    epoch: u64,
}

impl FakeKey {
    /// For the frames of an end.
    #[must_use]
    pub const fn new(key: u64, from: Role) -> Self {
        Self { key, from, epoch: 0 }
    }

    fn tag(&self, number: u64, header: &[u8], payload: &[u8]) -> [u8; TAG_BYTES] {
        let hash = Sha256::new()
            .chain_update(self.key.to_le_bytes())
            .chain_update([self.from as u8])
            .chain_update(self.epoch.to_le_bytes())
            .chain_update(number.to_le_bytes())
            .chain_update(header)
            .chain_update(payload)
            .finalize();
        std::array::from_fn(|at| hash[at])
    }
}

impl FrameKey for FakeKey {
    fn seal(
        &self,
        number: u64,
        header: &[u8; HEADER_BYTES],
        payload: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], SealError> {
        let tag = self.tag(number, header, payload);
        payload.iter_mut().for_each(|byte| *byte ^= 0xa5);
        Ok(tag)
    }

    fn open(
        &self,
        number: u64,
        header: &[u8; HEADER_BYTES],
        sealed: &mut [u8],
    ) -> Result<(), SealError> {
        let (payload, tag) = sealed.split_last_chunk_mut().ok_or(SealError::Forged)?;
        payload.iter_mut().for_each(|byte| *byte ^= 0xa5);
        if *tag == self.tag(number, header, payload) { Ok(()) } else { Err(SealError::Forged) }
    }

    fn advance(&mut self) {
        self.epoch += 1;
    }

    fn record_key(&self) -> Arc<dyn RecordKey> {
        Arc::new(self.clone())
    }
}

impl RecordKey for FakeKey {
    fn seal(&self, number: u64, record: &mut [u8]) -> Result<[u8; TAG_BYTES], RecordError> {
        FrameKey::seal(self, number, RECORD, record).map_err(|_| RecordError)
    }

    fn open(&self, number: u64, sealed: &mut [u8]) -> Result<(), RecordError> {
        FrameKey::open(self, number, RECORD, sealed).map_err(|_| RecordError)
    }
}

/// Both ends that have the same key know each other.
#[derive(Debug, Clone)]
pub struct FakeFactory {
    /// The key.
    pub key: u64,
    /// The name that this end proves.
    pub name: String,
    /// Bytes to pad each proof with.
    pub padding: usize,
    /// Names that [`Handshake::finish`] denies.
    pub denied: Vec<String>,
    /// Called in [`Handshake::finish`].
    pub hook: Option<fn()>,
    /// What it insists on over a network.
    pub protection: Protection,
    /// What it insists on over `mem` and `shm`.
    pub local: Protection,
    /// The last nonce: each handshake takes the next one.
    pub nonces: Arc<Mutex<u64>>,
}

impl FakeFactory {
    /// With this key and name.
    #[must_use]
    pub fn new(key: u64, name: &str) -> Self {
        let name = name.to_owned();
        let (protection, local) = (Protection::Authenticate, Protection::Authenticate);
        let (denied, nonces) = (Vec::new(), Arc::default());
        Self { key, name, padding: 0, denied, hook: None, protection, local, nonces }
    }
}

impl HandshakeFactory for FakeFactory {
    fn protection(&self, scheme: &str) -> Protection {
        if matches!(scheme, "mem" | "shm") { self.local } else { self.protection }
    }

    fn start(&self, start: Start<'_>) -> Result<Box<dyn Handshake>, HandshakeFailure> {
        let mut nonces = self.nonces.lock().unwrap_or_else(PoisonError::into_inner);
        *nonces += 1;
        Ok(Box::new(Fake {
            factory: self.clone(),
            role: start.role,
            parameters: start.parameters,
            expected: start.expected_name.map(ToOwned::to_owned),
            transcript: Sha256::new(),
            nonce: nonces.to_le_bytes(),
            level: Level::Initial,
            has_application: false,
            queue: Vec::new(),
            peer: None,
            peer_name: String::new(),
            is_complete: false,
            is_begun: false,
        }))
    }
}

struct Fake {
    factory: FakeFactory,
    role: Role,
    parameters: [u8; PARAMETERS_BYTES],
    expected: Option<String>,
    transcript: Sha256,
    nonce: [u8; NONCE_BYTES],
    /// Of both directions.
    level: Level,
    has_application: bool,
    queue: Vec<(Level, Vec<u8>)>,
    peer: Option<Vec<u8>>,
    peer_name: String,
    is_complete: bool,
    is_begun: bool,
}

impl Fake {
    fn send(&mut self, level: Level, kind: u8, body: &[u8]) {
        let mut message = (u32::try_from(body.len()).unwrap_or(0)).to_be_bytes().to_vec();
        message[0] = kind;
        message.extend_from_slice(body);
        self.transcript.update(&message);
        self.queue.push((level, message));
    }

    fn proof(&self, label: &[u8]) -> [u8; 32] {
        let hash = self.transcript.clone().chain_update(self.factory.key.to_le_bytes());
        hash.chain_update(label).finalize().into()
    }

    fn proof_body(&self, label: &[u8]) -> Vec<u8> {
        let name = self.factory.name.as_bytes();
        let len = [u8::try_from(name.len()).unwrap_or(u8::MAX)];
        let padding = vec![0; self.factory.padding];
        [&self.parameters[..], &self.proof(label), &len, name, &padding].concat()
    }

    fn check_proof(&mut self, body: &[u8], label: &[u8]) -> Result<(), HandshakeFailure> {
        let malformed = || failure(FailureReason::BadCertificate, "malformed proof");
        let (parameters, rest) =
            body.split_first_chunk::<PARAMETERS_BYTES>().ok_or_else(malformed)?;
        let (proof, rest) = rest.split_first_chunk::<32>().ok_or_else(malformed)?;
        let (len, rest) = rest.split_first().ok_or_else(malformed)?;
        let name = rest.get(..usize::from(*len)).ok_or_else(malformed)?;
        if *proof != self.proof(label) {
            return Err(failure(FailureReason::UnknownAuthority, "wrong key"));
        }
        self.peer_name = String::from_utf8_lossy(name).into_owned();
        if self.expected.as_ref().is_some_and(|expected| *expected != self.peer_name) {
            return Err(failure(FailureReason::WrongName, "wrong name"));
        }
        self.peer = Some(parameters.to_vec());
        Ok(())
    }

    /// Of one frame. Both ends of a direction compute it alike.
    fn tag(
        &self,
        from: Role,
        level: Level,
        number: u64,
        header: &[u8],
        payload: &[u8],
    ) -> [u8; 16] {
        let hash = Sha256::new()
            .chain_update(self.factory.key.to_le_bytes())
            .chain_update([from as u8, level as u8])
            .chain_update(number.to_le_bytes())
            .chain_update(header)
            .chain_update(payload)
            .finalize();
        std::array::from_fn(|at| hash[at])
    }

    fn check_keys(&self, level: Level) -> Result<(), HandshakeFailure> {
        let has_keys = match level {
            Level::Initial => false,
            Level::Handshake => self.level == Level::Handshake,
            Level::Application => self.has_application,
        };
        let missing = || failure(FailureReason::Internal, "no such keys");
        has_keys.then_some(()).ok_or_else(missing)
    }
}

impl Handshake for Fake {
    fn read(&mut self, message: &[u8]) -> Result<(), HandshakeFailure> {
        let (kind, body) = (message[0], &message[4..]);
        match (self.role, self.level, kind) {
            (Role::Server, Level::Initial, CLIENT_HELLO) => {
                self.transcript.update(message);
                self.send(Level::Initial, SERVER_HELLO, &self.nonce.clone());
                let body = self.proof_body(b"server");
                self.send(Level::Handshake, SERVER_PROOF, &body);
            }
            (Role::Client, Level::Initial, SERVER_HELLO) => {
                self.transcript.update(message);
                self.level = Level::Handshake;
            }
            (Role::Client, Level::Handshake, SERVER_PROOF) => {
                self.check_proof(body, b"server")?;
                self.transcript.update(message);
                let body = self.proof_body(b"client");
                self.send(Level::Handshake, CLIENT_PROOF, &body);
                (self.is_complete, self.has_application) = (true, true);
            }
            (Role::Server, Level::Handshake, CLIENT_PROOF) => {
                self.check_proof(body, b"client")?;
                self.is_complete = true;
            }
            _ => return Err(failure(FailureReason::BrokenRule, "unexpected message")),
        }
        Ok(())
    }

    fn write(&mut self, into: &mut Vec<u8>) -> Result<Option<Level>, HandshakeFailure> {
        if self.role == Role::Client && !std::mem::replace(&mut self.is_begun, true) {
            self.send(Level::Initial, CLIENT_HELLO, &self.nonce.clone());
        }
        if self.queue.is_empty() {
            return Ok(None);
        }
        let (level, message) = self.queue.remove(0);
        if self.role == Role::Server {
            // As TLS does: keys appear when they are first needed for writing.
            self.level = self.level.max(Level::Handshake);
            self.has_application |= level == Level::Handshake;
        }
        into.extend_from_slice(&message);
        Ok(Some(level))
    }

    fn read_level(&self) -> Level {
        self.level
    }

    fn is_complete(&self) -> bool {
        self.is_complete
    }

    fn seal(
        &mut self,
        level: Level,
        number: u64,
        header: &[u8; HEADER_BYTES],
        payload: &mut Vec<u8>,
    ) -> Result<(), HandshakeFailure> {
        self.check_keys(level)?;
        let tag = self.tag(self.role, level, number, header, payload);
        payload.iter_mut().for_each(|byte| *byte ^= 0xa5);
        payload.extend_from_slice(&tag);
        Ok(())
    }

    fn open(
        &mut self,
        level: Level,
        number: u64,
        header: &[u8; HEADER_BYTES],
        payload: &mut Vec<u8>,
    ) -> Result<(), HandshakeFailure> {
        self.check_keys(level)?;
        let peer = if self.role == Role::Client { Role::Server } else { Role::Client };
        let forged = || failure(FailureReason::BrokenRule, "forged frame");
        let tag_at = payload.len().checked_sub(TAG_BYTES).ok_or_else(forged)?;
        let tag = payload.split_off(tag_at);
        payload.iter_mut().for_each(|byte| *byte ^= 0xa5);
        if tag == self.tag(peer, level, number, header, payload) { Ok(()) } else { Err(forged()) }
    }

    fn peer_parameters(&self) -> Option<&[u8]> {
        self.peer.as_deref()
    }

    fn finish(&mut self) -> Result<Secured, HandshakeFailure> {
        if let Some(hook) = self.factory.hook {
            hook();
        }
        if self.factory.denied.contains(&self.peer_name) {
            return Err(failure(FailureReason::Denied, "denied by a rule"));
        }
        Ok(Secured::new(Arc::new(FakeIdentity(self.peer_name.clone()))))
    }

    fn frame_keys(&mut self) -> Result<FrameKeys, HandshakeFailure> {
        self.check_keys(Level::Application)?;
        let peer = if self.role == Role::Client { Role::Server } else { Role::Client };
        let key = |from| Box::new(FakeKey::new(self.factory.key, from));
        Ok(FrameKeys { own: key(self.role), peer: key(peer) })
    }
}

fn failure(reason: FailureReason, text: &str) -> HandshakeFailure {
    HandshakeFailure::new(reason, text, text)
}
