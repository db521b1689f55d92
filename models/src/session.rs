//! Two sessions under virtual time, a wire that delays, reorders between calls, streams, takes
//! messages back and can be cut, and operations against an oracle.
//!
//! Owns the oracle's knowledge of each call. The wire between them is in `wire`, the actions of
//! handlers in `handlers`.

mod handlers;
mod record;
mod tally;
pub(crate) mod wire;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rpc_core::session::{
    CallStreams, Deadline, Event, Failure, IncomingId, Outcome, ReplyKind, Revoked, Role, Session,
    SessionLimits, StartCall, StartError, Transmit,
};
use rpc_core::wire::{Frame, WireId, code, parse};
use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;
use rpc_transport::protocol::config::WhenFull;

use self::record::{Life, Record, Replied};
pub use self::tally::Tally;
use self::wire::Wire;
use test_kit::Rng;

const OPERATIONS: u64 = 250;
/// How late the wheel may be, and the loss by rounding to whole microseconds.
const SLACK: Duration = Duration::from_micros(512);

/// A call has one number everywhere: as waiter, as handler handle, in its bodies.
type Number = u64;
type End = Session<Number, Number>;

#[derive(Debug)]
struct Handler {
    number: Number,
    end: usize,
    id: IncomingId,
    attached: bool,
    stopped: bool,
    /// Its own calls to its caller; it does not end on its own before they do.
    waits_for: Vec<Number>,
}

struct World<'a> {
    tally: Tally,
    rng: &'a mut Rng,
    now: Instant,
    ends: [End; 2],
    wires: [Wire; 2],
    calls: BTreeMap<Number, Record>,
    handlers: Vec<Handler>,
    /// Per caller and slot: the generation whose proof is missing.
    unproven: [BTreeMap<u32, u32>; 2],
    went_away: [bool; 2],
    /// The peer's go-away has arrived; and was reported.
    peer_going: [bool; 2],
    told_going: [bool; 2],
    drained: [u32; 2],
    cut: bool,
    limits: [SessionLimits; 2],
    /// Percentage of handlers that call their callers.
    nests: u64,
}

impl<'a> World<'a> {
    fn new(rng: &'a mut Rng) -> Self {
        let mut limits = || SessionLimits {
            max_outgoing_calls: [1, 3, 20, 100][rng.index(4)],
            max_waiting_calls: [0, 3, 100][rng.index(3)],
            max_incoming_calls: [1, 2, 8, 64, 80][rng.index(5)],
            ..SessionLimits::default()
        };
        let limits = [limits(), limits()];
        let nests = rng.pick(&[0, 30, 100]);
        Self {
            nests,
            tally: Tally::default(),
            ends: [End::new(Role::Client, limits[0]), End::new(Role::Server, limits[1])],
            rng,
            now: Instant::now(),
            wires: Default::default(),
            calls: BTreeMap::new(),
            handlers: Vec::new(),
            unproven: Default::default(),
            went_away: [false; 2],
            peer_going: [false; 2],
            told_going: [false; 2],
            drained: [0; 2],
            cut: false,
            limits,
        }
    }

    fn start(&mut self, end: usize) {
        let deadline = self.rng.chance(40).then(|| Deadline {
            at: self.now + Duration::from_micros(self.rng.index(6000) as u64),
            now: self.now,
        });
        self.start_for(end, deadline, None);
        self.settle(end);
    }

