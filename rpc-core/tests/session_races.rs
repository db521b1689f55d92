//! Every interleaving of one call, and of a second one after it: drop, deadlines at both ends,
//! replies, handlers attached late, shutdown and loss, against every order of frames.
//!
//! A breadth-first search over the reachable states. A state is rebuilt from the actions that led
//! to it; two states are equal if both sessions, the wires and the oracle print the same.

use std::collections::hash_map::DefaultHasher;
use std::collections::{HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::time::{Duration, Instant};

use rpc_core::session::{
    Answer, CallId, CallStreams, Deadline, Event, Failure, IncomingId, Outcome, ReplyKind, Revoked,
    Role, Session, SessionLimits, StartCall,
};
use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;

type End = Session<usize, usize>;

const CLIENT: usize = 0;
const SERVER: usize = 1;
const TIMEOUT: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    /// The caller drops call 0 or 1.
    Drop(usize),
    /// The second call starts.
    StartSecond,
    /// An end's clock passes the deadline.
    Expire(usize),
    /// An end's link puts the next frame on the wire; until then it can be taken back.
    Send(usize),
    /// The wire from an end delivers.
    Deliver(usize),
    /// The handler of call 0 or 1 is attached to the session.
    Attach(usize),
    /// It replies.
    Reply(usize),
    /// It ends without a reply.
    End(usize),
    /// An end says go-away.
    GoAway(usize),
    /// The callee processes the events of its session.
    Look,
    /// The connection is lost.
    Cut,
}

#[derive(Debug, Clone, Copy)]
struct Variant {
    deadline: bool,
    no_cancel: bool,
    second: bool,
    go_away: bool,
    cut: bool,
    /// The callee processes its events only on [`Action::Look`].
    lazy: bool,
}

#[derive(Debug, Default)]
struct Call {
    id: Option<CallId>,
    dropped: bool,
    outcomes: Vec<String>,
    never_sent: bool,
    handler: Option<IncomingId>,
    attached: bool,
    runs: u32,
    stops: u32,
    /// The handler has replied; whether the session accepted the reply.
    ended: Option<bool>,
}

#[derive(Debug, Default)]
struct Wire {
    urgent: VecDeque<(u64, Vec<u8>)>,
    small: VecDeque<(u64, Vec<u8>)>,
    flying: VecDeque<Vec<u8>>,
}

impl Wire {
    fn revoke(&mut self, tag: u64) -> Revoked {
        match self.small.iter().position(|(queued, _)| *queued == tag) {
            Some(at) => {
                self.small.remove(at);
                Revoked::Whole
            }
            None => Revoked::TooLate,
        }
    }
}

#[derive(Debug)]
struct World {
    variant: Variant,
    ends: [End; 2],
    wires: [Wire; 2],
    expired: [bool; 2],
    went_away: [bool; 2],
    drained: [u32; 2],
    cut: bool,
    unlooked: bool,
    calls: [Call; 2],
}

impl World {
    fn new(variant: Variant, base: Instant) -> Self {
        let limits = SessionLimits::default();
        let mut world = Self {
            variant,
            ends: [End::new(Role::Client, limits), End::new(Role::Server, limits)],
            wires: Default::default(),
            expired: [false; 2],
            went_away: [false; 2],
            drained: [0; 2],
            cut: false,
            unlooked: false,
            calls: Default::default(),
        };
        for end in [CLIENT, SERVER] {
            world.settle(base, end);
            world.act(base, Action::Send(end));
            world.act(base, Action::Deliver(end));
        }
        world.start(base, 0);
        world
    }

    fn now(&self, base: Instant, end: usize) -> Instant {
        if self.expired[end] { base + 2 * TIMEOUT } else { base }
    }

    fn start(&mut self, base: Instant, number: usize) {
        let deadline = Deadline { at: base + TIMEOUT, now: base };
        let call = StartCall {
            method: 1,
            method_index: 0,
            signature: 11,
            codec: 0,
            deadline: Some(deadline).filter(|_| self.variant.deadline && number == 0),
            no_cancel: self.variant.no_cancel,
            when_full: rpc_core::transport::WhenFull::Wait,
            is_nested: false,
            metadata: &[],
            streams: CallStreams::NONE,
        };
        let mut body = OutBuf::new();
        body.extend_from_slice(&[u8::try_from(number).expect("0 or 1")]);
        if let Ok(id) = self.ends[CLIENT].start(call, body, Some(number)) {
            self.calls[number].id = Some(id);
        }
        self.settle(base, CLIENT);
    }

