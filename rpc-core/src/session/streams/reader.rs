//! One end of a stream that receives: what arrived and was not read.
//!
//! Lanes of the link do not keep the order between short and long messages, so items are numbered
//! and put in order here.
//!
//! Invariants:
//! 1. Items come out once each, in the order of their numbers, without a gap.
//! 2. No more is kept than was granted, and one item.

use std::collections::VecDeque;

use rpc_transport::memory::budget::Reservation;
use rpc_transport::message::received::Message;

use super::types::{StreamEnd, StreamLimits};
use super::window::Window;
use crate::session::SessionError;
use crate::wire::WireId;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReaderState {
    /// There is no such stream.
    Closed,
    Open,
    /// This end has given up.
    Stopped,
}

#[derive(Debug)]
pub(super) struct Reader {
    pub(super) state: ReaderState,
    pub(super) window: Window,
    ready: VecDeque<Message>,
    /// Items that others before them have not arrived of yet, by number.
    early: Vec<(u32, Message)>,
    /// The number of the next item in order.
    next: u32,
    /// What has arrived: items and bytes.
    items: u64,
    bytes: u64,
    /// What may arrive in all.
    granted_items: u64,
    granted_bytes: u64,
    /// The highest number that has arrived, and the length of that item.
    highest: Option<(u32, u64)>,
    /// Items of the whole stream, modulo 2^32, once the sender has said.
    total: Option<u32>,
    /// The sender has said how the stream ends.
    sender_ended: bool,
    /// An end that comes behind what is ready.
    end: Option<StreamEnd>,
    /// The memory that the window may take beyond its first size.
    growth: Option<Reservation>,
}

/// Length of an item, as it is counted.
#[inline]
pub(super) fn counted(message: &Message) -> u64 {
    message.len() as u64 + message.tail_bytes()
}

impl Reader {
    pub(super) fn new(is_open: bool, limits: &StreamLimits) -> Self {
        Self {
            state: if is_open { ReaderState::Open } else { ReaderState::Closed },
            window: Window::new(limits),
            ready: VecDeque::new(),
            early: Vec::new(),
            next: 0,
            items: 0,
            bytes: 0,
            granted_items: u64::from(limits.items),
            granted_bytes: u64::from(limits.bytes),
            highest: None,
            total: None,
            sender_ended: false,
            end: None,
            growth: None,
        }
    }

    /// The window grows into this memory.
    pub(super) fn grow_into(&mut self, memory: Reservation) {
        match &mut self.growth {
            Some(growth) => growth.absorb(memory),
            None => self.growth = Some(memory),
        }
    }

    /// Takes an item of `len` bytes. Returns whether there is more to read now.
    #[inline]
    pub(super) fn arrive(
        &mut self,
        id: WireId,
        number: u32,
        len: u64,
        message: Message,
    ) -> Result<bool, SessionError> {
        self.charge(id, number, len)?;
        if self.state == ReaderState::Stopped || self.end.is_some() {
            return Ok(false);
        }
        if number != self.next {
            return self.arrive_early(id, number, message);
        }
        self.next = self.next.wrapping_add(1);
        self.ready.push_back(message);
        while let Some(at) = self.early.iter().position(|(number, _)| *number == self.next) {
            self.next = self.next.wrapping_add(1);
            self.ready.push_back(self.early.swap_remove(at).1);
        }
        Ok(true)
    }

    /// Checks an item against the credits and the announced total. All items but the one with the
    /// highest number must have left the sender some bytes of credit, in whatever order they come.
    #[inline]
    fn charge(&mut self, id: WireId, number: u32, len: u64) -> Result<(), SessionError> {
        if self.state == ReaderState::Closed {
            return Err(SessionError::StreamNotOpen(id));
        }
        if self.total.is_some_and(|total| self.items_behind(total) <= self.items_behind(number)) {
            return Err(SessionError::ItemAfterEnd(id));
        }
        let is_highest = self.highest.is_none_or(|(highest, _)| is_above(number, highest));
        let others = match self.highest {
            Some((_, longest)) if !is_highest => self.bytes - longest + len,
            _ => self.bytes,
        };
        if self.items >= self.granted_items || others >= self.granted_bytes {
            return Err(SessionError::ItemBeyondCredit(id));
        }
        if is_highest {
            self.highest = Some((number, len));
        }
        self.items += 1;
        self.bytes = self.bytes.saturating_add(len);
        Ok(())
    }

