//! Two ends of a connection, each a production [`Credits`], and the queues between them.
//!
//! Owns the legal steps of the two ends and the checks of the invariants I1..I8 of `credit.rs`.
//! Never chooses a step: the search tries all of them, the walk picks some.
//!
//! A message arrives the moment it is sent, takes a posted RECV, and makes its sender's completion
//! pollable; then both completions wait for their end's poll, for any time and in any interleaving
//! of SQ and RQ. This leaves out no behaviour: to the software, time on the wire is time in the
//! completion queue, and a RECV taken early is the worst case for I2.

use std::collections::VecDeque;

use rpc_transport::protocol::credit::{
    CreditError, Credits, FIRST_DATA_CREDITS, Rules, SendQueueBudget, Stamp, Window,
};

use crate::fifo::{Fifo, Message, Packed, Slots};

/// The configuration of the two ends, and the rules of their *callers* that hold; [`Rules`] breaks
/// the rules of [`Credits`] itself.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) windows: [Window; 2],
    /// Initial data credits of the windows.
    pub(crate) firsts: [u16; 2],
    pub(crate) budgets: [SendQueueBudget; 2],
    pub(crate) rules: [Rules; 2],
    /// SQ completions are polled later; otherwise at once, so that only credits matter.
    pub(crate) lagging: bool,
    /// Rule 4: pump after a send completion.
    pub(crate) pump_on_completion: bool,
    /// Rules 2 and 9: post, then count the credit; otherwise some time later.
    pub(crate) repost_first: bool,
    /// Rule 6 is in use.
    pub(crate) idle_acks: bool,
    /// Check I4, I5, I6 and I8 too, which broken rules may break without harm.
    pub(crate) strict: bool,
    /// From every state, check that the Acks end once the applications are silent.
    pub(crate) drain: bool,
    /// The RECVs of end 0 are those of a pool: see [`pool`](crate::pool).
    pub(crate) pooled: bool,
}

/// Acks that two ends may still exchange when their applications fall silent: `D / T = 1` each for
/// data, and as an Ack for acks returns `Tb` of at most `2 I` plus those just sent, with `I < 2 Tb`
/// and `2 <= Tb` fewer than `(2 + 4) * 2` in all; and one for each time that a window still grows,
/// at most 12 times from 1 to 4095.
const LAST_ACKS: u64 = 12 + 2 * 12;

impl Config {
    /// Credits alone: a send queue that is never full.
    pub(crate) fn credits_only(windows: [Window; 2]) -> Self {
        let ample =
            SendQueueBudget { data_slots: 9, ack_slots: 9, message_slots: 1, signal_interval: 1 };
        Self { lagging: false, ..Self::with_queue(windows, [ample; 2]) }
    }

    /// Credits, SQ slots, selective signaling and lagging completions; all rules hold.
    pub(crate) fn with_queue(windows: [Window; 2], budgets: [SendQueueBudget; 2]) -> Self {
        Self {
            windows,
            firsts: [FIRST_DATA_CREDITS; 2],
            budgets,
            rules: [Rules::default(); 2],
            lagging: true,
            pump_on_completion: true,
            repost_first: true,
            idle_acks: true,
            strict: true,
            drain: false,
            pooled: false,
        }
    }

    /// This configuration with broken rules, so checked for what none may do: deadlock, overrun,
    /// lie.
    pub(crate) fn broken(self, break_rules: impl Fn(&mut Rules)) -> Self {
        Self { strict: false, ..self.broken_strictly(break_rules) }
    }

    /// This configuration with broken rules, still checked for every invariant.
    pub(crate) fn broken_strictly(mut self, break_rules: impl Fn(&mut Rules)) -> Self {
        self.rules.iter_mut().for_each(break_rules);
        self
    }

    /// Whether the ends can be swapped without a difference.
    pub(crate) fn is_symmetric(&self) -> bool {
        self.windows[0] == self.windows[1]
            && self.firsts[0] == self.firsts[1]
            && self.budgets[0] == self.budgets[1]
            && self.rules[0] == self.rules[1]
    }

    fn credits(&self, end: usize) -> Credits {
        let (local, remote) = (self.windows[end], self.windows[1 - end]);
        let (budget, rules) = (self.budgets[end], self.rules[end]);
        let credits = match Credits::new(local, remote, budget) {
            Ok(credits) if rules == Rules::default() => credits,
            _ => Credits::with_rules(local, remote, budget, rules),
        };
        credits.starting_with(self.firsts[end], self.firsts[1 - end])
    }