    /// The possible next actions.
    fn enabled(&self) -> Vec<Action> {
        let mut actions = self.progress();
        if self.cut {
            return actions;
        }
        for (number, call) in self.calls.iter().enumerate() {
            if call.id.is_some() && !call.dropped && call.outcomes.is_empty() {
                actions.push(Action::Drop(number));
            }
        }
        let first = &self.calls[0];
        let first_is_over = first.dropped || !first.outcomes.is_empty();
        if self.variant.second && first_is_over && self.calls[1].id.is_none() {
            actions.push(Action::StartSecond);
        }
        if self.variant.go_away {
            actions.extend([CLIENT, SERVER].map(Action::GoAway));
            actions.retain(|act| !matches!(act, Action::GoAway(end) if self.went_away[*end]));
        }
        if self.variant.cut {
            actions.push(Action::Cut);
        }
        actions
    }

    /// The actions that must happen eventually.
    fn progress(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for end in [CLIENT, SERVER] {
            let wire = &self.wires[end];
            if !wire.urgent.is_empty() || !wire.small.is_empty() {
                actions.push(Action::Send(end));
            }
            if !wire.flying.is_empty() {
                actions.push(Action::Deliver(end));
            }
            if self.variant.deadline && !self.expired[end] && !self.cut {
                actions.push(Action::Expire(end));
            }
        }
        if self.unlooked {
            actions.push(Action::Look);
        }
        for (number, call) in self.calls.iter().enumerate() {
            if call.handler.is_some() && call.ended.is_none() {
                actions.extend([Action::Reply(number), Action::End(number)]);
                if !call.attached {
                    actions.push(Action::Attach(number));
                }
            }
        }
        actions
    }

    fn act(&mut self, base: Instant, action: Action) {
        match action {
            Action::Drop(number) => {
                self.calls[number].dropped = true;
                let id = self.calls[number].id.expect("started");
                let wire = &mut self.wires[CLIENT];
                self.ends[CLIENT].cancel(id, &mut |tag| wire.revoke(tag));
                self.settle(base, CLIENT);
            }
            Action::StartSecond => self.start(base, 1),
            Action::Expire(end) => {
                self.expired[end] = true;
                let now = self.now(base, end);
                let wire = &mut self.wires[end];
                self.ends[end].on_timeout(now, &mut |tag| wire.revoke(tag));
                self.settle(base, end);
            }
            Action::Send(end) => {
                let wire = &mut self.wires[end];
                let sent = wire.urgent.pop_front().or_else(|| wire.small.pop_front());
                wire.flying.extend(sent.map(|(_, bytes)| bytes));
            }
            Action::Deliver(end) => {
                let to = 1 - end;
                let now = self.now(base, to);
                let bytes = self.wires[end].flying.pop_front().expect("enabled");
                let wire = &mut self.wires[to];
                let revoke = &mut |tag| wire.revoke(tag);
                self.ends[to]
                    .on_message(Message::copied(&bytes), || now, revoke)
                    .expect("both ends are correct");
                self.settle(base, to);
            }
            Action::Attach(number) => self.attach(number),
            Action::Reply(number) => {
                let mut body = OutBuf::new();
                body.extend_from_slice(&[u8::try_from(number).expect("0 or 1"), 77]);
                let id = self.calls[number].handler.expect("enabled");
                let taken = self.ends[SERVER].reply(id, Answer::Ok(body)).is_ok();
                assert!(!taken || self.calls[number].stops == 0, "a stopped handler's reply");
                self.calls[number].ended = Some(taken);
                self.settle(base, SERVER);
            }
            Action::End(number) => {
                self.calls[number].ended = Some(false);
                self.ends[SERVER].handler_ended(self.calls[number].handler.expect("enabled"));
                self.settle(base, SERVER);
            }
            Action::GoAway(end) => {
                self.went_away[end] = true;
                self.ends[end].go_away();
                self.settle(base, end);
            }
            Action::Look => self.look(SERVER),
            Action::Cut => self.cut(base),
        }
    }

