//! The world: two links, what lies between them, and the rules of a QP pair that both rely on.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rpc_transport::config::LinkConfig;
use rpc_transport::frame::{CloseCode, CloseReason, Kind, flags};
use rpc_transport::handshake::{Features, Offer};
use rpc_transport::link::{Inbound, Lane, Link, Revoked, SubmitError, Transmit};
use rpc_transport::message::Message;

use super::oracle::Oracle;
use super::random::Random;

struct Packet {
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
    closed_by_peer: bool,
}

pub(crate) struct World {
    now: Instant,
    ends: [End; 2],
    idle_acks: bool,
    pub(crate) aborts: u64,
    pub(crate) pings: u64,
}

fn config(random: &mut Random) -> LinkConfig {
    let buffer = random.pick(&[256, 257, 300, 1024]);
    LinkConfig::default()
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
            closed_by_peer: false,
        }
    }

    /// Posts a frame, as a QP would take it. Gives its kind.
    fn post(
        wire: &mut VecDeque<Packet>,
        sq: &mut VecDeque<Option<u64>>,
        transmit: &Transmit<'_>,
    ) -> (u8, u8) {
        let (first, second) = transmit.frame.parts();
        let bytes = [first, second].concat();
        let head = (bytes[0], bytes[1]);
        let token = transmit.signaled.then_some(transmit.token);
        sq.push_back(token);
        wire.push_back(Packet { imm: transmit.imm, bytes, token });
        head
    }

    fn on_posted(&mut self, (kind, flag): (u8, u8)) {
        let budget = self.config.send_queue_budget();
        // One slot more is the beacon's.
        assert!(self.sq.len() < budget.sq_len() as usize, "SQ overrun");
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
        let features = random.pick(&[Features::NONE, Features::ACK_IMMEDIATE]);
        let end = |own: usize| End::new(&configs[own], &configs[1 - own], features, now);
        let idle_acks = random.below(2) == 0;
        Self { now, ends: [end(0), end(1)], idle_acks, aborts: 0, pings: 0 }
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
        if len > max {
            let mut out = rpc_transport::outbound::OutBuf::new();
            out.extend_from_slice(&vec![0; len]);
            let refused = end.link.submit(lane, u64::MAX, out);
            assert!(matches!(refused, Err(SubmitError::TooLarge { .. } | SubmitError::Closed)));
            return;
        }
        if end.link.is_closing() {
            return;
        }
        let (tag, out) = end.oracle.submit(lane, len, eager);
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
                self.aborts += 1;
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
        let size = usize::try_from(peer.own.receive_buffer_bytes).expect("small");
        assert!(packet.bytes.len() <= size, "frame of {} bytes", packet.bytes.len());
        assert!(peer.recvs > 0, "a frame found no posted RECV");
        peer.recvs -= 1;
        peer.received.push_back(packet);
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
            Inbound::Message => peer.oracle.on_delivered(&message),
            Inbound::Assembled(message) => peer.oracle.on_delivered(&message),
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
        self.ends[at].link.on_timeout(self.now).expect("nobody is dead");
    }

    fn transmit(&mut self, at: usize) -> bool {
        let end = &mut self.ends[at];
        let Some(transmit) = end.link.poll_transmit() else { return false };
        let head = End::post(&mut end.wire, &mut end.sq, &transmit);
        self.pings += u64::from(head.0 == Kind::Ping as u8);
        end.on_posted(head);
        true
    }

    fn pump(&mut self, at: usize) {
        while self.transmit(at) {}
        self.ends[at].check_pumped();
    }

    pub(crate) fn close(&mut self, at: bool) {
        self.ends[usize::from(at)].link.close(close_reason());
        self.pump(usize::from(at));
    }

    /// Random order, until nothing moves any more.
    pub(crate) fn drain(&mut self, random: &mut Random) {
        loop {
            for at in [0, 1] {
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
                return;
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
            let window = end.remote.window;
            let least = window.data - window.data_threshold() + 1;
            assert!(metrics.counters.data_credits >= least, "I5: {metrics:?}");
            assert!(metrics.counters.data_slots > 0, "I5: {metrics:?}");
            assert_eq!(end.recvs, end.config.window().rq_len());
            assert_eq!(end.link.in_flight() as usize, end.sq.len());
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
