//! One end of a stream that sends: what waits for credit.
//!
//! Invariants:
//! 1. An item is numbered and paid for when it leaves for the link, never before, so what is
//!    dropped here was never counted.
//! 2. Beyond what credit allows at most one item waits here.

use std::collections::VecDeque;

use rpc_transport::message::outgoing::OutBuf;

use super::rules::Rules;
use super::types::SendError;
use crate::session::SessionError;
use crate::wire::{StreamWindow, WireId};

/// Most items that wait here though there is credit for them: they leave with the next transmit.
const MAX_READY: u32 = 64;
/// Most unspent credit, items.
const MAX_CREDIT_ITEMS: u32 = i32::MAX as u32;
/// Most unspent credit, bytes.
const MAX_CREDIT_BYTES: i64 = i64::MAX / 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriterState {
    /// There is no such stream, or this end has reset it.
    Closed,
    Open,
    /// No items follow those that wait.
    Finishing,
    /// The end has been sent.
    Finished,
    /// The receiver gave up.
    Stopped(u8),
}

#[derive(Debug)]
pub(super) struct Writer {
    pub(super) state: WriterState,
    /// The call has a stream in this direction.
    pub(super) exists: bool,
    /// The receiver has given up.
    pub(super) was_stopped: bool,
    queue: VecDeque<OutBuf>,
    queued_bytes: u64,
    credit_items: u32,
    credit_bytes: i64,
    /// Items that have left, modulo 2^32.
    sent: u32,
    /// Grants that may still come: at most one for each item.
    grants_due: u64,
}

impl Writer {
    pub(super) fn new(is_open: bool, window: Option<StreamWindow>) -> Self {
        let mut writer = Self {
            state: if is_open { WriterState::Open } else { WriterState::Closed },
            exists: is_open,
            was_stopped: false,
            queue: VecDeque::new(),
            queued_bytes: 0,
            credit_items: 0,
            credit_bytes: 0,
            sent: 0,
            grants_due: 0,
        };
        if let Some(window) = window {
            writer.set_window(window);
        }
        writer
    }

    /// The peer's hello has arrived.
    pub(super) fn set_window(&mut self, window: StreamWindow) {
        self.credit_items = window.items.min(MAX_CREDIT_ITEMS);
        self.credit_bytes = i64::from(window.bytes);
    }

    /// Items that have left, modulo 2^32.
    pub(super) fn sent(&self) -> u32 {
        self.sent
    }

    /// Frames of the receiver that may still be on their way.
    pub(super) fn frames_due(&self) -> u64 {
        let stop = u64::from(self.exists && !self.was_stopped);
        self.grants_due + stop
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether an item is taken; `has_room`: whether the link takes items at present.
    #[inline]
    pub(super) fn check(&self, has_room: bool) -> Result<(), SendError> {
        match self.state {
            WriterState::Open => {}
            WriterState::Stopped(code) => return Err(SendError::Stopped(code)),
            WriterState::Closed | WriterState::Finishing | WriterState::Finished => {
                return Err(SendError::NotOpen);
            }
        }
        let ready = u32::try_from(self.queue.len()).unwrap_or(u32::MAX);
        let goes_at_once = ready < self.credit_items.min(MAX_READY)
            && i64::try_from(self.queued_bytes).is_ok_and(|bytes| bytes < self.credit_bytes);
        if ready == 0 || (has_room && goes_at_once) { Ok(()) } else { Err(SendError::Full) }
    }

    #[inline]
    pub(super) fn push(&mut self, item: OutBuf) {
        self.queued_bytes += item.total_len();
        self.queue.push_back(item);
    }

    /// The item that has credit to leave.
    #[inline]
    pub(super) fn front(&self, rules: Rules) -> Option<&OutBuf> {
        let front = self.queue.front()?;
        let mut may_go = self.credit_items > 0 && self.credit_bytes > 0;
        if !rules.may_overdraw() {
            may_go &= i64::try_from(front.total_len()).is_ok_and(|len| len <= self.credit_bytes);
        }
        (may_go || !rules.needs_credit()).then_some(front)
    }

    /// Takes that item, and its number.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<(u32, OutBuf)> {
        let item = self.queue.pop_front()?;
        let len = item.total_len();
        self.queued_bytes -= len;
        self.credit_items = self.credit_items.saturating_sub(1);
        self.credit_bytes = self.credit_bytes.saturating_sub_unsigned(len);
        self.grants_due += 1;
        let number = self.sent;
        self.sent = self.sent.wrapping_add(1);
        Some((number, item))
    }

    /// The receiver takes more.
    pub(super) fn grant(&mut self, id: WireId, items: u32, bytes: u64) -> Result<(), SessionError> {
        let items = self.credit_items.checked_add(items).filter(|sum| *sum <= MAX_CREDIT_ITEMS);
        let bytes = self.credit_bytes.checked_add_unsigned(bytes);
        let bytes = bytes.filter(|sum| *sum <= MAX_CREDIT_BYTES);
        let (Some(items), Some(bytes)) = (items, bytes) else {
            return Err(SessionError::GrantOverflow(id));
        };
        (self.credit_items, self.credit_bytes) = (items, bytes);
        self.grants_due = self.grants_due.checked_sub(1).ok_or(SessionError::GrantUnasked(id))?;
        Ok(())
    }

    /// Gives up what waits.
    pub(super) fn take_queue(&mut self) -> VecDeque<OutBuf> {
        self.queued_bytes = 0;
        std::mem::take(&mut self.queue)
    }
}
