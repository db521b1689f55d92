//! The interface between the locked connection and the cryptography that unlocks it.
//!
//! [`HandshakeFactory`] belongs to a channel or a server and makes one [`Handshake`] for each
//! connection. This crate implements neither: `rpc-core` has one for TLS 1.3, tests have a fake.
//!
//! Who does what:
//!
//! - The locked machine owns frames, levels and numbers, cuts messages into frames, puts frames
//!   together to messages, bounds all of it, and checks the peer's parameters.
//! - The handshake owns keys and messages. It sees one whole TLS handshake message at a time.
//!
//! Order of the calls, for each connection:
//!
//! 1. [`HandshakeFactory::start`].
//! 2. [`Handshake::write`] until it gives `None`, then [`Handshake::read_level`].
//! 3. For each frame: [`Handshake::open`] unless its level is [`Level::Initial`]. For each message
//!    that is then whole: [`Handshake::read`], and step 2.
//! 4. Once [`Handshake::is_complete`]: [`Handshake::peer_parameters`], then [`Handshake::finish`]
//!    once. What `write` gave since leaves only after that.
//! 5. The server seals one frame with [`Level::Application`], number 0, and the client opens it. A
//!    server that refuses the client after step 3 may seal its reason in the same way.
//! 6. [`Handshake::frame_keys`], if frames are to be sealed. The handshake is dropped.
//!
//! After an error nothing but [`Handshake::seal`] is called. Calls may come from different threads,
//! one at a time, and never under a lock of this crate. All but `finish` must not wait: they run
//! while this end counts as computing, and few do at once in a process.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use super::sealing::FrameKeys;
use crate::device::handshake_failure::HandshakeFailure;
use crate::protocol::frame::HEADER_BYTES;

/// Length of what each end adds to the handshake to bind the set-up, bytes.
pub const PARAMETERS_BYTES: usize = 60;

/// Which end of a connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It connected, and sends the first message.
    Client,
    /// It accepted.
    Server,
}

/// The keys that protect a frame. The discriminant is the byte on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// None: messages in clear.
    Initial = 0,
    /// The keys of the handshake.
    Handshake = 1,
    /// The keys of the connection.
    Application = 2,
}

/// What a connection gets beyond the proof of both identities. Both ends must say the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[non_exhaustive]
pub enum Protection {
    /// Nothing: frames are in clear after the handshake. It keeps strangers out, and nobody who
    /// can change packets on the way.
    Authenticate = 1,
    /// Each frame is encrypted, and authenticated with its header. So is what is written into
    /// memory of the peer, which opens it in other memory.
    Encrypt = 2,
}

/// The input of [`HandshakeFactory::start`].
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Start<'a> {
    /// Which end this is.
    pub role: Role,
    /// To be sent to the peer inside the handshake, authenticated (QUIC transport parameters of
    /// TLS). They hold a hash of the set-up as this end saw it.
    pub parameters: [u8; PARAMETERS_BYTES],
    /// The name that the server must prove: what the user said, or the host of the address that the
    /// user wrote. Never from a resolver. `None` at a server, and where the factory has a name.
    pub expected_name: Option<&'a str>,
    /// What this connection will have.
    pub protection: Protection,
}

impl<'a> Start<'a> {
    /// For [`HandshakeFactory::start`].
    #[must_use]
    pub const fn new(
        role: Role,
        parameters: [u8; PARAMETERS_BYTES],
        expected_name: Option<&'a str>,
        protection: Protection,
    ) -> Self {
        Self { role, parameters, expected_name, protection }
    }
}

/// Makes the handshakes of a channel or a server, from its certificates and keys.
pub trait HandshakeFactory: fmt::Debug + Send + Sync {
    /// What this end insists on over a transport: `mem`, `shm`, `tcp` or `rdma`. The same for all
    /// connections of the factory.
    fn protection(&self, scheme: &str) -> Protection;

