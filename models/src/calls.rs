//! Two sessions over two links: the assumptions of one layer about the other.
//!
//! Owns both applications: calls whose arguments and results are streamed, and which are cancelled
//! at any moment, by their callers, their deadlines or the end of the connection. An error of
//! either layer, a call that runs twice, a call that runs although it was reported as never sent,
//! and anything that is not returned, is a panic.

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rpc_core::session::{
    Answer, CallId, CallStreams, Deadline, Event, Incoming, IncomingId, Outcome, Revoked, Role,
    Session, SessionLimits, StartCall,
};
use rpc_core::wire::{Part, prepend_parts};
use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::memory::region::Access;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::part::OutPart;
use rpc_transport::message::payload::Payload;
use rpc_transport::message::payload_stream::{PayloadStream, StreamError};
use rpc_transport::message::received::Message;
use rpc_transport::protocol::handshake::Features;
use rpc_transport::protocol::link::{self, Inbound, Lane, SliceBytes};
use test_kit::Rng;

use crate::Steps;
use crate::link::end::{self, End};

/// Most operations of a run of a seed.
const STEPS: u64 = 300;

struct Side {
    end: End,
    session: Session<u64, u64>,
    handlers: Vec<Handler>,
    streams: Vec<PayloadStream>,
    held: Vec<Payload>,
}

struct Handler {
    number: u64,
    id: IncomingId,
    is_stopped: bool,
}

#[derive(Debug)]
struct Record {
    caller: usize,
    id: CallId,
    waits: bool,
    never_sent: bool,
    runs: u32,
}

/// How often the interesting cases occurred.
#[derive(Debug, Default, Clone, Copy)]
pub struct Seen {
    pub replies: u64,
    pub dropped: u64,
    pub expired: u64,
    pub lost: u64,
    pub never_sent: u64,
    pub stopped: u64,
    pub streams: u64,
    pub begun: u64,
    pub aborted: u64,
    pub aborted_streams: u64,
}

impl Seen {
    pub fn all(&mut self) -> [(&'static str, &mut u64); 10] {
        [
            ("replies", &mut self.replies),
            ("calls dropped", &mut self.dropped),
            ("deadlines passed", &mut self.expired),
            ("calls lost with their connection", &mut self.lost),
            ("calls said never to have been sent", &mut self.never_sent),
            ("handlers stopped", &mut self.stopped),
            ("streams", &mut self.streams),
            ("messages taken back that were delivered", &mut self.begun),
            ("messages taken back that had been sent in part", &mut self.aborted),
            ("streams that end early", &mut self.aborted_streams),
        ]
    }

    pub fn add(&mut self, mut other: Self) {
        for ((_, count), (_, more)) in self.all().into_iter().zip(other.all()) {
            *count += *more;
        }
    }
}

struct World {
    now: Instant,
    sides: [Side; 2],
    calls: BTreeMap<u64, Record>,
    is_cut: bool,
    seen: Seen,
}

/// A body of `number` and a tail of `tail` bytes.
fn body(number: u64, tail: usize) -> OutBuf {
    let mut body = OutBuf::new();
    body.extend_from_slice(&number.to_le_bytes());
    if tail > 0 {
        prepend_parts(&mut body, [Part { at: 8, len: tail as u64 }].into_iter());
        body.push_tail(OutPart::shared(std::sync::Arc::new(vec![7_u8; tail])));
    }
    body
}

/// The number at the end of a body.
fn number_of(body: &[u8]) -> u64 {
    u64::from_le_bytes(*body.last_chunk().expect("a number"))
}

impl World {
    fn new(rng: &mut Rng) -> Self {
        let now = Instant::now();
        let configs = [end::config(rng), end::config(rng)]
            .map(|config| config.max_message_bytes(1 << 20).arena_threshold_bytes(2000));
        let features = Features::ARENA.with(Features::REPLY_SLOTS);
        let limits = SessionLimits {
            max_outgoing_calls: 40,
            max_incoming_calls: u32::try_from(rng.pick(&[1_u64, 2, 8])).expect("small"),
            ..SessionLimits::default()
        };
        let short = SliceBytes { beside_small: 1000, alone: 3000 };
        let slices = rng.pick(&[SliceBytes::WHOLE, short]);
        let side = |at: usize, role| {
            let mut end = End::new(&configs[at], &configs[1 - at], features, now);
            end.link.set_slices(slices);
            let session = Session::new(role, limits);
            Side { end, session, handlers: Vec::new(), streams: Vec::new(), held: Vec::new() }
        };
        let sides = [side(0, Role::Client), side(1, Role::Server)];
        Self { now, sides, calls: BTreeMap::new(), is_cut: false, seen: Seen::default() }
    }

