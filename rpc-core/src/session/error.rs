//! How a peer can break the session's rules.
//!
//! Owns one variant per rule that a correct peer cannot break. The caller of the session closes the
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
    #[error("the first frame is not a hello")]
    HelloMissing,
    /// Something came before this end has let the peer in.
    #[error("this server wants credentials before calls: Channel::builder().credentials(..)")]
    NotAdmitted,
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
    /// A frame about streams, though the hellos did not agree on them.
    #[error("a frame of kind {0:?} about streams, which were not agreed on")]
    StreamsNotAgreed(Kind),
    /// A frame for a stream that never was, or one frame more for streams that have ended than can
    /// have been on their way.
    #[error("a frame for no stream: slot {}, generation {}", .0.slot, .0.generation)]
    UnknownStream(WireId),
    /// A frame for a direction in which the call has no stream.
    #[error("a frame for a stream that the call in slot {} does not have", .0.slot)]
    StreamNotOpen(WireId),
    /// An item behind the announced end of its stream.
    #[error("an item after the end of its stream, slot {}", .0.slot)]
    ItemAfterEnd(WireId),
    /// An item that was sent without credit.
    #[error("an item beyond the credits of its stream, slot {}", .0.slot)]
    ItemBeyondCredit(WireId),
    /// An item with the number of another one.
    #[error("an item with a number that was already used, slot {}", .0.slot)]
    ItemRepeated(WireId),
    /// The end of a stream announces fewer items than have come, or more than there is credit for.
    #[error("the end of a stream has the wrong item count, slot {}", .0.slot)]
    ItemsMiscounted(WireId),
    /// A stream ended a second time.
    #[error("a second end of a stream, slot {}", .0.slot)]
    StreamEndedTwice(WireId),
    /// Credit beyond what its sender can ever take.
    #[error("more stream credit than can be counted, slot {}", .0.slot)]
    GrantOverflow(WireId),
    /// A grant though fewer items were sent than grants were made.
    #[error("stream credit for items that were never sent, slot {}", .0.slot)]
    GrantUnasked(WireId),
    /// The callee said twice that it has a call.
    #[error("a call was opened twice, slot {}", .0.slot)]
    OpenedTwice(WireId),
    /// A second item is said to be the initial metadata.
    #[error("initial metadata of a stream twice, slot {}", .0.slot)]
    InitialMetadataTwice(WireId),
    /// The initial metadata has a number that says that items went before.
    #[error("initial metadata of a stream after items, slot {}", .0.slot)]
    InitialMetadataLate(WireId),
    /// A receiver stopped a stream twice.
    #[error("a stream was stopped twice, slot {}", .0.slot)]
    StopTwice(WireId),
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
    #[error("an answer to a go-away that was not sent")]
    DrainedUnasked,
    /// The answer to a go-away while calls of the peer are in flight, or a request after it.
    #[error("a call is in flight, or was started, after the peer reported that it has none left")]
    CallAfterDrained,
}