    /// The thresholds of an end's current offer.
    fn thresholds(&self, end: usize, window: Window) -> (u16, u16) {
        let rules = self.rules[end];
        (
            rules.data_threshold.unwrap_or(window.data_threshold()),
            rules.ack_threshold.unwrap_or(window.ack_threshold()),
        )
    }
}

/// The failure of a run; each names the end (0 or 1) that suffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Nothing is in flight or to be polled, and an end with data to send cannot send.
    Stuck(usize),
    /// A message arrived with no RECV posted (I2).
    Rnr(usize),
    /// An end refused what a correct peer sent.
    Refused(usize, CreditError),
    /// Credits were lost or made (I1), or slots (I3).
    NotConserved(usize),
    /// A due Ack was not sent after a pump (I4).
    AckNotSent(usize),
    /// Nothing in flight, and an end can send, but fewer than D - T + 1 messages (I5).
    ThinWindow(usize),
    /// More unread threshold-driven Acks than D / T (I6).
    TooManyAcks(usize),
    /// An end waits to send, and nothing is signaled after its last data (I8).
    Unswept(usize),
    /// A window grew although its sender had not yet seen it grow before, so nobody had used it up.
    GrownTwice(usize),
    /// The applications are silent, and the ends keep answering each other's Acks.
    EndlessAcks,
}

/// One step of one end. `first` is the size, in slots, of a queued message that the pump of this
/// step sends before anything else; 0 if none is queued.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// The application submits a message of this many slots.
    Send { end: usize, slots: u16 },
    /// The oldest RQ completion is polled; if it asks, the window `grows` before all else.
    Receive { end: usize, first: u16, grows: bool },
    /// The oldest SQ completion is polled.
    Complete { end: usize, first: u16 },
    /// The end is about to sleep.
    IdleAck { end: usize },
    /// Posts a RECV that `repost_first == false` left out.
    Repost { end: usize },
    /// The window grows, as the peer has asked.
    Grow { end: usize, first: u16 },
}

/// How a [`World`] stores its queues.
pub(crate) trait Store {
    type Inbox: Fifo<Message>;
    type Completions: Fifo<Slots>;
}

/// Small and hashable, for the search.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Small;

impl Store for Small {
    type Inbox = Packed<Message>;
    type Completions = Packed<Slots>;
}

/// Of any length, for the walk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Large;

impl Store for Large {
    type Inbox = VecDeque<Message>;
    type Completions = VecDeque<Slots>;
}

#[derive(Debug, Clone)]
pub(crate) struct End<S: Store> {
    pub(crate) credits: Credits,
    /// Polled by this end later: RQ completions.
    pub(crate) inbox: S::Inbox,
    /// Polled by this end later: what each signaled SQ completion frees.
    pub(crate) completions: S::Completions,
    /// Slots posted behind the last signaled WR.
    pub(crate) uncovered: Slots,
    pub(crate) posted_recvs: u16,
    pub(crate) unreposted: u16,
}

impl<S: Store> End<S> {
    fn slots_in_use(&self, budget: &SendQueueBudget) -> Slots {
        let now = self.credits.counters();
        Slots { data: budget.data_slots - now.data_slots, ack: budget.ack_slots - now.ack_slots }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.inbox.is_empty() && self.completions.is_empty() && self.unreposted == 0
    }
}

#[derive(Debug, Clone)]
pub(crate) struct World<S: Store> {
    pub(crate) ends: [End<S>; 2],
    /// Acks sent so far, for the walk; no part of the state.
    pub(crate) acks_sent: u64,
}

impl<S: Store> World<S> {
    pub(crate) fn new(config: &Config) -> Self {
        let end = |end: usize| {
            let credits = config.credits(end);
            End {
                posted_recvs: credits.local().data + credits.local().ack,
                credits,
                inbox: S::Inbox::default(),
                completions: S::Completions::default(),
                uncovered: Slots::default(),
                unreposted: 0,
            }
        };
        Self { ends: [end(0), end(1)], acks_sent: 0 }
    }