    /// Starts a call, for a handler that waits for it if there is a `maker`.
    fn start_for(&mut self, end: usize, deadline: Option<Deadline>, maker: Option<Number>) {
        let number = self.calls.len() as Number + 1;
        let method = [0, 1, 2][self.rng.index(3)];
        let no_cancel = maker.is_none() && self.rng.chance(15);
        let when_full = if self.rng.chance(20) { WhenFull::Refuse } else { WhenFull::Wait };
        let metadata: &[u8] = if self.rng.chance(20) { b"meta" } else { b"" };
        let mut body = OutBuf::new();
        body.extend_from_slice(&number.to_le_bytes());
        body.extend_from_slice(self.bulk());
        let call = StartCall {
            method: method + 100,
            method_index: method,
            signature: signature(method + 100),
            codec: 5,
            deadline,
            no_cancel,
            when_full,
            is_nested: maker.is_some(),
            metadata,
            streams: CallStreams::NONE,
        };
        let waiter = (maker.is_some() || self.rng.chance(50)).then_some(number);
        let waits = waiter.is_some();
        match self.ends[end].start(call, body, waiter) {
            Ok(id) => {
                assert!(!self.peer_going[end] && !self.cut);
                let record = Record {
                    caller: end,
                    id,
                    no_cancel,
                    deadline: deadline.map(|deadline| deadline.at),
                    life: Life::Waiting,
                    failed: None,
                    never_sent: false,
                    runs: 0,
                    stops: 0,
                    replied: None,
                    ended_without_reply: false,
                    maker,
                };
                self.calls.insert(number, record);
                self.tally.started += 1;
                if let Some(maker) = maker {
                    self.handler_of(maker).waits_for.push(number);
                    self.tally.nested += 1;
                }
                if !waits {
                    assert!(self.ends[end].take_outcome(id).is_none());
                    self.ends[end].set_waiter(id, number);
                }
            }
            Err(refused) => {
                assert_eq!(&refused.body[..8], number.to_le_bytes());
                match refused.error {
                    StartError::Closed => assert!(self.cut),
                    StartError::PeerGoingAway => assert!(self.peer_going[end]),
                    StartError::TooManyCalls => {
                        let SessionLimits { max_outgoing_calls, max_waiting_calls, .. } =
                            self.limits[end];
                        let most = max_outgoing_calls + max_waiting_calls;
                        assert_eq!(self.ends[end].outgoing_calls(), most as usize);
                    }
                    StartError::Full(limit) => {
                        assert_eq!(when_full, WhenFull::Refuse);
                        assert!(limit <= self.limits[end].max_outgoing_calls);
                        let (calls, slots) =
                            (self.ends[end].outgoing_calls(), self.ends[end].busy_slots());
                        assert!(calls + slots as usize >= limit as usize);
                        self.tally.full += 1;
                    }
                    StartError::HandlersWait(waiting) => {
                        let most = self.limits[end].max_incoming_calls - 1;
                        let own = self.limits[end].max_outgoing_calls;
                        let theirs = self.limits[1 - end].max_incoming_calls;
                        assert!(maker.is_some() && (waiting >= most as usize || own < theirs));
                        self.tally.handlers_wait += 1;
                    }
                    StartError::DeadlineExceeded => {
                        assert!(deadline.is_some_and(|deadline| deadline.at <= self.now));
                    }
                    other => panic!("refused: {other}"),
                }
            }
        }
        assert!(self.ends[end].busy_slots() <= self.limits[end].max_outgoing_calls);
    }

