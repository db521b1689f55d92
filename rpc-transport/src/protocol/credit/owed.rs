//! What one end owes its peer: the next grant, as it comes together.
//!
//! Kept as the words of that grant, so that taking them costs nothing. Counts are read without the
//! word about the window, which stands in the same bits: a comparison that forgets it cannot be
//! written.

use super::Grant;

/// Credits that the next grant carries, and whether they include those of a window that has grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Owed(Grant);

impl Owed {
    /// Data credits.
    #[inline]
    #[must_use]
    pub const fn data(self) -> u16 {
        self.0.credits().data
    }

    /// Ack credits. Words about windows that stand beside them in a grant are never owed.
    #[inline]
    #[must_use]
    pub const fn ack(self) -> u16 {
        self.0.ack
    }

    /// Whether the peer is to learn that its window has grown.
    #[inline]
    #[must_use]
    pub const fn is_grown(self) -> bool {
        self.0.is_grown()
    }

    /// Whether there are data credits, or a word that goes with them.
    #[inline]
    #[must_use]
    pub const fn has_data(self) -> bool {
        self.0.data != 0
    }

    /// Whether so many data credits or so many ack credits are owed, or the window has grown, of
    /// which the peer is to learn at once.
    #[inline]
    #[must_use]
    pub const fn reaches(self, data: u16, ack: u16) -> bool {
        // The word is above every count.
        self.0.data >= data || self.0.ack >= ack
    }

    #[inline]
    pub(super) const fn add_data(&mut self) {
        self.0.data += 1;
    }

    #[inline]
    pub(super) const fn add_ack(&mut self) {
        self.0.ack += 1;
    }

    /// The window has grown by so many.
    pub(super) const fn grow(&mut self, more: u16) {
        self.0.data += more;
        self.0.data |= Grant::GROWN;
    }

    /// All of it, to be granted now.
    #[inline]
    pub(super) const fn take(&mut self) -> Grant {
        let Self(grant) = std::mem::replace(self, Self(Grant { data: 0, ack: 0 }));
        grant
    }

    /// The parts of it that a rule which is broken lets pass.
    #[cfg(any(test, feature = "model"))]
    pub(super) fn take_parts(&mut self, data: bool, ack: bool) -> Grant {
        let mut part = |of: fn(&mut Grant) -> &mut u16, takes: bool| {
            if takes { std::mem::take(of(&mut self.0)) } else { 0 }
        };
        Grant { data: part(|it| &mut it.data, data), ack: part(|it| &mut it.ack, ack) }
    }

    /// The credits without the word, as a broken rule says nothing of the window.
    #[cfg(any(test, feature = "model"))]
    pub(super) const fn conceal_growth(&mut self) {
        self.0.data &= !Grant::GROWN;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The statistics of a connection counted the word as 32,768 credits.
    #[test]
    fn a_window_that_has_grown_is_no_credit() {
        let mut owed = Owed::default();
        owed.add_data();
        owed.grow(8);
        assert_eq!((owed.data(), owed.ack(), owed.is_grown()), (9, 0, true));
        assert!(owed.reaches(100, 1), "the peer learns of it at once");
        assert_eq!(owed.take(), Grant { data: 9 | Grant::GROWN, ack: 0 });
        assert_eq!(owed, Owed::default());
    }
}