    fn attach(&mut self, number: usize) {
        let call = &mut self.calls[number];
        call.attached = true;
        if self.ends[SERVER].attach_handler(call.handler.expect("enabled"), number).is_err() {
            call.stops += 1;
        }
    }

    fn cut(&mut self, base: Instant) {
        self.cut = true;
        for end in [CLIENT, SERVER] {
            let wire = &mut self.wires[end];
            self.ends[end].on_closed(CloseCause::Disconnected, &mut |tag| wire.revoke(tag));
            *wire = Wire::default();
            self.settle(base, end);
        }
        for call in &self.calls {
            let lives = call.id.is_some() && !call.dropped;
            assert_eq!(call.outcomes.len(), usize::from(lives), "pending after the end");
        }
    }

    fn settle(&mut self, base: Instant, end: usize) {
        let now = self.now(base, end);
        if self.variant.lazy && end == SERVER {
            self.unlooked = true;
        } else {
            self.look(end);
        }
        while let Some(transmit) = self.ends[end].poll_transmit(|| now) {
            let wire = &mut self.wires[end];
            let lane = if transmit.urgent { &mut wire.urgent } else { &mut wire.small };
            lane.push_back((transmit.tag, transmit.frame.to_vec()));
        }
        self.check_always();
    }

    fn look(&mut self, end: usize) {
        self.unlooked &= end != SERVER;
        while let Some(event) = self.ends[end].poll_event() {
            match event {
                Event::Wake(number) => self.wake(number),
                Event::Request(incoming) => {
                    let call = &mut self.calls[usize::from(incoming.body()[0])];
                    call.runs += 1;
                    call.handler = Some(incoming.id);
                    self.ends[end].accept_signature(incoming.id);
                }
                Event::CancelHandler(number) => {
                    let call = &mut self.calls[number];
                    let late = self.variant.lazy && call.ended == Some(false);
                    assert!(call.ended.is_none() || late, "told to stop after its end");
                    call.stops += 1;
                }
                Event::PeerGoingAway | Event::Discard(_) | Event::Hello(_) => {}
                Event::Drained => self.drained[end] += 1,
            }
        }
    }

    fn wake(&mut self, number: usize) {
        let call = &mut self.calls[number];
        assert!(!call.dropped, "woken after the drop");
        let id = call.id.expect("started");
        let outcome = self.ends[CLIENT].take_outcome(id).expect("woken for an outcome");
        let said = match outcome {
            Outcome::Reply(reply) => match reply.kind {
                ReplyKind::Ok => {
                    assert_eq!(&*reply.message, [u8::try_from(number).expect("0 or 1"), 77]);
                    assert_eq!(call.ended, Some(true), "a reply that no handler gave");
                    "reply".to_owned()
                }
                ReplyKind::Status { code, .. } => format!("status {code}"),
                ReplyKind::UserError => panic!("nobody said that"),
            },
            Outcome::Failed { reason, never_sent } => {
                call.never_sent = never_sent;
                assert!(reason != Failure::Closed || self.cut);
                format!("{reason:?}")
            }
        };
        call.outcomes.push(said);
    }

    fn check_always(&self) {
        for call in &self.calls {
            assert!(call.outcomes.len() <= 1 && call.runs <= 1 && call.stops <= 1, "{call:?}");
            assert!(!call.dropped || call.outcomes.is_empty(), "{call:?}");
            assert!(!(call.never_sent && call.runs > 0), "{call:?}");
            assert!(call.stops == 0 || !self.variant.no_cancel, "{call:?}");
        }
    }

    /// No frame is in flight: no handler runs without a caller.
    fn check_still(&self) {
        for call in self.calls.iter().filter(|call| call.attached && call.ended.is_none()) {
            let failed = call.outcomes.iter().any(|said| said != "reply" && said != "status 13");
            let given_up = call.dropped || failed;
            assert!(!given_up || call.stops == 1 || self.variant.no_cancel, "{call:?}");
        }
    }

