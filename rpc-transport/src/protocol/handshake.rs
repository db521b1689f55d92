//! The handshake: what two ends exchange in the private data of connection set-up (RDMA CM).
//!
//! Owns the byte formats of request, reply and reject, and the rules by which two offers become
//! one agreement. Never sends anything, and knows no addresses.
//!
//! The client sends its [`Offer`] with the connection request; the server answers with its own,
//! or with a [`Reject`]. Each end offers window, buffer size, message limit and arena as a
//! *receiver*, and the other end must keep to them. Features are intersected; the version is the
//! smaller of the two maxima, if both minima allow it. Both ends compute the same [`Agreed`].
//!
//! Invariants:
//! 1. A request fits 56 bytes, a reply 196, a reject 148. The receiver sees them zero-padded, so
//!    each states its length, and all bytes after that must be zero.
//! 2. The first 8 bytes and the whole reject are the same in every version, so that ends without a
//!    common version can still report that.
//! 3. A later version may append fields: bytes after the known fields are skipped.

mod reject;
#[cfg(test)]
mod tests;

pub use self::reject::{REJECT_TEXT_MAX_BYTES, Reject, RejectCode};
use crate::device::{REJ_PRIVATE_DATA_BYTES, REP_PRIVATE_DATA_BYTES, REQ_PRIVATE_DATA_BYTES};
use crate::protocol::arena::{Advertisement, CHUNK_LOG2, MAX_ARENA_CHUNKS};
use crate::protocol::config::{self, ConfigError, LinkConfig};
use crate::protocol::credit::{MAX_WINDOW, MIN_ACK_WINDOW, Window};

/// The first bytes of all private data, `RPCr`.
pub const MAGIC: [u8; 4] = *b"RPCr";
/// Versions that this end speaks.
pub const VERSIONS: Versions = Versions { min: 2, max: 2 };
/// Length of a request or a reply, bytes.
pub const OFFER_BYTES: usize = 55;
/// Bytes of a u48.
const U48_BYTES: usize = 6;

/// Length of the prefix, bytes: magic, length, kind, versions. The same in every version.
const PREFIX_BYTES: usize = 8;

const _: () = assert!(OFFER_BYTES <= REQ_PRIVATE_DATA_BYTES);
const _: () = assert!(OFFER_BYTES <= REP_PRIVATE_DATA_BYTES);
const _: () = assert!(reject::REJECT_MAX_BYTES <= REJ_PRIVATE_DATA_BYTES);

/// The kind of private data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum What {
    Request = 1,
    Reply = 2,
    Reject = 3,
}

/// A range of protocol versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    /// The oldest.
    pub min: u8,
    /// The newest.
    pub max: u8,
}

impl std::fmt::Display for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {}", self.min, self.max)
    }
}

/// A set of optional features. A feature is used only if both ends have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features(u16);

impl Features {
    /// No feature.
    pub const NONE: Self = Self(0);
    /// Acks are sent as SEND_WITH_IMM.
    pub const ACK_IMMEDIATE: Self = Self(1);
    /// Large messages are sent by one-sided WRITE into the receiver's arena.
    pub const ARENA: Self = Self(1 << 1);
    /// Replies are sent by one-sided WRITE into slots of the caller.
    pub const REPLY_SLOTS: Self = Self(1 << 2);
    /// Headers carry a checksum.
    pub const CRC32C: Self = Self(1 << 3);
    /// No message passes before both ends have proved who they are.
    pub const SECURE: Self = Self(1 << 5);
    /// Never on the wire: what is written for a frame is sealed, in records.
    pub const RECORDS: Self = Self(1 << 15);

    /// The features of either set.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The features that both sets have.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Whether every feature of `other` is in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A landing zone for one-sided WRITEs of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArenaDescriptor {
    /// Address of the first byte, as the owner's device knows it.
    pub address: u64,
    /// Remote key.
    pub rkey: u32,
    /// Size of a chunk, as a power of two, 12 to 26.
    pub log2_chunk: u8,
    /// Number of chunks, 1 to 4096.
    pub chunks: u16,
}

