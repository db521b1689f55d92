//! Two sessions whose calls have streams, over the wire of [`session`](crate::session), with tasks
//! that write, read, stop, depend on one another and sleep until they are woken.
//!
//! Owns the tasks and the expected contents of every stream. A task that sleeps and is never woken,
//! an item that is lost, doubled or out of order, an end that nobody made: each is a panic.

mod call;
mod chain;
mod handler;
mod hostile;
mod tally;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rpc_core::session::{
    Broken, CallStreams, Deadline, Event, Incoming, ReadItem, Revoked, Role, SendError, Session,
    SessionLimits, StartCall, StartError, StreamEnd, StreamId, StreamLimits, StreamRules,
};
use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::message::received::Message;
use test_kit::Rng;

use self::call::{Call, Flow, Handler, Number, Side, UpEnd, body};
pub use self::hostile::run_hostile;
pub use self::tally::Tally;
use crate::session::wire::{BULK_BYTES, Wire};

type End = Session<u64, u64>;

const OPERATIONS: u64 = 200;
const MOST_CALLS: u64 = 20;
const MOST_HANDLERS: u64 = 12;
/// Rounds in which everything must come to rest.
const ROUNDS: u32 = 20_000;

pub(crate) struct World<'a> {
    rng: &'a mut Rng,
    tally: Tally,
    now: Instant,
    ends: [End; 2],
    wires: [Wire; 2],
    calls: BTreeMap<Number, Call>,
    next: Number,
    cut: bool,
    went_away: [bool; 2],
    limits: [StreamLimits; 2],
    /// Bytes that may wait in each link.
    queues: [u64; 2],
    /// Something waited at the last report of each link, so it reports again.
    waited: [bool; 2],
    /// Readers that sleep on purpose do so.
    stalling: bool,
}

/// A task: a call, and which part of it.
fn task(number: Number, side: Side) -> u64 {
    number << 2 | side as u64
}

impl<'a> World<'a> {
    fn new(rng: &'a mut Rng, broken: Option<Broken>) -> Self {
        let mut limits = || StreamLimits {
            items: rng.pick(&[1, 2, 4, 16]),
            bytes: rng.pick(&[1, 40, 100, 400]),
            max_window_bytes: 1600,
            max_stream_bytes: rng.pick(&[0, 1000, 5000]),
        };
        let limits = [limits(), limits()];
        let calls = [rng.pick(&[1, 4, 12]), rng.pick(&[1, 4, 12])];
        let queues = [0; 2].map(|_| rng.pick(&[1, 200, 2000, 1 << 20]));
        let session = |role, at: usize| {
            let mut session = End::new(
                role,
                SessionLimits {
                    max_outgoing_calls: 20,
                    max_waiting_calls: 0,
                    max_incoming_calls: calls[at],
                    streams: Some(limits[at]),
                },
            );
            session.set_longest_small(BULK_BYTES);
            session.set_item_room(queues[at]);
            session.break_stream_rule(StreamRules { broken });
            session
        };
        Self {
            tally: Tally::default(),
            ends: [session(Role::Client, 0), session(Role::Server, 1)],
            rng,
            now: Instant::now(),
            wires: Default::default(),
            calls: BTreeMap::new(),
            next: 1,
            cut: false,
            went_away: [false; 2],
            limits,
            queues,
            waited: [false; 2],
            stalling: true,
        }
    }

    fn start(&mut self, end: usize) {
        let number = self.next;
        let streams = self.rng.pick(&[(true, false), (false, true), (true, true), (false, false)]);
        let deadline = self.rng.chance(25).then(|| Deadline {
            at: self.now + Duration::from_micros(500 + self.rng.below(8000)),
            now: self.now,
        });
        let idle = deadline.is_some() && (streams.0 || streams.1) && self.rng.chance(50);
        let streams = CallStreams { arguments: streams.0, results: streams.1, idle_deadline: idle };
        let long = if self.rng.chance(20) { 100 } else { 0 };
        let mut request = body(number.to_le_bytes().as_slice());
        request.extend_from_slice(&vec![0; long]);
        let start = StartCall {
            method: 7,
            method_index: 7,
            signature: 1,
            codec: 0,
            deadline,
            no_cancel: false,
            when_full: rpc_core::transport::WhenFull::Wait,
            is_nested: false,
            metadata: &[],
            streams,
        };
        match self.ends[end].start(start, request, None) {
            Ok(id) => {
                assert!(!self.cut, "started on a lost connection");
                self.next += 1;
                self.tally.started += 1;
                let call = Call::new(end, id, streams, deadline.is_some(), self.rng);
                self.calls.insert(number, call);
                self.feed(number);
            }
            Err(refused) => match refused.error {
                StartError::Closed => assert!(self.cut),
                StartError::PeerGoingAway => assert!(self.went_away[1 - end]),
                StartError::TooManyCalls => {}
                other => panic!("refused: {other}"),
            },
        }
        self.settle(end);
    }

