//! Credits: the flow control of one end of a connection.
//!
//! **Owns** the counters of one end: the credits it may spend at the peer, the credits it owes the
//! peer, the free slots of its send queue, and the choice which WR is signaled.
//!
//! **Never** posts, polls, waits, allocates or reads a clock: `on_*` takes an event,
//! [`Credits::send`] and `poll_*` say what may be posted now. It does not see messages, only how
//! many slots they take.
//!
//! There are two classes of credits, data (`D`) and acks (`I`), each a *window* of receives that
//! the receiver offers. A send spends one credit of its class. The receiver reposts the RECV and
//! owes the credit, and then returns it in a [`Grant`]: part of every data header, and of an
//! explicit Ack.
//!
//! The rules, which `rpc-transport/tests/credit_model` checks by exhaustive search:
//!
//! - **Rule 1** send: one data credit and all SQ slots of the message at once; the header carries
//!   everything owed. The WR that takes the last credit, or leaves fewer slots than the largest
//!   message needs, is signaled: otherwise no completion would ever free the SQ. (Signaling only
//!   the WR that takes the last slot is not enough: with one slot left, a message of two waits for
//!   ever.)
//! - **Rule 2** data received: repost and [`Credits::on_data`], then transmit.
//! - **Rule 3** Ack received: repost and [`Credits::on_ack`], then transmit.
//! - **Rule 4** send completion: [`Credits::on_send_completion`], then transmit.
//! - **Rule 5** transmit: queued messages first, as their headers carry grants at no cost; then
//!   [`Credits::poll_ack`].
//! - **Rule 6** about to sleep: [`Credits::poll_idle_ack`], which never spends the last ack credit.
//! - **Rule 7** a grant or a message beyond its window is a [`CreditError`]: close the connection.
//! - **Rules 8 to 10** data windows start small and grow by demand: see `growth.rs`.
//!
//! Invariants (`I3` and `I7` need the queues and are kept by the link, which sizes and drains
//! them):
//!
//! - **I1** per class, credits held + messages in flight + owed + grants in flight = the window.
//! - **I2** the RECVs posted are never fewer than the messages that the peer may have sent: no RNR.
//! - **I3** SQ slots used never pass the budget, unpolled completions never pass SQ + RQ.
//! - **I4** after rule 5 nothing owed is at its threshold, unless no ack credit or ack slot is
//!   left.
//! - **I5** with nothing in flight and all completions polled, at least `D - T + 1` data credits
//!   are held and the largest message fits the SQ, whatever the peer's application does.
//! - **I6** at most `D / T` unread Acks were sent because of the data threshold.
//! - **I7** both queues are first in, first out.
//! - **I8** while the largest message cannot be sent, a signaled WR is or was behind all data
//!   posted, so that its completion frees every data slot and every send buffer.
//!
//! Why data headers carry grants, and why the thresholds are as they are: with grants in Acks only,
//! both ends can deadlock iff `I <= D / T`, each waiting for an ack credit that only an Ack could
//! bring; and with Acks below the threshold (rule 6) they can deadlock even with a larger `I`.

mod growth;
mod owed;
mod pool;
#[cfg(any(test, feature = "model"))]
mod rules;
mod window;

use thiserror::Error;

use self::growth::Sizes;
pub use self::owed::Owed;
pub use self::pool::SharePool;
#[cfg(any(test, feature = "model"))]
pub use self::rules::Rules;
pub use self::window::{
    FIRST_DATA_CREDITS, MAX_WINDOW, MIN_ACK_WINDOW, SendQueueBudget, Side, Window, WindowError,
};

/// Ack credits that an optional Ack must not spend (rule 6).
const IDLE_ACK_RESERVE: u16 = 1;

/// Credits returned to the peer: part of every data header, and the whole content of an Ack. The
/// bits above those of a credit are words about windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Grant {
    /// Data credits (`a`), and [`Grant::GROWN`].
    pub data: u16,
    /// Ack credits (`b`), and [`Grant::ASKS`] with [`Grant::ODD`].
    pub ack: u16,
}

