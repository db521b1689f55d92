//! Frames of streams from the peer.
//!
//! Each names a call of either end. A frame for a call that is over is dropped, as long as a
//! correct peer could have sent it before it knew; one more ends the connection.

use std::time::Instant;

use rpc_transport::message::received::Message;

use super::reader::counted;
use super::types::StreamEnd;
use super::writer::WriterState;
use super::{Key, Opened, StreamCall};
use crate::session::transmit::Control;
use crate::session::{Failure, Reads, Revoke, Session, SessionError, SessionEvent};
use crate::wire::{CallStreams, Frame, HowRead, ItemHead, Kind, ResponseHead, WireId, code};

/// What to do with a response of a call that has streams.
pub(in crate::session) enum Response {
    /// All items are here: it is the call's outcome.
    Take(Message),
    /// It waits for items.
    Held,
}

impl<W, H> Session<W, H> {
    /// Any frame of streams but an item.
    #[cold]
    pub(in crate::session) fn on_stream_control(
        &mut self,
        frame: Frame,
        revoke: Revoke<'_>,
    ) -> Result<(), SessionError> {
        match frame {
            Frame::HalfClose { id, items } => {
                self.on_their_end(Kind::StreamHalfClose, id, |stream| {
                    stream.reader.set_total(id, items)
                })
            }
            Frame::Reset { id, code } => {
                self.on_their_end(Kind::StreamReset, id, |stream| stream.reader.reset(id, code))
            }
            Frame::Credit { id, results, items, bytes } => {
                self.on_credit(id, results, items, bytes)
            }
            Frame::Opened { id, accepted, read } => self.on_opened(id, accepted, read, revoke),
            Frame::Stop { id, results, code } => self.on_stop(id, results, code),
            _ => Ok(()),
        }
    }

    /// Finds the streams of a call; `None` if the call is over and the frame is dropped.
    #[inline]
    fn find_stream(
        &mut self,
        kind: Kind,
        id: WireId,
        is_ours: bool,
    ) -> Result<Option<Key>, SessionError> {
        if !self.streams.are_agreed() {
            return Err(SessionError::StreamsNotAgreed(kind));
        }
        let key = match is_ours {
            true => self.slots.call_of(id).map(Key::Call),
            false => self.incoming.is_live(id).then_some(Key::Incoming(id.slot)),
        };
        match key {
            Some(key) if self.streams.get(key).is_some() => Ok(Some(key)),
            Some(_) => Err(SessionError::StreamNotOpen(id)),
            None => {
                let late = self.streams.late.checked_sub(1);
                self.streams.late = late.ok_or(SessionError::UnknownStream(id))?;
                self.streams.stale += 1;
                Ok(None)
            }
        }
    }

    #[inline]
    pub(in crate::session) fn on_item(
        &mut self,
        head: ItemHead,
        mut message: Message,
        head_bytes: usize,
        now: impl FnOnce() -> Instant,
        revoke: Revoke<'_>,
    ) -> Result<(), SessionError> {
        let Some(key) = self.find_stream(Kind::StreamData, head.id, head.results)? else {
            return Ok(());
        };
        message.advance(head_bytes);
        let Some(stream) = self.streams.get_mut(key) else { return Ok(()) };
        stream.touch(now);
        if head.is_metadata {
            stream.mark_metadata(&head, &mut message)?;
        }
        let len = counted(&message);
        let more = stream.reader.arrive(head.id, head.number, len, message)?;
        let was = stream.opened;
        if head.results {
            // An item also says that the call was accepted.
            stream.opened = Opened::Accepted;
        }
        let waiter = if more || was != stream.opened { stream.read_waiter.take() } else { None };
        if let Some(waiter) = waiter {
            self.notices.push_back(SessionEvent::Wake(waiter));
        }
        if head.results {
            if was != Opened::Accepted && !self.compare_types(key, head.read, revoke) {
                return Ok(());
            }
            if was < Opened::Arrived {
                self.stream_arrived(key);
            }
            let held = self.streams.get(key).and_then(|stream| {
                let (response, _) = stream.held_response.as_ref()?;
                Some(stream.reader.is_complete(response.items))
            });
            if held == Some(true) {
                self.take_held_response(key);
            }
        }
        Ok(())
    }