    fn step(&mut self, rng: &mut Rng) {
        let at = rng.index(2);
        match rng.below(100) {
            0..12 => self.start(at, rng),
            12..18 => self.give_up(rng),
            18..36 => self.arrive(at),
            36..54 => self.receive(at),
            54..62 => self.sides[at].end.complete(),
            62..70 => {
                // Between two slices a message has neither left nor not left.
                self.transmit(at);
                if rng.chance(30) {
                    self.give_up(rng);
                }
            }
            70..73 => self.pass_time(rng.below(2500)),
            73..81 => self.finish_any(at, rng),
            81..89 => self.read_any(at, rng),
            89..92 => self.grow(at),
            _ => self.pump(at),
        }
        if rng.chance(50) {
            self.pump(at);
        }
    }

    fn start(&mut self, at: usize, rng: &mut Rng) {
        let number = self.calls.len() as u64 + 1;
        let at_most = Duration::from_micros(rng.below(9000));
        let deadline = rng.chance(30).then(|| Deadline { at: self.now + at_most, now: self.now });
        let call = StartCall {
            method: 1,
            method_index: 0,
            signature: 1,
            codec: 5,
            deadline,
            no_cancel: rng.chance(10),
            when_full: rpc_core::transport::WhenFull::Wait,
            is_nested: false,
            metadata: &[],
            streams: CallStreams::NONE,
        };
        let body = body(number, rng.pick(&[0, 0, 200, 5000, 30_000, 60_000]));
        if let Ok(id) = self.sides[at].session.start(call, body, Some(number)) {
            let record = Record { caller: at, id, waits: true, never_sent: false, runs: 0 };
            self.calls.insert(number, record);
        }
    }

    /// A caller drops its call.
    fn give_up(&mut self, rng: &mut Rng) {
        let waiting: Vec<u64> =
            self.calls.iter().filter(|(_, call)| call.waits).map(|(number, _)| *number).collect();
        if waiting.is_empty() {
            return;
        }
        let number = rng.pick(&waiting);
        let call = self.calls.get_mut(&number).expect("listed");
        call.waits = false;
        self.seen.dropped += 1;
        let (caller, id) = (call.caller, call.id);
        self.with_revoke(caller, |session, revoke| _ = session.cancel(id, revoke));
    }

    fn with_revoke<T>(
        &mut self,
        at: usize,
        run: impl FnOnce(&mut Session<u64, u64>, &mut dyn FnMut(u64) -> Revoked) -> T,
    ) -> T {
        let Side { end, session, .. } = &mut self.sides[at];
        let seen = &mut self.seen;
        run(session, &mut |tag| match end.link.revoke(tag) {
            link::Revoked::Whole(_) => Revoked::Whole,
            link::Revoked::Aborted => {
                seen.aborted += 1;
                Revoked::Aborted
            }
            link::Revoked::Begun => {
                seen.begun += 1;
                Revoked::Begun
            }
            link::Revoked::TooLate => Revoked::TooLate,
        })
    }

    fn arrive(&mut self, at: usize) {
        let [first, second] = &mut self.sides;
        let (from, to) = if at == 0 { (first, second) } else { (second, first) };
        end::arrive(&mut from.end, &mut to.end);
    }

    fn receive(&mut self, at: usize) {
        let end = &mut self.sides[at].end;
        let Some((imm, mut message)) = end.next_received() else { return };
        match end.link.on_frame(self.now, imm, &message).expect("both links are correct") {
            Inbound::Message { payload_at, slot } => {
                message.advance(payload_at);
                self.on_message(at, message.with_slot(slot));
            }
            Inbound::Assembled(message) => self.on_message(at, message),
            _ => {}
        }
    }

    fn on_message(&mut self, at: usize, message: Message) {
        let now = self.now;
        self.with_revoke(at, |session, revoke| session.on_message(message, || now, revoke))
            .expect("both sessions are correct");
    }

