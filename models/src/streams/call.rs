//! The state of one call: the remaining work of its tasks, and the expected items.

use std::collections::VecDeque;

use rpc_core::session::{CallId, CallStreams, Failure, IncomingId, Outcome, ReplyKind, StreamEnd};
use rpc_core::wire::code;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;
use test_kit::Rng;

use super::Tally;

pub(super) type Number = u64;

/// Which task of a call.
#[derive(Debug, Clone, Copy)]
pub(super) enum Side {
    Writer = 0,
    Reader = 1,
    Handler = 2,
}

pub(super) fn body(bytes: &[u8]) -> OutBuf {
    let mut body = OutBuf::new();
    body.extend_from_slice(bytes);
    body
}

/// One stream: the remaining items of its writer, and the expected items of its reader.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// Items that are still to be written.
    pub(super) left: u32,
    /// Length and content of written and unread items.
    expected: VecDeque<(usize, u8)>,
    count: u8,
    pub(super) is_finished: bool,
    pub(super) ended: bool,
    /// Its reader's stop code.
    pub(super) stopped: Option<u8>,
}

impl Flow {
    fn new(exists: bool, rng: &mut Rng) -> Self {
        let left = if exists { u32::try_from(rng.below(20)).expect("small") } else { 0 };
        Self { left, ..Self::default() }
    }

    pub(super) fn next_item(&mut self, number: Number, rng: &mut Rng) -> OutBuf {
        let len = match rng.below(10) {
            0 => 0,
            1..=5 => 1 + rng.index(30),
            6..=8 => rng.index(200),
            _ => rng.index(1200),
        };
        let content = number.to_le_bytes()[0].wrapping_mul(31).wrapping_add(self.count);
        self.count = self.count.wrapping_add(1);
        self.expected.push_back((len, content));
        body(&vec![content; len])
    }

    pub(super) fn take_back(&mut self) -> usize {
        self.count = self.count.wrapping_sub(1);
        self.expected.pop_back().expect("just made").0
    }

    /// An item was read.
    pub(super) fn take(&mut self, item: &Message) {
        let (len, content) = self.expected.pop_front().expect("an item that nobody wrote");
        assert_eq!(item.len(), len, "lost, doubled or out of order");
        assert!(item.iter().all(|byte| *byte == content), "the bytes of another item");
        assert!(self.stopped.is_none(), "read behind a stop");
    }

    pub(super) fn check_end(&self, end: StreamEnd, made: UpEnd, cut: bool, has_deadline: bool) {
        match end {
            StreamEnd::Clean => {
                assert!(self.is_finished, "a clean end that nobody made");
                assert!(self.expected.is_empty(), "items were lost: {:?}", self.expected);
            }
            StreamEnd::Reset(code) => assert!(self.ended && made == UpEnd::Reset(code)),
            StreamEnd::ConnectionLost => assert!(cut),
            // Its handler is stopped as well.
            StreamEnd::Gone => _ = has_deadline,
            StreamEnd::NotOpen => assert!(self.stopped.is_some() || self.expected.is_empty()),
            other => panic!("arguments end with {other:?}"),
        }
    }
}

/// How the caller ends its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UpEnd {
    Finish,
    Reset(u8),
}

#[derive(Debug)]
pub(super) struct Handler {
    pub(super) id: IncomingId,
    pub(super) runnable: bool,
    pub(super) stopped: bool,
    /// Sleeps until the others are done.
    pub(super) stalls: bool,
    pub(super) stop_after: Option<u32>,
    /// Writes an item for each that it has read.
    pub(super) depends: bool,
    pub(super) owed: u32,
    pub(super) has_read: bool,
    pub(super) has_written: bool,
    pub(super) leaves_early: bool,
}

impl Handler {
    pub(super) fn new(id: IncomingId, streams: CallStreams, rng: &mut Rng) -> Self {
        Self {
            id,
            runnable: true,
            stopped: false,
            stalls: rng.chance(15),
            stop_after: rng.chance(15).then(|| u32::try_from(rng.below(5)).expect("small")),
            depends: streams.arguments && streams.results && rng.chance(50),
            owed: 0,
            has_read: !streams.arguments,
            has_written: false,
            leaves_early: rng.chance(8),
        }
    }
}

