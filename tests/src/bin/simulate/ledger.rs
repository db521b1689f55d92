//! What became of each call, as both ends saw it, kept outside the product.
//!
//! Owns the calls of this process, which runs one world. Invariant: a call's number is in its key,
//! which travels with it; a key that is not known was read wrongly.

use std::collections::BTreeMap;
use std::fmt;

use parking_lot::{Mutex, MutexGuard};
use rpc_core::Code;

use crate::clock;
use crate::oracle::{Answer, Task, Verdict, judge};
use crate::rules::{Finding, Rule};
use crate::trace::{say, say_of};

static LEDGER: Mutex<Ledger> = Mutex::new(Ledger::new());

/// How much later than its deadline a call may end: looks cost time, and a crowd takes many.
const SLACK_US: u64 = 1_000_000;

/// The least time of a deadline that no call misses in calm.
const AMPLE_US: u64 = 2_000_000;

/// How long a `no_cancel` call is held at least for it to count as sent.
pub(crate) const SENT_AFTER_US: u64 = 5_000;

/// All calls, and the servers that they ran on.
#[derive(Debug)]
pub(crate) struct Ledger {
    calls: Vec<Call>,
    /// Since when no fault is left.
    calm_since_us: Option<u64>,
    /// Calls that ran on each server since it is calm.
    shares: Vec<u64>,
    /// Whether servers may refuse calls because they are full.
    pub(crate) has_limit: bool,
    /// Whether a server of version 1 is, or was, in this world.
    pub(crate) has_old: bool,
    compared: u64,
    /// Calls that were refused by a full server since it is calm, and all.
    refused: [u64; 2],
    broken: BTreeMap<Rule, Finding>,
}

#[derive(Debug)]
struct Call {
    task: Task,
    key: u32,
    began_us: u64,
    deadline_us: Option<u64>,
    /// The versions of the servers it ran on.
    ran: Vec<u8>,
    state: State,
    /// Nobody polls it for some time, so it may fail or be late.
    is_left: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Ended,
    /// Its caller has dropped it.
    Dropped,
    /// The same, and it must run.
    Owed,
}

/// The ledger of the world.
pub(crate) fn ledger() -> MutexGuard<'static, Ledger> {
    LEDGER.lock()
}

impl Ledger {
    const fn new() -> Self {
        Self {
            calls: Vec::new(),
            calm_since_us: None,
            shares: Vec::new(),
            has_limit: false,
            has_old: false,
            compared: 0,
            refused: [0; 2],
            broken: BTreeMap::new(),
        }
    }

    /// A client of this version makes a call: its key.
    pub(crate) fn begin(&mut self, task: Task, client: u8, timeout_us: Option<u64>) -> u32 {
        let number = self.calls.len() as u32 + 1;
        let key = number << 2 | u32::from(client);
        let began_us = clock::elapsed_us();
        let deadline_us = timeout_us.map(|timeout| began_us + timeout);
        let (ran, state) = (Vec::new(), State::Open);
        let call = Call { task, key, began_us, deadline_us, ran, state, is_left: false };
        self.calls.push(call);
        say_of(
            number,
            format_args!("begins: {task:?} by a client v{client}, timeout {timeout_us:?} us"),
        );
        key
    }

    /// A server runs the call of this key.
    pub(crate) fn ran(&mut self, key: u32, server: usize, version: u8) {
        let number = key >> 2;
        say_of(number, format_args!("runs on server {server} (v{version})"));
        if self.calm_since_us.is_some() {
            if self.shares.len() <= server {
                self.shares.resize(server + 1, 0);
            }
            self.shares[server] += 1;
        }
        let found = self.calls.get_mut((number as usize).wrapping_sub(1));
        let Some(call) = found.filter(|call| call.key == key) else {
            let text =
                format!("server {server} (v{version}) has read the key {key}, which no call has");
            return self.broken(Rule::Argument, 0, text);
        };
        call.ran.push(version);
        let is_once = !matches!(call.task, Task::Get | Task::Put | Task::Parcel | Task::Blob);
        if is_once && call.ran.len() > 1 {
            let text = format!("{:?} ran {} times", call.task, call.ran.len());
            self.broken(Rule::Once, number, text);
        }
    }

    /// The handler of a call has this deadline and this metadata.
    pub(crate) fn context(&mut self, key: u32, remaining_us: Option<u64>, sent: Option<&[u8]>) {
        let number = key >> 2;
        let Some(call) = self.calls.get((number as usize).wrapping_sub(1)) else { return };
        let timeout_us = call.deadline_us.map(|it| it - call.began_us);
        let is_right = match (timeout_us, remaining_us) {
            (None, None) => true,
            // It may be rounded up to a millisecond on its way.
            (Some(timeout), Some(remaining)) => remaining <= timeout + 1000,
            _ => false,
        };
        if !is_right && call.state == State::Open {
            let text =
                format!("the timeout is {timeout_us:?} us, the handler has {remaining_us:?}");
            self.broken(Rule::Context, number, text);
        }
        if sent != Some(&key.to_le_bytes()) {
            self.broken(Rule::Context, number, format!("the handler's metadata is {sent:?}"));
        }
    }