    /// Begins the handshake of one connection. Called outside of locks; must not wait.
    ///
    /// # Errors
    /// [`HandshakeFailure`], such as a name that cannot be expected.
    fn start(&self, start: Start<'_>) -> Result<Box<dyn Handshake>, HandshakeFailure>;
}

/// The cryptography of one handshake. See the [module](self) for the order of calls.
pub trait Handshake: Send {
    /// Takes one whole message of the peer: type (1 byte), length (3 bytes, big-endian) and as many
    /// bytes. The caller has checked that it came with the level that
    /// [`read_level`](Handshake::read_level) gave last.
    ///
    /// # Errors
    /// [`HandshakeFailure`]: the handshake is over.
    fn read(&mut self, message: &[u8]) -> Result<(), HandshakeFailure>;

    /// Appends the next messages to be sent, in clear, all of one level, and returns that level.
    /// `None` if there are none for now. Called until `None` at the start and after each `read`,
    /// also if nothing is to be sent, as implementations change keys in here.
    ///
    /// # Errors
    /// [`HandshakeFailure`]: the handshake is over.
    fn write(&mut self, into: &mut Vec<u8>) -> Result<Option<Level>, HandshakeFailure>;

    /// The newest level for whose frames this end has keys to open: [`Level::Initial`] until the
    /// keys of the handshake are there, then [`Level::Handshake`]. Never
    /// [`Level::Application`], as no message of a handshake has that level.
    fn read_level(&self) -> Level;

    /// Whether the peer has proved who it is and both ends have the keys of the connection. False
    /// for a server before the client's last message, though it has keys by then.
    fn is_complete(&self) -> bool;

    /// Encrypts `payload` in place and appends the tag. `header` is the frame's header and
    /// authenticated with it. `number` counts the frames of this level and direction from 0, and is
    /// never used twice. `level` is not [`Level::Initial`].
    ///
    /// # Errors
    /// [`HandshakeFailure`]: there are no such keys (yet).
    fn seal(
        &mut self,
        level: Level,
        number: u64,
        header: &[u8; HEADER_BYTES],
        payload: &mut Vec<u8>,
    ) -> Result<(), HandshakeFailure>;

    /// Decrypts `payload` in place and removes the tag: the inverse of [`Handshake::seal`].
    ///
    /// # Errors
    /// [`HandshakeFailure`]: the frame is forged, or there are no such keys.
    fn open(
        &mut self,
        level: Level,
        number: u64,
        header: &[u8; HEADER_BYTES],
        payload: &mut Vec<u8>,
    ) -> Result<(), HandshakeFailure>;

    /// Bytes that a sealed frame is longer than its content.
    fn tag_bytes(&self) -> usize {
        16
    }

    /// What the peer's end gave as [`Start::parameters`]. Asked once the handshake is complete;
    /// the caller checks the content. `None`: the peer gave none.
    fn peer_parameters(&self) -> Option<&[u8]>;

    /// The handshake is complete, and the parameters are right: checks what the user wants checked
    /// about the peer, and returns what the connection keeps. Called once. It may run a hook of the
    /// user, and does not count as computing.
    ///
    /// # Errors
    /// [`HandshakeFailure`], such as one by
    /// [`Denied`](crate::device::handshake_failure::FailureReason::Denied).
    fn finish(&mut self) -> Result<Secured, HandshakeFailure>;

    /// The keys of [`Level::Application`], for all frames behind UNLOCKED. Called once, last.
    ///
    /// # Errors
    /// [`HandshakeFailure`]: there are none.
    fn frame_keys(&mut self) -> Result<FrameKeys, HandshakeFailure>;
}

/// What is known of the peer of a connection: the type belongs to the [`HandshakeFactory`].
pub type Proof = Arc<dyn Any + Send + Sync>;

/// What a connection keeps of its handshake.
#[derive(Clone)]
#[non_exhaustive]
pub struct Secured {
    /// The peer's proven identity.
    pub proof: Proof,
}

impl Secured {
    /// Keeps an identity.
    #[must_use]
    pub fn new(proof: Proof) -> Self {
        Self { proof }
    }
}

impl fmt::Debug for Secured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secured").finish_non_exhaustive()
    }
}
