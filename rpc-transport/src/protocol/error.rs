//! [`ProtocolError`]: the peer broke a rule of the link protocol.
//!
//! One variant per rule, so that a log line and a test can name it. Never holds data of the peer
//! beyond the number that broke the rule. After any of these errors the connection is closed.

use crate::protocol::arena::ArenaError;
use crate::protocol::credit::CreditError;
use crate::protocol::kind::Kind;

/// The peer broke a rule of the link protocol (`docs/wire-format.md`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A frame ends before its header or one of its blocks does.
    #[error("frame of {len} bytes is cut off: {need} are needed")]
    Truncated {
        /// Bytes received.
        len: usize,
        /// Bytes that the header asks for.
        need: usize,
    },
    /// The kind is not known in this version.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// The frame belongs to a connection that is still locked.
    #[error("{0:?} frame on a connection that is not locked")]
    LockedOnly(Kind),
    /// A flag, a block or a kind belongs to a feature that the handshake did not agree on.
    #[error("{0} without the feature being agreed in the handshake")]
    NotAgreed(&'static str),
    /// Only Data frames have flags and counts.
    #[error("{kind:?} frame with flags {flags:#04x}, but that kind has none")]
    FlagsOnControl {
        /// The kind of frame.
        kind: Kind,
        /// The flags byte.
        flags: u8,
    },
    /// Only Data and Release frames have counts.
    #[error("{0:?} frame with release or extent counts, but that kind has none")]
    CountsOnControl(Kind),
    /// A frame of fixed length is longer.
    #[error("{kind:?} frame with {extra} bytes after its end")]
    TrailingBytes {
        /// The kind of frame.
        kind: Kind,
        /// Bytes too many.
        extra: usize,
    },
    /// Only Acks carry immediate data.
    #[error("{0:?} frame with immediate data, only an Ack carries it")]
    UnexpectedImmediate(Kind),
    /// Immediate data and payload of an Ack must say the same.
    #[error("immediate {immediate:#010x} of an Ack differs from its payload {payload:#010x}")]
    ImmediateMismatch {
        /// The immediate.
        immediate: u32,
        /// The payload.
        payload: u32,
    },
    /// A segment flag is not known in this version.
    #[error("unknown segment flags {0:#010x}")]
    UnknownSegmentFlags(u32),
    /// A segment that gives its message up has no other flag.
    #[error("segment with both LAST or HEAD_END and ABORT")]
    LastAndAbort,
    /// A message is larger than this end accepts.
    #[error(
        "message of {total} bytes exceeds max_message_bytes = {max}; raise that knob on the \
         receiving side or send less"
    )]
    MessageTooLarge {
        /// Bytes announced.
        total: u64,
        /// This end's `max_message_bytes`.
        max: u64,
    },
    /// A head is longer than this end puts together.
    #[error(
        "message with a head of more than {received} bytes exceeds assembly_bytes = {max}; raise that \
         knob on the receiving side or send less"
    )]
    HeadTooLarge {
        /// Bytes received, this segment included.
        received: u64,
        /// This end's `assembly_bytes`.
        max: u64,
    },
    /// A message of no bytes needs no segments.
    #[error("segmented message of 0 bytes")]
    EmptySegmentedMessage,
    /// A segment that carries nothing.
    #[error("segment without bytes")]
    EmptySegment,
    /// An abort carries no bytes.
    #[error("abort segment with {0} bytes")]
    AbortWithBytes(usize),
    /// Messages are numbered one by one, and a message starts when the one before has ended.
    #[error("segment of message {number} where message {expected} is expected")]
    WrongMessageNumber {
        /// The number received.
        number: u32,
        /// The number that is due.
        expected: u32,
    },
    /// Segments are contiguous and in order.
    #[error("segment at offset {offset} where {expected} is expected")]
    WrongOffset {
        /// The offset received.
        offset: u64,
        /// Bytes received so far.
        expected: u64,
    },
    /// All segments of a message name the same total.
    #[error("total of a message changes from {first} to {now} bytes")]
    TotalChanged {
        /// What the first segment said.
        first: u64,
        /// What this one says.
        now: u64,
    },
    /// The head of a message ends once.
    #[error("segment with HEAD_END where the head has ended at {0} bytes")]
    HeadEndedTwice(u64),
    /// HEAD_END is not set where the head is the whole message.
    #[error("segment with HEAD_END at the total of {0} bytes")]
    HeadEndsAtTotal(u64),
    /// A segment reaches past the total.
    #[error("segment ends at {end}, past the total of {total} bytes")]
    BeyondTotal {
        /// Where it ends.
        end: u64,
        /// The total.
        total: u64,
    },
    /// LAST is set on the segment that completes the total, and on no other.
    #[error("LAST is {last} on a segment that ends at {end} of {total} bytes")]
    WrongLast {
        /// The flag.
        last: bool,
        /// Where the segment ends.
        end: u64,
        /// The total.
        total: u64,
    },
    /// This machine has no memory for the bytes that arrived. Not the peer's fault, but the
    /// connection ends too.
    #[error("no memory for a message of which {received} bytes arrived")]
    OutOfMemory {
        /// Bytes received so far, this segment included.
        received: u64,
    },
    /// Close grants nothing.
    #[error("Close frame that grants credits")]
    CloseWithGrant,
    /// The length of a close text must be what is left of the frame, and at most 100.
    #[error("close text of {len} bytes, the limit is {max}")]
    CloseTextTooLong {
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A close text is UTF-8.
    #[error("close text is not UTF-8")]
    CloseTextNotUtf8,
    /// The reserved byte of a Close frame is 0.
    #[error("reserved byte of a Close frame is {0:#04x}")]
    CloseReserved(u8),
    /// Close is the last frame of its direction.
    #[error("{0:?} frame after Close")]
    AfterClose(Kind),
    /// A second Ping before the first was answered.
    #[error("Ping while the one before is unanswered")]
    PingUnanswered,
    /// A Pong that answers nothing.
    #[error("Pong without a Ping")]
    PongUnasked,
    /// Bytes in the arena belong to a segment.
    #[error("arena extents without a SEGMENT block")]
    WrittenWithoutSegment,
    /// If a frame has both payload and written bytes, these are of the head and of the tail.
    #[error("segment with a payload beside arena extents, and no HEAD_END between them")]
    PayloadBesideWritten,
    /// A tail above the receiver's `assembly_bytes` that began in a slot must stay in it.
    #[error("a long tail began in a slot of the receiver and continued elsewhere")]
    TailBesideSlot,
    /// More of a stream arrived in frames than its reader accepts.
    #[error("{end} bytes of a stream arrived in frames, but its reader accepts {max}")]
    BeyondMaxStreamData {
        /// Bytes of the tail in frames.
        end: u64,
        /// Bytes of the tail that frames may carry in all.
        max: u64,
    },
    /// A MAX_STREAM_DATA block names a message that was sent.
    #[error("MAX_STREAM_DATA for message {0}, which was never started")]
    StreamDataOfNoMessage(u32),
    /// A MAX_STREAM_DATA block stands in Release frames only.
    #[error("a MAX_STREAM_DATA block in a frame with a message")]
    StreamDataBesideMessage,
    /// The number of slots advertised and not yet reported done is bounded.
    #[error("more than {0} reply slots are open at once")]
    TooManySlots(usize),
    /// A slot that was never advertised, or is done.
    #[error("reply slot {0} is not open")]
    UnknownSlot(u32),
    /// A reply stays inside its slot.
    #[error("reply slot {slot} of {len} bytes is written up to {end}")]
    BeyondSlot {
        /// The slot.
        slot: u32,
        /// Where the written bytes end.
        end: u64,
        /// Its length.
        len: u64,
    },
    /// What is written into a slot is a tail.
    #[error("PLACED block in the head of a message")]
    PlacedHead,
    /// A segment's bytes lie in one kind of memory.
    #[error("PLACED block beside arena extents, or without a SEGMENT block")]
    PlacedBesideExtents,
    /// A slot belongs to the message with whose first frame it is advertised.
    #[error("SLOT block behind the start of a message")]
    SlotMisplaced,
    /// A DONE block names 1 to 64 slots.
    #[error("DONE block of {0} slots, it has 1 to 64")]
    DoneCount(u16),
    /// Reserved fields are 0.
    #[error("{0} block with a reserved field that is not 0")]
    ReservedNotZero(&'static str),
    /// The records of a frame are few.
    #[error("{bytes} bytes were written for one sealed frame, which names {max} records at most")]
    TooManyRecords {
        /// Bytes written.
        bytes: u64,
        /// Most records.
        max: usize,
    },
    /// Records are sealed with the key of their frame, or the one before it.
    #[error("records of key {epoch} in a frame of key {now}")]
    RecordEpoch {
        /// The key that the frame names.
        epoch: u32,
        /// Its own.
        now: u32,
    },
    /// The numbers of records count up, and none is used twice.
    #[error("record {first} where {least} or a later one is expected")]
    RecordNumber {
        /// The number received.
        first: u64,
        /// The least one.
        least: u64,
    },
    /// On a sealed connection the head of a message travels in frames.
    #[error("sealed records in the head of a message")]
    HeadInRecords,
    /// A Release frame carries no message.
    #[error("Release frame with a SEGMENT block or arena extents")]
    MessageInRelease,
    /// A Release frame carries at least one block or flag.
    #[error("Release frame without a release, an ARENA block or STARVED")]
    EmptyRelease,
    /// A rule of the arena.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// A rule of flow control.
    #[error(transparent)]
    Credit(#[from] CreditError),
}