    /// How far a number is from the first one that can still come, modulo 2^32.
    #[inline]
    fn items_behind(&self, number: u32) -> u32 {
        number.wrapping_sub(self.next)
    }

    #[cold]
    fn arrive_early(
        &mut self,
        id: WireId,
        number: u32,
        message: Message,
    ) -> Result<bool, SessionError> {
        if !is_above(number, self.next) || self.early.iter().any(|(early, _)| *early == number) {
            return Err(SessionError::ItemRepeated(id));
        }
        let in_order = self.items - 1 - self.early.len() as u64;
        if in_order + u64::from(self.items_behind(number)) >= self.granted_items {
            return Err(SessionError::ItemBeyondCredit(id));
        }
        self.early.push((number, message));
        Ok(false)
    }

    /// The sender has said how many items there are.
    pub(super) fn set_total(&mut self, id: WireId, total: u32) -> Result<(), SessionError> {
        if self.sender_ended {
            return Err(SessionError::StreamEndedTwice(id));
        }
        let missing = self.missing_of(total).ok_or(SessionError::ItemsMiscounted(id))?;
        if missing > self.may_come() {
            return Err(SessionError::ItemsMiscounted(id));
        }
        (self.total, self.sender_ended) = (Some(total), true);
        Ok(())
    }

    /// The sender has given the stream up.
    pub(super) fn reset(&mut self, id: WireId, code: u8) -> Result<(), SessionError> {
        if self.sender_ended {
            return Err(SessionError::StreamEndedTwice(id));
        }
        self.sender_ended = true;
        self.end(StreamEnd::Reset(code));
        Ok(())
    }

    /// An item that there was no memory for has come.
    pub(super) fn skip(&mut self, id: WireId, number: u32) -> Result<(), SessionError> {
        self.charge(id, number, 0)
    }

    /// Whether the call has a stream in this direction.
    pub(super) fn exists(&self) -> bool {
        self.state != ReaderState::Closed
    }

    /// How many items of `total` have not arrived; `None` if more have.
    pub(super) fn missing_of(&self, total: u32) -> Option<u64> {
        #[expect(clippy::cast_possible_truncation, reason = "counted modulo 2^32")]
        let missing = total.wrapping_sub(self.items as u32);
        let too_many = self.highest.is_some_and(|(highest, _)| !is_above(total, highest));
        (missing <= i32::MAX as u32 && !too_many).then_some(u64::from(missing))
    }

    /// Whether so many items, and no more, have arrived.
    pub(super) fn is_complete(&self, total: u32) -> bool {
        self.missing_of(total) == Some(0)
    }

    /// The stream ends behind what is ready, whatever is still on its way.
    pub(super) fn end(&mut self, end: StreamEnd) {
        self.early = Vec::new();
        self.end = self.end.or(Some(end));
    }

    /// Whether its sender has said that it ends, in whatever way, or this end has.
    pub(super) fn has_end(&self) -> bool {
        self.total.is_some() || self.end.is_some() || self.state != ReaderState::Open
    }

    /// Items that may still be on their way.
    pub(super) fn may_come(&self) -> u64 {
        if self.state == ReaderState::Closed { 0 } else { self.granted_items - self.items }
    }

    /// Frames of the sender that may still be on their way.
    pub(super) fn frames_due(&self) -> u64 {
        match self.total {
            _ if !self.exists() => 0,
            Some(total) => self.missing_of(total).unwrap_or(0),
            None => self.may_come() + u64::from(!self.sender_ended),
        }
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Message> {
        self.ready.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// The end, once all in front of it was read.
    pub(super) fn at_end(&self) -> Option<StreamEnd> {
        if self.state != ReaderState::Open {
            return Some(StreamEnd::NotOpen);
        }
        if !self.ready.is_empty() {
            return None;
        }
        if self.total.is_some_and(|total| total == self.next) {
            return Some(StreamEnd::Clean);
        }
        self.end
    }

    /// Grants more.
    pub(super) fn grant(&mut self, items: u32, bytes: u64) {
        self.granted_items += u64::from(items);
        self.granted_bytes = self.granted_bytes.saturating_add(bytes);
    }

    /// Drops all that was not read; what comes is dropped, too.
    pub(super) fn stop(&mut self) {
        self.state = ReaderState::Stopped;
        self.ready = VecDeque::new();
        self.early = Vec::new();
        self.growth = None;
    }
}

/// Whether a number is above another one, modulo 2^32.
#[inline]
fn is_above(number: u32, other: u32) -> bool {
    number.wrapping_sub(other).wrapping_sub(1) < i32::MAX as u32
}