    /// Nobody polls the call for some time.
    pub(crate) fn is_left(&mut self, key: u32) {
        let number = key >> 2;
        say_of(number, format_args!("is polled now and then"));
        self.calls[number as usize - 1].is_left = true;
    }

    /// A call has ended.
    pub(crate) fn ended(&mut self, key: u32, answer: Answer) {
        let (number, now) = (key >> 2, clock::elapsed_us());
        let call = &mut self.calls[number as usize - 1];
        call.state = State::Ended;
        let (task, has_run, began_us) = (call.task, !call.ran.is_empty(), call.began_us);
        let (deadline_us, is_left) = (call.deadline_us, call.is_left);
        let verdict = judge(task, key, &call.ran, self.has_old, answer);
        say_of(number, format_args!("ends after {} us: {verdict:?}", now - began_us));
        if let Some(deadline) = deadline_us.filter(|it| now > it + SLACK_US) {
            let late = (now - deadline) as f64 / 1e6;
            self.broken(Rule::Deadline, number, format!("{late:.3} s late"));
        }
        if self.was_calm_at(began_us) {
            self.refused[1] += 1;
        }
        match verdict {
            Verdict::Right => {
                self.compared += 1;
                if !has_run {
                    self.broken(Rule::Ran, number, format!("{task:?}"));
                }
            }
            Verdict::Unreadable => self.compared += 1,
            Verdict::Wrong(text) => self.broken(Rule::Value, number, format!("{task:?}: {text}")),
            Verdict::Undecoded(text) => self.broken(Rule::Decoded, number, text),
            Verdict::Items(text) => self.broken(Rule::Items, number, format!("{task:?}: {text}")),
            Verdict::Failed(Code::ResourceExhausted, _) if self.has_limit => {
                self.refused[0] += u64::from(self.was_calm_at(began_us));
            }
            Verdict::Failed(code, text) => {
                let is_short = deadline_us.is_some_and(|it| it - began_us < AMPLE_US);
                let is_calm = !is_left && self.was_calm_at(began_us);
                if is_calm && !(code == Code::DeadlineExceeded && is_short) {
                    self.broken(Rule::Calm, number, format!("{task:?}: {code:?}: {text}"));
                }
            }
        }
    }

    /// The caller drops a call. `is_sent`: so late, and in such calm, that it was sent.
    pub(crate) fn dropped(&mut self, key: u32, is_sent: bool) {
        let number = key >> 2;
        let is_owed = is_sent && self.calm_since_us.is_some();
        say_of(
            number,
            format_args!("is dropped by its caller{}", if is_owed { ", and must run" } else { "" }),
        );
        self.calls[number as usize - 1].state = if is_owed { State::Owed } else { State::Dropped };
    }

    /// Whether there were no faults then.
    pub(crate) fn was_calm_at(&self, at_us: u64) -> bool {
        self.calm_since_us.is_some_and(|since| at_us > since)
    }

    /// From now on there are no faults.
    pub(crate) fn is_calm(&mut self) {
        say(format_args!("calm: no call may fail from now on"));
        self.calm_since_us = Some(clock::elapsed_us());
    }

    /// A rule is broken.
    pub(crate) fn broken(&mut self, rule: Rule, call: u32, text: String) {
        let at_us = clock::elapsed_us();
        say_of(call, format_args!("BREAKS the rule {rule}: {text}"));
        let first = Finding { rule, count: 0, call, at_us, text };
        self.broken.entry(rule).or_insert(first).count += 1;
    }

    /// Calls that ran on each of the servers since it is calm.
    pub(crate) fn shares(&self, servers: usize) -> Vec<u64> {
        (0..servers).map(|server| self.shares.get(server).copied().unwrap_or(0)).collect()
    }

    /// The world ends: what is left open is wrong.
    pub(crate) fn end(&mut self) {
        let numbered = (1..).zip(&self.calls);
        let text = |call: &Call| {
            let began = call.began_us as f64 / 1e6;
            format!("{:?} that began at {began:.3} s, and ran on {:?}", call.task, call.ran)
        };
        let open: Vec<(u32, Rule, String)> = numbered
            .filter_map(|(number, call)| match call.state {
                State::Open => Some((number, Rule::Ends, text(call))),
                State::Owed if call.ran.is_empty() => Some((number, Rule::NoCancel, text(call))),
                _ => None,
            })
            .collect();
        open.into_iter().for_each(|(number, rule, text)| self.broken(rule, number, text));
        let [refused, all] = self.refused;
        if refused * 10 > all {
            self.broken(Rule::Room, 0, format!("{refused} of {all} calls in calm were refused"));
        }
        if self.compared == 0 {
            self.broken(Rule::Checked, 0, format!("of {} calls none was right", self.calls.len()));
        }
    }

    /// All rules that were broken.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        self.broken.values().cloned().collect()
    }

    /// Calls that were made, and those whose values were compared and right.
    pub(crate) fn counts(&self) -> (usize, u64) {
        (self.calls.len(), self.compared)
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} calls, {} right", self.calls.len(), self.compared)
    }
}
