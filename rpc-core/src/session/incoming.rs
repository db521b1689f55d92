//! Calls of the peer: which run, which are being stopped, which were answered.
//!
//! Owns the callee's half of the slot table. The session decides from its answers what is sent.
//!
//! Invariants:
//! 1. A call is answered exactly once: by a response, or by a cancelled frame after a cancel.
//! 2. That answer is given only when no handler of the call runs any more, so handlers are as
//!    bounded as slots, even against a peer that starts and cancels without pause.
//! 3. A handler is stopped at most once.
//! 4. The table grows no further than the announced limit.

use super::SessionError;
use super::deadlines::TimerKey;
use super::slots::INITIAL_CALLS;
use crate::wire::{HowRead, RequestHead, WireId};

#[derive(Debug)]
enum Stage<H> {
    Free,
    /// The request waits to be taken by `poll_event`.
    Arrived,
    /// Taken; the handler's handle once it has one.
    Running(Option<H>),
    /// The handler was stopped, or will be when it is attached.
    Stopping {
        cancelled: bool,
    },
    /// The answer is queued or handed to the link.
    Answered,
}

#[derive(Debug)]
struct Entry<H> {
    generation: u32,
    method: u32,
    no_cancel: bool,
    /// Said in each answer.
    read: HowRead,
    timer: Option<TimerKey>,
    stage: Stage<H>,
}

/// The effect of a cancel, a passed deadline or the end of the connection on a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stopped<H> {
    /// No handler has seen it: it can be answered at once.
    NeverRan,
    /// The handle to stop the handler with; `None` if it is not attached yet.
    Handler(Option<H>),
    /// Was being stopped already.
    Already,
    /// Was answered already; the link may not have sent the answer yet.
    Answered,
    /// No call of that id, or it must not be stopped.
    Nothing,
}

/// What to send when a handler has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The caller still waits: answer, and say how the request was read.
    Reply { read: HowRead },
    /// The caller cancelled: confirm.
    Cancelled,
    /// The deadline passed: say so.
    DeadlineExceeded,
    /// No such call, or it was answered before.
    Nothing,
}

/// The calls that the peer has made.
#[derive(Debug)]
pub(super) struct IncomingCalls<H> {
    entries: Vec<Entry<H>>,
    limit: u32,
    in_flight: u32,
}

impl<H> IncomingCalls<H> {
    pub(super) fn new(max_incoming_calls: u32) -> Self {
        let limit = max_incoming_calls.max(INITIAL_CALLS);
        Self { entries: Vec::new(), limit, in_flight: 0 }
    }

    /// Calls that were not answered yet.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Slot numbers are below this.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// Takes a request's slot.
    ///
    /// # Errors
    /// The slot is out of range or in use, or the generation is that of the previous call.
    #[inline(always)]
    pub(super) fn admit(&mut self, head: &RequestHead) -> Result<(), SessionError> {
        let WireId { slot, generation } = head.id;
        if slot as usize >= self.entries.len() {
            if slot >= self.limit {
                return Err(SessionError::SlotOutOfRange { slot, limit: self.limit });
            }
            self.entries.resize_with(slot as usize + 1, || Entry {
                generation: 0,
                method: 0,
                no_cancel: false,
                read: HowRead::Unsaid,
                timer: None,
                stage: Stage::Free,
            });
        }
        let entry = &mut self.entries[slot as usize];
        if !matches!(entry.stage, Stage::Free | Stage::Answered) {
            return Err(SessionError::SlotInUse(head.id));
        }
        if entry.generation == generation {
            return Err(SessionError::GenerationRepeated(head.id));
        }
        entry.generation = generation;
        entry.method = head.method;
        entry.no_cancel = head.no_cancel;
        entry.read = HowRead::Unsaid;
        entry.stage = Stage::Arrived;
        self.in_flight += 1;
        Ok(())
    }

    #[inline]
    fn find(&mut self, id: WireId) -> Option<&mut Entry<H>> {
        self.entries.get_mut(id.slot as usize).filter(|entry| entry.generation == id.generation)
    }

    pub(super) fn set_timer(&mut self, id: WireId, timer: TimerKey) {
        if let Some(entry) = self.find(id) {
            entry.timer = Some(timer);
        }
    }

    /// Takes the call's timer, which has fired or is to be removed.
    #[inline]
    pub(super) fn take_timer(&mut self, slot: u32) -> Option<TimerKey> {
        self.entries.get_mut(slot as usize)?.timer.take()
    }

    /// The id of the slot's current call.
    pub(super) fn id(&self, slot: u32) -> WireId {
        WireId { slot, generation: self.entries[slot as usize].generation }
    }

    /// Whether the request still needs a handler; if so, it now counts as running.
    #[inline]
    pub(super) fn take_arrived(&mut self, id: WireId) -> bool {
        match self.find(id) {
            Some(entry) if matches!(entry.stage, Stage::Arrived) => {
                entry.stage = Stage::Running(None);
                true
            }
            _ => false,
        }
    }

