//! Streams of a call: items in either direction, with credit of their own.
//!
//! A call's streams are in a side table, by the index of the call (of this end) or by its slot (of
//! the peer); unary calls never look there. The end of the results is the call's response, so a
//! stream has no life of its own: it begins with its request and ends before its call's proof.
//!
//! Rules:
//! * R1. An item without stream credit waits in its stream and never in a queue of the link.
//! * R2. Grants, resets, stops and half-closes need no stream credit and go in the urgent lane;
//!   items are numbered, so the lanes may change the order of all of these.
//! * R3. One item may go whenever there is credit for an item and for a byte, however long it is.
//! * R4. What was consumed is granted again, when it is half of a window.
//! * R5. A receiver that is dropped says so, and what it discards needs no credit any more.
//! * R6. Items take from the room in the link when they leave. Where half of it is used up, the
//!   link is asked for a report, as an item that never waited there makes it give none.
//!
//! Invariants:
//! 1. Nothing about a call with streams overtakes its request: before the callee has reported the
//!    request, only what takes the request's own lane is sent.
//! 2. The peer can make this end hold the windows it was granted, and one item each.
//! 3. A frame for a call that has ended is dropped if a correct peer could have sent it before it
//!    knew; the number of such frames is counted exactly (`late`).
//! 4. Waiters and bodies are never dropped here, as in the whole session.

mod ends;
mod input;
mod output;
mod reader;
mod rules;
mod types;
mod user;
mod window;
mod writer;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rpc_transport::memory::budget::MemoryBudget;
use rpc_transport::message::outgoing::{LEAST_HELD_BYTES, OutBuf};
use rpc_transport::message::received::Message;

pub(super) use self::input::Response;
use self::reader::Reader;
#[cfg(not(any(test, feature = "model")))]
use self::rules::Rules;
#[cfg(any(test, feature = "model"))]
pub use self::rules::{Broken, Rules};
pub use self::types::{NotSent, ReadItem, SendError, StreamEnd, StreamId, StreamLimits};
use self::writer::{Writer, WriterState};
use super::{CallId, SessionError};
use crate::wire::{
    CallStreams, Hello, HowRead, ItemHead, ReplyKind, ResponseHead, StreamWindow, WireId,
};

/// Frames up to this length are of the small lane of every link, bytes.
const SURELY_SMALL_BYTES: usize = 240;
/// What the link adds to a frame that offers memory for the answer, bytes.
const SLOT_OFFER_BYTES: usize = 24;

/// A place in the side table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    /// A call of this end, by its index.
    Call(u32),
    /// A call of the peer, by its slot.
    Incoming(u32),
}

/// How far the caller knows that its call has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Opened {
    No,
    /// The request has arrived: all frames may follow.
    Arrived,
    /// The callee has accepted the call.
    Accepted,
}

/// A deadline that starts anew with each item.
#[derive(Debug, Clone, Copy)]
pub(super) struct Idle {
    pub(super) period: Duration,
    pub(super) since: Instant,
}

/// The streams of one call.
#[derive(Debug)]
pub(super) struct StreamCall<W> {
    /// Generation of the call's id.
    generation: u32,
    /// The call on the wire, once it has been sent.
    wire: Option<WireId>,
    writer: Writer,
    reader: Reader,
    write_waiter: Option<W>,
    read_waiter: Option<W>,
    /// At the caller: what the callee has reported. At the callee: the state of this end.
    opened: Opened,
    /// What opened frames have said.
    told: Opened,
    /// At the callee: the caller learns that the request has arrived once its types are accepted.
    owes_arrival: bool,
    /// At the callee: how the arguments of the request were read, which each frame says.
    read: HowRead,
    /// At the caller: what the callee has said of that was compared with the request.
    types_agree: bool,
    /// The request went in the small lane: small frames that follow stay behind it.
    request_is_small: bool,
    idle: Option<Idle>,
    /// Of the caller: the deadline counts until the call has been opened so far.
    opens_by_deadline: Option<Opened>,
    /// Nothing can be sent any more.
    is_over: bool,
    /// It stands in the list of those that have something to send.
    is_listed: bool,
    /// The streams that owe a grant.
    owes_grant: bool,
    /// A reset or stop that must not overtake the request.
    late_reset: Option<u8>,
    late_stop: Option<u8>,
    /// Of the caller: the response said so.
    was_reset: bool,
    /// Of the caller: the initial metadata has come.
    has_metadata: bool,
    /// The answer, behind items that wait for credit.
    held_reply: Option<(ReplyKind, OutBuf)>,
    /// The response, which has overtaken items.
    held_response: Option<(ResponseHead, Message)>,
}

impl<W> StreamCall<W> {
    /// An item moved: the deadline starts anew.
    #[inline]
    fn touch(&mut self, now: impl FnOnce() -> Instant) {
        if let Some(idle) = &mut self.idle {
            idle.since = now();
        }
    }

