//! Two links, the wires between them, and the rules of a QP pair that both rely on.
//!
//! Owns the wires, the application's side of each end, and the runs; `oracle` knows what must
//! arrive.

pub(crate) mod end;
mod oracle;
mod seen;

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use rpc_transport::memory::region::Access;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::payload_stream::StreamError;
use rpc_transport::message::reply_slot::SlotOffer;
use rpc_transport::protocol::frame::{CloseCode, CloseReason, Kind, flags};
use rpc_transport::protocol::handshake::Features;
use rpc_transport::protocol::link::{Inbound, Lane, Revoked, SliceBytes, SubmitError};
use rpc_transport::user_code::HoldsShard;

use test_kit::Rng;

use self::end::{End, Stream, config};
use self::oracle::Oracle;
pub use self::seen::Seen;
use crate::Steps;

/// Bytes that an advertised slot takes in a frame.
const SLOT_BYTES: usize = 24;

struct World {
    now: Instant,
    ends: [End; 2],
    idle_acks: bool,
    seen: Seen,
}

/// Runs a step of a link as its connection does, under a lock: a link that drops a message with a
/// tail there panics.
fn locked<R>(step: impl FnOnce() -> R) -> R {
    let _holds = HoldsShard::begin();
    step()
}

impl World {
    fn new(rng: &mut Rng) -> Self {
        let now = Instant::now();
        let configs = [config(rng), config(rng)];
        let both = Features::ARENA.with(Features::REPLY_SLOTS);
        let arena = rng.pick(&[Features::NONE, Features::ARENA, both, both]);
        let features = rng.pick(&[Features::NONE, Features::ACK_IMMEDIATE]).with(arena);
        let configs = match arena {
            // Without the feature nobody reports how far a stream was read.
            Features::NONE => configs.map(|config| config.assembly_bytes(1 << 20)),
            _ => configs,
        };
        let end = |own: usize| End::new(&configs[own], &configs[1 - own], features, now);
        let mut ends = [end(0), end(1)];
        for end in &mut ends {
            let short = SliceBytes { beside_small: 1000, alone: 3000 };
            end.link.set_slices(rng.pick(&[SliceBytes::WHOLE, SliceBytes::COPIED, short]));
        }
        let idle_acks = rng.below(2) == 0;
        Self { now, ends, idle_acks, seen: Seen::default() }
    }

    /// One random legal operation at a random end.
    fn step(&mut self, rng: &mut Rng) {
        let at = usize::from(rng.below(2) == 0);
        match rng.below(100) {
            0..20 => self.submit(at, rng),
            20..26 => self.revoke(at, rng),
            26..46 => self.arrive(at),
            46..66 => self.receive(at),
            66..76 => self.complete(at),
            76..80 => self.idle_ack(at),
            80..84 => self.pass_time(at, rng),
            // A driver that drains one frame at a time is legal as long as it gets to the end.
            84..87 => _ = self.transmit(at),
            87..89 => self.let_go(at, rng),
            89..92 => self.read_any(at, rng),
            92 => self.grow(at, rng),
            93 => self.grow_window(at, rng.below(4) > 0),
            _ => self.pump(at),
        }
        if rng.below(3) > 0 {
            self.pump(at);
        }
    }