    /// Attaches the handle of a running call's handler.
    ///
    /// # Errors
    /// The handle, when the call is not running any more.
    pub(super) fn attach(&mut self, id: WireId, handler: H) -> Result<(), H> {
        match self.find(id) {
            Some(Entry { stage: Stage::Running(slot), .. }) => {
                *slot = Some(handler);
                Ok(())
            }
            _ => Err(handler),
        }
    }

    /// The handle is no longer needed: the handler has ended, though its answer has to wait.
    pub(super) fn drop_handler(&mut self, id: WireId) {
        if let Some(Entry { stage: Stage::Running(handler), .. }) = self.find(id) {
            *handler = None;
        }
    }

    /// Whether the call was not answered yet.
    #[inline]
    pub(super) fn is_live(&self, id: WireId) -> bool {
        let entry = self.entries.get(id.slot as usize);
        entry.filter(|entry| entry.generation == id.generation).is_some_and(|entry| {
            matches!(entry.stage, Stage::Arrived | Stage::Running(_) | Stage::Stopping { .. })
        })
    }

    /// Whether its deadline has stopped the handler, which has not ended yet.
    pub(super) fn is_expired(&self, id: WireId) -> bool {
        let entry = self.entries.get(id.slot as usize);
        entry
            .filter(|entry| entry.generation == id.generation)
            .is_some_and(|entry| matches!(entry.stage, Stage::Stopping { cancelled: false }))
    }

    /// Whether its handler is being stopped and has not ended yet.
    pub(super) fn is_stopping(&self, id: WireId) -> bool {
        let entry = self.entries.get(id.slot as usize);
        entry
            .filter(|entry| entry.generation == id.generation)
            .is_some_and(|entry| matches!(entry.stage, Stage::Stopping { .. }))
    }

    /// Whether no handler has taken the request yet.
    pub(super) fn is_arrived(&self, id: WireId) -> bool {
        let entry = self.entries.get(id.slot as usize);
        entry.is_some_and(|entry| matches!(entry.stage, Stage::Arrived))
    }

    /// Notes how this call's arguments are read. Returns the method.
    pub(super) fn set_read(&mut self, id: WireId, read: HowRead) -> Option<u32> {
        let entry = self.find(id)?;
        entry.read = read;
        Some(entry.method)
    }

    /// How the arguments of a call are read, as its answer says.
    pub(super) fn read(&self, id: WireId) -> HowRead {
        let entry = self.entries.get(id.slot as usize);
        let entry = entry.filter(|entry| entry.generation == id.generation);
        entry.map_or(HowRead::Unsaid, |entry| entry.read)
    }

    /// The method of a call.
    pub(super) fn method(&self, id: WireId) -> Option<u32> {
        let entry = self.entries.get(id.slot as usize);
        entry.filter(|entry| entry.generation == id.generation).map(|entry| entry.method)
    }

    /// Whether the call is marked `no_cancel`.
    pub(super) fn is_no_cancel(&mut self, id: WireId) -> bool {
        self.find(id).is_some_and(|entry| entry.no_cancel)
    }

    /// The peer cancels (`cancelled`), or the deadline has passed.
    pub(super) fn stop(&mut self, id: WireId, cancelled: bool) -> Stopped<H> {
        let Some(entry) = self.find(id) else { return Stopped::Nothing };
        match &mut entry.stage {
            Stage::Free => Stopped::Nothing,
            Stage::Answered => Stopped::Answered,
            Stage::Stopping { .. } => Stopped::Already,
            Stage::Arrived => {
                entry.stage = Stage::Answered;
                self.in_flight -= 1;
                Stopped::NeverRan
            }
            Stage::Running(handler) => {
                let handler = handler.take();
                entry.stage = Stage::Stopping { cancelled };
                Stopped::Handler(handler)
            }
        }
    }

    /// The handler has ended, with or without a reply.
    #[inline]
    pub(super) fn end(&mut self, id: WireId) -> Ended {
        let Some(entry) = self.find(id) else { return Ended::Nothing };
        let ended = match entry.stage {
            Stage::Arrived | Stage::Running(_) => Ended::Reply { read: entry.read },
            Stage::Stopping { cancelled: true } => Ended::Cancelled,
            Stage::Stopping { cancelled: false } => Ended::DeadlineExceeded,
            Stage::Free | Stage::Answered => Ended::Nothing,
        };
        if ended != Ended::Nothing {
            entry.stage = Stage::Answered;
            self.in_flight -= 1;
        }
        ended
    }

    /// The connection is gone: forgets every call except those marked `no_cancel`, whose handlers
    /// run to their end. Returns the handlers to stop.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = H> {
        let in_flight = &mut self.in_flight;
        self.entries.iter_mut().filter_map(move |entry| {
            if matches!(entry.stage, Stage::Running(_)) && entry.no_cancel {
                return None;
            }
            match std::mem::replace(&mut entry.stage, Stage::Free) {
                Stage::Free | Stage::Answered => None,
                Stage::Arrived | Stage::Stopping { .. } => {
                    *in_flight -= 1;
                    None
                }
                Stage::Running(handler) => {
                    *in_flight -= 1;
                    handler
                }
            }
        })
    }
}
