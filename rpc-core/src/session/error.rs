//! How a peer can break the session's rules.
//!
//! Owns one variant per rule that a correct peer cannot break; whoever receives one closes the
//! connection with it. What a correct peer can cause by a race is never here.

use crate::wire::{Kind, WireError, WireId};

/// The peer broke a rule of the session. The connection cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// A frame breaks the format.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// Something came before the hello.
    #[error("the first frame is no hello")]
    HelloMissing,
    /// A second hello.
    #[error("a second hello")]
    HelloTwice,
    /// No common session version.
    #[error("the peer speaks session versions {min}..={max}, this end speaks {ours}")]
    NoCommonVersion {
        /// The peer's lowest.
        min: u16,
        /// The peer's highest.
        max: u16,
        /// This end's.
        ours: u16,
    },
    /// A stream frame, though no feature for streams was offered.
    #[error("frames of kind {0:?} are not implemented in this version")]
    StreamsUnimplemented(Kind),
    /// A slot at or above the announced limit.
    #[error("slot {slot} is not below the limit of {limit}")]
    SlotOutOfRange {
        /// The slot.
        slot: u32,
        /// The limit.
        limit: u32,
    },
    /// A request on a slot whose call was not answered yet.
    #[error("a request on slot {} whose call is in flight", .0.slot)]
    SlotInUse(WireId),
    /// A request with the generation of the slot's call before.
    #[error("a request repeats generation {} of slot {}", .0.generation, .0.slot)]
    GenerationRepeated(WireId),
    /// A cancel for a call that was declared not to be cancelled.
    #[error("a cancel for a call that cannot be cancelled, slot {}", .0.slot)]
    CancelForbidden(WireId),
    /// A response to no call in flight.
    #[error("a response to no call: slot {}, generation {}", .0.slot, .0.generation)]
    ResponseToNoCall(WireId),
    /// A cancelled frame for no call in flight.
    #[error("a cancelled frame for no call: slot {}, generation {}", .0.slot, .0.generation)]
    CancelledNoCall(WireId),
    /// A cancelled frame for a call that was not cancelled.
    #[error("a cancelled frame for a call that was not cancelled, slot {}", .0.slot)]
    CancelledUnasked(WireId),
    /// A second go-away, or a second answer to one.
    #[error("a second go-away frame")]
    GoAwayTwice,
    /// The answer to a go-away that was never sent.
    #[error("the answer to a go-away that was not sent")]
    DrainedUnasked,
    /// The answer to a go-away while calls of the peer are in flight, or a request after it.
    #[error("a call in flight or started after the peer said that it has none left")]
    CallAfterDrained,
}