impl From<ArenaDescriptor> for Advertisement {
    /// The arena of the handshake is number 0 and starts at chunk 0.
    fn from(descriptor: ArenaDescriptor) -> Self {
        let ArenaDescriptor { address, rkey, log2_chunk, chunks } = descriptor;
        Self { arena: 0, first_chunk: 0, chunks, log2_chunk, rkey, address }
    }
}

/// What one end sends to the other in the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Protocol versions of this end.
    pub versions: Versions,
    /// Features of this end.
    pub features: Features,
    /// How many messages and Acks this end accepts before it has returned their credits.
    pub window: Window,
    /// Size of this end's receive buffers, bytes.
    pub receive_buffer_bytes: u32,
    /// Largest message that this end accepts, bytes.
    pub max_message_bytes: u64,
    /// This end puts messages up to this length together, bytes. The tail of a longer one is a
    /// stream, of which at most this many bytes may wait in its memory. At most 1 TiB.
    pub assembly_bytes: u64,
    /// Identifies this connection attempt.
    pub nonce: u64,
    /// This end's landing zone, if it has one from the start.
    pub arena: Option<ArenaDescriptor>,
}

/// The agreement of both ends for a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreed {
    /// The protocol version.
    pub version: u8,
    /// Features of both ends.
    pub features: Features,
    /// The peer's offer.
    pub remote: Offer,
}

/// Private data is not a handshake, or a malformed one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// It is not of this protocol.
    #[error("private data does not start with the magic of this protocol")]
    BadMagic,
    /// It is too short.
    #[error("private data of {len} bytes is cut off: {need} are needed")]
    Truncated {
        /// Bytes received.
        len: usize,
        /// Bytes needed.
        need: usize,
    },
    /// It states an impossible length.
    #[error("private data names a length of {named} bytes: it must be at least {need}")]
    BadLength {
        /// The length that it states, bytes.
        named: usize,
        /// The smallest valid length, bytes.
        need: usize,
    },
    /// There are bytes other than 0 after the stated length.
    #[error("private data is not zero after its length of {0} bytes")]
    TrailingBytes(usize),
    /// It is of the wrong kind, such as a request where a reply was expected.
    #[error("private data is of kind {found}, but {expected} is expected")]
    WrongKind {
        /// The kind received.
        found: u8,
        /// The kind expected.
        expected: u8,
    },
    /// The version range is empty or contains 0.
    #[error("version range {0} is empty or includes 0")]
    BadVersions(Versions),
    /// A value is out of its range.
    #[error("the peer offers an invalid value: {0}")]
    BadValue(ConfigError),
    /// The text of a reject is not UTF-8 of at most 100 bytes.
    #[error("the peer's reject text is malformed")]
    BadText,
}

impl Offer {
    /// The offer of an end with this config, without an arena.
    #[must_use]
    pub fn new(config: &LinkConfig, features: Features, nonce: u64) -> Self {
        Self {
            versions: VERSIONS,
            features,
            window: config.window(),
            receive_buffer_bytes: config.receive_buffer(),
            max_message_bytes: config.max_message_bytes,
            assembly_bytes: config.assembly_bytes,
            nonce,
            arena: None,
        }
    }

    /// The private data of a connection request.
    #[must_use]
    pub fn to_request(&self) -> [u8; OFFER_BYTES] {
        self.encode(What::Request)
    }

    /// The private data of an accepting reply.
    #[must_use]
    pub fn to_reply(&self) -> [u8; OFFER_BYTES] {
        self.encode(What::Reply)
    }

    /// Reads a connection request.
    ///
    /// # Errors
    /// [`HandshakeError`]; [`Reject::malformed`] turns it into the reject to answer with.
    pub fn from_request(bytes: &[u8]) -> Result<Self, HandshakeError> {
        Self::decode(bytes, What::Request)
    }

    /// Reads an accepting reply.
    ///
    /// # Errors
    /// [`HandshakeError`].
    pub fn from_reply(bytes: &[u8]) -> Result<Self, HandshakeError> {
        Self::decode(bytes, What::Reply)
    }