    /// The callee has the request: what must not overtake it may go.
    #[cold]
    fn stream_arrived(&mut self, key: Key) {
        let Some(stream) = self.streams.get_mut(key) else { return };
        let (reset, stop) = (stream.late_reset.take(), stream.late_stop.take());
        if let Some(id) = stream.wire {
            if let Some(code) = reset {
                self.frames.push_control(Control::Reset { id, code });
            }
            if let Some(code) = stop {
                self.frames.push_control(Control::Stop { id, results: true, code });
            }
        }
        self.streams.list(key);
    }

    /// The caller has said how its arguments end.
    fn on_their_end(
        &mut self,
        kind: Kind,
        id: WireId,
        end: impl FnOnce(&mut StreamCall<W>) -> Result<(), SessionError>,
    ) -> Result<(), SessionError> {
        let Some(key) = self.find_stream(kind, id, false)? else { return Ok(()) };
        let Some(stream) = self.streams.get_mut(key) else { return Ok(()) };
        if !stream.reader.exists() {
            return Err(SessionError::StreamNotOpen(id));
        }
        end(stream)?;
        let waiter = stream.read_waiter.take();
        self.notices.extend(waiter.map(SessionEvent::Wake));
        Ok(())
    }

    fn on_credit(
        &mut self,
        id: WireId,
        results: bool,
        items: u32,
        bytes: u64,
    ) -> Result<(), SessionError> {
        let Some(key) = self.find_stream(Kind::StreamCredit, id, !results)? else { return Ok(()) };
        let Some(stream) = self.streams.get_mut(key) else { return Ok(()) };
        if !stream.writer.exists {
            return Err(SessionError::StreamNotOpen(id));
        }
        stream.writer.grant(id, items, bytes)?;
        let wakes = stream.write_waiter.is_some() && stream.writer.check(true).is_ok();
        let waiter = if wakes { stream.write_waiter.take() } else { None };
        self.notices.extend(waiter.map(SessionEvent::Wake));
        self.streams.list(key);
        Ok(())
    }

    fn on_opened(
        &mut self,
        id: WireId,
        accepted: bool,
        read: HowRead,
        revoke: Revoke<'_>,
    ) -> Result<(), SessionError> {
        let Some(key) = self.find_stream(Kind::StreamOpened, id, true)? else { return Ok(()) };
        let Some(stream) = self.streams.get_mut(key) else { return Ok(()) };
        let told = if accepted { Opened::Accepted } else { Opened::Arrived };
        if stream.told >= told {
            return Err(SessionError::OpenedTwice(id));
        }
        stream.told = told;
        let was = stream.opened;
        stream.opened = was.max(told);
        let waiter = if accepted { stream.read_waiter.take() } else { None };
        self.notices.extend(waiter.map(SessionEvent::Wake));
        if self.compare_types(key, read, revoke) && was < Opened::Arrived {
            self.stream_arrived(key);
        }
        Ok(())
    }

    /// The callee says before its response how it has read the arguments of a call of this end. If
    /// that is as the request was written, its other arguments may leave; otherwise the call ends,
    /// and this returns false.
    #[cold]
    fn compare_types(&mut self, key: Key, said: HowRead, revoke: Revoke<'_>) -> bool {
        let Key::Call(index) = key else { return true };
        if self.agree(index, said).is_none() {
            self.give_up_sent(index, Failure::TypesDisagree, revoke);
            return false;
        }
        let was_held = self.calls.reads(index) != Reads::Same;
        if let Some(stream) = self.streams.get_mut(key) {
            stream.types_agree = true;
            let waiter = if was_held { stream.write_waiter.take() } else { None };
            self.notices.extend(waiter.map(SessionEvent::Wake));
        }
        true
    }

    fn on_stop(&mut self, id: WireId, results: bool, code: u8) -> Result<(), SessionError> {
        let Some(key) = self.find_stream(Kind::StreamStop, id, !results)? else { return Ok(()) };
        let Some(stream) = self.streams.get_mut(key) else { return Ok(()) };
        if !stream.writer.exists {
            return Err(SessionError::StreamNotOpen(id));
        }
        if std::mem::replace(&mut stream.writer.was_stopped, true) {
            return Err(SessionError::StopTwice(id));
        }
        if matches!(stream.writer.state, WriterState::Open | WriterState::Finishing) {
            stream.writer.state = WriterState::Stopped(code);
        }
        let dropped = stream.writer.take_queue();
        let waiter = stream.write_waiter.take();
        dropped.into_iter().for_each(|item| self.discard(item));
        self.notices.extend(waiter.map(SessionEvent::Wake));
        self.release_reply(key);
        Ok(())
    }

