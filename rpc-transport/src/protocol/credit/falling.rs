//! Fall of the data window: what it has grown by goes back to its receiver when it is not used.
//!
//! Owns the judgement whether a window was used, and the word about it on the wire. Never reads a
//! clock: whoever has one calls [`Credits::look`] now and then.
//!
//! A window falls through the same sizes as it grew ([`growth`](super::growth)), one at a time:
//!
//! - **Rule 11** a sender gives the last size back ([`Grant::RETURNS`]) with a message for which all its
//!   credits are at home, counting against the smaller window from that message on. With all of them at
//!   home nothing about this window is on its way: no message, no grant, and, as of rule 12, no growth.
//!   So both ends mean the same size by "the last".
//! - **Rule 12** a question of rule 8 is answered before the credit of the message that asks is granted,
//!   or never.
//! - **Rule 13** the receiver counts against the smaller window from that message on: the RECVs above
//!   it are its own again.
//!
//! A window is given back if it was not used between two looks: if the next smaller one would not have
//! asked for more (rule 8). Both ends must have agreed that windows fall.

use super::growth::Sizes;
use super::{CreditError, Credits, Grant, Window};

impl Grant {
    /// In [`Grant::ack`]: the sender of this has given back what its window grew by last.
    pub const RETURNS: u16 = 1 << 13;

    /// Whether the sender of this has given back what its window grew by last.
    #[must_use]
    pub const fn returns(self) -> bool {
        self.ack & Self::RETURNS != 0
    }
}

impl Sizes {
    /// The size before `now`, which is not the first.
    const fn before(self, now: u16) -> u16 {
        let mut size = self.first;
        while self.after(size) < now {
            size = self.after(size);
        }
        size
    }
}

impl Credits {
    /// The same, between ends that have agreed that windows fall, or have not.
    #[must_use]
    pub const fn with_returns(mut self, agreed: bool) -> Self {
        self.limits.windows_fall = agreed;
        self.notes_below = self.notes_below_now();
        self
    }

    /// Some time has passed since the last look. A window that was not used meanwhile is given back with
    /// one of the next messages.
    pub const fn look(&mut self) {
        if !self.is_used {
            self.give_back();
        }
        self.is_used = false;
        self.notes_below = self.notes_below_now();
    }

    /// The window is to fall by one size, unless it has its first one.
    pub const fn give_back(&mut self) {
        if self.limits.windows_fall && self.now.remote_window > self.limits.remote_sizes.first {
            self.now.gives_back = true;
            self.notes_below = self.notes_below_now();
        }
    }

    /// RECVs, in WRs, that the window has fallen by since this was last asked. They need not be posted
    /// again.
    #[inline]
    pub const fn take_fallen(&mut self) -> u16 {
        std::mem::replace(&mut self.fallen, 0)
    }

    /// Whether the window has fallen, or the peer asks for more.
    #[inline]
    #[must_use]
    pub const fn has_window_news(&self) -> bool {
        self.fallen != 0 || self.now.is_asked
    }

    /// Data credits left, in a message that is sent, below which there is something to note.
    pub(super) const fn notes_below_now(&self) -> u16 {
        if self.now.gives_back {
            return u16::MAX;
        }
        let used_below = if self.is_used { 0 } else { self.used_below() };
        if used_below > self.asks_below { used_below } else { self.asks_below }
    }

    /// Data credits left below which the next smaller window would have asked for more.
    const fn used_below(&self) -> u16 {
        let (sizes, window) = (self.limits.remote_sizes, self.now.remote_window);
        if !self.limits.windows_fall || window <= sizes.first {
            return 0;
        }
        let smaller = Window { data: sizes.before(window), ..self.limits.remote };
        window - smaller.data_threshold() + 1
    }

    /// A message is sent with which few credits are left, or the window is to fall: the words for it.
    #[inline(never)]
    pub(super) fn note(&mut self) -> u16 {
        let mut words = 0;
        if self.now.gives_back && self.are_all_home() {
            words |= self.fall();
        }
        if self.now.data_credits < self.used_below() {
            self.is_used = true;
            self.now.gives_back = false;
        }
        if self.now.data_credits < self.asks_below {
            words |= self.question();
        }
        self.notes_below = self.notes_below_now();
        words
    }

    /// Whether all credits were here before the one that is being spent.
    const fn are_all_home(&self) -> bool {
        #[cfg(any(test, feature = "model"))]
        if self.limits.rules.returns_early {
            let window = self.now.remote_window;
            return self.now.data_credits >= window - self.limits.remote_sizes.before(window);
        }
        self.now.data_credits + 1 == self.now.remote_window
    }

    /// Rule 11, in the message whose credit was spent just now.
    fn fall(&mut self) -> u16 {
        let window = self.now.remote_window;
        let smaller = self.limits.remote_sizes.before(window);
        self.now.gives_back = false;
        // The smaller window, too, is to be unused from look to look before it falls.
        self.is_used = true;
        self.now.remote_window = smaller;
        #[cfg(any(test, feature = "model"))]
        if self.limits.rules.keeps_returned {
            self.now.remote_window = window;
            return Grant::RETURNS;
        }
        self.now.data_credits -= window - smaller;
        self.asks_below = self.asks_below_now();
        #[cfg(any(test, feature = "model"))]
        if self.limits.rules.returns_in_silence {
            return 0;
        }
        Grant::RETURNS
    }

    /// Whether a peer may say [`Grant::RETURNS`] now. What was granted to it is its to give back, as far
    /// as this end can know.
    pub(super) const fn check_returned(&self) -> Result<(), CreditError> {
        let now = &self.now;
        if !self.limits.windows_fall {
            return Err(CreditError::ReturnedUnagreed);
        }
        if now.local_window <= self.limits.local_sizes.first {
            return Err(CreditError::ReturnedBelowFirst { first: self.limits.local_sizes.first });
        }
        if now.owed.data != 0 {
            return Err(CreditError::ReturnedWhileOwed { owed: now.owed.credits().data });
        }
        Ok(())
    }

    /// Rule 13.
    pub(super) fn on_returned(&mut self) {
        let window = self.now.local_window;
        let smaller = self.limits.local_sizes.before(window);
        self.now.local_window = smaller;
        self.fallen += window - smaller;
        #[cfg(any(test, feature = "model"))]
        if self.limits.rules.keeps_threshold {
            return;
        }
        self.due = self.due_now();
    }
}