    /// Computes the agreement between this end, the server, and a client.
    ///
    /// # Errors
    /// The [`Reject`] to answer with.
    pub fn agree_as_server(&self, client: &Self) -> Result<Agreed, Reject> {
        let secure = Features::SECURE;
        if self.features.contains(secure) && !client.features.contains(secure) {
            let text = "this server requires TLS: give the client `Channel::builder().tls(..)`";
            return Err(Reject::new(RejectCode::Application, text));
        }
        self.agree(client, self.versions, client.versions)
    }

    /// Computes the agreement between this end, the client, and a server that accepted.
    ///
    /// # Errors
    /// [`Reject`], made by this end; a server that keeps the rules never causes it.
    pub fn agree_as_client(&self, server: &Self) -> Result<Agreed, Reject> {
        self.agree(server, server.versions, self.versions)
    }

    fn agree(&self, peer: &Self, server: Versions, client: Versions) -> Result<Agreed, Reject> {
        let version = server.max.min(client.max);
        if version < server.min || version < client.min {
            return Err(Reject::version_mismatch(server, client));
        }
        peer.validate().map_err(|error| Reject::malformed(&error))?;
        let features = self.features.intersection(peer.features);
        if features.contains(Features::SECURE) {
            peer.check_secure().map_err(|error| Reject::malformed(&error))?;
        }
        Ok(Agreed { version, features, remote: *peer })
    }

    /// Checks every value against its range.
    ///
    /// # Errors
    /// [`HandshakeError::BadValue`].
    pub fn validate(&self) -> Result<(), HandshakeError> {
        const ADVICE: &str = "fix the peer's configuration or implementation";
        let check_all = || {
            let Window { data, ack } = self.window;
            config::check("data_credits", data, 1, MAX_WINDOW, ADVICE)?;
            config::check("ack_credits", ack, MIN_ACK_WINDOW, MAX_WINDOW, ADVICE)?;
            let (min, max) = (config::MIN_RECEIVE_BUFFER_BYTES, config::MAX_RECEIVE_BUFFER_BYTES);
            let buffer = self.receive_buffer_bytes;
            config::check("receive_buffer_bytes", buffer, min, max, ADVICE)?;
            let (min, max) = (u64::from(buffer), config::MAX_MESSAGE_BYTES);
            config::check("max_message_bytes", self.max_message_bytes, min, max, ADVICE)?;
            config::check("assembly_bytes", self.assembly_bytes, min, max, ADVICE)?;
            if let Some(arena) = self.arena {
                config::check("arena chunks", arena.chunks, 1, MAX_ARENA_CHUNKS, ADVICE)?;
                let (min, max) = (*CHUNK_LOG2.start(), *CHUNK_LOG2.end());
                config::check("arena chunk size (log2)", arena.log2_chunk, min, max, ADVICE)?;
            }
            Ok(())
        };
        check_all().map_err(HandshakeError::BadValue)
    }

    /// Checks the values that a locked connection depends on.
    fn check_secure(&self) -> Result<(), HandshakeError> {
        let arena = u32::from(self.arena.is_some());
        config::check("arena at set-up with TLS", arena, 0, 0, "leave the arena out of the offer")
            .and_then(|()| config::check_secure(self.window, self.receive_buffer_bytes))
            .map_err(HandshakeError::BadValue)
    }

    fn encode(&self, what: What) -> [u8; OFFER_BYTES] {
        let none = ArenaDescriptor { address: 0, rkey: 0, log2_chunk: 0, chunks: 0 };
        let arena = self.arena.unwrap_or(none);
        let mut bytes = [0; OFFER_BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&prefix(OFFER_BYTES, what, self.versions));
        put(&self.features.0.to_le_bytes());
        put(&self.window.data.to_le_bytes());
        put(&self.window.ack.to_le_bytes());
        put(&arena.chunks.to_le_bytes());
        put(&self.receive_buffer_bytes.to_le_bytes());
        put(&arena.rkey.to_le_bytes());
        put(&self.max_message_bytes.to_le_bytes());
        put(&self.nonce.to_le_bytes());
        put(&arena.address.to_le_bytes());
        put(&[arena.log2_chunk]);
        put(&self.assembly_bytes.to_le_bytes()[..U48_BYTES]);
        debug_assert_eq!(at, OFFER_BYTES);
        bytes
    }