    /// Carries out an end's events.
    fn settle(&mut self, end: usize) {
        loop {
            let now = self.now;
            let may = self.ends[end].may_transmit();
            let mut queued = false;
            while let Some(transmit) = self.ends[end].poll_transmit(|| now) {
                assert!(!self.cut && may, "sent without a word, or after the end");
                // If nothing waits, a message may leave at once.
                let leaves = self.wires[end].waiting_bytes() == 0 && self.rng.chance(70);
                self.wires[end].submit(&transmit);
                while leaves && self.wires[end].send_one(self.rng) {}
                queued |= !leaves;
            }
            if self.report(end, queued) {
                continue;
            }
            let Some(event) = self.ends[end].poll_event() else { break };
            match event {
                Event::Wake(task) => self.wake(task),
                Event::Request(incoming) => self.request(end, incoming),
                Event::CancelHandler(number) => {
                    let handler =
                        self.calls.get_mut(&number).and_then(|call| call.handler.as_mut());
                    if let Some(handler) = handler {
                        (handler.stopped, handler.runnable) = (true, true);
                    }
                }
                Event::Discard(_) | Event::PeerGoingAway | Event::Drained | Event::Hello(_) => {}
            }
        }
        // New streams have the least window even when the budget is used up.
        let least = u64::from(self.limits[end].bytes) * (MOST_CALLS + MOST_HANDLERS);
        let most = self.limits[end].max_stream_bytes + least;
        assert!(self.ends[end].stream_window_bytes() <= most, "windows above the budget");
    }

    /// The link reports its pending messages, in the cases in which the engine's link does. Returns
    /// whether more may be sent then.
    fn report(&mut self, end: usize, queued: bool) -> bool {
        if !queued && !self.waited[end] && !self.ends[end].is_item_room_low() {
            return false;
        }
        let waiting = self.wires[end].waiting_bytes();
        self.waited[end] = waiting > 0;
        self.ends[end].set_item_room(self.queues[end].saturating_sub(waiting))
    }

    fn wake(&mut self, task: u64) {
        let Some(call) = self.calls.get_mut(&(task >> 2)) else { return };
        match task & 3 {
            0 => call.writes = true,
            1 => call.reads = true,
            _ => {
                if let Some(handler) = &mut call.handler {
                    handler.runnable = true;
                }
            }
        }
    }

    fn request(&mut self, end: usize, incoming: Incoming) {
        let number = Number::from_le_bytes(incoming.body()[..8].try_into().expect("eight"));
        if incoming.signature.is_some() {
            self.ends[end].accept_signature(incoming.id);
        }
        let Some(call) = self.calls.get_mut(&number) else {
            // Its caller has given it up.
            self.ends[end].handler_ended(incoming.id);
            return;
        };
        assert_eq!((call.streams, call.caller), (incoming.streams, 1 - end));
        assert!(call.handler.is_none() && !call.handled, "a call ran twice");
        call.handled = true;
        call.handler = Some(Handler::new(incoming.id, call.streams, self.rng));
        let attached = self.ends[end].attach_handler(incoming.id, number);
        if attached.is_err()
            && let Some(handler) =
                self.calls.get_mut(&number).and_then(|call| call.handler.as_mut())
        {
            handler.stopped = true;
        }
    }

    fn with_revoke<T>(
        &mut self,
        end: usize,
        run: impl FnOnce(&mut End, &mut dyn FnMut(u64) -> Revoked) -> T,
    ) -> T {
        let wire = &mut self.wires[end];
        run(&mut self.ends[end], &mut |tag| wire.revoke(tag).0)
    }

    fn deliver(&mut self, from: usize) -> bool {
        let to = 1 - from;
        let Some(bytes) = self.wires[from].arrive() else { return false };
        let now = self.now;
        self.with_revoke(to, |session, revoke| {
            session.on_message(Message::copied(&bytes), || now, revoke)
        })
        .unwrap_or_else(|error| {
            panic!("both ends are correct, but {error}: {:?}", rpc_core::wire::parse(&bytes))
        });
        self.settle(to);
        true
    }

