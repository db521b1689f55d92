//! Growth of the data window: from the few credits that a connection starts with to all of those
//! that its receiver offered.
//!
//! Owns the sizes that a window goes through, and the two words about it on the wire. Never decides
//! whether there is memory: the engine posts the RECVs, then says so.
//!
//! A window starts with [`FIRST_DATA_CREDITS`](super::FIRST_DATA_CREDITS), or the `D` of the offer
//! if that is less, and doubles, up to `D`. Both ends know these sizes, so one bit each is enough:
//!
//! - **Rule 8** a message with which `T` data credits are spent and not back asks for more
//!   ([`Grant::ASKS`]), unless the window is at `D`. It says by [`Grant::ODD`] how often its sender
//!   has seen the window grow, so that one growth is never taken for the answer to two questions,
//!   nor a question asked twice. Not only the last credit asks: with `T` of them out, explicit Acks
//!   become due, which a larger window saves.
//! - **Rule 9** the receiver of a question posts as many RECVs as the window is to grow by, then
//!   [`Credits::grow`], then transmits. The next grant carries the new credits with all that is
//!   owed, and [`Grant::GROWN`]; an Ack for it is due at once.
//! - **Rule 10** each end counts against the window of now: `T`, and the sender's cap on credits
//!   held.
//!
//! A receiver that has no memory does nothing: the next such message asks again, and meanwhile all
//! rules hold for the window of now.

use super::{CreditError, Credits, Grant, MAX_WINDOW};

impl Grant {
    /// In [`Grant::data`]: the window has grown, and the new credits are among these.
    pub const GROWN: u16 = 1 << 15;
    /// In [`Grant::ack`]: the sender of this has spent so much of its window that it asks for more.
    pub const ASKS: u16 = 1 << 15;
    /// In [`Grant::ack`], beside [`Grant::ASKS`]: its sender has seen the window grow an odd number
    /// of times.
    pub const ODD: u16 = 1 << 14;

    /// The credits alone.
    #[must_use]
    pub const fn credits(self) -> Self {
        let asks = if self.ack & Self::ASKS != 0 { Self::ASKS | Self::ODD } else { 0 };
        Self { data: self.data & !Self::GROWN, ack: self.ack & !asks }
    }

    /// Whether the window of the sender of this has grown.
    #[must_use]
    pub const fn is_grown(self) -> bool {
        self.data & Self::GROWN != 0
    }

    /// Whether the sender of this asks for a larger window, having seen it grow an even (`false`)
    /// or odd number of times.
    #[must_use]
    pub const fn asks(self) -> Option<bool> {
        if self.ack & Self::ASKS != 0 { Some(self.ack & Self::ODD != 0) } else { None }
    }
}

// A flag is above every window, so that a grant with one never passes the check of those without.
const _: () = assert!(MAX_WINDOW < Grant::ODD);

/// The sizes that a data window goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Sizes {
    pub(super) first: u16,
    pub(super) last: u16,
}

impl Sizes {
    pub(super) const fn new(first: u16, last: u16) -> Self {
        Self { first: if first < last { first } else { last }, last }
    }

    /// The size after `now`.
    pub(super) const fn after(self, now: u16) -> u16 {
        let double = now.saturating_mul(2);
        if double < self.last { double } else { self.last }
    }

    /// Whether a window that is still growing has grown an odd number of times.
    const fn is_odd(self, now: u16) -> bool {
        (now / self.first).trailing_zeros() % 2 == 1
    }
}

impl Credits {
    /// The question of rule 8.
    #[inline]
    pub(super) const fn question(&self) -> u16 {
        let (sizes, now) = (self.limits.remote_sizes, self.now.remote_window);
        Grant::ASKS | if sizes.is_odd(now) { Grant::ODD } else { 0 }
    }

    /// Data credits left below which `T` are spent, so that an Ack may become due; 0 at `D`.
    pub(super) const fn asks_below_now(&self) -> u16 {
        let window = self.remote();
        if window.data >= self.limits.remote_sizes.last {
            return 0;
        }
        window.data - window.data_threshold() + 1
    }

    /// RECVs to post, in WRs, for the window to grow as the peer has asked.
    #[inline]
    #[must_use]
    pub const fn wanted_growth(&self) -> Option<u16> {
        if self.now.is_asked { Some(self.growth()) } else { None }
    }

    /// What the window would grow by next, in credits.
    const fn growth(&self) -> u16 {
        #[cfg(any(test, feature = "model"))]
        if self.limits.rules.grows_beyond_offer {
            return self.now.local_window;
        }
        self.limits.local_sizes.after(self.now.local_window) - self.now.local_window
    }

    /// Rule 9: the RECVs that [`Credits::wanted_growth`] names **are posted**. Then transmit (rule
    /// 5). Does nothing if nobody asked.
    pub fn grow(&mut self) {
        let Some(more) = self.wanted_growth() else { return };
        self.now.is_asked = false;
        self.now.local_window += more;
        self.now.owed.grow(more);
        self.due = self.due_now();
        #[cfg(any(test, feature = "model"))]
        if self.limits.rules.grows_in_silence {
            self.now.owed.conceal_growth();
        }
    }

    /// There is no memory for what [`Credits::wanted_growth`] names: the peer may ask again.
    pub const fn decline_growth(&mut self) {
        self.now.is_asked = false;
    }

    /// A grant that does not pass the check of a plain one: with a word about a window, or beyond
    /// it (rule 7).
    #[cold]
    pub(super) fn credit_in_words(&mut self, grant: Grant) -> Result<(), CreditError> {
        let sizes = self.limits.remote_sizes;
        let Grant { data, ack } = grant.credits();
        let mut window = self.now.remote_window;
        if grant.is_grown() {
            if window >= sizes.last {
                return Err(CreditError::GrownBeyondOffer { offered: sizes.last });
            }
            window = sizes.after(window);
        }
        // Compared in this order, no value of the peer can cause an overflow.
        let (data_held, ack_held) = (self.now.data_credits, self.now.ack_credits);
        if data > window - data_held {
            return Err(CreditError::DataCreditAboveCap {
                held: data_held,
                granted: data,
                cap: window,
            });
        }
        let ack_cap = self.limits.remote.ack;
        if ack > ack_cap - ack_held {
            return Err(CreditError::AckCreditAboveCap {
                held: ack_held,
                granted: ack,
                cap: ack_cap,
            });
        }
        if window != self.now.remote_window {
            self.now.remote_window = window;
            self.asks_below = self.asks_below_now();
        }
        self.now.data_credits += data;
        self.now.ack_credits += ack;
        if let Some(is_odd) = grant.asks() {
            #[cfg(any(test, feature = "model"))]
            if self.limits.rules.grows_twice || self.limits.rules.grows_beyond_offer {
                self.now.is_asked = self.growth() > 0;
                return Ok(());
            }
            // A question about a size that the window has left meanwhile has its answer on the way.
            let (sizes, now) = (self.limits.local_sizes, self.now.local_window);
            self.now.is_asked |= now < sizes.last && sizes.is_odd(now) == is_odd;
        }
        Ok(())
    }
}
