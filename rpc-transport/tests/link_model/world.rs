//! The world: two links, what lies between them, and the rules of a QP pair that both rely on.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rpc_transport::device::RemoteSlice;
use rpc_transport::device::soft;
use rpc_transport::memory::region::{Access, MemoryRegion, ProtectionDomain};
use rpc_transport::message::payload::Payload;
use rpc_transport::message::received::Message;
use rpc_transport::message::reply_slot::{PeerSlot, SlotOffer};
use rpc_transport::protocol::arena::ArenaConfig;
use rpc_transport::protocol::config::LinkConfig;
use rpc_transport::protocol::frame::{CloseCode, CloseReason, Kind, flags};
use rpc_transport::protocol::handshake::{Features, Offer};
use rpc_transport::protocol::link::{
    Inbound, Lane, Link, Put, Revoked, SliceBytes, SubmitError, Transmit,
};

use super::oracle::Oracle;
use super::random::Random;

/// Bytes that an advertised slot takes in a frame.
const SLOT_BYTES: usize = 24;

struct Packet {
    /// What is written before the frame arrives.
    writes: Vec<(RemoteSlice, Vec<u8>)>,
    imm: Option<u32>,
    bytes: Vec<u8>,
    /// Token, if the sender's WR is signaled.
    token: Option<u64>,
}

struct End {
    link: Link,
    config: LinkConfig,
    own: Offer,
    remote: Offer,
    /// RECVs posted.
    recvs: u32,
    /// Posted by this end, not yet at the peer.
    wire: VecDeque<Packet>,
    /// Arrived here, completion not polled.
    received: VecDeque<Packet>,
    /// Send completions not polled.
    completed: VecDeque<u64>,
    /// Tokens of WRs that hold an SQ slot, `None` for unsignaled ones.
    sq: VecDeque<Option<u64>>,
    /// Of all data frames ever sent, whether each was a segment.
    data_frames: Vec<bool>,
    /// What this end sent.
    oracle: Oracle,
    domain: ProtectionDomain,
    /// Every arena that this end ever had.
    regions: Vec<MemoryRegion>,
    /// Tails that the application holds, by the tag of their message.
    held: Vec<(u64, Payload)>,
    /// Memory that was offered for replies.
    offered: Vec<MemoryRegion>,
    /// The peer's slots that a reply may be placed in.
    slots: Vec<PeerSlot>,
    closed_by_peer: bool,
}

/// How often the interesting cases occurred.
#[derive(Default, Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) aborts: u64,
    pub(crate) pings: u64,
    pub(crate) written: u64,
    pub(crate) placed: u64,
    pub(crate) slices: u64,
    pub(crate) remote_tails: u64,
    pub(crate) private_tails: u64,
    pub(crate) blocked: u64,
    pub(crate) given_up: u64,
}