    /// Runs the caller's writing task for up to `steps` steps.
    fn write(&mut self, number: Number, mut steps: u32) -> bool {
        let Some(call) = self.calls.get_mut(&number) else { return false };
        if !call.writes || call.written || call.done {
            return false;
        }
        let end = call.caller;
        let id = call.id;
        if !self.has_input(number) {
            return false;
        }
        while steps > 0 && self.has_input(number) {
            steps -= 1;
            let call = self.calls.get_mut(&number).expect("it is here");
            if call.up.left == 0 {
                call.written = true;
                call.up.ended = match call.up_end {
                    UpEnd::Finish => {
                        self.ends[end].finish(id);
                        call.up.is_finished = true;
                        true
                    }
                    UpEnd::Reset(code) => {
                        self.ends[end].reset(id, code);
                        true
                    }
                };
                break;
            }
            match send(&mut self.ends[end], id.into(), &mut call.up, number, self.rng, self.now) {
                Ok(()) => {
                    self.tally.sent += 1;
                    call.in_hand = call.in_hand.saturating_sub(1);
                }
                Err(SendError::Full) => {
                    self.tally.full += 1;
                    let waiter = task(number, Side::Writer);
                    call.writes = false;
                    self.ends[end].set_writer(id, waiter);
                    break;
                }
                Err(SendError::Stopped(code)) => {
                    assert_eq!(call.up.stopped, Some(code), "stopped by nobody");
                    self.tally.stopped += 1;
                    call.written = true;
                    break;
                }
                Err(SendError::Ended) => {
                    call.written = true;
                    break;
                }
                Err(error) => panic!("writes: {error}"),
            }
        }
        self.settle(end);
        true
    }

    /// Runs the caller's reading task: items, and then the outcome.
    fn read(&mut self, number: Number, mut steps: u32) -> bool {
        let stalling = self.stalling;
        let Some(call) = self.calls.get_mut(&number) else { return false };
        if !call.reads || call.done || (stalling && call.stalls) {
            return false;
        }
        let (end, id) = (call.caller, call.id);
        if !self.may_read_on(number) {
            return false;
        }
        while steps > 0 && self.may_read_on(number) {
            steps -= 1;
            let call = self.calls.get_mut(&number).expect("it is here");
            if call.stop_after == Some(0) {
                call.stop_after = None;
                call.down.stopped = Some(3);
                self.ends[end].stop(id, 3);
            }
            match self.ends[end].take_item(id) {
                ReadItem::Item(item) => {
                    call.down.take(&item);
                    call.stop_after = call.stop_after.map(|left| left - 1);
                    self.tally.read += 1;
                    self.pass_on(number);
                }
                ReadItem::Pending => {
                    let waiter = task(number, Side::Reader);
                    call.reads = false;
                    self.ends[end].set_reader(id, waiter);
                    break;
                }
                ReadItem::End(StreamEnd::Response) => {
                    self.outcome(number);
                    break;
                }
                ReadItem::End(StreamEnd::NotOpen) => {
                    assert!(!call.streams.results || call.down.stopped.is_some());
                    if self.ends[end].has_outcome(id) {
                        self.outcome(number);
                    } else {
                        call.reads = false;
                        self.ends[end].set_waiter(id, task(number, Side::Reader));
                    }
                    break;
                }
                ReadItem::End(other) => panic!("the caller reads {other:?}"),
            }
        }
        self.settle(end);
        true
    }

    fn outcome(&mut self, number: Number) {
        let call = self.calls.get_mut(&number).expect("it is here");
        let outcome = self.ends[call.caller].take_outcome(call.id).expect("it has ended");
        call.check_outcome(&outcome, self.cut, self.went_away[1 - call.caller], &mut self.tally);
        call.done = true;
        self.forget(number);
    }

    /// Forgets a call when its caller and its handler are done.
    fn forget(&mut self, number: Number) {
        let is_over = |call: &Call| call.done && call.handler.is_none();
        if self.calls.get(&number).is_some_and(is_over) {
            self.calls.remove(&number);
        }
    }

    fn cancel(&mut self, number: Number) {
        let Some(call) = self.calls.get_mut(&number).filter(|call| !call.done) else { return };
        call.done = true;
        call.cancelled = true;
        let (end, id) = (call.caller, call.id);
        self.tally.cancelled += 1;
        self.with_revoke(end, |session, revoke| _ = session.cancel(id, revoke));
        assert_eq!(self.ends[end].writable(id), Err(SendError::Ended));
        self.settle(end);
        self.forget(number);
    }

    fn pass_time(&mut self, micros: u64) {
        self.now += Duration::from_micros(micros);
        for end in 0..2 {
            let now = self.now;
            self.with_revoke(end, |session, revoke| session.on_timeout(now, revoke));
            self.settle(end);
        }
    }

