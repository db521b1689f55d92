//! One end of the world: a link, its application, and the rules of the QP below it.
//!
//! Owns the checks of a QP for what a correct sender must never do: overrun a queue, exceed a
//! buffer.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rpc_transport::device::RemoteSlice;
use rpc_transport::device::soft;
use rpc_transport::memory::region::{MemoryRegion, ProtectionDomain};
use rpc_transport::message::payload::Payload;
use rpc_transport::message::payload_stream::PayloadStream;
use rpc_transport::message::received::Message;
use rpc_transport::message::reply_slot::PeerSlot;
use rpc_transport::protocol::arena::ArenaConfig;
use rpc_transport::protocol::config::LinkConfig;
use rpc_transport::protocol::credit::Window;
use rpc_transport::protocol::frame::{Kind, flags};
use rpc_transport::protocol::handshake::{Features, Offer};
use rpc_transport::protocol::link::{Link, RemoteWrite, Transmit};

use super::oracle::Oracle;
use test_kit::Rng;

pub(crate) struct Packet {
    /// Bytes written before the frame arrives.
    pub(crate) writes: Vec<(RemoteSlice, Vec<u8>)>,
    pub(crate) imm: Option<u32>,
    pub(crate) bytes: Vec<u8>,
    /// Token, if the sender's WR is signaled.
    pub(crate) token: Option<u64>,
}

pub(crate) struct End {
    pub(crate) link: Link,
    pub(crate) config: LinkConfig,
    pub(crate) own: Offer,
    pub(crate) remote: Offer,
    /// RECVs posted.
    pub(crate) recvs: u32,
    /// Posted by this end, not yet at the peer.
    pub(crate) wire: VecDeque<Packet>,
    /// Arrived here, completion not polled.
    pub(crate) received: VecDeque<Packet>,
    /// Send completions not polled.
    pub(crate) completed: VecDeque<u64>,
    /// Tokens of WRs that hold an SQ slot, `None` for unsignaled ones.
    pub(crate) sq: VecDeque<Option<u64>>,
    /// For all data frames ever sent, whether each was a segment.
    pub(crate) data_frames: Vec<bool>,
    /// What this end sent.
    pub(crate) oracle: Oracle,
    pub(crate) domain: ProtectionDomain,
    /// Every arena that this end ever had.
    pub(crate) regions: Vec<MemoryRegion>,
    /// Tails that the application holds, by the tag of their message.
    pub(crate) held: Vec<(u64, Payload)>,
    /// Tails that arrive while they are read, and the read position.
    pub(crate) streams: Vec<Stream>,
    /// Memory that was offered for replies.
    pub(crate) offered: Vec<MemoryRegion>,
    /// The peer's slots that a reply may be placed in.
    pub(crate) slots: Vec<PeerSlot>,
    pub(crate) closed_by_peer: bool,
}

/// A tail that is read while it arrives.
pub(crate) struct Stream {
    pub(crate) tag: u64,
    pub(crate) tail: PayloadStream,
    pub(crate) read: u64,
}

pub(crate) fn config(rng: &mut Rng) -> LinkConfig {
    let buffer = rng.pick(&[256, 257, 300, 1024]);
    let arena_chunks = rng.pick(&[1, 2, 8, 32]);
    let arena = ArenaConfig::default()
        .log2_chunk(12)
        .arena_chunks(arena_chunks)
        .max_chunks(u32::from(arena_chunks) * rng.pick(&[0, 1, 1, 2, 4]))
        .keep_chunks(rng.pick(&[0, 0, u32::from(arena_chunks)]))
        .idle(Duration::from_secs(2));
    LinkConfig::default()
        .arena(arena)
        .arena_threshold_bytes(rng.pick(&[0, 2000, 9000]))
        .arena_segment_bytes(rng.pick(&[4096, 5000, 1 << 16]))
        .data_credits(rng.pick(&[1, 2, 3, 4, 5, 6, 7, 8, 16, 33, 64]))
        .ack_credits(rng.pick(&[2, 2, 3, 4, 9]))
        .receive_buffer_bytes(buffer)
        .max_message_bytes(rng.pick(&[u64::from(buffer), 10_000, 1 << 20]))
        .assembly_bytes(rng.pick(&[u64::from(buffer), 3000, 12_000, 1 << 20]))
        .send_queue_slots(rng.pick(&[1, 2, 3, 4, 5, 8, 16, 64]))
        .bulk_queue_bytes(rng.pick(&[1, 1000, 1 << 20]))
        .keep_alive(Some(Duration::from_secs(1)))
        // The wires may stand still for any time without a death.
        .keep_alive_timeout(Duration::from_secs(1 << 40))
}

impl End {
    pub(crate) fn new(
        own: &LinkConfig,
        peer: &LinkConfig,
        features: Features,
        now: Instant,
    ) -> Self {
        own.validate().expect("valid");
        let offer = |config| Offer::new(config, features, 1);
        let agreed = offer(own).agree_as_client(&offer(peer)).expect("valid");
        Self {
            link: Link::new(own, &agreed, now).expect("valid"),
            config: own.clone(),
            own: offer(own),
            remote: agreed.remote,
            recvs: own.first_window().rq_len(),
            wire: VecDeque::new(),
            received: VecDeque::new(),
            completed: VecDeque::new(),
            sq: VecDeque::new(),
            data_frames: Vec::new(),
            oracle: Oracle::default(),
            domain: soft::mem_device().allocate_pd().expect("memory"),
            regions: Vec::new(),
            held: Vec::new(),
            streams: Vec::new(),
            offered: Vec::new(),
            slots: Vec::new(),
            closed_by_peer: false,
        }
    }