    fn pump(&mut self, at: usize) {
        while self.transmit(at) {}
    }

    /// Sends one frame, and handles the session's events; returns whether there was a frame.
    fn transmit(&mut self, at: usize) -> bool {
        self.events(at);
        if self.is_cut {
            return false;
        }
        let now = self.now;
        let Side { end, session, .. } = &mut self.sides[at];
        while let Some(transmit) = session.poll_transmit(|| now) {
            let lane = if transmit.urgent { Lane::Urgent } else { Lane::Small };
            end.link.submit(lane, transmit.tag, transmit.frame).expect("open");
        }
        while end.link.take_freed().is_some() {}
        let Some(transmit) = end.link.poll_transmit() else { return false };
        let head = End::post(&mut end.wire, &mut end.sq, &transmit);
        end.on_posted(head);
        true
    }

    fn events(&mut self, at: usize) {
        while let Some(event) = self.sides[at].session.poll_event() {
            match event {
                Event::Wake(number) => self.wake(at, number),
                Event::Request(incoming) => self.request(at, incoming),
                Event::CancelHandler(number) => self.stop(at, number),
                Event::PeerGoingAway | Event::Drained | Event::Discard(_) | Event::Hello(_) => {}
            }
        }
    }

    fn wake(&mut self, at: usize, number: u64) {
        let call = self.calls.get_mut(&number).expect("known");
        if !std::mem::replace(&mut call.waits, false) {
            return;
        }
        match self.sides[at].session.take_outcome(call.id).expect("woken for an outcome") {
            Outcome::Failed { never_sent, .. } => {
                call.never_sent = never_sent;
                assert!(!(never_sent && call.runs > 0), "call {number} ran, and was never sent");
                self.seen.never_sent += u64::from(never_sent);
                *if self.is_cut { &mut self.seen.lost } else { &mut self.seen.expired } += 1;
            }
            Outcome::Reply(reply) => {
                self.seen.replies += 1;
                self.keep(at, reply.message);
            }
        }
    }

    /// The application holds a message whose tail it may read.
    fn keep(&mut self, at: usize, mut message: Message) {
        let side = &mut self.sides[at];
        side.held.extend(message.take_tail());
        if let Some(stream) = message.take_stream() {
            self.seen.streams += 1;
            side.streams.push(stream);
        }
    }

    fn request(&mut self, at: usize, incoming: Incoming) {
        let number = number_of(incoming.body());
        let call = self.calls.get_mut(&number).expect("known");
        assert_eq!(call.caller, 1 - at);
        call.runs += 1;
        assert_eq!(call.runs, 1, "call {number} runs twice");
        assert!(!call.never_sent, "call {number} runs, and was never sent");
        let id = incoming.id;
        let side = &mut self.sides[at];
        if incoming.signature.is_some() {
            side.session.accept_signature(id);
        }
        let is_stopped = side.session.attach_handler(id, number).is_err();
        side.handlers.push(Handler { number, id, is_stopped });
        self.keep(at, incoming.into_body());
    }

    fn stop(&mut self, at: usize, number: u64) {
        self.seen.stopped += 1;
        let handlers = &mut self.sides[at].handlers;
        if let Some(handler) = handlers.iter_mut().find(|handler| handler.number == number) {
            handler.is_stopped = true;
        }
    }

    fn finish_any(&mut self, at: usize, rng: &mut Rng) {
        let handlers = &mut self.sides[at].handlers;
        if handlers.is_empty() {
            return;
        }
        let which = rng.index(handlers.len());
        let tail = rng.pick(&[0, 0, 200, 5000, 30_000, 60_000]);
        self.finish(at, which, tail);
    }

    fn finish(&mut self, at: usize, which: usize, tail: usize) {
        let Side { session, handlers, .. } = &mut self.sides[at];
        let Handler { number, id, is_stopped } = handlers.swap_remove(which);
        if is_stopped {
            session.handler_ended(id);
        } else {
            _ = session.reply(id, Answer::Ok(body(number, tail)));
        }
    }

