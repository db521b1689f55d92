//! Windows and the send queue budget: the sizes that credits are counted against.
//!
//! Owns the values that are negotiated once per connection, their ranges, and the thresholds and
//! queue lengths derived from them. Nothing here changes after the handshake; the counters, and how
//! much of an offered window is in use, are in [`Credits`](super::Credits).
//!
//! Invariants: **W1** a window that passed [`Window::validate`] has `1 <= T <= D` and `2 <= Tb <=
//! I`;
//! **W2** a budget that passed [`SendQueueBudget::validate`] can hold any one message and an Ack.

use thiserror::Error;

/// Largest data or ack window, in credits: keeps every sum of two windows within a `u16`.
pub const MAX_WINDOW: u16 = 4095;

/// Data credits that a connection starts with, if its receiver offers as many.
pub const FIRST_DATA_CREDITS: u16 = 8;

/// Smallest ack window, in credits: with one, each Ack would be answered by an Ack at
/// once.
pub const MIN_ACK_WINDOW: u16 = 2;

/// What one end offers as a receiver: how many messages of each class it accepts before it returns
/// their credits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Window {
    /// Data messages (`D`), in credits, `1..=4095`.
    pub data: u16,
    /// Acks (`I`), in credits, `2..=4095`.
    pub ack: u16,
}

impl Window {
    /// Checks both classes; `side` is only used in the error, to say whose window it is.
    ///
    /// # Errors
    /// [`WindowError::Data`] or [`WindowError::Ack`] if a class is out of its range.
    pub fn validate(self, side: Side) -> Result<Self, WindowError> {
        if !(1..=MAX_WINDOW).contains(&self.data) {
            return Err(WindowError::Data { side, data: self.data });
        }
        if !(MIN_ACK_WINDOW..=MAX_WINDOW).contains(&self.ack) {
            return Err(WindowError::Ack { side, ack: self.ack });
        }
        Ok(self)
    }

    /// The window that a connection starts with: at most [`FIRST_DATA_CREDITS`] for data, all acks.
    #[inline]
    #[must_use]
    pub const fn first(self) -> Self {
        let data = if self.data < FIRST_DATA_CREDITS { self.data } else { FIRST_DATA_CREDITS };
        Self { data, ack: self.ack }
    }

    /// Owed data credits at which an Ack is due: `T = D / 2 + 1`.
    ///
    /// More than half, so that at most one unread Ack is due to data (I6).
    #[inline]
    #[must_use]
    pub const fn data_threshold(self) -> u16 {
        self.data / 2 + 1
    }

    /// Owed ack credits at which an Ack is due: `I / 2 + 1`.
    ///
    /// At least two, so that Acks that answer Acks come to an end.
    #[inline]
    #[must_use]
    pub const fn ack_threshold(self) -> u16 {
        self.ack / 2 + 1
    }

    /// RECVs that the receiver has posted for such a window, in WRs: `D + I + 1`, one for CLOSE,
    /// which is sent once and costs no credit.
    #[inline]
    #[must_use]
    pub const fn rq_len(self) -> u32 {
        self.data as u32 + self.ack as u32 + 1
    }
}

/// The part of the send queue that credits govern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SendQueueBudget {
    /// Slots for data messages (WRITEs and SENDs), in WRs, at least `message_slots`.
    pub data_slots: u16,
    /// Slots for Acks, in WRs, at least 1. Fewer than the ack window of the peer only delay an Ack
    /// until a completion is polled, so the queue can be sized before the peer's window is known.
    pub ack_slots: u16,
    /// Most slots of one message (its WRITEs + 1 SEND), in WRs, at least 1.
    pub message_slots: u16,
    /// A WR is signaled at the latest when this many slots were posted since the last signaled one,
    /// in WRs, at least 1; 1 signals every message.
    pub signal_interval: u16,
}

impl SendQueueBudget {
    /// Checks the budget.
    ///
    /// # Errors
    /// One of the send queue's variants of [`WindowError`].
    pub fn validate(self) -> Result<Self, WindowError> {
        if self.message_slots == 0 || self.message_slots > self.data_slots {
            return Err(WindowError::MessageSlots {
                message: self.message_slots,
                data: self.data_slots,
            });
        }
        if self.ack_slots == 0 {
            return Err(WindowError::NoAckSlot);
        }
        if self.signal_interval == 0 {
            return Err(WindowError::SignalInterval);
        }
        Ok(self)
    }