impl Grant {
    /// The immediate of an Ack, `ack << 16 | data`, in host order.
    #[inline]
    #[must_use]
    pub const fn to_imm(self) -> u32 {
        (self.ack as u32) << 16 | self.data as u32
    }

    /// Reads what [`Grant::to_imm`] wrote. Every value is a grant; [`Credits`] checks it.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "each half of the immediate is a u16")]
    pub const fn from_imm(imm: u32) -> Self {
        Self { data: imm as u16, ack: (imm >> 16) as u16 }
    }

    #[inline]
    const fn is_empty(self) -> bool {
        self.data == 0 && self.ack == 0
    }
}

/// A position in the send queue: all slots ever posted up to and including one WR, modulo 2^16.
///
/// It is stored in the `wr_id`, so that one signaled completion frees its own slots and those of
/// the unsignaled WRs before it, without a list of what was posted. Unambiguous, as a budget is
/// less than 2^16 slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SendQueueMark {
    /// Data slots.
    pub data: u16,
    /// Ack slots.
    pub ack: u16,
}

impl SendQueueMark {
    /// Packs the mark into half of a `wr_id`.
    #[inline]
    #[must_use]
    pub const fn to_bits(self) -> u32 {
        (self.ack as u32) << 16 | self.data as u32
    }

    /// Reads what [`SendQueueMark::to_bits`] wrote.
    #[inline]
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "each half of the word is a u16")]
    pub const fn from_bits(bits: u32) -> Self {
        Self { data: bits as u16, ack: (bits >> 16) as u16 }
    }
}

/// How to post a message or an Ack whose credit and slots are already spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "the credit and the slots are spent, so the message has to be posted"]
pub struct Stamp {
    /// For the header of the data message, or the content of the Ack.
    pub grant: Grant,
    /// The last WR of the message must be signaled. Signaling more WRs than asked is harmless.
    pub signaled: bool,
    /// For the `wr_id` of the last WR, and so for [`Credits::on_send_completion`].
    pub mark: SendQueueMark,
}

/// Everything that changes while a connection lives; a snapshot for metrics and tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Counters {
    /// Data credits held: messages that may be sent now.
    pub data_credits: u16,
    /// Ack credits held: Acks that may be sent now.
    pub ack_credits: u16,
    /// Credits of the peer whose RECVs were reposted, or are before anything is sent, but which are
    /// not granted yet, and whether they include those of a window that has grown.
    pub owed: Owed,
    /// Data window that this end offers now, in credits.
    pub local_window: u16,
    /// Data window that the peer offers now, as far as this end knows, in credits.
    pub remote_window: u16,
    /// The peer asks for a larger window.
    pub is_asked: bool,
    /// Free SQ slots for data, in WRs.
    pub data_slots: u16,
    /// Free SQ slots for Acks, in WRs.
    pub ack_slots: u16,
    /// Slots of both classes posted since the last signaled WR, in WRs.
    pub unsignaled: u16,
    /// Slots ever posted, modulo 2^16.
    pub posted: SendQueueMark,
}

/// The credits of one end. See the [module](self) for the rules.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Credits {
    limits: Limits,
    /// Thresholds of the windows of now.
    due: Grant,
    /// Data credits left, in a message that is sent, below which it asks for more (rule 8).
    asks_below: u16,
    now: Counters,
}

/// The values that were negotiated and do not change.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Limits {
    local: Window,
    remote: Window,
    local_sizes: Sizes,
    remote_sizes: Sizes,
    sq: SendQueueBudget,
    #[cfg(any(test, feature = "model"))]
    rules: Rules,
}

