//! Streams that feed other calls: the results of one are the arguments of the next, one item at a
//! time, so that a reader at the end of a chain blocks every writer before it.

use super::World;
use super::call::{Call, Number};

impl World<'_> {
    /// Now and then makes another call of the same end feed a new call.
    pub(super) fn feed(&mut self, number: Number) {
        let call = &self.calls[&number];
        if !call.streams.arguments || !self.rng.chance(40) {
            return;
        }
        let is_free =
            |it: &Call| it.caller == call.caller && it.streams.results && it.feeds.is_none();
        let free = self.calls.iter().filter(|(other, it)| **other != number && is_free(it));
        let free: Vec<Number> = free.map(|(other, _)| *other).collect();
        if free.is_empty() {
            return;
        }
        let source = self.rng.pick(&free);
        self.calls.get_mut(&source).expect("it is here").feeds = Some(number);
        self.calls.get_mut(&number).expect("it is here").fed_by = Some(source);
    }

    /// Whether the writer has an item to write, or its end. The end of the call that feeds it ends
    /// it too.
    pub(super) fn has_input(&mut self, number: Number) -> bool {
        let call = &self.calls[&number];
        if call.written || call.up.left == 0 || call.in_hand > 0 {
            return !call.written;
        }
        let Some(source) = call.fed_by else { return true };
        let goes_on = |source: &Call| !source.done && source.down.stopped.is_none();
        if self.calls.get(&source).is_some_and(goes_on) {
            return false;
        }
        self.calls.get_mut(&number).expect("it is here").up.left = 0;
        true
    }

    /// Whether the reader may read: the previous item has been written on. Not while the next call
    /// waits for a slot, which this one may hold.
    pub(super) fn may_read_on(&self, number: Number) -> bool {
        let Some(call) = self.calls.get(&number).filter(|call| !call.done) else { return false };
        let next = call.feeds.and_then(|next| self.calls.get(&next));
        !next.is_some_and(|next| next.in_hand > 0 && next.handled && !next.written && !next.done)
    }

    /// An item was read: the next call has it in hand.
    pub(super) fn pass_on(&mut self, number: Number) {
        let Some(next) = self.calls[&number].feeds else { return };
        if let Some(next) = self.calls.get_mut(&next) {
            next.in_hand += 1;
            self.tally.fed += 1;
        }
    }

    /// Whether a call, one before it or one after it sleeps on purpose or waits for a slot.
    pub(super) fn is_chain_held(&self, number: Number) -> bool {
        let along = |step: fn(&Call) -> Option<Number>| {
            std::iter::successors(self.calls.get(&number), move |call| self.calls.get(&step(call)?))
        };
        along(|call| call.fed_by).chain(along(|call| call.feeds)).any(Call::is_held)
    }
}