    /// Length of the send queue, in WRs: the budget + 2, for CLOSE and for the drain WR of
    /// teardown.
    #[inline]
    #[must_use]
    pub const fn sq_len(self) -> u32 {
        self.data_slots as u32 + self.ack_slots as u32 + 2
    }
}

/// Whose window an error is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// This end's own configuration.
    Local,
    /// What the peer sent in its handshake.
    Remote,
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Local => "this end",
            Self::Remote => "the peer",
        })
    }
}

/// A window or a send queue budget with which no connection can work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum WindowError {
    /// [`Window::data`] is out of its range.
    #[error("{side} offers a data window of {data} credits: it must offer 1 to {MAX_WINDOW}")]
    Data {
        /// Whose window.
        side: Side,
        /// The value, in credits.
        data: u16,
    },
    /// [`Window::ack`] is out of its range.
    #[error(
        "{side} offers an ack window of {ack} credits: it must offer {MIN_ACK_WINDOW} to \
         {MAX_WINDOW}, as with fewer both ends would acknowledge each other's acks forever"
    )]
    Ack {
        /// Whose window.
        side: Side,
        /// The value, in credits.
        ack: u16,
    },
    /// [`SendQueueBudget::message_slots`] is 0 or more than all data slots.
    #[error(
        "the largest message takes {message} of the {data} data slots of the send queue: split \
         messages or reserve more slots, so that it takes 1 to {data}"
    )]
    MessageSlots {
        /// Slots of the largest message, in WRs.
        message: u16,
        /// All data slots, in WRs.
        data: u16,
    },
    /// [`SendQueueBudget::ack_slots`] is 0.
    #[error(
        "no slot of the send queue for acks: reserve at least 1, ideally the peer's ack window"
    )]
    NoAckSlot,
    /// [`SendQueueBudget::signal_interval`] is 0.
    #[error("a signal interval of 0 slots: use 1 to signal every message, or more")]
    SignalInterval,
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: SendQueueBudget =
        SendQueueBudget { data_slots: 8, ack_slots: 2, message_slots: 2, signal_interval: 3 };

    #[test]
    fn every_valid_window_has_its_thresholds_within() {
        for size in 2..=MAX_WINDOW {
            let window = Window { data: size, ack: size }.validate(Side::Local).expect("valid");
            assert!((2..=size).contains(&window.data_threshold()), "W1");
            assert!((2..=size).contains(&window.ack_threshold()), "W1");
            assert!(window.data_threshold() * 2 > size, "one unread Ack at most");
        }
        assert_eq!(Window { data: 1, ack: 2 }.data_threshold(), 1);
    }

    #[test]
    fn invalid_window_names_its_end_and_remedy() {
        for data in [0, MAX_WINDOW + 1, u16::MAX] {
            let error = Window { data, ack: 2 }.validate(Side::Remote).expect_err("out of range");
            assert_eq!(error, WindowError::Data { side: Side::Remote, data });
        }
        for ack in [0, 1, MAX_WINDOW + 1] {
            let error = Window { data: 1, ack }.validate(Side::Local).expect_err("out of range");
            assert_eq!(error, WindowError::Ack { side: Side::Local, ack });
        }
        let error = Window { data: 0, ack: 2 }.validate(Side::Remote).expect_err("out of range");
        let message = "the peer offers a data window of 0 credits: it must offer 1 to 4095";
        assert_eq!(error.to_string(), message);
    }

    #[test]
    fn budgets_out_of_range_are_refused() {
        assert_eq!(BUDGET.validate(), Ok(BUDGET));
        for message_slots in [0, 9] {
            let error = SendQueueBudget { message_slots, ..BUDGET }.validate();
            assert_eq!(error, Err(WindowError::MessageSlots { message: message_slots, data: 8 }));
        }
        let error = SendQueueBudget { ack_slots: 0, ..BUDGET }.validate();
        assert_eq!(error, Err(WindowError::NoAckSlot));
        let error = SendQueueBudget { signal_interval: 0, ..BUDGET }.validate();
        assert_eq!(error, Err(WindowError::SignalInterval));
    }

    #[test]
    fn queue_lengths_count_close_and_drain_wr() {
        assert_eq!(Window { data: 64, ack: 2 }.rq_len(), 67);
        assert_eq!(BUDGET.sq_len(), 12);
    }
}