impl Credits {
    /// Starts with the first window of what the peer offers (`remote`), nothing owed, an empty SQ.
    ///
    /// `local` is what this end offers; the RECVs of its [`Window::first`] must be posted before
    /// the peer may send.
    ///
    /// # Errors
    /// A [`WindowError`] if a window or the budget is out of its range.
    pub fn new(local: Window, remote: Window, sq: SendQueueBudget) -> Result<Self, WindowError> {
        let limits = Limits {
            local: local.validate(Side::Local)?,
            remote: remote.validate(Side::Remote)?,
            local_sizes: Sizes::new(FIRST_DATA_CREDITS, local.data),
            remote_sizes: Sizes::new(FIRST_DATA_CREDITS, remote.data),
            sq: sq.validate()?,
            #[cfg(any(test, feature = "model"))]
            rules: Rules::default(),
        };
        Ok(Self::first(limits))
    }

    fn first(limits: Limits) -> Self {
        let now = Counters {
            data_credits: limits.remote_sizes.first,
            ack_credits: limits.remote.ack,
            owed: Owed::default(),
            local_window: limits.local_sizes.first,
            remote_window: limits.remote_sizes.first,
            is_asked: false,
            data_slots: limits.sq.data_slots,
            ack_slots: limits.sq.ack_slots,
            unsignaled: 0,
            posted: SendQueueMark { data: 0, ack: 0 },
        };
        let due = Grant::default();
        let mut credits = Self { limits, due, asks_below: 0, now };
        credits.due = credits.due_now();
        credits.asks_below = credits.asks_below_now();
        credits
    }

    /// The thresholds of the windows of now (rule 10).
    fn due_now(&self) -> Grant {
        let local = self.local();
        #[cfg(any(test, feature = "model"))]
        return self.limits.rules.due(local);
        #[cfg(not(any(test, feature = "model")))]
        Grant { data: local.data_threshold(), ack: local.ack_threshold() }
    }

    /// Whether a message of `slots` WRs (its WRITEs + 1 SEND) may be posted now.
    ///
    /// Always false for 0 slots and for more than [`SendQueueBudget::message_slots`]: such a
    /// message has to be split.
    #[inline]
    #[must_use]
    pub const fn can_send(&self, slots: u16) -> bool {
        slots != 0
            && slots <= self.limits.sq.message_slots
            && slots <= self.now.data_slots
            && self.now.data_credits != 0
    }

    /// Rule 1: spends one data credit and `slots` SQ slots, or `None` if [`Credits::can_send`] is
    /// false. The message must be posted, as one list of WRs, before the next `Stamp` is taken.
    #[inline]
    pub fn send(&mut self, slots: u16) -> Option<Stamp> {
        if !self.can_send(slots) {
            return None;
        }
        let now = &mut self.now;
        now.data_credits -= 1;
        now.data_slots -= slots;
        now.posted.data = now.posted.data.wrapping_add(slots);
        let mut grant = self.take_header_grant();
        if self.now.data_credits < self.asks_below {
            grant.ack |= self.question();
        }
        let sweep = self.data_send_must_sweep();
        Some(self.stamp(grant, slots, sweep))
    }

    /// Spends `slots` SQ slots, and no credit, for WRITEs of a message whose SEND follows later.
    /// `None` if [`Credits::can_send`] is false: slots are taken only while the SEND itself could
    /// be posted too. The last WRITE is signaled whenever a SEND in its place would be (I8).
    pub fn write(&mut self, slots: u16) -> Option<Stamp> {
        if !self.can_send(slots) {
            return None;
        }
        let now = &mut self.now;
        now.data_slots -= slots;
        now.posted.data = now.posted.data.wrapping_add(slots);
        let sweep = self.data_send_must_sweep();
        Some(self.stamp(Grant::default(), slots, sweep))
    }

    /// Rule 2: a data message with this grant in its header was received.
    ///
    /// Transmit (rule 5) only *after* the RECV was reposted: the credit counted here may leave with
    /// the next message, and the peer may spend it at once.
    ///
    /// # Errors
    /// A [`CreditError`] if the peer broke a rule; the counters are unchanged.
    #[inline]
    pub fn on_data(&mut self, grant: Grant) -> Result<(), CreditError> {
        let window = self.now.local_window;
        if self.now.owed.data() >= window {
            return Err(CreditError::DataBeyondWindow { window });
        }
        self.credit(grant)?;
        self.now.owed.add_data();
        Ok(())
    }