#[derive(Debug)]
pub(super) struct Call {
    pub(super) caller: usize,
    pub(super) id: CallId,
    pub(super) streams: CallStreams,
    pub(super) has_deadline: bool,
    pub(super) up: Flow,
    pub(super) up_end: UpEnd,
    pub(super) down: Flow,
    /// The tasks of the caller that are awake.
    pub(super) writes: bool,
    pub(super) reads: bool,
    pub(super) written: bool,
    pub(super) stalls: bool,
    pub(super) stop_after: Option<u32>,
    /// The call whose results are this one's arguments.
    pub(super) fed_by: Option<Number>,
    /// The call whose arguments are this one's results.
    pub(super) feeds: Option<Number>,
    /// Items that have been read from `fed_by` and are still to be written: at most one, once the
    /// handler runs.
    pub(super) in_hand: u32,
    /// The caller has its outcome, or has given up the call.
    pub(super) done: bool,
    pub(super) cancelled: bool,
    pub(super) handled: bool,
    pub(super) handler: Option<Handler>,
    /// How the handler has ended; `None` also if the session did not accept it.
    pub(super) said: Option<u64>,
}

impl Call {
    pub(super) fn new(
        caller: usize,
        id: CallId,
        streams: CallStreams,
        has_deadline: bool,
        rng: &mut Rng,
    ) -> Self {
        let up_end = if rng.chance(20) { UpEnd::Reset(1) } else { UpEnd::Finish };
        Self {
            caller,
            id,
            streams,
            has_deadline,
            up: Flow::new(streams.arguments, rng),
            up_end,
            down: Flow::new(streams.results, rng),
            writes: streams.arguments,
            reads: true,
            written: false,
            stalls: rng.chance(15),
            stop_after: (streams.results && rng.chance(15))
                .then(|| u32::try_from(rng.below(5)).expect("small")),
            fed_by: None,
            feeds: None,
            in_hand: 0,
            done: false,
            cancelled: false,
            handled: false,
            handler: None,
            said: None,
        }
    }

    /// Whether it sleeps on purpose, or waits for a slot.
    pub(super) fn is_held(&self) -> bool {
        self.stalls
            || self.handler.as_ref().is_some_and(|handler| handler.stalls)
            || (!self.handled && !self.done)
    }

    /// An outcome that the caller may get, after all items that belong before it.
    pub(super) fn check_outcome(
        &self,
        outcome: &Outcome,
        cut: bool,
        peer_left: bool,
        tally: &mut Tally,
    ) {
        match outcome {
            Outcome::Failed { reason, never_sent } => {
                assert!(!(*never_sent && self.handled), "a call ran that was never sent");
                match reason {
                    Failure::Closed => assert!(cut),
                    Failure::DeadlineExceeded => assert!(self.has_deadline),
                    Failure::PeerGoingAway => assert!(peer_left && *never_sent),
                    other => panic!("failed: {other:?}"),
                }
                tally.failed += 1;
            }
            Outcome::Reply(reply) => {
                let is_whole = self.down.expected.is_empty() || self.down.stopped.is_some();
                match (reply.kind, reply.is_reset, self.said) {
                    (ReplyKind::Ok, false, Some(0..=5))
                    | (ReplyKind::UserError, false, Some(6))
                    | (ReplyKind::Status { code: 9, .. }, false, Some(7)) => {
                        assert!(is_whole, "items were lost: {:?}", self.down.expected);
                        tally.replies += 1;
                    }
                    (ReplyKind::Status { code: 9, .. }, reset, Some(8))
                    | (ReplyKind::Status { code: code::INTERNAL, .. }, reset, Some(9) | None) => {
                        assert_eq!(reset, self.streams.results);
                        tally.resets += 1;
                    }
                    // The callee's clock was first, even while its answer waited.
                    (ReplyKind::Status { code: code::DEADLINE_EXCEEDED, .. }, _, _) => {
                        assert!(self.has_deadline);
                    }
                    other => panic!("the outcome is {other:?}: {self:?}"),
                }
            }
        }
    }
}