    /// Marks the initial metadata, for the reader to know it. It is an item like others, so that it
    /// is bounded and keeps its place as they do.
    #[cold]
    fn mark_metadata(
        &mut self,
        head: &ItemHead,
        message: &mut Message,
    ) -> Result<(), SessionError> {
        if std::mem::replace(&mut self.has_metadata, true) {
            return Err(SessionError::InitialMetadataTwice(head.id));
        }
        if head.number != 0 {
            return Err(SessionError::InitialMetadataLate(head.id));
        }
        // Parsing has checked that it is not longer.
        message.mark(u16::try_from(message.len()).unwrap_or(u16::MAX));
        Ok(())
    }

    /// Whether something could be sent now.
    #[inline]
    fn can_send(&self, rules: Rules, longest_small: usize) -> bool {
        if self.wire.is_none() || self.is_over {
            return false;
        }
        let follows = |len: usize, is_plain: bool| {
            let is_small = is_plain && len + crate::wire::HEADER_BYTES <= longest_small;
            self.opened >= Opened::Arrived || (self.request_is_small && is_small)
        };
        if self.writer.is_empty() {
            return self.writer.state == WriterState::Finishing && follows(0, true);
        }
        self.writer.front(rules).is_some_and(|item| follows(item.len(), item.tail_len() == 0))
    }

    /// Frames of the peer about this call that may still be on their way.
    fn frames_due(&self) -> u64 {
        let opened = match self.told {
            Opened::No => 2,
            Opened::Arrived => 1,
            Opened::Accepted => 0,
        };
        self.reader.frames_due() + self.writer.frames_due() + opened
    }
}

type Table<W> = Vec<Option<Box<StreamCall<W>>>>;

/// All streams of a session.
#[derive(Debug)]
pub(super) struct Streams<W> {
    limits: Option<StreamLimits>,
    /// The peer's, once its hello has arrived and if both ends speak streams.
    peer_window: Option<StreamWindow>,
    calls: Table<W>,
    incoming: Table<W>,
    /// Calls of this end that have streams, and those of the peer.
    pub(super) live_calls: u32,
    pub(super) live_incoming: u32,
    /// Those that have something to send, in the order of their turns.
    ready: VecDeque<Key>,
    /// Those that owe a grant.
    grants: VecDeque<Key>,
    /// All windows together, bytes.
    window_bytes: u64,
    /// What growth of windows is charged to: that of others who share it, too.
    memory: Option<MemoryBudget>,
    /// Frames that correct peers may still send for calls that have ended.
    late: u64,
    /// How many of them came.
    stale: u64,
    longest_small: usize,
    /// Memory of items that the link takes before it reports again, bytes.
    room: i64,
    /// The link is asked for a report where the room is not larger than this (R6).
    low_room: i64,
    /// The most that the room ever was.
    most_room: u64,
    rules: Rules,
}

impl<W> Streams<W> {
    pub(super) fn new(limits: Option<StreamLimits>) -> Self {
        let limits = limits.map(|limits| StreamLimits {
            items: limits.items.clamp(1, 1 << 30),
            bytes: limits.bytes.max(1),
            ..limits
        });
        Self {
            limits,
            peer_window: None,
            calls: Vec::new(),
            incoming: Vec::new(),
            live_calls: 0,
            live_incoming: 0,
            ready: VecDeque::new(),
            grants: VecDeque::new(),
            window_bytes: 0,
            memory: None,
            late: 0,
            stale: 0,
            longest_small: SURELY_SMALL_BYTES,
            room: i64::MAX,
            low_room: 0,
            most_room: 0,
            rules: Rules::default(),
        }
    }

    /// What this end's hello says.
    pub(super) fn window(&self) -> Option<StreamWindow> {
        self.limits.map(|limits| StreamWindow { items: limits.items, bytes: limits.bytes })
    }

    /// The peer's hello has arrived.
    pub(super) fn on_hello(&mut self, hello: &Hello) {
        self.peer_window = hello.stream_window.filter(|_| self.limits.is_some());
        if let Some(window) = self.peer_window {
            for stream in self.calls.iter_mut().flatten() {
                stream.writer.set_window(window);
            }
        }
    }

    /// Whether both ends speak streams.
    pub(super) fn are_agreed(&self) -> bool {
        self.peer_window.is_some()
    }

    /// Whether this end speaks them.
    pub(super) fn are_offered(&self) -> bool {
        self.limits.is_some()
    }

    /// Whether [`Session::next_stream_frame`](super::Session) may return a frame.
    #[inline]
    pub(super) fn has_work(&self) -> bool {
        !self.grants.is_empty() || (!self.ready.is_empty() && self.room > 0)
    }

    /// Whether nothing is counted for a stream.
    #[cfg(debug_assertions)]
    pub(super) fn are_none_left(&self) -> bool {
        self.live_calls == 0 && self.live_incoming == 0 && self.window_bytes == 0
    }

    /// Whether the response of a call said that its results were reset.
    pub(super) fn was_reset(&self, id: CallId) -> bool {
        let stream = self.get(Key::Call(id.index));
        stream.is_some_and(|stream| stream.generation == id.generation && stream.was_reset)
    }