    /// Takes the step; `Ok(false)` if it is not possible now.
    pub(crate) fn step(&mut self, config: &Config, step: Step) -> Result<bool, Failure> {
        match step {
            Step::Send { end, slots } => {
                if !self.send(config, end, slots)? {
                    return Ok(false);
                }
                self.pump(config, end, 0)?;
            }
            Step::Receive { end, first, grows } => {
                let Some(message) = self.ends[end].inbox.pop() else { return Ok(false) };
                self.receive(config, end, message)?;
                if grows {
                    self.grow(config, end)?;
                }
                self.pump(config, end, first)?;
            }
            Step::Complete { end, first } => {
                let Some(freed) = self.ends[end].completions.pop() else { return Ok(false) };
                self.complete(config, end, freed);
                if config.pump_on_completion {
                    self.pump(config, end, first)?;
                }
            }
            Step::IdleAck { end } => {
                let Some(stamp) = self.ends[end].credits.poll_idle_ack() else { return Ok(false) };
                self.post_ack(config, end, stamp)?;
            }
            Step::Repost { end } => {
                let this = &mut self.ends[end];
                let Some(left) = this.unreposted.checked_sub(1) else { return Ok(false) };
                this.unreposted = left;
                this.posted_recvs += 1;
            }
            Step::Grow { end, first } => {
                if !self.grow(config, end)? {
                    return Ok(false);
                }
                self.pump(config, end, first)?;
            }
        }
        Ok(true)
    }

    fn grow(&mut self, config: &Config, end: usize) -> Result<bool, Failure> {
        let seen = self.ends[1 - end].credits.remote();
        let this = &mut self.ends[end];
        let Some(more) = this.credits.wanted_growth() else { return Ok(false) };
        if config.strict && seen != this.credits.local() {
            return Err(Failure::GrownTwice(end));
        }
        if config.repost_first {
            this.posted_recvs += more;
        } else {
            this.unreposted += more;
        }
        this.credits.grow();
        Ok(true)
    }

    fn send(&mut self, config: &Config, end: usize, slots: u16) -> Result<bool, Failure> {
        let Some(stamp) = self.ends[end].credits.send(slots) else { return Ok(false) };
        self.ends[end].uncovered.data += slots;
        self.post(config, end, Message { is_ack: false, grant: stamp.grant }, stamp)?;
        Ok(true)
    }

    fn post_ack(&mut self, config: &Config, end: usize, stamp: Stamp) -> Result<(), Failure> {
        self.ends[end].uncovered.ack += 1;
        self.acks_sent += 1;
        self.post(config, end, Message { is_ack: true, grant: stamp.grant }, stamp)
    }

    fn post(
        &mut self,
        config: &Config,
        end: usize,
        message: Message,
        stamp: Stamp,
    ) -> Result<(), Failure> {
        if stamp.signaled {
            assert_eq!(stamp.mark, self.ends[end].credits.counters().posted);
            let freed = std::mem::take(&mut self.ends[end].uncovered);
            if config.lagging {
                self.ends[end].completions.push(freed);
            } else {
                self.ends[end].credits.on_send_completion(stamp.mark);
            }
        }
        let peer = &mut self.ends[1 - end];
        peer.posted_recvs = peer.posted_recvs.checked_sub(1).ok_or(Failure::Rnr(1 - end))?;
        peer.inbox.push(message);
        Ok(())
    }

    fn receive(&mut self, config: &Config, end: usize, message: Message) -> Result<(), Failure> {
        let this = &mut self.ends[end];
        if config.repost_first {
            this.posted_recvs += 1;
        } else {
            this.unreposted += 1;
        }
        let Message { is_ack, grant } = message;
        let counted = if is_ack { this.credits.on_ack(grant) } else { this.credits.on_data(grant) };
        counted.map_err(|error| Failure::Refused(end, error))?;
        Ok(())
    }

    /// The mark is the oldest outstanding one, derived from the slots alone.
    fn complete(&mut self, config: &Config, end: usize, freed: Slots) {
        let this = &mut self.ends[end];
        let in_use = this.slots_in_use(&config.budgets[end]);
        let mut mark = this.credits.counters().posted;
        mark.data = mark.data.wrapping_sub(in_use.data).wrapping_add(freed.data);
        mark.ack = mark.ack.wrapping_sub(in_use.ack).wrapping_add(freed.ack);
        this.credits.on_send_completion(mark);
    }

    fn pump(&mut self, config: &Config, end: usize, first: u16) -> Result<(), Failure> {
        if first != 0 {
            self.send(config, end, first)?;
        }
        match self.ends[end].credits.poll_ack() {
            Some(stamp) => self.post_ack(config, end, stamp),
            None => Ok(()),
        }
    }

    /// Brings silent applications to rest: polls everything, and sends the remaining idle Acks.
    pub(crate) fn drain(&mut self, config: &Config) -> Result<(), Failure> {
        self.poll_all(config)?;
        for _ in 0..LAST_ACKS {
            let mut acked = false;
            for end in 0..2 {
                acked |= config.idle_acks && self.step(config, Step::IdleAck { end })?;
            }
            if !acked {
                return Ok(());
            }
            self.poll_all(config)?;
        }
        Err(Failure::EndlessAcks)
    }

