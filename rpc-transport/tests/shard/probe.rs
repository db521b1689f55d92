//! A small protocol to test the data movers with: it keeps or echoes arriving messages, and
//! notifies waiting tasks of every change.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rpc_transport::device::PeerIdentity;
use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::engine::connection_key::ConnectionKey;
use rpc_transport::engine::executor::Executor;
use rpc_transport::engine::shard::State;
use rpc_transport::engine::upper::{Outside, Revoke, Submission, UpperLayer};
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;
use rpc_transport::protocol::link::{Lane, SubmitError, Waiting};
use tokio::sync::Notify;

/// The treatment of a message by a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Habit {
    /// Keeps it in its inbox.
    Keep,
    /// Sends it back, and forgets it.
    Echo,
    /// Counts it.
    Count,
}

/// One end's protocol.
pub(crate) struct Probe {
    pub(crate) habit: Habit,
    pub(crate) inbox: VecDeque<Message>,
    /// Due dates; each is removed once it has passed.
    pub(crate) deadlines: Vec<Instant>,
    /// Messages of this length are answered with a violation.
    pub(crate) hates: Option<usize>,
    /// Messages of this length make `on_message` panic.
    pub(crate) bomb: Option<usize>,
    /// How many messages from the peer may wait.
    pub(crate) backlog: usize,
    /// Messages that it sends between two reports of pending messages, and the number left.
    pub(crate) per_report: u32,
    left: u32,
    pub(crate) outbox: VecDeque<Submission>,
    pub(crate) actions: VecDeque<Action>,
    /// Runs after each message.
    pub(crate) works: Option<fn()>,
    /// Runs after the next message.
    pub(crate) blocks_next: Option<Box<dyn FnOnce() + Send>>,
    record: Arc<Record>,
}

/// The events of a probe; outlives it.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) changed: Notify,
    events: Mutex<Events>,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Events {
    pub(crate) established: u32,
    pub(crate) received: u64,
    pub(crate) timeouts: u32,
    pub(crate) refused: Vec<String>,
    pub(crate) closed: Vec<CloseCause>,
    pub(crate) released: u32,
}

impl Record {
    pub(crate) fn events(&self) -> Events {
        self.events.lock().unwrap().clone()
    }
}

/// Effects of a probe to run outside the lock.
pub(crate) enum Action {
    Changed(Arc<Record>),
    Run(Box<dyn FnOnce() + Send>),
}

impl Probe {
    pub(crate) fn new(habit: Habit) -> Self {
        Self {
            habit,
            inbox: VecDeque::new(),
            deadlines: Vec::new(),
            hates: None,
            bomb: None,
            backlog: usize::MAX,
            per_report: u32::MAX,
            left: 1,
            outbox: VecDeque::new(),
            actions: VecDeque::new(),
            works: None,
            blocks_next: None,
            record: Arc::default(),
        }
    }

    /// Notified at every change.
    pub(crate) fn record(&self) -> Arc<Record> {
        Arc::clone(&self.record)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.send_tagged(0, bytes);
    }

    pub(crate) fn send_tagged(&mut self, tag: u64, bytes: &[u8]) {
        let mut frame = OutBuf::new();
        frame.extend_from_slice(bytes);
        self.outbox.push_back(Submission { lane: Lane::Small, tag, frame });
    }

    fn change(&mut self, event: impl FnOnce(&mut Events)) {
        event(&mut self.record.events.lock().unwrap());
        self.actions.push_back(Action::Changed(Arc::clone(&self.record)));
    }
}

impl UpperLayer for Probe {
    type Action = Action;

    fn may_transmit(&self) -> bool {
        !self.outbox.is_empty() && self.left > 0
    }

    fn wants_waiting(&self) -> bool {
        self.left == 0
    }

    fn on_waiting(&mut self, _: Waiting) -> bool {
        let held_back = self.left == 0 && !self.outbox.is_empty();
        self.left = self.per_report;
        held_back
    }

    fn on_established(&mut self, _: ConnectionKey, _: &PeerIdentity, _: u64) {
        self.change(|events| {
            assert!(events.closed.is_empty(), "established after the end");
            events.established += 1;
        });
    }

    fn on_message(&mut self, message: Message, _: Revoke<'_>) -> Result<(), Arc<str>> {
        let events = self.record.events();
        assert_eq!(events.established, 1, "a message before the connection was established");
        assert!(events.closed.is_empty(), "a message after the end");
        if self.hates == Some(message.len()) {
            return Err("it is hated".into());
        }
        assert_ne!(self.bomb, Some(message.len()), "a bomb, on purpose");
        match self.habit {
            Habit::Keep => self.inbox.push_back(message),
            Habit::Echo => self.send(&message),
            Habit::Count => {}
        }
        self.change(|events| events.received += 1);
        self.actions.extend(self.works.map(|work| Action::Run(Box::new(work))));
        self.actions.extend(self.blocks_next.take().map(Action::Run));
        Ok(())
    }

    fn on_refused(&mut self, _: u64, error: &SubmitError) {
        self.change(|events| events.refused.push(error.to_string()));
    }

    fn poll_transmit(&mut self) -> Option<Submission> {
        let submission = self.outbox.pop_front()?;
        self.left -= 1;
        Some(submission)
    }

    fn most_queued(&self) -> usize {
        self.backlog
    }

    fn drain_actions(&mut self, outside: &mut Outside<'_, Action>) {
        self.actions.drain(..).for_each(|action| outside.run(action));
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.iter().min().copied()
    }

    fn on_timeout(&mut self, now: Instant, _: Revoke<'_>) {
        self.deadlines.retain(|at| *at > now);
        self.change(|events| events.timeouts += 1);
    }

    fn on_closed(&mut self, cause: &CloseCause, _: Revoke<'_>) {
        self.change(|events| events.closed.push(cause.clone()));
    }

    fn on_released(&mut self) {
        self.change(|events| events.released += 1);
    }

    fn is_idle(&self) -> bool {
        self.outbox.is_empty()
    }
}

/// Runs the probes' actions.
#[derive(Debug, Default)]
pub(crate) struct Runner;

impl Executor<Probe> for Runner {
    fn execute(&mut self, _: ConnectionKey, action: Action) -> bool {
        match action {
            Action::Changed(record) => {
                record.changed.notify_waiters();
                return true;
            }
            Action::Run(run) => run(),
        }
        false
    }

    fn discard(&mut self, action: Action) {
        if let Action::Changed(record) = action {
            record.changed.notify_waiters();
        }
    }

    fn apply(&mut self, _: &mut State<Probe>) {}

    fn has_results(&self) -> bool {
        false
    }
}
