//! Slots: the ids of this end's calls on the wire, and their quarantine.
//!
//! Owns the slot and generation that a call is sent under, and what a frame that comes back for it
//! proves. Knows callers only by index: a slot has the index of its call, or none.
//!
//! Invariants:
//! 1. A slot is reused only after its proof: the call's response, its cancelled frame after a
//!    cancel, or the link's report that the request never reached the peer.
//! 2. Each use of a slot has another generation than the previous use, and never 0.
//! 3. Slots lie below the limit that the peer announced, and below [`INITIAL_CALLS`] before it did.
//! 4. A proof frees a slot exactly once; a second one is a protocol error of the peer.

use super::SessionError;
use crate::wire::WireId;

/// Calls that either end may have in flight before it has seen the other's hello. It is one because
/// every end that takes calls takes at least one, so no caller is refused for not knowing the
/// limit.
pub const INITIAL_CALLS: u32 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    Free,
    /// The call waits for its response.
    Call(u32),
    /// Quarantine: the caller has gone, and the proof has not arrived.
    Zombie {
        cancel_sent: bool,
    },
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    holder: Holder,
}

/// What came back for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    Response,
    Cancelled,
}

/// The slot table of one end.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    limit: u32,
    busy: u32,
    zombies: u32,
}

impl Slots {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), limit: INITIAL_CALLS, busy: 0, zombies: 0 }
    }

    /// Slots in use, zombies included.
    pub(super) fn busy(&self) -> u32 {
        self.busy
    }

    /// Number of slots that were ever used.
    pub(super) fn made(&self) -> usize {
        self.slots.len()
    }

    /// Slots whose caller has gone.
    pub(super) fn zombies(&self) -> u32 {
        self.zombies
    }

    /// The most calls that may be in flight.
    pub(super) fn limit(&self) -> u32 {
        self.limit
    }

    /// The peer has announced its limit.
    pub(super) fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
        self.free.retain(|slot| *slot < limit);
        // Nothing else to do: slots above the old limit were never made.
    }

    /// Takes a slot for the call, if the peer's limit allows another call now.
    #[inline]
    pub(super) fn take(&mut self, call: u32) -> Option<WireId> {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.make()?,
        };
        let slot = &mut self.slots[index as usize];
        slot.holder = Holder::Call(call);
        self.busy += 1;
        Some(WireId { slot: index, generation: slot.generation })
    }

    fn make(&mut self) -> Option<u32> {
        let index = u32::try_from(self.slots.len()).ok()?;
        if index >= self.limit {
            return None;
        }
        self.slots.push(Slot { generation: 1, holder: Holder::Free });
        Some(index)
    }

    /// Whether a slot could be taken.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < self.limit as usize
    }

    /// The id that the slot's current call was sent with.
    pub(super) fn id(&self, index: u32) -> WireId {
        WireId { slot: index, generation: self.slots[index as usize].generation }
    }

    /// The call that waits for its response under this id.
    #[inline]
    pub(super) fn call_of(&self, id: WireId) -> Option<u32> {
        let slot = self.slots.get(id.slot as usize)?;
        match slot.holder {
            Holder::Call(call) if slot.generation == id.generation => Some(call),
            _ => None,
        }
    }

    /// The proof of the slot's call has arrived before the call was given up.
    pub(super) fn release_proven(&mut self, index: u32) {
        self.release(index);
    }

    /// Puts a slot in quarantine: its caller has gone, and its request may be on the wire.
    pub(super) fn abandon(&mut self, index: u32, cancel_sent: bool) {
        let slot = &mut self.slots[index as usize];
        debug_assert!(matches!(slot.holder, Holder::Call(_)), "only a waiting call is abandoned");
        slot.holder = Holder::Zombie { cancel_sent };
        self.zombies += 1;
    }

    /// The request never reached the peer: the slot is free at once (invariant 1).
    pub(super) fn release_unsent(&mut self, index: u32) {
        debug_assert!(matches!(self.slots[index as usize].holder, Holder::Call(_)));
        self.release(index);
    }

    /// Takes the proof for a call. Returns the call's index, unless its caller has gone.
    ///
    /// # Errors
    /// The frame answers no call, or confirms a cancel that was never sent.
    #[inline]
    pub(super) fn on_proof(
        &mut self,
        id: WireId,
        proof: Proof,
    ) -> Result<Option<u32>, SessionError> {
        let slot = self.slots.get(id.slot as usize).filter(|slot| slot.generation == id.generation);
        let holder = slot.map_or(Holder::Free, |slot| slot.holder);
        let owner = match (holder, proof) {
            (Holder::Call(call), Proof::Response) => Some(call),
            (Holder::Zombie { .. }, Proof::Response)
            | (Holder::Zombie { cancel_sent: true }, Proof::Cancelled) => {
                self.zombies -= 1;
                None
            }
            (Holder::Free, Proof::Response) => return Err(SessionError::ResponseToNoCall(id)),
            (Holder::Free, Proof::Cancelled) => return Err(SessionError::CancelledNoCall(id)),
            (_, Proof::Cancelled) => return Err(SessionError::CancelledUnasked(id)),
        };
        self.release(id.slot);
        Ok(owner)
    }

    /// The connection is gone: no more proofs will arrive.
    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.free.clear();
        (self.busy, self.zombies, self.limit) = (0, 0, 0);
    }

    #[inline]
    fn release(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.holder = Holder::Free;
        slot.generation = slot.generation.checked_add(1).unwrap_or(1);
        self.busy -= 1;
        if index < self.limit {
            self.free.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_are_never_0_nor_repeated_at_once() {
        let mut slots = Slots::new();
        let first = slots.take(5).expect("room");
        assert_eq!(first, WireId { slot: 0, generation: 1 });
        slots.slots[0].generation = u32::MAX;
        let last = WireId { slot: 0, generation: u32::MAX };
        assert_eq!(slots.on_proof(last, Proof::Response), Ok(Some(5)));
        assert_eq!(slots.take(6), Some(first));
    }

    #[test]
    fn a_lower_limit_retires_returning_slots() {
        let mut slots = Slots::new();
        slots.set_limit(3);
        let ids: Vec<WireId> = (0..3).filter_map(|call| slots.take(call)).collect();
        assert_eq!(slots.on_proof(ids[2], Proof::Response), Ok(Some(2)));
        slots.set_limit(1);
        assert!(!slots.has_room());
        assert_eq!(slots.on_proof(ids[1], Proof::Response), Ok(Some(1)));
        assert_eq!(slots.take(9), None);
        assert_eq!(slots.on_proof(ids[0], Proof::Response), Ok(Some(0)));
        assert_eq!(slots.take(9), Some(WireId { slot: 0, generation: 2 }));
        assert_eq!((slots.busy(), slots.take(9)), (1, None));
    }
}