    fn poll_all(&mut self, config: &Config) -> Result<(), Failure> {
        let last = self.acks_sent + LAST_ACKS;
        let polls = [0, 1].map(|end| {
            let receive = Step::Receive { end, first: 0, grows: false };
            let complete = Step::Complete { end, first: 0 };
            [receive, complete, Step::Repost { end }, Step::Grow { end, first: 0 }]
        });
        while !self.ends.iter().all(End::is_quiet) {
            for step in polls.as_flattened() {
                self.step(config, *step)?;
            }
            if self.acks_sent > last {
                return Err(Failure::EndlessAcks);
            }
        }
        Ok(())
    }

    /// The conditions that hold after every step.
    pub(crate) fn check(&self, config: &Config) -> Result<(), Failure> {
        for end in 0..2 {
            self.check_conserved(config, end)?;
            if config.strict {
                self.check_pumped(config, end)?;
                self.check_swept(config, end)?;
            }
        }
        if self.ends.iter().all(End::is_quiet) {
            self.check_quiescent(config, 0)?;
            self.check_quiescent(config, 1)?;
        }
        Ok(())
    }

    /// I1, I2, I3 and I6 of what `end` sends.
    fn check_conserved(&self, config: &Config, end: usize) -> Result<(), Failure> {
        let (this, peer) = (&self.ends[end], &self.ends[1 - end]);
        let (mine, theirs) = (this.credits.counters(), peer.credits.counters());
        let mut data = mine.data_credits + theirs.owed.data();
        let mut ack = mine.ack_credits + theirs.owed.ack();
        let window = peer.credits.local();
        for message in peer.inbox.items() {
            *(if message.is_ack { &mut ack } else { &mut data }) += 1;
        }
        let (due, _) = config.thresholds(1 - end, window);
        let (mut due_acks, mut news) = (0, u16::from(theirs.owed.is_grown()));
        for message in this.inbox.items() {
            let grant = message.grant.credits();
            data += grant.data;
            ack += grant.ack;
            news += u16::from(message.grant.is_grown());
            // One that says that the window has grown is due to that.
            due_acks += u16::from(message.is_ack && !message.grant.is_grown() && grant.data >= due);
        }
        if (Window { data, ack }) != window {
            return Err(Failure::NotConserved(end));
        }
        // The unseen growth of a window is on its way, and nothing else is.
        if config.strict && (news > 1 || (news == 1) != (this.credits.remote() != window)) {
            return Err(Failure::NotConserved(end));
        }
        if config.strict && due_acks > window.data / due {
            return Err(Failure::TooManyAcks(end));
        }
        let rq_len = usize::from(window.data + window.ack);
        let rq_used = usize::from(peer.posted_recvs + peer.unreposted) + peer.inbox.len();
        let is_own = end == 0 || !config.pooled;
        if (is_own && rq_used != rq_len) || !self.slots_add_up(config, end) {
            return Err(Failure::NotConserved(end));
        }
        Ok(())
    }

    fn slots_add_up(&self, config: &Config, end: usize) -> bool {
        let this = &self.ends[end];
        let (mut data, mut ack) = (this.uncovered.data, this.uncovered.ack);
        for freed in this.completions.items() {
            data += freed.data;
            ack += freed.ack;
        }
        this.slots_in_use(&config.budgets[end]) == Slots { data, ack }
    }

    /// I4.
    fn check_pumped(&self, config: &Config, end: usize) -> Result<(), Failure> {
        let credits = &self.ends[end].credits;
        let now = credits.counters();
        let (data_due, ack_due) = config.thresholds(end, credits.local());
        let is_due = now.owed.reaches(data_due, ack_due);
        if is_due && now.ack_credits != 0 && now.ack_slots != 0 {
            return Err(Failure::AckNotSent(end));
        }
        Ok(())
    }

    /// I8.
    fn check_swept(&self, config: &Config, end: usize) -> Result<(), Failure> {
        let this = &self.ends[end];
        let largest = config.budgets[end].message_slots;
        if !this.credits.can_send(largest) && this.uncovered.data != 0 {
            return Err(Failure::Unswept(end));
        }
        Ok(())
    }

    /// I5.
    fn check_quiescent(&self, config: &Config, end: usize) -> Result<(), Failure> {
        let credits = &self.ends[end].credits;
        if !credits.can_send(config.budgets[end].message_slots) {
            return Err(Failure::Stuck(end));
        }
        let window = self.ends[1 - end].credits.local();
        let least = window.data - config.thresholds(1 - end, window).0 + 1;
        if config.strict && credits.counters().data_credits < least {
            return Err(Failure::ThinWindow(end));
        }
        Ok(())
    }
}