impl Seen {
    pub(crate) fn all(&mut self) -> [(&'static str, &mut u64); 9] {
        [
            ("aborts", &mut self.aborts),
            ("pings", &mut self.pings),
            ("written segments", &mut self.written),
            ("placed segments", &mut self.placed),
            ("slices ahead of their frame", &mut self.slices),
            ("remote tails", &mut self.remote_tails),
            ("private tails", &mut self.private_tails),
            ("waits for chunks", &mut self.blocked),
            ("arenas given up", &mut self.given_up),
        ]
    }

    pub(crate) fn add(&mut self, mut other: Self) {
        for ((_, count), (_, more)) in self.all().into_iter().zip(other.all()) {
            *count += *more;
        }
    }
}

pub(crate) struct World {
    now: Instant,
    ends: [End; 2],
    idle_acks: bool,
    pub(crate) seen: Seen,
}

fn config(random: &mut Random) -> LinkConfig {
    let buffer = random.pick(&[256, 257, 300, 1024]);
    let arena_chunks = random.pick(&[1, 2, 8, 32]);
    let arena = ArenaConfig {
        log2_chunk: 12,
        arena_chunks,
        max_chunks: u32::from(arena_chunks) * random.pick(&[0, 1, 1, 2, 4]),
        keep_chunks: random.pick(&[0, 0, u32::from(arena_chunks)]),
        idle: Duration::from_secs(2),
    };
    LinkConfig::default()
        .arena(arena)
        .arena_threshold_bytes(random.pick(&[0, 2000, 9000]))
        .arena_segment_bytes(random.pick(&[4096, 5000, 1 << 16]))
        .data_credits(random.pick(&[1, 2, 3, 4, 5, 6, 7, 8, 16, 33, 64]))
        .ack_credits(random.pick(&[2, 2, 3, 4, 9]))
        .receive_buffer_bytes(buffer)
        .max_message_bytes(random.pick(&[u64::from(buffer), 10_000, 1 << 20]))
        .send_queue_slots(random.pick(&[1, 2, 3, 4, 5, 8, 16, 64]))
        .bulk_queue_bytes(random.pick(&[1, 1000, 1 << 20]))
        .keep_alive(Some(Duration::from_secs(1)))
        // The wires may stand still for any time: nobody is dead.
        .keep_alive_timeout(Duration::from_secs(1 << 40))
}

impl End {
    fn new(own: &LinkConfig, peer: &LinkConfig, features: Features, now: Instant) -> Self {
        own.validate().expect("valid");
        let offer = |config| Offer::new(config, features, 1);
        let agreed = offer(own).agree_as_client(&offer(peer)).expect("valid");
        Self {
            link: Link::new(own, &agreed, now).expect("valid"),
            config: own.clone(),
            own: offer(own),
            remote: agreed.remote,
            recvs: own.window().rq_len(),
            wire: VecDeque::new(),
            received: VecDeque::new(),
            completed: VecDeque::new(),
            sq: VecDeque::new(),
            data_frames: Vec::new(),
            oracle: Oracle::default(),
            domain: soft::mem_device().allocate_pd().expect("memory"),
            regions: Vec::new(),
            held: Vec::new(),
            offered: Vec::new(),
            slots: Vec::new(),
            closed_by_peer: false,
        }
    }

    /// Posts a frame, as a QP would take it. Gives its kind; `None` for WRITEs alone.
    fn post(
        wire: &mut VecDeque<Packet>,
        sq: &mut VecDeque<Option<u64>>,
        transmit: &Transmit<'_>,
    ) -> Option<(u8, u8)> {
        let (first, second) = transmit.frame.parts();
        let bytes = [first, second].concat();
        let head = bytes.first().copied().zip(bytes.get(1).copied());
        let token = transmit.signaled.then_some(transmit.token);
        let written = |put: &Put| {
            let mut bytes = Vec::new();
            put.part.append_to(0..put.part.len(), &mut bytes);
            (put.to, bytes)
        };
        let writes: Vec<_> = transmit.writes.iter().map(written).collect();
        sq.extend(writes.iter().map(|_| None));
        match sq.back_mut() {
            Some(last) if head.is_none() => *last = token,
            _ => sq.push_back(token),
        }
        wire.push_back(Packet { writes, imm: transmit.imm, bytes, token });
        head
    }

    fn on_posted(&mut self, head: Option<(u8, u8)>) {
        let budget = self.config.send_queue_budget();
        // One slot more is the beacon's.
        assert!(self.sq.len() < budget.sq_len() as usize, "SQ overrun");
        let Some((kind, flag)) = head else { return };
        let len = self.wire.back().map_or(0, |packet| packet.bytes.len());
        let max = self.remote.receive_buffer_bytes.min(self.own.receive_buffer_bytes);
        let max = usize::try_from(max).expect("small");
        assert!((1..=max).contains(&len), "frame of {len} bytes");
        if kind != Kind::Ack as u8 && kind != Kind::Close as u8 {
            self.data_frames.push(flag & flags::SEGMENT != 0);
            // Credits come back oldest first, so those out are the newest frames'.
            let window = self.remote.window;
            let out = usize::from(window.data - self.link.metrics().counters.data_credits);
            let newest = &self.data_frames[self.data_frames.len() - out..];
            let bulk = newest.iter().filter(|is_bulk| **is_bulk).count();
            assert!(bulk <= usize::from(window.data_threshold()), "bulk holds {bulk} credits");
        }
    }

