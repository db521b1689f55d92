//! The lock of a connection: no message passes until both ends have proved who they are.
//!
//! Owns the rules of the handshake that follows connection set-up where both offers have
//! [`Features::SECURE`](crate::protocol::handshake::Features::SECURE): its frames, their levels and
//! numbers, and what it binds of the set-up; and those of the sealed frames behind it. Never does
//! cryptography: a [`Handshake`] and a [`FrameKey`] do, which another crate implements. Never sends
//! anything.

pub mod driver;
#[cfg(any(test, feature = "model"))]
pub mod fake;
pub mod machine;
mod sealing;
mod set_up;
#[cfg(test)]
mod tests;

pub use self::driver::{
    Handshake, HandshakeFactory, Level, PARAMETERS_BYTES, Proof, Protection, Role, Secured, Start,
};
pub use self::machine::{LockedLink, MAX_BYTES, MAX_FRAMES, refusal_in_clear};
pub use self::sealing::{
    FrameKey, FrameKeys, Opener, REKEY_FRAMES, RecordError, RecordKey, RecordKeys, SEALED,
    SealError, Sealer, TAG_BYTES,
};
pub use self::set_up::{Parameters, SetUp};
pub use crate::device::Exchange;
pub use crate::device::handshake_failure::{FailureReason, HandshakeFailure};