    /// There was no memory for an item: its stream has a hole, so it ends.
    #[cold]
    pub(in crate::session) fn on_refused_item(
        &mut self,
        head: ItemHead,
        reason: rpc_transport::memory::budget::BudgetExhausted,
        revoke: Revoke<'_>,
    ) -> Result<(), SessionError> {
        let Some(key) = self.find_stream(Kind::StreamData, head.id, head.results)? else {
            return Ok(());
        };
        match key {
            Key::Call(index) => self.give_up_sent(index, Failure::NoMemory(reason), revoke),
            Key::Incoming(_) => {
                let Some(stream) = self.streams.get_mut(key) else { return Ok(()) };
                stream.reader.skip(head.id, head.number)?;
                let was_open = !stream.reader.has_end();
                stream.reader.end(StreamEnd::NoMemory);
                let waiter = stream.read_waiter.take();
                if was_open {
                    let (id, code) = (head.id, code::RESOURCE_EXHAUSTED);
                    self.frames.push_control(Control::Stop { id, results: false, code });
                }
                self.notices.extend(waiter.map(SessionEvent::Wake));
            }
        }
        Ok(())
    }

    /// A request that has streams: makes them.
    #[cold]
    pub(in crate::session) fn open_incoming(
        &mut self,
        id: WireId,
        streams: CallStreams,
        idle: Option<super::Idle>,
        has_signature: bool,
    ) {
        let key = Key::Incoming(id.slot);
        self.streams.insert(key, id.generation, Some(id), streams, idle);
        if !streams.arguments {
            return;
        }
        // Until it knows of this, the caller sends only what stays behind the request; nothing, if
        // the request asks whether the types are the same.
        if has_signature {
            if let Some(stream) = self.streams.get_mut(key) {
                stream.owes_arrival = true;
            }
        } else {
            let read = HowRead::Unsaid;
            self.frames.push_control(Control::Opened { id, accepted: false, read });
        }
    }

    /// It is decided how the arguments of a call of the peer are read.
    #[cold]
    pub(in crate::session) fn tell_arrival(&mut self, id: WireId, read: HowRead) {
        let stream = self.streams.get_mut(Key::Incoming(id.slot));
        let Some(stream) = stream.filter(|stream| stream.generation == id.generation) else {
            return;
        };
        stream.read = read;
        if std::mem::take(&mut stream.owes_arrival) && !stream.is_over {
            self.frames.push_control(Control::Opened { id, accepted: false, read });
        }
    }

    /// A request with streams is refused: what follows it is late.
    #[cold]
    pub(in crate::session) fn refuse_streams(&mut self, streams: CallStreams) {
        if streams.arguments {
            let items = self.streams.limits.map_or(0, |limits| u64::from(limits.items));
            self.streams.late += items + 1;
        }
    }

    /// Looks at a response while calls with streams exist, or if it speaks of one.
    #[cold]
    pub(in crate::session) fn on_stream_response(
        &mut self,
        head: ResponseHead,
        message: Message,
    ) -> Result<Response, SessionError> {
        let call = self.slots.call_of(head.id);
        let speaks = head.items != 0 || head.is_reset;
        let stream = call.and_then(|index| self.streams.get_mut(Key::Call(index)));
        let Some(stream) = stream else {
            // For one that has been given up, its caller does not know any more.
            return match call {
                Some(_) if speaks => Err(SessionError::StreamNotOpen(head.id)),
                _ => Ok(Response::Take(message)),
            };
        };
        if stream.held_response.is_some() {
            return Err(SessionError::ResponseToNoCall(head.id));
        }
        if !stream.reader.exists() {
            return if speaks {
                Err(SessionError::StreamNotOpen(head.id))
            } else {
                Ok(Response::Take(message))
            };
        }
        stream.reader.set_total(head.id, head.items)?;
        if stream.reader.is_complete(head.items) {
            return Ok(Response::Take(message));
        }
        stream.held_response = Some((head, message));
        stream.is_over = true;
        let (dropped, waiter) = (stream.writer.take_queue(), stream.write_waiter.take());
        dropped.into_iter().for_each(|item| self.discard(item));
        self.notices.extend(waiter.map(SessionEvent::Wake));
        Ok(Response::Held)
    }

    /// The last item that a response waited for is here.
    #[cold]
    fn take_held_response(&mut self, key: Key) {
        let held = self.streams.get_mut(key).and_then(|stream| stream.held_response.take());
        if let Some((head, message)) = held {
            // It was checked when it came: its slot is still the call's.
            let taken = self.complete_response(head, message);
            debug_assert!(taken.is_ok(), "a slot was freed under a response that was held");
        }
    }
}