    fn submit(&mut self, at: usize, rng: &mut Rng) {
        let end = &mut self.ends[at];
        let eager = end.link.eager_bytes();
        let max = usize::try_from(end.remote.max_message_bytes).expect("small");
        let lane = rng.pick(&[Lane::Urgent, Lane::Small, Lane::Small, Lane::Bulk]);
        let len = match rng.below(10) {
            0..5 => 8 + rng.below(64),
            5..7 => eager as u64 - rng.below(4),
            7 => eager as u64 + 1 + rng.below(40),
            8 => 8 + rng.below(8 * eager as u64),
            _ => 8 + rng.below(30 * eager as u64),
        };
        let len = usize::try_from(len).expect("small");
        let parts: Vec<usize> = match rng.below(5) {
            0 => (0..1 + rng.below(9)).map(|_| rng.pick(&[1, 37, 500, 4096, 9000, 9001])).collect(),
            _ => Vec::new(),
        };
        if len + parts.iter().sum::<usize>() > max && len <= max {
            return;
        }
        if len as u64 > self.ends[1 - at].own.assembly_bytes {
            // No peer accepts such a head.
            return;
        }
        let end = &mut self.ends[at];
        if len > max {
            let mut out = OutBuf::new();
            out.extend_from_slice(&vec![0; len]);
            let refused = end.link.submit(lane, u64::MAX, out);
            assert!(matches!(refused, Err(SubmitError::TooLarge { .. } | SubmitError::Closed)));
            return;
        }
        if end.link.is_closing() {
            return;
        }
        let offers = rng.below(4) == 0;
        let eager = if offers { eager - SLOT_BYTES } else { eager };
        let (tag, mut out) = end.oracle.submit(lane, len, &parts, eager);
        if offers {
            let bytes = rng.pick(&[1, 5000, 40_000]);
            let region = end.domain.allocate(bytes + 7, Access::REMOTE_WRITE).expect("memory");
            out.offer_slot(SlotOffer::new(region.clone(), 7, bytes as u64, None));
            end.offered.push(region);
        }
        if !parts.is_empty()
            && let Some(slot) = end.slots.pop()
        {
            out.place_in(slot);
        }
        end.link.submit(lane, tag, out).expect("open, and within the limit");
    }

    fn revoke(&mut self, at: usize, rng: &mut Rng) {
        let end = &mut self.ends[at];
        if end.oracle.next_tag == 0 {
            return;
        }
        // Mostly of the newest, as the old ones are gone.
        let back = 1 + rng.below(end.oracle.next_tag.min(8));
        self.revoke_tag(at, self.ends[at].oracle.next_tag - back);
    }

    fn revoke_tag(&mut self, at: usize, tag: u64) {
        let end = &mut self.ends[at];
        match locked(|| end.link.revoke(tag)) {
            Revoked::Whole(bytes) => end.oracle.on_revoked(tag, Some(&bytes)),
            Revoked::Aborted => {
                end.oracle.on_revoked(tag, None);
                self.seen.aborts += 1;
            }
            Revoked::Begun => end.oracle.on_begun(tag),
            Revoked::TooLate => {}
        }
    }

    /// The oldest frame on the wire *from* this end reaches the peer's QP.
    fn arrive(&mut self, at: usize) {
        let [first, second] = &mut self.ends;
        let (from, to) = if at == 0 { (first, second) } else { (second, first) };
        end::arrive(from, to);
    }

    /// The application reads a tail, and drops it.
    fn let_go(&mut self, at: usize, rng: &mut Rng) {
        if rng.below(2) == 0 {
            self.ends[at].slots.pop();
        }
        let count = self.ends[at].held.len() as u64;
        if count == 0 {
            return;
        }
        let (tag, tail) =
            self.ends[at].held.swap_remove(usize::try_from(rng.below(count)).expect("small"));
        self.ends[1 - at].oracle.check_tail(tag, &tail);
    }

    /// The application reads of a stream, or drops it.
    fn read_any(&mut self, at: usize, rng: &mut Rng) {
        let count = self.ends[at].streams.len();
        if count == 0 {
            return;
        }
        let which = rng.index(count);
        if rng.chance(30) {
            self.seen.streams_dropped += 1;
            self.ends[at].streams.swap_remove(which);
        } else {
            self.read(at, which);
        }
    }

