//! Broken rules: variants of [`Credits`] that break one rule each, so that the model checker can
//! show that each rule is needed.
//!
//! Owns the switches and the behaviour of each broken rule. Never part of a production build: it is
//! compiled for tests and with the feature `model` only, and by default all rules hold.

use super::growth::Sizes;
use super::{
    Credits, FIRST_DATA_CREDITS, Grant, Limits, Owed, SendQueueBudget, SendQueueMark, Window,
};

/// Switches that break single rules, so that the model checker can show that each rule is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rules {
    /// Data headers carry owed data credits.
    pub piggyback_data: bool,
    /// Data headers carry owed ack credits.
    pub piggyback_acks: bool,
    /// The WR that takes the last credit is signaled.
    pub signal_last_credit: bool,
    /// A WR that leaves fewer slots than this is signaled; `None` is the rule, `Some(1)` the naive
    /// "last slot", `Some(0)` never.
    pub slot_reserve: Option<u16>,
    /// An idle Ack may spend the last ack credit.
    pub idle_spends_last: bool,
    /// `T`, in credits, instead of [`Window::data_threshold`].
    pub data_threshold: Option<u16>,
    /// The threshold of acks, in credits, instead of [`Window::ack_threshold`].
    pub ack_threshold: Option<u16>,
    /// A window grows beyond what was offered.
    pub grows_beyond_offer: bool,
    /// A window grows for each question, also one whose answer is on the way.
    pub grows_twice: bool,
    /// New credits are granted without the word that the window has grown.
    pub grows_in_silence: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            piggyback_data: true,
            piggyback_acks: true,
            signal_last_credit: true,
            slot_reserve: None,
            idle_spends_last: false,
            data_threshold: None,
            ack_threshold: None,
            grows_beyond_offer: false,
            grows_twice: false,
            grows_in_silence: false,
        }
    }
}

impl Rules {
    /// The thresholds of a window.
    pub(super) fn due(&self, local: Window) -> Grant {
        let data = self.data_threshold.unwrap_or(local.data_threshold());
        let ack = self.ack_threshold.unwrap_or(local.ack_threshold());
        Grant { data, ack }
    }

    /// The part of `owed` that a header carries, or `None` for all of it.
    pub(super) fn take_part(&self, owed: &mut Owed) -> Option<Grant> {
        if self.piggyback_data && self.piggyback_acks {
            return None;
        }
        Some(owed.take_parts(self.piggyback_data, self.piggyback_acks))
    }

    /// Whether a WR after which `credits` and `slots` are left is signaled; `None` for the unbroken
    /// rule. `reserve` is the `slot_reserve` of that rule.
    pub(super) fn sweep(&self, credits: u16, slots: u16, reserve: u16) -> Option<bool> {
        if self.signal_last_credit && self.slot_reserve.is_none() {
            return None;
        }
        let last_credit = self.signal_last_credit && credits == 0;
        Some(last_credit || slots < self.slot_reserve.unwrap_or(reserve))
    }
}

impl Credits {
    /// Starts with some rules broken; also allows windows that [`Credits::new`] refuses.
    #[must_use]
    pub fn with_rules(local: Window, remote: Window, sq: SendQueueBudget, rules: Rules) -> Self {
        let sizes = |window: Window| Sizes::new(FIRST_DATA_CREDITS, window.data);
        let (local_sizes, remote_sizes) = (sizes(local), sizes(remote));
        Self::first(Limits { local, remote, local_sizes, remote_sizes, sq, rules })
    }

    /// The same with windows that start with other sizes, in data credits, so that windows small
    /// enough to be searched grow. To be called before anything else.
    #[must_use]
    pub fn starting_with(self, local: u16, remote: u16) -> Self {
        let mut limits = self.limits;
        limits.local_sizes = Sizes::new(local.max(1), limits.local.data);
        limits.remote_sizes = Sizes::new(remote.max(1), limits.remote.data);
        Self::first(limits)
    }

    /// Moves the origin of all marks to the present, so that states that differ only in how much
    /// was ever posted become equal.
    pub fn rebase_marks(&mut self) {
        self.now.posted = SendQueueMark::default();
    }
}
