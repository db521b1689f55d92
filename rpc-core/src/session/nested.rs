//! Calls that handlers make to their own callers, and that have to wait in line.
//!
//! Owns the rule that keeps the handlers of both ends from waiting for each other for ever. A
//! handler holds a slot of its caller's while it waits for a slot at its caller. If all handlers of
//! both ends did so, none would ever end.
//!
//! Invariant: of the calls in line, fewer are nested than this end takes calls at once, and none if
//! this end uses fewer slots than the peer has. So where all slots are taken, one of them at least
//! belongs to a handler that waits for no slot: it ends, if its own nested calls end that are in
//! flight. They do where their handlers nest no further.

use super::outgoing::Calls;
use super::{CallId, Session, StartError};

/// Nested calls that were put in line.
#[derive(Debug, Default)]
pub(super) struct NestedInLine(Vec<CallId>);

impl NestedInLine {
    /// Whether one more may wait where `most` may.
    ///
    /// # Errors
    /// How many wait.
    fn make_room<W>(&mut self, most: usize, calls: &Calls<W>) -> Result<(), usize> {
        if self.0.len() >= most {
            self.0.retain(|id| calls.is_unsent(*id));
        }
        if self.0.len() < most { Ok(()) } else { Err(self.0.len()) }
    }

    #[cold]
    pub(super) fn push(&mut self, id: CallId) {
        self.0.push(id);
    }
}

impl<W, H> Session<W, H> {
    /// Whether a nested call has to wait in line.
    ///
    /// # Errors
    /// It would have to, and must not.
    #[cold]
    pub(super) fn must_wait_nested(&mut self) -> Result<bool, StartError> {
        if self.leaves_at_once().is_ok() {
            return Ok(false);
        }
        let all_slots = self.peer.is_some_and(|peer| self.slots.limit() >= peer.max_calls);
        let most = if all_slots { self.limits.max_incoming_calls.saturating_sub(1) } else { 0 };
        let room = self.nested.make_room(most as usize, &self.calls);
        room.map(|()| true).map_err(StartError::HandlersWait)
    }
}