    /// Nothing remains to happen: all slots are free.
    fn check_rest(&self) {
        for call in self.calls.iter().filter(|call| call.id.is_some()) {
            assert!(call.dropped || call.outcomes.len() == 1, "no outcome: {call:?}");
        }
        for (end, session) in self.ends.iter().enumerate() {
            assert_eq!(session.outgoing_calls(), 0);
            assert_eq!((session.busy_slots(), session.quarantined_slots()), (0, 0));
            assert_eq!((session.incoming_calls(), session.running_deadlines()), (0, 0));
            assert_eq!(session.waiting_frames(), 0);
            assert_eq!(session.stale_cancels(), 0, "a cancel overtook its request");
            if !self.cut {
                assert_eq!(self.drained[end], u32::from(self.went_away[end]));
            }
        }
    }

    fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        format!("{self:?}").hash(&mut hasher);
        hasher.finish()
    }
}

/// Prints the actions when the test fails.
struct Trace<'a>(Variant, &'a [Action]);

impl Drop for Trace<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:?}: {:?}", self.0, self.1);
        }
    }
}

/// Visits every reachable state. Returns their number, and all outcomes seen.
fn search(variant: Variant) -> (usize, HashSet<String>) {
    let base = Instant::now();
    let replay = |path: &[Action]| {
        let _trace = Trace(variant, path);
        let mut world = World::new(variant, base);
        path.iter().for_each(|action| world.act(base, *action));
        let progress = world.progress();
        if !progress
            .iter()
            .any(|act| matches!(act, Action::Send(_) | Action::Deliver(_) | Action::Look))
        {
            world.check_still();
        }
        if progress.is_empty() {
            world.check_rest();
        }
        world
    };
    let mut seen = HashSet::from([replay(&[]).fingerprint()]);
    let mut outcomes = HashSet::new();
    let mut frontier = VecDeque::from([Vec::new()]);
    while let Some(path) = frontier.pop_front() {
        for action in replay(&path).enabled() {
            let mut longer = path.clone();
            longer.push(action);
            let world = replay(&longer);
            outcomes.extend(world.calls.iter().flat_map(|call| call.outcomes.clone()));
            if seen.insert(world.fingerprint()) {
                frontier.push_back(longer);
            }
        }
        assert!(seen.len() < 2_000_000, "the search does not end");
    }
    (seen.len(), outcomes)
}

const PLAIN: Variant = Variant {
    deadline: false,
    no_cancel: false,
    second: false,
    go_away: false,
    cut: false,
    lazy: false,
};

#[track_caller]
fn expect(variant: Variant, wanted: &[&str]) {
    let (states, outcomes) = search(variant);
    println!("{variant:?}: {states} states");
    let wanted: HashSet<String> = wanted.iter().map(|said| (*said).to_owned()).collect();
    assert_eq!(outcomes, wanted, "the outcomes that some order brings about");
}

#[test]
fn drops_race_replies() {
    expect(Variant { second: true, ..PLAIN }, &["reply", "status 13"]);
}

#[test]
fn deadlines_race_drops_and_replies() {
    let variant = Variant { deadline: true, ..PLAIN };
    expect(variant, &["reply", "status 13", "status 4", "DeadlineExceeded"]);
}

#[test]
fn races_while_a_request_waits_for_its_handler() {
    let variant = Variant { deadline: true, lazy: true, ..PLAIN };
    expect(variant, &["reply", "status 13", "status 4", "DeadlineExceeded"]);
}

#[test]
fn a_second_call_never_sees_the_first() {
    let variant = Variant { deadline: true, second: true, ..PLAIN };
    expect(variant, &["reply", "status 13", "status 4", "DeadlineExceeded"]);
}

#[test]
fn uncancellable_calls_run_to_their_end() {
    let variant = Variant { deadline: true, no_cancel: true, ..PLAIN };
    expect(variant, &["reply", "status 13", "DeadlineExceeded"]);
}

#[test]
fn shutdown_waits_for_what_is_in_flight() {
    let variant = Variant { go_away: true, ..PLAIN };
    expect(variant, &["reply", "status 13"]);
}

#[test]
fn loss_ends_every_call_once() {
    let variant = Variant { deadline: true, cut: true, ..PLAIN };
    expect(variant, &["reply", "status 13", "status 4", "DeadlineExceeded", "Closed"]);
}