    /// Rule 3: an Ack was received. Transmit (rule 5) *after* the RECV was reposted.
    ///
    /// # Errors
    /// A [`CreditError`] if the peer broke a rule; the counters are unchanged.
    #[inline]
    pub fn on_ack(&mut self, grant: Grant) -> Result<(), CreditError> {
        if grant.credits().is_empty() {
            return Err(CreditError::EmptyAck);
        }
        if self.now.owed.ack() >= self.limits.local.ack {
            return Err(CreditError::AckBeyondWindow { window: self.limits.local.ack });
        }
        self.credit(grant)?;
        self.now.owed.add_ack();
        Ok(())
    }

    /// Rule 4: a signaled WR completed; frees its slots and those of every WR before it.
    ///
    /// Then transmit (rule 5), although nothing arrived: an owed Ack may have waited for a slot.
    #[inline]
    pub fn on_send_completion(&mut self, mark: SendQueueMark) {
        let (sq, now) = (&self.limits.sq, &mut self.now);
        let data_behind = now.posted.data.wrapping_sub(mark.data);
        let ack_behind = now.posted.ack.wrapping_sub(mark.ack);
        debug_assert!(data_behind <= sq.data_slots - now.data_slots, "I3: mark of no posted WR");
        debug_assert!(ack_behind <= sq.ack_slots - now.ack_slots, "I3: mark of no posted WR");
        // `max`: a stale mark frees nothing, and never reduces the free slots.
        now.data_slots = now.data_slots.max(sq.data_slots.saturating_sub(data_behind));
        now.ack_slots = now.ack_slots.max(sq.ack_slots.saturating_sub(ack_behind));
    }

    /// Rule 5: the Ack to post now, if one is due and there is a credit and a slot for it.
    ///
    /// Call it after queued messages were sent, whenever [`Credits::on_data`], [`Credits::on_ack`]
    /// or [`Credits::on_send_completion`] was called. Once is enough: an Ack leaves nothing owed.
    #[inline]
    pub fn poll_ack(&mut self) -> Option<Stamp> {
        if self.is_ack_due() && self.now.ack_credits != 0 { self.post_ack() } else { None }
    }

    /// Whether an Ack is due, whether or not there is a credit and a slot for it.
    #[inline]
    #[must_use]
    pub const fn is_ack_due(&self) -> bool {
        self.now.owed.reaches(self.due.data, self.due.ack)
    }

    /// Rule 6: an Ack below the threshold, for when this end is about to sleep.
    ///
    /// Only for owed *data* credits, otherwise idle ends would answer each other's Acks for ever.
    /// Never with the last ack credit, which is reserved for rule 5.
    #[inline]
    pub fn poll_idle_ack(&mut self) -> Option<Stamp> {
        let spare = self.now.ack_credits > self.idle_ack_reserve();
        if spare && self.now.owed.has_data() { self.post_ack() } else { None }
    }