    fn cut(&mut self) {
        self.cut = true;
        self.tally.cuts += 1;
        for end in 0..2 {
            self.with_revoke(end, |session, revoke| {
                session.on_closed(CloseCause::Disconnected, revoke);
            });
            self.wires[end] = Wire::default();
            self.settle(end);
        }
    }

    fn any_call(&mut self) -> Option<Number> {
        let count = self.calls.len();
        if count == 0 {
            return None;
        }
        let at = self.rng.index(count);
        self.calls.keys().nth(at).copied()
    }

    fn step(&mut self) {
        let end = self.rng.index(2);
        let steps = 1 + u32::try_from(self.rng.below(6)).expect("small");
        let chosen = self.any_call();
        match (self.rng.below(100), chosen) {
            (0..=9, _) => self.start(end),
            (10..=29, _) => {
                let Self { wires, rng, .. } = self;
                wires[end].send_one(rng);
                self.settle(end);
            }
            (30..=49, _) => drop(self.deliver(end)),
            (50..=63, Some(number)) => drop(self.write(number, steps)),
            (64..=77, Some(number)) => drop(self.read(number, steps)),
            (78..=91, Some(number)) => drop(self.handle(number, steps)),
            (92, Some(number)) => self.cancel(number),
            (93..=95, _) => {
                let micros = self.rng.below(900);
                self.pass_time(micros);
            }
            (96..=98, _) => {
                // A burst.
                let Self { wires, rng, .. } = self;
                while wires[end].send_one(rng) {}
                self.settle(end);
            }
            (99, _) if self.rng.chance(10) => {
                self.went_away[end] = true;
                self.ends[end].go_away();
                self.settle(end);
            }
            _ => {}
        }
    }

    /// Runs all tasks that are awake and carries all frames, until nothing moves.
    fn come_to_rest(&mut self) {
        for _ in 0..ROUNDS {
            let mut moved = false;
            for end in 0..2 {
                let Self { wires, rng, .. } = self;
                while wires[end].send_one(rng) {}
                self.settle(end);
                while self.deliver(end) {
                    moved = true;
                }
            }
            for number in self.calls.keys().copied().collect::<Vec<_>>() {
                moved |= self.write(number, 5);
                moved |= self.read(number, 5);
                moved |= self.handle(number, 5);
            }
            if !moved {
                return;
            }
        }
        panic!("does not come to rest: {:?}", self.calls);
    }

    fn finish(mut self) -> Tally {
        // All tasks except those that sleep on purpose end, whatever the latter hold.
        self.come_to_rest();
        for (number, call) in &self.calls {
            assert!(
                self.is_chain_held(*number),
                "call {number} is stuck beside one that sleeps: {call:?}"
            );
        }
        self.stalling = false;
        self.come_to_rest();
        self.pass_time(50_000);
        self.come_to_rest();
        if let Some((number, call)) = self.calls.iter().next() {
            panic!("call {number} is stuck: {call:?}");
        }
        for session in &self.ends {
            assert_eq!(session.stream_calls(), (0, 0), "streams are left");
            assert_eq!(session.stream_window_bytes(), 0, "windows are left");
            assert_eq!((session.outgoing_calls(), session.incoming_calls()), (0, 0));
            assert_eq!((session.busy_slots(), session.quarantined_slots()), (0, 0));
            assert_eq!((session.running_deadlines(), session.waiting_frames()), (0, 0));
        }
        self.tally
    }
}

fn send(
    session: &mut End,
    id: StreamId,
    flow: &mut Flow,
    number: Number,
    rng: &mut Rng,
    now: Instant,
) -> Result<(), SendError> {
    let item = flow.next_item(number, rng);
    match session.send_item(id, item, || now) {
        Ok(()) => {
            flow.left -= 1;
            Ok(())
        }
        Err(not_sent) => {
            assert_eq!(session.writable(id), Err(not_sent.error));
            let len = flow.take_back();
            assert_eq!(not_sent.item.len(), len, "another item was handed back");
            Err(not_sent.error)
        }
    }
}

/// One run, to its end; returns how often each case occurred. A rule may be broken.
///
/// # Panics
/// If a promise is broken.
pub fn run(rng: &mut Rng, broken: Option<Broken>) -> Tally {
    let mut world = World::new(rng, broken);
    for end in 0..2 {
        world.settle(end);
    }
    let cut_at = world.rng.chance(20).then(|| world.rng.below(OPERATIONS));
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
    world.finish()
}