    /// A suffix that makes a message small, one of several segments, or a stream.
    fn bulk(&mut self) -> &'static [u8] {
        self.rng.pick(&[&[], &[], &[], &[], &[7; 90], &[7; 200]])
    }

    fn drop_any_call(&mut self) {
        let waiting: Vec<Number> = self
            .calls
            .iter()
            .filter(|(_, record)| matches!(record.life, Life::Waiting))
            .map(|(number, _)| *number)
            .collect();
        if waiting.is_empty() {
            return;
        }
        let number = waiting[self.rng.index(waiting.len())];
        let end = self.drop_call(number);
        self.settle(end);
    }

    /// Its caller gives up a call.
    fn drop_call(&mut self, number: Number) -> usize {
        let record = self.calls.get_mut(&number).expect("listed");
        record.life = Life::Dropped;
        let (end, id) = (record.caller, record.id);
        let waiter = self.with_revoke(end, |session, revoke| session.cancel(id, revoke));
        assert!(waiter.is_none_or(|waiter| waiter == number));
        self.tally.no_cancel_dropped += u64::from(self.calls[&number].no_cancel);
        self.waits_no_more(number);
        end
    }

    /// Runs something that may take messages back, and records the slots that this frees.
    fn with_revoke<T>(
        &mut self,
        end: usize,
        run: impl FnOnce(&mut End, &mut dyn FnMut(u64) -> Revoked) -> T,
    ) -> T {
        let wire = &mut self.wires[end];
        let unproven = &mut self.unproven[end];
        let tally = &mut self.tally;
        run(&mut self.ends[end], &mut |tag| {
            let (revoked, frame) = wire.revoke(tag);
            match (revoked, frame) {
                (_, None) => {}
                (Revoked::Begun, _) => tally.begun += 1,
                (_, Some(Frame::Response(_))) => tally.revoked_responses += 1,
                (Revoked::Whole, _) => tally.whole += 1,
                (_, _) => tally.aborted += 1,
            }
            if let Some(Frame::Request { head, .. }) = frame
                && revoked != Revoked::Begun
            {
                let WireId { slot, generation } = head.id;
                assert_eq!(unproven.remove(&slot), Some(generation), "revoked twice");
            }
            revoked
        })
    }

    /// Carries out an end's events; sometimes events other than frames wait for the next time.
    fn settle(&mut self, end: usize) {
        if self.rng.chance(70) {
            self.settle_all(end);
        } else {
            self.settle_frames(end);
        }
    }

    fn settle_frames(&mut self, end: usize) {
        let now = self.now;
        while let Some(transmit) = self.ends[end].poll_transmit(|| now) {
            self.transmit(end, &transmit);
        }
    }

    fn settle_all(&mut self, end: usize) {
        self.settle_frames(end);
        while let Some(event) = self.ends[end].poll_event() {
            match event {
                Event::Wake(number) => self.wake(end, number),
                Event::Request(incoming) => self.request(end, incoming),
                Event::CancelHandler(number) => self.stop(end, number),
                Event::Discard(_) | Event::Hello(_) => {}
                Event::PeerGoingAway => {
                    assert!(self.peer_going[end] && !self.told_going[end]);
                    self.told_going[end] = true;
                }
                Event::Drained => {
                    self.drained[end] += 1;
                    self.tally.drained += 1;
                }
            }
            self.settle_frames(end);
        }
    }

    fn transmit(&mut self, end: usize, transmit: &Transmit) {
        assert!(!self.cut, "sent after the connection was gone");
        let (parsed, _) = parse(&transmit.frame).expect("a session sends what it can read");
        if let Frame::Request { head, .. } = parsed {
            let WireId { slot, generation } = head.id;
            let before = self.unproven[end].insert(slot, generation);
            assert_eq!(before, None, "slot {slot} was reused before its proof");
        }
        self.wires[end].submit(transmit);
    }

    fn deliver(&mut self, from: usize) -> bool {
        let to = 1 - from;
        let Some(bytes) = self.wires[from].arrive() else { return false };
        let (parsed, _) = parse(&bytes).expect("unchanged");
        self.peer_going[to] |= parsed == Frame::GoAway { drained: false };
        let proven = match parsed {
            Frame::Response(head) => Some(head.id),
            Frame::Cancelled(id) => Some(id),
            _ => None,
        };
        if let Some(WireId { slot, generation }) = proven {
            let was = self.unproven[to].remove(&slot);
            assert_eq!(was, Some(generation), "a second proof, or one for nothing");
        }
        let now = self.now;
        self.with_revoke(to, |session, revoke| {
            session.on_message(Message::copied(&bytes), || now, revoke)
        })
        .expect("both ends are correct");
        self.settle(to);
        self.tally.quarantined += u64::from(self.ends[to].quarantined_slots() != 0);
        self.tally.most_in_flight = self.tally.most_in_flight.max(self.ends[to].busy_slots());
        true
    }

    fn wake(&mut self, end: usize, number: Number) {
        let record = &self.calls[&number];
        assert_eq!(record.caller, end);
        if matches!(record.life, Life::Dropped) {
            // The outcome was there when the call was dropped, and the wake-up was on its way.
            return;
        }
        assert!(matches!(record.life, Life::Waiting), "woken: {record:?}");
        let outcome = self.ends[end].take_outcome(record.id).expect("woken for an outcome");
        self.outcome(number, outcome);
        self.waits_no_more(number);
        let record = &self.calls[&number];
        let again = self.ends[end].take_outcome(record.id);
        let no_such = |reason| reason == Failure::NoSuchCall;
        assert!(matches!(again, Some(Outcome::Failed { reason, .. }) if no_such(reason)));
    }

    fn outcome(&mut self, number: Number, outcome: Outcome) {
        let (now, cut) = (self.now, self.cut);
        let going = self.peer_going;
        let tally = &mut self.tally;
        let record = self.calls.get_mut(&number).expect("known");
        record.life = Life::Ended;
        match outcome {
            Outcome::Failed { reason, never_sent } => {
                record.failed = Some(reason);
                record.never_sent = never_sent;
                tally.never_sent += u64::from(never_sent);
                match reason {
                    Failure::DeadlineExceeded => {
                        tally.expired += 1;
                        assert!(record.is_expired(now));
                    }
                    Failure::Closed => {
                        tally.closed += 1;
                        assert!(cut);
                    }
                    Failure::PeerGoingAway => {
                        tally.going_away += 1;
                        assert!(never_sent && going[record.caller]);
                    }
                    other => panic!("failed: {other:?}"),
                }
            }
            Outcome::Reply(reply) => match (reply.kind, record.replied) {
                (ReplyKind::Ok, Some(Replied::Ok))
                | (ReplyKind::UserError, Some(Replied::UserError)) => {
                    tally.replies += 1;
                    assert_eq!(&reply.message[..8], number.to_le_bytes(), "another call's reply");
                }
                (ReplyKind::Status { code, .. }, Some(Replied::Status(said))) => {
                    assert_eq!(code, said);
                    assert_eq!(reply.text(), format!("call {number}"));
                    assert_eq!(reply.details(), &number.to_le_bytes()[..]);
                }
                (ReplyKind::Status { code: code::INTERNAL, .. }, None) => {
                    assert!(record.ended_without_reply);
                }
                (ReplyKind::Status { code: code::DEADLINE_EXCEEDED, .. }, None) => {
                    assert!(record.is_expired(now + SLACK));
                }
                other => panic!("call {number} got {other:?}: {record:?}"),
            },
        }
    }

    fn pass_time(&mut self, micros: u64) {
        self.now += Duration::from_micros(micros);
        for end in 0..2 {
            let next = self.ends[end].next_deadline();
            assert_eq!(next.is_some(), self.ends[end].running_deadlines() != 0);
            if next.is_some_and(|next| next <= self.now) {
                let now = self.now;
                self.with_revoke(end, |session, revoke| session.on_timeout(now, revoke));
            }
            self.settle_all(end);
        }
        for (number, record) in &self.calls {
            let overdue = record.deadline.is_some_and(|at| at + SLACK <= self.now);
            assert!(
                !(overdue && matches!(record.life, Life::Waiting)),
                "call {number} outlived its deadline"
            );
        }
    }

    fn go_away(&mut self, end: usize) {
        self.went_away[end] = true;
        self.ends[end].go_away();
        self.settle(end);
    }

    fn cut(&mut self) {
        self.cut = true;
        for end in 0..2 {
            self.with_revoke(end, |session, revoke| {
                session.on_closed(CloseCause::Disconnected, revoke);
            });
            self.wires[end] = Wire::default();
            self.settle_all(end);
        }
        for (number, record) in &self.calls {
            assert!(!matches!(record.life, Life::Waiting), "call {number} hangs after the end");
        }
    }

    fn step(&mut self) {
        let end = self.rng.index(2);
        match self.rng.index(100) {
            0..=19 => self.start(end),
            20..=44 => {
                let Self { wires, rng, .. } = self;
                wires[end].send_one(rng);
            }
            45..=69 => {
                self.deliver(end);
            }
            70..=74 => self.drop_any_call(),
            75..=80 if !self.handlers.is_empty() => {
                let at = self.rng.index(self.handlers.len());
                if !self.handlers[at].attached {
                    self.attach(at);
                }
            }
            81..=91 if !self.handlers.is_empty() => {
                let at = self.rng.index(self.handlers.len());
                // Most wait for their own calls.
                if self.handlers[at].waits_for.is_empty() || self.rng.chance(10) {
                    self.finish_handler(at);
                }
            }
            92..=98 => {
                let micros = self.rng.index(2500) as u64;
                self.pass_time(micros);
            }
            99 if self.rng.chance(20) => self.go_away(end),
            _ => {}
        }
    }

    /// Lets all frames arrive, but no handler end on its own.
    fn drain_wires(&mut self) -> bool {
        let mut moved = false;
        for end in [0, 1, 0, 1] {
            self.settle_all(end);
            let Self { wires, rng, .. } = self;
            while wires[end].send_one(rng) {}
            while self.deliver(end) {
                moved = true;
            }
        }
        moved
    }

    /// Once all frames have arrived, no handler may run without a caller.
    fn check_handlers(&mut self) {
        while self.drain_wires() {}
        while let Some(at) = self.handlers.iter().position(|handler| !handler.attached) {
            self.attach(at);
            // A handler that is stopped at once drops its own calls.
            while self.drain_wires() {}
        }
        for at in 0..self.handlers.len() {
            let Handler { number, stopped, .. } = self.handlers[at];
            let record = &self.calls[&number];
            let given_up = matches!(record.life, Life::Dropped) || record.failed.is_some();
            assert!(!given_up || stopped || record.no_cancel, "handler {number} runs for nobody");
        }
    }

    /// Lets everything that was begun come to its end.
    fn quiesce(&mut self) {
        self.check_handlers();
        for round in 0.. {
            assert!(round < 10_000, "does not come to rest");
            let mut busy = self.drain_wires();
            let at_an_end = |handler: &Handler| handler.waits_for.is_empty();
            if let Some(last) = self.handlers.iter().rposition(at_an_end) {
                self.finish_handler(last);
                busy = true;
            } else {
                assert!(busy || self.handlers.is_empty(), "handlers wait for each other for ever");
            }
            if !busy && self.wires.iter().all(Wire::is_empty) {
                break;
            }
        }
    }

    fn check_rest(&self) {
        for (number, record) in &self.calls {
            assert!(!matches!(record.life, Life::Waiting), "call {number} has no outcome");
            assert!(!(record.never_sent && record.runs != 0), "call {number} ran unsent");
            assert!(record.runs <= 1 && record.stops <= 1);
        }
        for (end, session) in self.ends.iter().enumerate() {
            assert_eq!(session.outgoing_calls(), 0, "calls of {end}");
            assert_eq!(session.busy_slots(), 0, "slots of {end}");
            assert_eq!(session.quarantined_slots(), 0);
            assert_eq!(session.incoming_calls(), 0, "calls towards {end}");
            assert_eq!(session.running_deadlines(), 0, "deadlines of {end}");
            assert_eq!(session.waiting_frames(), 0);
            if !self.cut {
                assert!(self.unproven[end].is_empty());
                assert_eq!(self.drained[end], u32::from(self.went_away[end]), "drained");
                assert_eq!(session.is_drained(), self.went_away[end]);
                assert_eq!(self.told_going[end], self.went_away[1 - end]);
            }
        }
    }
}

fn signature(method: u32) -> u64 {
    u64::from(method) * 0x0101_0101_0101
}

/// One run, to its end; returns how often each case occurred.
///
/// # Panics
/// If a promise is broken.
pub fn run(rng: &mut Rng) -> Tally {
    let mut world = World::new(rng);
    for end in 0..2 {
        world.settle(end);
    }
    let cut_at = world.rng.chance(25).then(|| world.rng.below(OPERATIONS));
    let has_bytes = world.rng.has_bytes();
    for step in 0..OPERATIONS {
        if cut_at == Some(step) {
            world.cut();
        }
        if has_bytes && !world.rng.has_bytes() {
            break;
        }
        world.step();
    }
    world.quiesce();
    // A call whose deadline lies ahead may wait for room that only a handler's end provides.
    world.pass_time(20_000);
    world.quiesce();
    world.check_rest();
    world.tally
}