    /// A snapshot of all counters, for metrics and tests.
    #[inline]
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.now
    }

    /// The window that this end offers now.
    #[inline]
    #[must_use]
    pub const fn local(&self) -> Window {
        Window { data: self.now.local_window, ack: self.limits.local.ack }
    }

    /// The window that the peer offers now, as far as this end knows.
    #[inline]
    #[must_use]
    pub const fn remote(&self) -> Window {
        Window { data: self.now.remote_window, ack: self.limits.remote.ack }
    }

    /// Adds a grant, or nothing of it if it breaks rule 7. A word about a window is above every
    /// room.
    #[inline]
    fn credit(&mut self, grant: Grant) -> Result<(), CreditError> {
        let data_room = self.now.remote_window - self.now.data_credits;
        let ack_room = self.limits.remote.ack - self.now.ack_credits;
        if grant.data > data_room || grant.ack > ack_room {
            return self.credit_in_words(grant);
        }
        self.now.data_credits += grant.data;
        self.now.ack_credits += grant.ack;
        Ok(())
    }

    #[inline]
    fn post_ack(&mut self) -> Option<Stamp> {
        let now = &mut self.now;
        now.ack_slots = now.ack_slots.checked_sub(1)?;
        now.ack_credits -= 1;
        now.posted.ack = now.posted.ack.wrapping_add(1);
        let grant = self.now.owed.take();
        let sweep = self.ack_must_sweep();
        Some(self.stamp(grant, 1, sweep))
    }

    /// Decides whether a WR is signaled. `sweep`: this end may not be able to post another WR of
    /// this class before a completion frees slots, so this WR has to bring that completion.
    #[inline]
    fn stamp(&mut self, grant: Grant, slots: u16, sweep: bool) -> Stamp {
        let unsignaled = self.now.unsignaled.saturating_add(slots);
        let signaled = sweep || unsignaled >= self.limits.sq.signal_interval;
        self.now.unsignaled = if signaled { 0 } else { unsignaled };
        Stamp { grant, signaled, mark: self.now.posted }
    }

    #[inline]
    fn take_header_grant(&mut self) -> Grant {
        #[cfg(any(test, feature = "model"))]
        if let Some(grant) = self.limits.rules.take_part(&mut self.now.owed) {
            return grant;
        }
        self.now.owed.take()
    }

    /// Signaled at the last credit, so that a sender that waits for the peer holds no buffer
    /// longer than needed. Signaled when too few slots are left for the largest message, which
    /// would otherwise wait for a completion that no WR generates.
    #[inline]
    fn data_send_must_sweep(&self) -> bool {
        let now = &self.now;
        #[cfg(any(test, feature = "model"))]
        if let Some(sweep) =
            self.limits.rules.sweep(now.data_credits, now.data_slots, self.limits.sq.message_slots)
        {
            return sweep;
        }
        now.data_credits == 0 || now.data_slots < self.limits.sq.message_slots
    }

    #[inline]
    fn ack_must_sweep(&self) -> bool {
        let now = &self.now;
        #[cfg(any(test, feature = "model"))]
        if let Some(sweep) = self.limits.rules.sweep(now.ack_credits, now.ack_slots, 1) {
            return sweep;
        }
        now.ack_credits == 0 || now.ack_slots == 0
    }

    #[inline]
    const fn idle_ack_reserve(&self) -> u16 {
        #[cfg(any(test, feature = "model"))]
        if self.limits.rules.idle_spends_last {
            return 0;
        }
        IDLE_ACK_RESERVE
    }
}

/// A rule of flow control that the peer broke: close the connection with this as its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CreditError {
    /// The peer gave back more data credits than were spent.
    #[error("peer granted {granted} data credits on top of {held}, but its window is {cap}")]
    DataCreditAboveCap {
        /// Credits held before the grant.
        held: u16,
        /// Credits granted.
        granted: u16,
        /// The window of the peer.
        cap: u16,
    },
    /// The peer gave back more ack credits than were spent.
    #[error("peer granted {granted} ack credits on top of {held}, but its window is {cap}")]
    AckCreditAboveCap {
        /// Credits held before the grant.
        held: u16,
        /// Credits granted.
        granted: u16,
        /// The window of the peer.
        cap: u16,
    },
    /// The peer says that its window has grown beyond what it offered when it connected.
    #[error("peer's window grew beyond the {offered} data credits that it offered")]
    GrownBeyondOffer {
        /// Data credits that it offered.
        offered: u16,
    },
    /// A data message arrived for which the peer held no credit.
    #[error("peer sent data beyond our window of {window} unreturned messages")]
    DataBeyondWindow {
        /// The data window of this end.
        window: u16,
    },
    /// An Ack arrived for which the peer held no credit.
    #[error("peer sent an ack beyond our window of {window} unreturned acks")]
    AckBeyondWindow {
        /// The ack window of this end.
        window: u16,
    },
    /// An Ack that gives nothing back; no rule sends one.
    #[error("peer sent an ack that grants nothing")]
    EmptyAck,
}

#[cfg(test)]
mod tests;