    fn decode(bytes: &[u8], what: What) -> Result<Self, HandshakeError> {
        let (versions, mut fields) = read_prefix(bytes, what, OFFER_BYTES)?;
        let features = Features(u16::from_le_bytes(fields.take()?));
        let data = u16::from_le_bytes(fields.take()?);
        let ack = u16::from_le_bytes(fields.take()?);
        let chunks = u16::from_le_bytes(fields.take()?);
        let receive_buffer_bytes = u32::from_le_bytes(fields.take()?);
        let rkey = u32::from_le_bytes(fields.take()?);
        let max_message_bytes = u64::from_le_bytes(fields.take()?);
        let nonce = u64::from_le_bytes(fields.take()?);
        let address = u64::from_le_bytes(fields.take()?);
        let [log2_chunk] = fields.take()?;
        let [b0, b1, b2, b3, b4, b5] = fields.take::<U48_BYTES>()?;
        let assembly_bytes = u64::from_le_bytes([b0, b1, b2, b3, b4, b5, 0, 0]);
        let arena = ArenaDescriptor { address, rkey, log2_chunk, chunks };
        Ok(Self {
            versions,
            features,
            window: Window { data, ack },
            receive_buffer_bytes,
            max_message_bytes,
            assembly_bytes,
            nonce,
            arena: (chunks != 0).then_some(arena),
        })
    }
}

/// The prefix that is the same in every version; `len` includes it.
fn prefix(len: usize, what: What, versions: Versions) -> [u8; PREFIX_BYTES] {
    let [m0, m1, m2, m3] = MAGIC;
    // All private data is shorter than 256 bytes (asserted above).
    let len = u8::try_from(len).unwrap_or(u8::MAX);
    [m0, m1, m2, m3, len, what as u8, versions.max, versions.min]
}

/// Checks the prefix; returns the versions and the rest, without the padding.
fn read_prefix(
    bytes: &[u8],
    what: What,
    need: usize,
) -> Result<(Versions, Fields<'_>), HandshakeError> {
    if !bytes.starts_with(&MAGIC) {
        let is_short = bytes.len() < MAGIC.len() && MAGIC.starts_with(bytes);
        let truncated = HandshakeError::Truncated { len: bytes.len(), need };
        return Err(if is_short { truncated } else { HandshakeError::BadMagic });
    }
    let Some(([_, _, _, _, named, kind, max, min], _)) = bytes.split_first_chunk::<PREFIX_BYTES>()
    else {
        return Err(HandshakeError::Truncated { len: bytes.len(), need });
    };
    if *kind != what as u8 {
        return Err(HandshakeError::WrongKind { found: *kind, expected: what as u8 });
    }
    let named = usize::from(*named);
    if named < need {
        return Err(HandshakeError::BadLength { named, need });
    }
    let Some((own, padding)) = bytes.split_at_checked(named) else {
        return Err(HandshakeError::Truncated { len: bytes.len(), need: named });
    };
    if padding.iter().any(|byte| *byte != 0) {
        return Err(HandshakeError::TrailingBytes(named));
    }
    let versions = Versions { min: *min, max: *max };
    if versions.min == 0 || versions.min > versions.max {
        return Err(HandshakeError::BadVersions(versions));
    }
    Ok((versions, Fields { all: own, at: PREFIX_BYTES }))
}

/// Reads fields in sequence.
struct Fields<'a> {
    all: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], HandshakeError> {
        let need = self.at + N;
        let truncated = HandshakeError::Truncated { len: self.all.len(), need };
        let field = self.all.get(self.at..).and_then(<[u8]>::first_chunk).ok_or(truncated)?;
        self.at = need;
        Ok(*field)
    }

    fn rest(&self) -> &'a [u8] {
        self.all.get(self.at..).unwrap_or_default()
    }
}