    /// Most frames of streams that wait in the link: items, and what else there is for each call.
    pub(super) fn most_queued_frames(&self) -> usize {
        // Opened twice, stop, the end, and grants: each is half of a window.
        const EACH: usize = 8;
        let items = self.most_room / LEAST_HELD_BYTES;
        let calls = self.calls.len() + self.incoming.len();
        usize::try_from(items).unwrap_or(usize::MAX / 2).saturating_add(calls * EACH)
    }

    /// Adds the streams of a call.
    pub(super) fn insert(
        &mut self,
        key: Key,
        generation: u32,
        wire: Option<WireId>,
        streams: CallStreams,
        idle: Option<Idle>,
    ) {
        let limits = self.limits.unwrap_or_default();
        let (writes, reads) = match key {
            Key::Call(_) => (streams.arguments, streams.results),
            Key::Incoming(_) => (streams.results, streams.arguments),
        };
        let reader = Reader::new(reads, &limits);
        if reads {
            self.window_bytes += reader.window.bytes();
        }
        let stream = StreamCall {
            generation,
            wire,
            writer: Writer::new(writes, self.peer_window),
            reader,
            write_waiter: None,
            read_waiter: None,
            opened: match key {
                Key::Call(_) => Opened::No,
                Key::Incoming(_) => Opened::Arrived,
            },
            told: match key {
                Key::Call(_) => Opened::No,
                Key::Incoming(_) => Opened::Accepted,
            },
            owes_arrival: false,
            read: HowRead::Unsaid,
            types_agree: false,
            request_is_small: false,
            idle,
            opens_by_deadline: None,
            is_over: false,
            is_listed: false,
            owes_grant: false,
            late_reset: None,
            late_stop: None,
            was_reset: false,
            has_metadata: false,
            held_reply: None,
            held_response: None,
        };
        let (table, live, index) = match key {
            Key::Call(index) => (&mut self.calls, &mut self.live_calls, index as usize),
            Key::Incoming(slot) => (&mut self.incoming, &mut self.live_incoming, slot as usize),
        };
        if index >= table.len() {
            table.resize_with(index + 1, || None);
        }
        debug_assert!(table[index].is_none(), "the call before left its streams behind");
        table[index] = Some(Box::new(stream));
        *live += 1;
    }

    /// The deadline of the call counts until the callee has taken it: accepted it, where there are
    /// results to wait for.
    pub(super) fn limit_to_opening(&mut self, key: Key, streams: CallStreams) {
        let needed = if streams.results { Opened::Accepted } else { Opened::Arrived };
        if let Some(stream) = self.get_mut(key) {
            stream.opens_by_deadline = Some(needed);
        }
    }

    /// Whether the deadline of the call counts only until the callee has taken it.
    pub(super) fn is_limited_to_opening(&self, key: Key) -> bool {
        self.get(key).is_some_and(|stream| stream.opens_by_deadline.is_some())
    }

    #[inline]
    pub(super) fn get(&self, key: Key) -> Option<&StreamCall<W>> {
        match key {
            Key::Call(index) => self.calls.get(index as usize)?.as_deref(),
            Key::Incoming(slot) => self.incoming.get(slot as usize)?.as_deref(),
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut StreamCall<W>> {
        match key {
            Key::Call(index) => self.calls.get_mut(index as usize)?.as_deref_mut(),
            Key::Incoming(slot) => self.incoming.get_mut(slot as usize)?.as_deref_mut(),
        }
    }

    /// Takes the streams of a call out.
    fn take(&mut self, key: Key) -> Option<Box<StreamCall<W>>> {
        let (place, live) = match key {
            Key::Call(index) => (self.calls.get_mut(index as usize)?, &mut self.live_calls),
            Key::Incoming(slot) => (self.incoming.get_mut(slot as usize)?, &mut self.live_incoming),
        };
        let stream = place.take()?;
        *live -= 1;
        if stream.reader.state == reader::ReaderState::Open {
            self.window_bytes -= stream.reader.window.bytes();
        }
        if stream.is_listed {
            self.ready.retain(|listed| *listed != key);
        }
        if stream.owes_grant {
            self.grants.retain(|listed| *listed != key);
        }
        Some(stream)
    }

    /// Charges the growth of a window. Says whether there is memory for it: streams do without.
    fn charge(&mut self, key: Key, bytes: u64) -> bool {
        let Some(memory) = &self.memory else { return true };
        let Ok(memory) = memory.reserve_spare(bytes) else { return false };
        let stream = self.get_mut(key);
        stream.map(|stream| stream.reader.grow_into(memory)).is_some()
    }

    /// Lists a stream that has something to send.
    #[inline]
    fn list(&mut self, key: Key) {
        let (rules, longest_small) = (self.rules, self.longest_small);
        let Some(stream) = self.get_mut(key) else { return };
        if !stream.is_listed && stream.can_send(rules, longest_small) {
            stream.is_listed = true;
            self.ready.push_back(key);
        }
    }
}
