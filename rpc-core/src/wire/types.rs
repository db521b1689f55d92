//! What frames say, once they are understood.

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// First frame of each side: version, features, limits.
    Hello = 1,
    /// A call.
    Request = 2,
    /// The answer to a call.
    Response = 3,
    /// The caller no longer wants the answer.
    Cancel = 4,
    /// The proof that nothing more will be sent for a cancelled call.
    Cancelled = 5,
    /// An item of a stream.
    StreamData = 6,
    /// The caller has no more items.
    StreamHalfClose = 7,
    /// The caller's items end abnormally.
    StreamReset = 8,
    /// The receiver of a stream takes more items.
    StreamCredit = 9,
    /// The sender takes no new calls; or, as an answer, has none left.
    GoAway = 10,
    /// The callee has the request of a call with streams, or has accepted the call.
    StreamOpened = 11,
    /// The receiver of a stream takes no items any more.
    StreamStop = 12,
}

impl Kind {
    pub(super) const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Hello,
            2 => Self::Request,
            3 => Self::Response,
            4 => Self::Cancel,
            5 => Self::Cancelled,
            6 => Self::StreamData,
            7 => Self::StreamHalfClose,
            8 => Self::StreamReset,
            9 => Self::StreamCredit,
            10 => Self::GoAway,
            11 => Self::StreamOpened,
            12 => Self::StreamStop,
            _ => return None,
        })
    }
}

/// Names a call on the wire. The caller chooses both numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WireId {
    /// Index below the callee's announced limit; reused once the call's proof has arrived.
    pub slot: u32,
    /// Differs from the slot's call before; never 0.
    pub generation: u32,
}

impl WireId {
    pub(super) const NONE: Self = Self { slot: 0, generation: 0 };
}

/// A hello's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Lowest session version that the sender speaks.
    pub min_version: u16,
    /// Highest session version that the sender speaks.
    pub max_version: u16,
    /// Calls that the sender takes at once; slots of its peer are below this.
    pub max_calls: u32,
    /// Feature bits that the sender offers; what both offer is used. [`FEATURE_STREAMS`](super::FEATURE_STREAMS) is here
    /// exactly if there is a stream window.
    pub features: u64,
    /// What the sender takes of every stream before it has granted more.
    pub stream_window: Option<StreamWindow>,
}

/// How much of a stream its receiver takes: one item may be sent whenever `items` and `bytes` are
/// both above 0, however long it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamWindow {
    /// Items.
    pub items: u32,
    /// Bytes: bodies and tails of items.
    pub bytes: u32,
}

/// Which streams a call has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallStreams {
    /// From the caller to the callee.
    pub arguments: bool,
    /// From the callee to the caller.
    pub results: bool,
    /// The deadline is a period that starts anew with each item, of either direction.
    pub idle_deadline: bool,
}

impl CallStreams {
    /// Those of a unary call.
    pub const NONE: Self = Self { arguments: false, results: false, idle_deadline: false };

    /// Whether there is a stream.
    #[inline]
    #[must_use]
    pub const fn any(self) -> bool {
        self.arguments | self.results
    }
}

/// A request's head: everything but metadata and body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHead {
    /// The call.
    pub id: WireId,
    /// Hash of "Service.method".
    pub method: u32,
    /// Codec of the body, and of the answer's.
    pub codec: u8,
    /// The handler runs to its end even if the caller goes away.
    pub no_cancel: bool,
    /// Time left when the frame was made, µs; 0 has expired.
    pub remaining_micros: Option<u64>,
    /// Signature hash of the method, until the callee has accepted it.
    pub signature: Option<u64>,
    /// The body starts with a PARTS block: some of it is in the message's tail.
    pub has_parts: bool,
    /// The call's streams.
    pub streams: CallStreams,
}

/// What a response carries in its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyKind {
    /// The method's result.
    Ok,
    /// The method's own error type.
    UserError,
    /// A status; the body is `details_bytes` bytes of details, then the text in UTF-8.
    Status {
        /// 1 to 16.
        code: u8,
        /// The callee says that trying again can help: the handler did not run, or says so.
        retryable: bool,
        /// Length of the details in front of the text, bytes.
        details_bytes: u32,
    },
}

/// A response's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseHead {
    /// The call.
    pub id: WireId,
    /// What the body is.
    pub kind: ReplyKind,
    /// The callee has accepted the method's signature: later calls may leave it out.
    pub signature_accepted: bool,
    /// The body starts with a PARTS block: some of it is in the message's tail.
    pub has_parts: bool,
    /// Items of the results' stream that were sent, modulo 2^32.
    pub items: u32,
    /// The stream of results did not come to its own end.
    pub is_reset: bool,
    /// Length of the metadata that stands in front of the body, bytes.
    pub metadata_bytes: u16,
}

/// A parsed frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// [`Kind::Hello`].
    Hello(Hello),
    /// [`Kind::Request`].
    Request {
        /// The head.
        head: RequestHead,
        /// Length of the metadata that stands in front of the body, bytes.
        metadata_bytes: usize,
    },
    /// [`Kind::Response`].
    Response(ResponseHead),
    /// [`Kind::Cancel`].
    Cancel(WireId),
    /// [`Kind::Cancelled`].
    Cancelled(WireId),
    /// [`Kind::GoAway`]; `drained` on the answer.
    GoAway {
        /// The sender has no calls left towards the receiver and starts none.
        drained: bool,
    },
    /// [`Kind::StreamData`].
    Item(ItemHead),
    /// [`Kind::StreamHalfClose`].
    HalfClose {
        /// The call.
        id: WireId,
        /// Items of the stream, modulo 2^32.
        items: u32,
    },
    /// [`Kind::StreamReset`].
    Reset {
        /// The call.
        id: WireId,
        /// A status code, 1 to 16.
        code: u8,
    },
    /// [`Kind::StreamCredit`].
    Credit {
        /// The call.
        id: WireId,
        /// Of the results, else of the arguments.
        results: bool,
        /// Items more.
        items: u32,
        /// Bytes more.
        bytes: u64,
    },
    /// [`Kind::StreamOpened`].
    Opened {
        /// The call.
        id: WireId,
        /// The callee has accepted the call; otherwise the request has just arrived.
        accepted: bool,
    },
    /// [`Kind::StreamStop`].
    Stop {
        /// The call.
        id: WireId,
        /// Of the results, else of the arguments.
        results: bool,
        /// A status code, 0 to 16.
        code: u8,
    },
}

/// The fixed header of a frame whose remaining bytes were dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beginning {
    /// A request; its blocks are unknown.
    Request(RequestHead),
    /// The response to this call.
    Response(WireId),
    /// An item.
    Item(ItemHead),
}

/// An item's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemHead {
    /// The call.
    pub id: WireId,
    /// An item of the results, else of the arguments.
    pub results: bool,
    /// Items of a stream count from 0, modulo 2^32.
    pub number: u32,
    /// The body starts with a PARTS block: some of it is in the message's tail.
    pub has_parts: bool,
    /// Of results: it is no item of the method's, but the initial metadata.
    pub is_metadata: bool,
}