    /// What must hold after a full pump.
    fn check_pumped(&self) {
        let metrics = self.link.metrics();
        let counters = metrics.counters;
        if self.link.is_closing() {
            return;
        }
        if counters.data_credits > 0 && counters.data_slots > 0 {
            let waiting = metrics.urgent_count + metrics.small_count;
            assert_eq!(waiting, 0, "messages wait with {counters:?}");
        }
        let due = counters.owed.data >= self.config.window().data_threshold()
            || counters.owed.ack >= self.config.window().ack_threshold();
        assert!(!due || counters.ack_credits == 0 || counters.ack_slots == 0, "I4: {counters:?}");
    }
}

impl World {
    pub(crate) fn new(random: &mut Random) -> Self {
        let now = Instant::now();
        let configs = [config(random), config(random)];
        let both = Features::ARENA.with(Features::REPLY_SLOTS);
        let arena = random.pick(&[Features::NONE, Features::ARENA, both, both]);
        let features = random.pick(&[Features::NONE, Features::ACK_IMMEDIATE]).with(arena);
        let end = |own: usize| End::new(&configs[own], &configs[1 - own], features, now);
        let mut ends = [end(0), end(1)];
        for end in &mut ends {
            let short = SliceBytes { beside_small: 1000, alone: 3000 };
            end.link.set_slices(random.pick(&[SliceBytes::WHOLE, SliceBytes::COPIED, short]));
        }
        let idle_acks = random.below(2) == 0;
        Self { now, ends, idle_acks, seen: Seen::default() }
    }

    /// One random legal operation at a random end.
    pub(crate) fn step(&mut self, random: &mut Random) {
        let at = usize::from(random.below(2) == 0);
        match random.below(100) {
            0..20 => self.submit(at, random),
            20..26 => self.revoke(at, random),
            26..46 => self.arrive(at),
            46..66 => self.receive(at),
            66..76 => self.complete(at),
            76..80 => self.idle_ack(at),
            80..84 => self.pass_time(at, random),
            // A driver that drains one frame at a time is legal as long as it gets to the end.
            84..88 => _ = self.transmit(at),
            88..92 => self.let_go(at, random),
            92..94 => self.grow(at, random),
            _ => self.pump(at),
        }
        if random.below(3) > 0 {
            self.pump(at);
        }
    }