    /// Reads the available part of a stream; returns whether there was any.
    fn read(&mut self, at: usize, which: usize) -> bool {
        let [first, second] = &mut self.ends;
        let (end, peer) = if at == 0 { (first, second) } else { (second, first) };
        let Stream { tag, tail, read } = &mut end.streams[which];
        match tail.poll_next(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => return false,
            Poll::Ready(Some(Ok(segment))) => {
                Oracle::check_part(*tag, *read, &segment);
                *read += segment.len();
                return true;
            }
            Poll::Ready(None) => {
                self.seen.streams_ended += 1;
                assert_eq!(*read, tail.len(), "a stream ended early");
            }
            Poll::Ready(Some(Err(StreamError::Aborted(_)))) => {
                self.seen.streams_aborted += 1;
                peer.oracle.check_begun(*tag);
            }
            Poll::Ready(Some(Err(error))) => panic!("message {tag}: {error}"),
        }
        end.streams.swap_remove(which);
        true
    }

    /// The mover gives the link the arena that it wants, if there is memory.
    fn grow(&mut self, at: usize, rng: &mut Rng) {
        let end = &mut self.ends[at];
        let Some(bytes) = end.link.wanted_arena() else { return };
        if rng.below(8) == 0 {
            return end.link.decline_arena();
        }
        let bytes = usize::try_from(bytes).expect("small");
        let region = end.domain.allocate(bytes, Access::REMOTE_WRITE).expect("memory");
        end.regions.push(region.clone());
        end.link.add_arena(region).expect("wanted");
    }

    /// The mover posts the RECVs that the peer asks for, if there is memory.
    fn grow_window(&mut self, at: usize, has_memory: bool) {
        self.seen.grown_windows += u64::from(self.ends[at].grow_window(has_memory));
    }

    /// Polls the oldest receive completion.
    fn receive(&mut self, at: usize) {
        let [first, second] = &mut self.ends;
        let (end, peer) = if at == 0 { (first, second) } else { (second, first) };
        let Some((imm, mut message)) = end.next_received() else { return };
        // Some tails are copied while they arrive.
        let copies_tail = |head: &[u8]| head.len().is_multiple_of(2);
        let inbound = locked(|| end.link.on_frame_with(self.now, imm, &message, &copies_tail))
            .expect("legal");
        match inbound {
            Inbound::Message { payload_at, slot } => {
                message.advance(payload_at);
                end.slots.extend(slot);
                peer.oracle.on_delivered(&message, false);
            }
            Inbound::Assembled(mut message) => {
                end.slots.extend(message.take_slot());
                let (tail, stream) = (message.take_tail(), message.take_stream());
                let has_tail = tail.is_some() || stream.is_some();
                let tag = peer.oracle.on_delivered(&message, has_tail);
                if let Some(tail) = stream {
                    self.seen.streams += 1;
                    end.streams.push(Stream { tag, tail, read: 0 });
                }
                if let Some(tail) = tail {
                    let is_private = tail.is_private();
                    self.seen.private_tails += u64::from(is_private);
                    self.seen.remote_tails += u64::from(!is_private);
                    end.held.push((tag, tail));
                }
            }
            Inbound::Closed(reason) => {
                assert_eq!(reason, close_reason());
                end.closed_by_peer = true;
            }
            _ => {}
        }
    }

    /// Polls the oldest send completion.
    fn complete(&mut self, at: usize) {
        locked(|| self.ends[at].complete());
    }

    fn idle_ack(&mut self, at: usize) {
        if !self.idle_acks {
            return;
        }
        self.pump(at);
        let end = &mut self.ends[at];
        if let Some(transmit) = end.link.poll_idle_ack() {
            let head = End::post(&mut end.wire, &mut end.sq, &transmit);
            end.on_posted(head);
        }
    }

    fn pass_time(&mut self, at: usize, rng: &mut Rng) {
        self.now += Duration::from_millis(rng.below(1500));
        self.ends[at].link.on_timeout(self.now, None).expect("nobody is dead");
    }

    fn transmit(&mut self, at: usize) -> bool {
        let end = &mut self.ends[at];
        let Some(transmit) = locked(|| end.link.poll_transmit()) else { return false };
        let head = End::post(&mut end.wire, &mut end.sq, &transmit);
        let is_written = !transmit.writes.is_empty();
        let (kind, flag) = head.unwrap_or_default();
        self.seen.slices += u64::from(head.is_none());
        self.seen.held_back += u64::from(flag & flags::MAX_STREAM_DATA != 0);
        self.seen.placed += u64::from(flag & flags::SLOT_PLACED != 0);
        self.seen.pings += u64::from(kind == Kind::Ping as u8);
        self.seen.written += u64::from(is_written && head.is_some());
        end.on_posted(head);
        true
    }