    /// Posts a frame, as a QP would take it. Returns its kind; `None` for WRITEs alone.
    pub(crate) fn post(
        wire: &mut VecDeque<Packet>,
        sq: &mut VecDeque<Option<u64>>,
        transmit: &Transmit<'_>,
    ) -> Option<(u8, u8)> {
        let (first, second) = transmit.frame.parts();
        let bytes = [first, second].concat();
        let head = bytes.first().copied().zip(bytes.get(1).copied());
        let token = transmit.signaled.then_some(transmit.token);
        let written = |put: &RemoteWrite| {
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

    /// Polls the oldest receive completion, and posts its RECV again.
    pub(crate) fn next_received(&mut self) -> Option<(Option<u32>, Message)> {
        let packet = self.received.pop_front()?;
        self.recvs += 1;
        Some((packet.imm, Message::copied(&packet.bytes)))
    }

    pub(crate) fn has_received(&self) -> bool {
        !self.received.is_empty()
    }

    /// This end's current offer.
    pub(crate) fn window(&self) -> Window {
        Window { data: self.link.metrics().counters.local_window, ..self.own.window }
    }

    /// Posts the RECVs that the peer asks for, or has no memory for them; returns whether the
    /// window grew.
    pub(crate) fn grow_window(&mut self, has_memory: bool) -> bool {
        let Some(more) = self.link.wanted_growth() else { return false };
        if !has_memory {
            self.link.decline_growth();
            return false;
        }
        self.recvs += u32::from(more);
        self.link.grow_window();
        assert!(self.window().data <= self.own.window.data, "beyond what was offered");
        true
    }

    /// Whether nothing of this end is on its way.
    pub(crate) fn is_still(&self) -> bool {
        self.wire.is_empty() && self.received.is_empty() && self.completed.is_empty()
    }

    /// Polls the oldest send completion.
    pub(crate) fn complete(&mut self) {
        let Some(token) = self.completed.pop_front() else { return };
        while let Some(freed) = self.sq.pop_front() {
            if freed == Some(token) {
                break;
            }
        }
        self.link.on_send_completion(token);
    }

    pub(crate) fn on_posted(&mut self, head: Option<(u8, u8)>) {
        let budget = self.config.send_queue_budget();
        // One more slot belongs to the beacon.
        assert!(self.sq.len() < budget.sq_len() as usize, "SQ overrun");
        let Some((kind, flag)) = head else { return };
        let len = self.wire.back().map_or(0, |packet| packet.bytes.len());
        let max = self.remote.receive_buffer_bytes.min(self.own.receive_buffer_bytes);
        let max = usize::try_from(max).expect("small");
        assert!((1..=max).contains(&len), "frame of {len} bytes");
        if kind != Kind::Ack as u8 && kind != Kind::Close as u8 {
            self.data_frames.push(flag & flags::SEGMENT != 0);
            // Credits come back oldest first, so the outstanding ones are those of the newest
            // frames.
            let counters = self.link.metrics().counters;
            let window = Window { data: counters.remote_window, ..self.remote.window };
            let out = usize::from(window.data - counters.data_credits);
            let newest = &self.data_frames[self.data_frames.len() - out..];
            let bulk = newest.iter().filter(|is_bulk| **is_bulk).count();
            assert!(bulk <= usize::from(window.data_threshold()), "bulk holds {bulk} credits");
        }
    }

    /// The conditions after a full pump.
    pub(crate) fn check_pumped(&self) {
        let metrics = self.link.metrics();
        let counters = metrics.counters;
        if self.link.is_closing() {
            return;
        }
        if counters.data_credits > 0 && counters.data_slots > 0 && !metrics.is_segment_first {
            let waiting = metrics.urgent_count + metrics.small_count;
            assert_eq!(waiting, 0, "messages wait with {counters:?}");
        }
        let window = self.window();
        let due = counters.owed.reaches(window.data_threshold(), window.ack_threshold());
        assert!(!due || counters.ack_credits == 0 || counters.ack_slots == 0, "I4: {counters:?}");
    }
}

/// The oldest frame on the wire from one end reaches the QP of the other.
pub(crate) fn arrive(from: &mut End, to: &mut End) {
    let Some(packet) = from.wire.pop_front() else { return };
    if let Some(token) = packet.token {
        from.completed.push_back(token);
    }
    let has_frame = !packet.bytes.is_empty();
    let size = usize::try_from(to.own.receive_buffer_bytes).expect("small");
    assert!(packet.bytes.len() <= size, "frame of {} bytes", packet.bytes.len());
    assert!(to.recvs > 0 || !has_frame, "a frame found no posted RECV");
    to.recvs -= u32::from(has_frame);
    for (place, bytes) in &packet.writes {
        // The newest: an rkey may be reused once its region is gone.
        let mut regions = to.regions.iter().rev().chain(to.offered.iter().rev());
        let region = regions.find(|region| region.rkey() == place.rkey);
        let region = region.expect("an rkey that was advertised");
        let offset = place.address - region.remote_address(0);
        let offset = usize::try_from(offset).expect("small");
        #[allow(unsafe_code, reason = "plays the device")]
        // SAFETY: no payload of the model is ever lent by `Payload::as_slice`.
        unsafe {
            region.write_as_peer(offset, bytes);
        }
    }
    if has_frame {
        to.received.push_back(packet);
    }
}