    fn submit(&mut self, at: usize, random: &mut Random) {
        let end = &mut self.ends[at];
        let eager = end.link.eager_bytes();
        let max = usize::try_from(end.remote.max_message_bytes).expect("small");
        let lane = random.pick(&[Lane::Urgent, Lane::Small, Lane::Small, Lane::Bulk]);
        let len = match random.below(10) {
            0..5 => 8 + random.below(64),
            5..7 => eager as u64 - random.below(4),
            7 => eager as u64 + 1 + random.below(40),
            8 => 8 + random.below(8 * eager as u64),
            _ => 8 + random.below(30 * eager as u64),
        };
        let len = usize::try_from(len).expect("small");
        let parts: Vec<usize> = match random.below(5) {
            0 => (0..1 + random.below(9))
                .map(|_| random.pick(&[1, 37, 500, 4096, 9000, 9001]))
                .collect(),
            _ => Vec::new(),
        };
        if len + parts.iter().sum::<usize>() > max && len <= max {
            return;
        }
        if len > max {
            let mut out = rpc_transport::message::outgoing::OutBuf::new();
            out.extend_from_slice(&vec![0; len]);
            let refused = end.link.submit(lane, u64::MAX, out);
            assert!(matches!(refused, Err(SubmitError::TooLarge { .. } | SubmitError::Closed)));
            return;
        }
        if end.link.is_closing() {
            return;
        }
        let offers = random.below(4) == 0;
        let eager = if offers { eager - SLOT_BYTES } else { eager };
        let (tag, mut out) = end.oracle.submit(lane, len, &parts, eager);
        if offers {
            let bytes = random.pick(&[1, 5000, 40_000]);
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

    fn revoke(&mut self, at: usize, random: &mut Random) {
        let end = &mut self.ends[at];
        if end.oracle.next_tag == 0 {
            return;
        }
        // Mostly of the newest, as the old ones are gone.
        let back = 1 + random.below(end.oracle.next_tag.min(8));
        self.revoke_tag(at, self.ends[at].oracle.next_tag - back);
    }

    fn revoke_tag(&mut self, at: usize, tag: u64) {
        let end = &mut self.ends[at];
        match end.link.revoke(tag) {
            Revoked::Whole(bytes) => end.oracle.on_revoked(tag, Some(&bytes)),
            Revoked::Aborted => {
                end.oracle.on_revoked(tag, None);
                self.seen.aborts += 1;
            }
            Revoked::TooLate => {}
        }
    }

    /// The oldest frame on the wire *from* this end reaches the peer's QP.
    fn arrive(&mut self, at: usize) {
        let Some(packet) = self.ends[at].wire.pop_front() else { return };
        if let Some(token) = packet.token {
            self.ends[at].completed.push_back(token);
        }
        let peer = &mut self.ends[1 - at];
        let has_frame = !packet.bytes.is_empty();
        let size = usize::try_from(peer.own.receive_buffer_bytes).expect("small");
        assert!(packet.bytes.len() <= size, "frame of {} bytes", packet.bytes.len());
        assert!(peer.recvs > 0 || !has_frame, "a frame found no posted RECV");
        peer.recvs -= u32::from(has_frame);
        for (to, bytes) in &packet.writes {
            // The newest: an rkey may come again once its region is gone.
            let mut regions = peer.regions.iter().rev().chain(peer.offered.iter().rev());
            let region = regions.find(|region| region.rkey() == to.rkey);
            let region = region.expect("an rkey that was advertised");
            let offset = to.address - region.remote_address(0);
            region.write_as_peer(usize::try_from(offset).expect("small"), bytes);
        }
        if has_frame {
            peer.received.push_back(packet);
        }
    }

    /// The application reads a tail, and drops it.
    fn let_go(&mut self, at: usize, random: &mut Random) {
        if random.below(2) == 0 {
            self.ends[at].slots.pop();
        }
        let count = self.ends[at].held.len() as u64;
        if count == 0 {
            return;
        }
        let (tag, tail) =
            self.ends[at].held.swap_remove(usize::try_from(random.below(count)).expect("small"));
        self.ends[1 - at].oracle.check_tail(tag, &tail);
    }

    /// The mover gives the link the arena that it wants, if it has the memory.
    fn grow(&mut self, at: usize, random: &mut Random) {
        let end = &mut self.ends[at];
        let Some(bytes) = end.link.wanted_arena() else { return };
        if random.below(8) == 0 {
            return end.link.decline_arena();
        }
        let bytes = usize::try_from(bytes).expect("small");
        let region = end.domain.allocate(bytes, Access::REMOTE_WRITE).expect("memory");
        end.regions.push(region.clone());
        end.link.add_arena(region).expect("wanted");
    }

    /// Polls the oldest receive completion.
    fn receive(&mut self, at: usize) {
        let [first, second] = &mut self.ends;
        let (end, peer) = if at == 0 { (first, second) } else { (second, first) };
        let Some(packet) = end.received.pop_front() else { return };
        end.recvs += 1;
        let mut message = Message::copied(&packet.bytes);
        let inbound = end.link.on_frame(self.now, packet.imm, &mut message).expect("legal");
        match inbound {
            Inbound::Message => {
                end.slots.extend(message.take_slot());
                peer.oracle.on_delivered(&message, false);
            }
            Inbound::Assembled(mut message) => {
                end.slots.extend(message.take_slot());
                let tail = message.take_tail();
                let tag = peer.oracle.on_delivered(&message, tail.is_some());
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
        let end = &mut self.ends[at];
        let Some(token) = end.completed.pop_front() else { return };
        while let Some(freed) = end.sq.pop_front() {
            if freed == Some(token) {
                break;
            }
        }
        end.link.on_send_completion(token);
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

    fn pass_time(&mut self, at: usize, random: &mut Random) {
        self.now += Duration::from_millis(random.below(1500));
        self.ends[at].link.on_timeout(self.now, None).expect("nobody is dead");
    }

    fn transmit(&mut self, at: usize) -> bool {
        let end = &mut self.ends[at];
        let Some(transmit) = end.link.poll_transmit() else { return false };
        let head = End::post(&mut end.wire, &mut end.sq, &transmit);
        let is_written = !transmit.writes.is_empty();
        let (kind, flag) = head.unwrap_or_default();
        self.seen.slices += u64::from(head.is_none());
        self.seen.placed += u64::from(flag & flags::SLOT_PLACED != 0);
        self.seen.pings += u64::from(kind == Kind::Ping as u8);
        self.seen.written += u64::from(is_written && head.is_some());
        end.on_posted(head);
        true
    }

    fn pump(&mut self, at: usize) {
        while self.transmit(at) {}
        let end = &self.ends[at];
        end.check_pumped();
        let metrics = end.link.metrics();
        let is_blocked = metrics.bulk_unsent_bytes > 0
            && metrics.peer_chunks > 0
            && metrics.peer_free == 0
            && metrics.counters.data_credits > 0;
        self.seen.blocked += u64::from(is_blocked);
    }

    pub(crate) fn close(&mut self, at: bool) {
        self.ends[usize::from(at)].link.close(close_reason());
        self.pump(usize::from(at));
    }

    /// Random order, until nothing moves any more.
    pub(crate) fn drain(&mut self, random: &mut Random) {
        loop {
            for at in [0, 1] {
                self.grow(at, random);
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
            let is_late = random.below(4) > 0 && !moves.is_empty();
            if !is_late && !self.ends[0].completed.is_empty() {
                moves.push(|world| world.complete(0));
            }
            if !is_late && !self.ends[1].completed.is_empty() {
                moves.push(|world| world.complete(1));
            }
            if moves.is_empty() {
                // At the latest now the application lets go of something.
                let holds = |at: &usize| {
                    !self.ends[*at].held.is_empty() || !self.ends[*at].slots.is_empty()
                };
                let Some(at) = [0, 1].into_iter().find(holds) else { return };
                self.let_go(at, random);
                continue;
            }
            random.pick(&moves)(self);
        }
    }

    pub(crate) fn check_quiescent(&self) {
        self.check_all_delivered_or_revoked();
        for end in &self.ends {
            let metrics = end.link.metrics();
            assert!(end.link.is_idle(), "{metrics:?}");
            assert_eq!(metrics.assembly_bytes, 0);
            assert_eq!(metrics.open_slots, 0, "slots are missing: {metrics:?}");
            assert_eq!(metrics.landing_held, 0, "chunks are missing: {metrics:?}");
            let window = end.remote.window;
            let least = window.data - window.data_threshold() + 1;
            assert!(metrics.counters.data_credits >= least, "I5: {metrics:?}");
            assert!(metrics.counters.data_slots > 0, "I5: {metrics:?}");
            assert_eq!(end.recvs, end.config.window().rq_len());
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
            // What is asked back is not free to write.
            let is_whole = writer.peer_usable == known;
            assert!(free == known || free < known && !is_whole, "{owner:?} {writer:?}");
        }
    }

    /// Arenas that came and went.
    pub(crate) fn count_given_up(&mut self) {
        for end in &self.ends {
            let gone = end.regions.iter().filter(|region| region.handle_count() == 1).count();
            self.seen.given_up += gone as u64;
        }
    }

    pub(crate) fn check_all_delivered_or_revoked(&self) {
        for end in &self.ends {
            assert_eq!(end.oracle.pending(), [], "never arrived; {:?}", end.link.metrics());
        }
    }

    pub(crate) fn check_closed(&self) {
        for (end, peer) in [(0, 1), (1, 0)].map(|(end, peer)| (&self.ends[end], &self.ends[peer])) {
            assert_eq!(end.closed_by_peer, peer.link.is_closing());
            assert_eq!(peer.link.is_close_completed(), peer.link.is_closing());
            if peer.link.is_closing() {
                assert_eq!(peer.link.in_flight(), 0);
                assert!(peer.sq.is_empty());
            }
        }
    }

    /// Takes back all that never left.
    pub(crate) fn revoke_all(&mut self) {
        for at in [0, 1] {
            for tag in self.ends[at].oracle.pending() {
                self.revoke_tag(at, tag);
            }
        }
    }

    pub(crate) fn overtakes(&self) -> u64 {
        self.ends.iter().map(|end| end.oracle.overtakes).sum()
    }
}

fn close_reason() -> CloseReason {
    CloseReason::new(CloseCode::Normal, "done")
}