    /// Releases everything that a link is done with; returns whether there was anything.
    fn sweep(&mut self, at: usize) -> bool {
        std::iter::from_fn(|| self.ends[at].link.take_freed()).count() > 0
    }

    fn pump(&mut self, at: usize) {
        while self.transmit(at) || self.sweep(at) {}
        let end = &self.ends[at];
        end.check_pumped();
        let metrics = end.link.metrics();
        let is_blocked = metrics.bulk_unsent_bytes > 0
            && metrics.peer_chunks > 0
            && metrics.peer_free == 0
            && metrics.counters.data_credits > 0;
        self.seen.blocked += u64::from(is_blocked);
    }

    fn close(&mut self, at: bool) {
        self.ends[usize::from(at)].link.close(close_reason());
        self.pump(usize::from(at));
    }

    /// Random moves, until nothing moves any more.
    fn drain(&mut self, rng: &mut Rng) {
        loop {
            for at in [0, 1] {
                self.grow(at, rng);
                self.grow_window(at, rng.below(4) > 0);
                self.pump(at);
            }
            let mut moves: Vec<fn(&mut Self)> = Vec::new();
            if !self.ends[0].wire.is_empty() {
                moves.push(|world| world.arrive(0));
            }
            if !self.ends[1].wire.is_empty() {
                moves.push(|world| world.arrive(1));
            }
            if !self.ends[0].received.is_empty() {
                moves.push(|world| world.receive(0));
            }
            if !self.ends[1].received.is_empty() {
                moves.push(|world| world.receive(1));
            }
            // Completions come late: only when nothing else moves, or now and then.
            let is_late = rng.below(4) > 0 && !moves.is_empty();
            if !is_late && !self.ends[0].completed.is_empty() {
                moves.push(|world| world.complete(0));
            }
            if !is_late && !self.ends[1].completed.is_empty() {
                moves.push(|world| world.complete(1));
            }
            if moves.is_empty() {
                // Now at the latest the application releases something.
                let holds = |at: &usize| {
                    !self.ends[*at].held.is_empty() || !self.ends[*at].slots.is_empty()
                };
                if let Some(at) = [0, 1].into_iter().find(holds) {
                    self.let_go(at, rng);
                } else if !self.read_all() {
                    return;
                }
                continue;
            }
            rng.pick(&moves)(self);
        }
    }

    /// Reads everything readable; returns whether there was anything.
    fn read_all(&mut self) -> bool {
        let mut any = false;
        for at in [0, 1] {
            for which in (0..self.ends[at].streams.len()).rev() {
                any |= self.read(at, which);
            }
        }
        any
    }

    fn check_quiescent(&self) {
        self.check_all_delivered_or_revoked();
        for (end, peer) in [(0, 1), (1, 0)].map(|(end, peer)| (&self.ends[end], &self.ends[peer])) {
            let metrics = end.link.metrics();
            assert!(end.link.is_idle(), "{metrics:?}");
            assert_eq!(metrics.assembly_bytes, 0);
            assert!(end.streams.is_empty(), "streams never end: {metrics:?}");
            assert_eq!(metrics.open_slots, 0, "slots are missing: {metrics:?}");
            assert_eq!(metrics.landing_held, 0, "chunks are missing: {metrics:?}");
            let window = peer.window();
            assert_eq!(window.data, metrics.counters.remote_window, "news is missing");
            let least = window.data - window.data_threshold() + 1;
            assert!(metrics.counters.data_credits >= least, "I5: {metrics:?}");
            assert!(metrics.counters.data_slots > 0, "I5: {metrics:?}");
            assert_eq!(end.recvs, end.window().rq_len());
            assert_eq!(end.link.in_flight() as usize, end.sq.len());
            // The link holds the regions of its arenas, and nobody holds any other.
            let held = end.regions.iter().filter(|region| region.handle_count() == 2).count();
            assert!(end.regions.iter().all(|region| region.handle_count() <= 2));
            assert_eq!(held == 0, metrics.landing_chunks == 0);
        }
        for (owner, writer) in [(0, 1), (1, 0)] {
            let (owner, writer) =
                (self.ends[owner].link.metrics(), self.ends[writer].link.metrics());
            let known = writer.peer_chunks;
            assert_eq!(known, owner.landing_chunks, "{owner:?} {writer:?}");
            let free = writer.peer_free + owner.landing_releasing;
            // A recalled arena is not free to write.
            let is_whole = writer.peer_usable == known;
            assert!(free == known || free < known && !is_whole, "{owner:?} {writer:?}");
        }
    }

