//! The contents of parsed frames.

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
    /// The receiver of a stream accepts more items.
    StreamCredit = 9,
    /// The sender accepts no new calls; or, as an answer, has none left.
    GoAway = 10,
    /// The callee has received the request of a call with streams, or has accepted the call.
    StreamOpened = 11,
    /// The receiver of a stream accepts no more items.
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

/// Identifies a call on the wire. The caller chooses both numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WireId {
    /// Index below the callee's announced limit; reused once the call's proof has arrived.
    pub slot: u32,
    /// Differs from that of the slot's previous call; never 0.
    pub generation: u32,
}

impl WireId {
    pub(super) const NONE: Self = Self { slot: 0, generation: 0 };
}

/// The contents of a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Lowest session version that the sender supports.
    pub min_version: u16,
    /// Highest session version that the sender supports.
    pub max_version: u16,
    /// Maximum number of concurrent calls that the sender accepts; slots of its peer are below
    /// this.
    pub max_calls: u32,
    /// Feature bits that the sender offers; those that both ends offer are used.
    /// [`FEATURE_STREAMS`](super::FEATURE_STREAMS) is set if and only if there is a stream window.
    pub features: u64,
    /// The initial window of every stream that the sender receives.
    pub stream_window: Option<StreamWindow>,
}

/// The window of a stream: an item of any length may be sent while `items` and `bytes` are both
/// above 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamWindow {
    /// Items.
    pub items: u32,
    /// Bytes: bodies and tails of items.
    pub bytes: u32,
}

/// The streams of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallStreams {
    /// From the caller to the callee.
    pub arguments: bool,
    /// From the callee to the caller.
    pub results: bool,
    /// The deadline is a period that restarts with each item, of either direction.
    pub idle_deadline: bool,
}

impl CallStreams {
    /// A unary call: no streams.
    pub const NONE: Self = Self { arguments: false, results: false, idle_deadline: false };

    /// Whether there is a stream.
    #[inline]
    #[must_use]
    pub const fn any(self) -> bool {
        self.arguments | self.results
    }
}

/// The head of a request: everything except metadata and body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHead {
    /// The call.
    pub id: WireId,
    /// Hash of "Service.method".
    pub method: u32,
    /// Codec of the request's body and of the response's.
    pub codec: u8,
    /// The handler runs to its end even if the caller is gone.
    pub no_cancel: bool,
    /// Time left when the frame was created, µs; 0: expired.
    pub remaining_micros: Option<u64>,
    /// Signature hash of the method, until the callee has accepted it.
    pub signature: Option<u64>,
    /// The body starts with a PARTS block: part of it is in the message's tail.
    pub has_parts: bool,
    /// The call's streams.
    pub streams: CallStreams,
}

/// The kind of a response's body.
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
        /// A retry can help: the handler did not run, or says so.
        retryable: bool,
        /// Length of the details in front of the text, bytes.
        details_bytes: u32,
    },
}

/// How the callee has read the arguments of a call whose request asks: the one that carries a
/// signature. Each answer says it, so that the caller reads results the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HowRead {
    /// Nothing is said: the request did not ask, or the callee has refused the call unread.
    Unsaid,
    /// By its own types, which are the caller's: later requests need not ask.
    Same,
    /// By the schema of the caller, whose types differ.
    BySchema,
}

/// The head of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseHead {
    /// The call.
    pub id: WireId,
    /// The kind of the body.
    pub kind: ReplyKind,
    /// How the callee has read the arguments.
    pub read: HowRead,
    /// The body starts with a PARTS block: part of it is in the message's tail.
    pub has_parts: bool,
    /// Number of items sent on the stream of results, modulo 2^32.
    pub items: u32,
    /// The stream of results ended abnormally.
    pub is_reset: bool,
    /// Length of the metadata in front of the body, bytes.
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
        /// Length of the metadata in front of the body, bytes.
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
        /// The sender has no calls to the receiver left and starts no new ones.
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
        /// The stream of results; otherwise that of arguments.
        results: bool,
        /// Additional items.
        items: u32,
        /// Additional bytes.
        bytes: u64,
    },
    /// [`Kind::StreamOpened`].
    Opened {
        /// The call.
        id: WireId,
        /// The callee has accepted the call; otherwise it has only received the request.
        accepted: bool,
        /// How the callee has read the arguments.
        read: HowRead,
    },
    /// [`Kind::StreamStop`].
    Stop {
        /// The call.
        id: WireId,
        /// The stream of results; otherwise that of arguments.
        results: bool,
        /// A status code, 0 to 16.
        code: u8,
    },
}

/// The fixed header of a long frame whose other bytes were dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beginning {
    /// A request; its blocks are unknown.
    Request(RequestHead),
    /// The response to this call.
    Response(WireId),
    /// An item.
    Item(ItemHead),
}

/// The head of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemHead {
    /// The call.
    pub id: WireId,
    /// An item of the results; otherwise of the arguments.
    pub results: bool,
    /// The number of the item in its stream, from 0, modulo 2^32.
    pub number: u32,
    /// The body starts with a PARTS block: part of it is in the message's tail.
    pub has_parts: bool,
    /// Results only: it is not an item of the method, but the initial metadata.
    pub is_metadata: bool,
    /// Results only: how the callee has read the arguments of the request.
    pub read: HowRead,
}