    /// The application reads from a stream or drops it, or drops a tail.
    fn read_any(&mut self, at: usize, rng: &mut Rng) {
        let side = &mut self.sides[at];
        side.held.pop();
        if side.streams.is_empty() {
            return;
        }
        let which = rng.index(side.streams.len());
        if rng.chance(20) {
            side.streams.swap_remove(which);
        } else {
            self.read(at, which);
        }
    }

    /// Reads a segment; returns whether anything changed.
    fn read(&mut self, at: usize, which: usize) -> bool {
        let streams = &mut self.sides[at].streams;
        match streams[which].poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => return false,
            Poll::Ready(Some(Ok(_))) => return true,
            Poll::Ready(Some(Err(StreamError::Aborted(_)))) => self.seen.aborted_streams += 1,
            Poll::Ready(Some(Err(error))) => assert!(self.is_cut, "{error}"),
            Poll::Ready(None) => {}
        }
        streams.swap_remove(which);
        true
    }

    fn grow(&mut self, at: usize) {
        let end = &mut self.sides[at].end;
        let Some(bytes) = end.link.wanted_arena() else { return };
        let bytes = usize::try_from(bytes).expect("small");
        let region = end.domain.allocate(bytes, Access::REMOTE_WRITE).expect("memory");
        end.regions.push(region.clone());
        end.link.add_arena(region).expect("wanted");
    }

    fn pass_time(&mut self, micros: u64) {
        self.now += Duration::from_micros(micros);
        let now = self.now;
        for at in [0, 1] {
            self.with_revoke(at, |session, revoke| session.on_timeout(now, revoke));
            self.pump(at);
        }
    }

    fn cut(&mut self) {
        self.is_cut = true;
        for at in [0, 1] {
            self.with_revoke(at, |session, revoke| {
                session.on_closed(CloseCause::Disconnected, revoke);
            });
            self.events(at);
            drop(self.sides[at].end.link.take_unfinished());
        }
    }

    /// Makes all moves of the device and the drivers; returns whether there were any.
    fn settle(&mut self) -> bool {
        let mut moved = false;
        for at in [0, 1] {
            self.grow(at);
            self.pump(at);
            moved |= !self.sides[at].end.is_still();
            while !self.sides[at].end.wire.is_empty() {
                self.arrive(at);
            }
            while self.sides[1 - at].end.has_received() {
                self.receive(1 - at);
            }
            while !self.sides[at].end.completed.is_empty() {
                self.sides[at].end.complete();
            }
        }
        moved
    }

    /// Everything that was begun comes to its end.
    fn quiesce(&mut self) {
        for round in 0.. {
            assert!(round < 100_000, "does not come to rest");
            let mut busy = !self.is_cut && self.settle();
            for at in [0, 1] {
                self.events(at);
                self.sides[at].held.clear();
                for which in (0..self.sides[at].streams.len()).rev() {
                    busy |= self.read(at, which);
                }
                if !busy && !self.sides[at].handlers.is_empty() {
                    self.finish(at, 0, 0);
                    busy = true;
                }
            }
            if !busy {
                break;
            }
        }
    }

    fn check_rest(&self) {
        for (number, call) in &self.calls {
            assert!(!call.waits, "call {number} has no outcome: {call:?}");
        }
        for Side { end, session, streams, .. } in &self.sides {
            assert!(streams.is_empty(), "streams never end");
            assert_eq!(session.busy_slots(), 0, "slots are missing");
            assert_eq!((session.outgoing_calls(), session.incoming_calls()), (0, 0));
            assert_eq!(session.stale_cancels(), 0, "a cancel overtook its request");
            assert!(self.is_cut || end.link.is_idle());
        }
    }
}

/// One run, to its end; returns how often each case occurred.
///
/// # Panics
/// If a promise is broken.
pub fn run(rng: &mut Rng) -> Seen {
    let mut world = World::new(rng);
    let cut_at = rng.chance(25).then(|| rng.below(STEPS));
    let mut steps = Steps::new(rng, STEPS);
    let mut done = 0;
    while steps.next(rng) {
        world.step(rng);
        done += 1;
        if cut_at == Some(done) {
            world.cut();
            break;
        }
    }
    world.quiesce();
    // A call whose deadline lies ahead may wait for room that only a handler's end provides.
    world.pass_time(20_000);
    world.quiesce();
    world.check_rest();
    world.seen
}