    /// Arenas that came and went.
    fn count_given_up(&mut self) {
        for end in &self.ends {
            let gone = end.regions.iter().filter(|region| region.handle_count() == 1).count();
            self.seen.given_up += gone as u64;
        }
    }

    fn check_all_delivered_or_revoked(&self) {
        for end in &self.ends {
            if !end.link.is_closing() {
                assert_eq!(end.oracle.begun_and_missing(), [], "never arrived");
            }
            assert_eq!(end.oracle.pending(), [], "never arrived; {:?}", end.link.metrics());
        }
    }

    fn check_closed(&self) {
        for (end, peer) in [(0, 1), (1, 0)].map(|(end, peer)| (&self.ends[end], &self.ends[peer])) {
            assert_eq!(end.closed_by_peer, peer.link.is_closing());
            assert_eq!(peer.link.is_close_completed(), peer.link.is_closing());
            if peer.link.is_closing() {
                assert_eq!(peer.link.in_flight(), 0);
                assert!(peer.sq.is_empty());
            }
        }
    }

    /// Revokes everything that never left.
    fn revoke_all(&mut self) {
        for at in [0, 1] {
            for tag in self.ends[at].oracle.pending() {
                self.revoke_tag(at, tag);
            }
        }
    }

    fn overtakes(&self) -> u64 {
        self.ends.iter().map(|end| end.oracle.overtakes).sum()
    }
}

fn close_reason() -> CloseReason {
    CloseReason::new(CloseCode::Normal, "done")
}

/// Most operations of a run of a seed.
const STEPS: u64 = 400;

/// Events of a run.
#[derive(Default)]
pub struct Met {
    pub seen: Seen,
    /// Small messages that overtook bulk.
    pub overtakes: u64,
}

fn steps(rng: &mut Rng, most: u64) -> World {
    let mut world = World::new(rng);
    let mut steps = Steps::new(rng, most);
    while steps.next(rng) {
        world.step(rng);
    }
    world
}

/// Operations in any order, after which everything is returned.
///
/// # Panics
/// If a promise is broken.
pub fn run(rng: &mut Rng) -> Met {
    let mut world = steps(rng, STEPS);
    world.drain(rng);
    world.check_quiescent();
    world.count_given_up();
    Met { seen: world.seen, overtakes: world.overtakes() }
}

/// Close at any moment is the last frame and overruns nothing.
///
/// # Panics
/// If a promise is broken.
pub fn run_closing(rng: &mut Rng) {
    let mut world = steps(rng, STEPS / 4);
    world.close(rng.chance(50));
    if rng.chance(50) {
        for _ in 0..rng.below(STEPS / 4) {
            world.step(rng);
        }
    }
    world.drain(rng);
    world.check_closed();
}

/// The messages still queued when both ends close are known.
///
/// # Panics
/// If a promise is broken.
pub fn run_left_behind(rng: &mut Rng) {
    let mut world = steps(rng, STEPS / 4);
    world.close(true);
    world.close(false);
    world.drain(rng);
    world.revoke_all();
    world.check_all_delivered_or_revoked();
}
