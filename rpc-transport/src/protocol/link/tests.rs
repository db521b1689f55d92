use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use proptest::prelude::*;

use super::*;
use crate::message::outgoing::LEAST_HELD_BYTES;
use crate::message::part::OutPart;
use crate::message::payload::Payload;
use crate::protocol::arena::ArenaConfig;
use crate::protocol::credit::{CreditError, Grant};
use crate::protocol::frame::{CloseCode, Segment};
use crate::protocol::handshake::Offer;

mod assembly;
mod keepalive;

struct Pair {
    now: Instant,
    ends: [Link; 2],
    /// Frames in flight *to* the end.
    wires: [VecDeque<(Option<u32>, Vec<u8>)>; 2],
    delivered: [Vec<Vec<u8>>; 2],
    tails: [Vec<Payload>; 2],
}

fn link(own: &LinkConfig, peer: &LinkConfig, now: Instant) -> Link {
    own.validate().unwrap();
    let offer = |config| Offer::new(config, Features::ACK_IMMEDIATE, 7);
    let agreed = offer(own).agree_as_server(&offer(peer)).unwrap();
    Link::new(own, &agreed, now).unwrap()
}

/// UNLOCKED is one of the window: its credit comes back like any other.
#[test]
fn unlocked_spends_and_returns_a_credit() {
    let mut pair = Pair::new(&LinkConfig::default());
    let [server, client] = &mut pair.ends;
    let unlocked = server.unlock(&frame::unlocked_header()).unwrap();
    assert_eq!(unlocked.frame.parts().0, frame::unlocked_header());
    drop(unlocked);
    assert!(server.unlock(&frame::unlocked_header()).is_none(), "it is the first frame");
    client.on_unlocked().unwrap();
    assert_eq!((server.credits.counters().data_credits, client.owed_data()), (7, 1));
    pair.submit(1, Lane::Small, 1, 10);
    pair.run();
    assert_eq!(pair.ends[0].credits.counters().data_credits, 8);
    // And the server cannot send more than the window of which it took one.
    let mut pair = Pair::new(&LinkConfig::default());
    let _unlocked = pair.ends[0].unlock(&frame::unlocked_header()).unwrap();
    (0..8).for_each(|tag| pair.submit(0, Lane::Small, tag, 10));
    pair.pump(0);
    assert_eq!(pair.wires[1].len(), 7);
}

impl Pair {
    fn new(config: &LinkConfig) -> Self {
        let now = Instant::now();
        Self {
            now,
            ends: [link(config, config, now), link(config, config, now)],
            wires: Default::default(),
            delivered: Default::default(),
            tails: Default::default(),
        }
    }

    /// Advances time to `until`, calling `on_timeout` at each deadline of the end.
    fn look(&mut self, end: usize, until: Instant) -> Result<(), LinkError> {
        while let Some(at) = self.ends[end].next_deadline().filter(|at| *at <= until) {
            self.ends[end].on_timeout(at, None)?;
        }
        Ok(())
    }

    /// Transmits all frames of one end; signaled sends complete at once.
    fn pump(&mut self, end: usize) {
        let mut tokens = Vec::new();
        loop {
            while let Some(transmit) = self.ends[end].poll_transmit() {
                let (first, second) = transmit.frame.parts();
                assert_eq!(transmit.frame.len(), first.len() + second.len());
                self.wires[1 - end].push_back((transmit.imm, [first, second].concat()));
                if transmit.signaled {
                    tokens.push(transmit.token);
                }
            }
            if tokens.is_empty() {
                break;
            }
            for token in tokens.drain(..) {
                self.ends[end].on_send_completion(token);
            }
        }
    }

    fn receive(&mut self, end: usize) -> Option<Inbound> {
        let (imm, bytes) = self.wires[end].pop_front()?;
        let inbound = self.ends[end].on_frame(self.now, imm, &bytes).unwrap();
        match &inbound {
            Inbound::Message { payload_at, .. } => {
                self.delivered[end].push(bytes[*payload_at..].to_vec());
            }
            Inbound::Assembled(message) => {
                self.delivered[end].push(message.to_vec());
                self.tails[end].extend(message.tail().cloned());
            }
            _ => {}
        }
        Some(inbound)
    }

    /// Transmits in both directions until nothing is left to send.
    fn run(&mut self) {
        loop {
            self.pump(0);
            self.pump(1);
            let moved = [self.receive(0).is_some(), self.receive(1).is_some()];
            if moved == [false, false] {
                return;
            }
        }
    }

    fn submit(&mut self, end: usize, lane: Lane, tag: u64, len: usize) {
        self.ends[end].submit(lane, tag, out(tag, len)).unwrap();
    }
}

pub(super) fn pattern(tag: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (tag * 31 + at).to_le_bytes()[0]).collect()
}

pub(super) fn out(tag: u64, len: usize) -> OutBuf {
    let mut out = OutBuf::new();
    out.extend_from_slice(&pattern(tag, len));
    out
}

pub(super) fn small_config() -> LinkConfig {
    LinkConfig::default().data_credits(8).send_queue_slots(8).receive_buffer_bytes(256)
}

#[test]
fn messages_arrive_and_grants_flow_for_ever() {
    let mut pair = Pair::new(&small_config());
    for tag in 0..1000 {
        pair.submit((tag % 3 == 0) as usize, Lane::Small, tag, 20);
        pair.run();
    }
    assert_eq!(pair.delivered[0].len() + pair.delivered[1].len(), 1000);
    assert_eq!(pair.delivered[0][0], pattern(0, 20));
    for end in &pair.ends {
        assert!(end.is_idle());
        // I5: D - T + 1.
        assert!(end.metrics().counters.data_credits >= 4);
    }
}

#[test]
fn large_message_arrives_whole_and_is_overtaken() {
    let mut pair = Pair::new(&small_config());
    pair.submit(0, Lane::Bulk, 1, 100_000);
    pair.submit(0, Lane::Small, 2, 10);
    pair.submit(0, Lane::Urgent, 3, 10);
    pair.run();
    let order = [pattern(3, 10), pattern(2, 10), pattern(1, 100_000)];
    assert_eq!(pair.delivered[1], order);
}

#[test]
fn bulk_leaves_credits_for_small_messages() {
    let mut pair = Pair::new(&small_config());
    pair.submit(0, Lane::Bulk, 1, 100_000);
    pair.pump(0);
    // T = 8 / 2 + 1 = 5, but half of the SQ, 4, comes first; its completions are in.
    assert_eq!(pair.wires[1].len(), 5);
    pair.submit(0, Lane::Small, 2, 10);
    pair.pump(0);
    assert_eq!(pair.wires[1].len(), 6);
}

#[test]
fn flood_of_small_messages_does_not_starve_bulk() {
    let mut pair = Pair::new(&small_config());
    pair.submit(0, Lane::Bulk, 1, 300);
    for tag in 2..200 {
        pair.submit(0, Lane::Small, tag, 10);
    }
    pair.run();
    let at = pair.delivered[1].iter().position(|message| message.len() == 300).unwrap();
    assert!((16..100).contains(&at), "bulk came {at}th");
}

#[test]
fn a_queued_message_is_revoked_whole() {
    let mut pair = Pair::new(&small_config());
    pair.submit(0, Lane::Small, 1, 10);
    let Revoked::Whole(message) = pair.ends[0].revoke(1) else { panic!("not whole") };
    assert_eq!(*message, pattern(1, 10));
    assert!(matches!(pair.ends[0].revoke(1), Revoked::TooLate));
    pair.submit(0, Lane::Small, 2, 10);
    pair.run();
    assert!(matches!(pair.ends[0].revoke(2), Revoked::TooLate));
    assert_eq!(pair.delivered[1], [pattern(2, 10)]);
}

#[test]
fn partly_sent_message_is_aborted_next_arrives() {
    let mut pair = Pair::new(&small_config());
    pair.submit(0, Lane::Bulk, 1, 100_000);
    pair.submit(0, Lane::Bulk, 2, 1000);
    pair.pump(0);
    while pair.receive(1).is_some() {}
    assert!(pair.ends[1].metrics().assembly_bytes > 0);
    assert!(matches!(pair.ends[0].revoke(1), Revoked::Aborted));
    assert!(!pair.ends[0].is_idle());
    pair.run();
    assert_eq!(pair.delivered[1], [pattern(2, 1000)]);
    assert_eq!(pair.ends[1].metrics().assembly_bytes, 0);
    assert!(pair.ends[0].is_idle());
}

#[test]
fn message_beyond_peers_limit_is_refused_alone() {
    let mut pair = Pair::new(&small_config().max_message_bytes(1000));
    let error = pair.ends[0].submit(Lane::Bulk, 1, out(1, 1001)).unwrap_err();
    assert_eq!(error, SubmitError::TooLarge { len: 1001, max: 1000 });
    assert!(error.to_string().contains("max_message_bytes = 1000"));
    pair.submit(0, Lane::Bulk, 2, 1000);
    pair.run();
    assert_eq!(pair.delivered[1], [pattern(2, 1000)]);
}

/// The parameters with which a frame is posted.
fn posted(transmit: Transmit<'_>) -> (Vec<u8>, Option<u32>, bool, u64) {
    let (first, second) = transmit.frame.parts();
    ([first, second].concat(), transmit.imm, transmit.signaled, transmit.token)
}

#[test]
fn immediate_and_queued_messages_are_equal() {
    let config = small_config();
    let now = Instant::now();
    let (mut queueing, mut direct) = (link(&config, &config, now), link(&config, &config, now));
    let lanes = [Lane::Small, Lane::Urgent, Lane::Small, Lane::Bulk, Lane::Small];
    let lens = [10, 0, 500, 224, 3, 225, 8];
    let (mut frames, mut at_once) = (0, 0);
    for tag in 0..100 {
        let lane = lanes[usize::try_from(tag).unwrap() % lanes.len()];
        let message = || out(tag, lens[usize::try_from(tag).unwrap() % lens.len()]);
        queueing.submit(lane, tag, message()).unwrap();
        let mut expected = Vec::new();
        while let Some(transmit) = queueing.poll_transmit() {
            expected.push(posted(transmit));
        }
        let (mut whole, mut found) = (message(), Vec::new());
        let stamped = if direct.is_clear() { direct.stamp_now(lane, &mut whole) } else { None };
        match stamped {
            Some(Stamped { signaled, token }) => {
                let frame = FrameBytes::Message(whole);
                found.push(posted(Transmit {
                    writes: Vec::new(),
                    frame,
                    imm: None,
                    signaled,
                    token,
                }));
            }
            None => direct.submit(lane, tag, whole).unwrap(),
        }
        at_once += found.len();
        while let Some(transmit) = direct.poll_transmit() {
            found.push(posted(transmit));
        }
        assert_eq!(found, expected, "message {tag}");
        frames += found.len();
        // Both ends of the window are met: credits come back in bursts.
        if tag % 3 == 2 {
            for link in [&mut queueing, &mut direct] {
                let counters = link.metrics().counters;
                link.on_send_completion(u64::from(counters.posted.to_bits()));
                let data = config.window().data - counters.data_credits;
                let ack = frame::header(Kind::Ack, Grant { data, ack: 0 });
                let inbound = link.on_frame(now, None, &ack).unwrap();
                assert!(matches!(inbound, Inbound::None));
            }
        }
    }
    assert!(at_once > 5 && frames > at_once + 5, "{at_once} of {frames}");
}

#[test]
fn head_and_tail_arrive_apart() {
    let mut pair = Pair::new(&small_config());
    for (tag, head, tails) in [
        (1, 10, &[1_usize][..]),
        (2, 0, &[700, 1, 2]),
        (3, 500, &[3, 500]),
        (4, 224, &[224]),
        (5, 225, &[448, 1]),
    ] {
        let mut message = out(tag, head);
        let mut expected = Vec::new();
        for (index, len) in tails.iter().enumerate() {
            let bytes = pattern(tag + 100 + index as u64, *len);
            expected.extend_from_slice(&bytes);
            message.push_tail(OutPart::shared(Arc::new(bytes)));
        }
        pair.ends[0].submit(Lane::Small, tag, message).unwrap();
        pair.run();
        assert_eq!(pair.delivered[1].pop().unwrap(), pattern(tag, head));
        let tail = pair.tails[1].pop().unwrap();
        assert_eq!(tail.into_vec().unwrap(), expected);
    }
    assert!(pair.ends[0].is_idle());
}

#[test]
fn empty_message_is_a_bare_header() {
    let mut pair = Pair::new(&small_config());
    pair.submit(0, Lane::Small, 1, 0);
    pair.submit(0, Lane::Bulk, 2, 0);
    pair.pump(0);
    assert_eq!(pair.wires[1][0].1.len(), 8);
    pair.run();
    assert_eq!(pair.delivered[1], [[], []]);
}

#[test]
fn an_ack_needs_no_immediate() {
    let now = Instant::now();
    let config = small_config();
    let offer = Offer::new(&config, Features::NONE, 7);
    let mut end = Link::new(&config, &offer.agree_as_server(&offer).unwrap(), now).unwrap();
    let data = frame::header(Kind::Data, Default::default());
    for _ in 0..5 {
        let _message = end.on_frame(now, None, &data).unwrap();
    }
    let ack = end.poll_transmit().unwrap();
    assert_eq!(ack.imm, None);
    assert_eq!(ack.frame.parts().0, [2, 0, 5, 0, 0, 0, 0, 0]);
}

#[test]
fn idle_ack_returns_owed_credits_before_sleep() {
    let mut pair = Pair::new(&small_config());
    pair.submit(0, Lane::Small, 1, 10);
    pair.run();
    assert_eq!(pair.ends[0].metrics().counters.data_credits, 7);
    let transmit = pair.ends[1].poll_idle_ack().unwrap();
    assert_eq!(transmit.imm, Some(1));
    let bytes = transmit.frame.parts().0.to_vec();
    assert!(pair.ends[1].poll_idle_ack().is_none());
    pair.wires[0].push_back((Some(1), bytes));
    pair.run();
    assert_eq!(pair.ends[0].metrics().counters.data_credits, 8);
}

#[test]
fn pending_messages_are_counted_by_lane() {
    let mut pair = Pair::new(&small_config());
    assert_eq!(pair.ends[0].waiting().total_bytes(), 0);
    for tag in 0..20 {
        pair.submit(0, Lane::Small, tag, 10);
    }
    pair.submit(0, Lane::Bulk, 20, 5000);
    pair.submit(0, Lane::Bulk, 21, 7000);
    let waiting = pair.ends[0].waiting();
    let small = 20 * LEAST_HELD_BYTES..20 * 2 * LEAST_HELD_BYTES;
    assert!(small.contains(&waiting.small_bytes), "{waiting:?}: by the memory that it holds");
    assert!((12_000..20_000).contains(&waiting.large_bytes), "{waiting:?}");
    assert_eq!(waiting.together_bytes, waiting.total_bytes(), "none is longer than 16 KiB");
    assert!(matches!(pair.ends[0].revoke(21), Revoked::Whole(_)));
    assert!((5000..10_000).contains(&pair.ends[0].waiting().large_bytes));
    pair.run();
    assert_eq!(pair.ends[0].waiting().total_bytes(), 0);
}

#[test]
fn close_needs_no_credit_and_is_last() {
    let mut pair = Pair::new(&small_config());
    for tag in 0..20 {
        pair.submit(0, Lane::Small, tag, 10);
    }
    pair.pump(0);
    assert_eq!(pair.wires[1].len(), 8);
    pair.ends[0].close(CloseReason::new(CloseCode::ShuttingDown, "bye"));
    pair.ends[0].close(CloseReason::new(CloseCode::Normal, "again"));
    assert_eq!(pair.ends[0].submit(Lane::Small, 99, out(0, 1)), Err(SubmitError::Closed));
    pair.pump(0);
    assert_eq!(pair.wires[1].len(), 9);
    assert!(pair.ends[0].is_close_completed());
    assert_eq!(pair.ends[0].in_flight(), 0);
    assert_eq!(pair.ends[0].next_deadline(), None);
    for _ in 0..8 {
        assert!(matches!(pair.receive(1), Some(Inbound::Message { .. })));
    }
    let Some(Inbound::Closed(reason)) = pair.receive(1) else { panic!("not closed") };
    assert_eq!(reason, CloseReason::new(CloseCode::ShuttingDown, "bye"));
    assert!(matches!(pair.ends[0].revoke(19), Revoked::Whole(_)));
    let late = frame::header(Kind::Ping, Default::default());
    let error = pair.ends[1].on_frame(pair.now, None, &late).unwrap_err();
    assert_eq!(error, ProtocolError::AfterClose(Kind::Ping));
}

/// Feeds frames to a fresh end; returns the error of the first one that is refused.
fn refusal(frames: &[&[u8]]) -> ProtocolError {
    let now = Instant::now();
    let config = small_config().max_message_bytes(1000);
    let mut end = link(&config, &config, now);
    for bytes in frames {
        if let Err(error) = end.on_frame(now, None, bytes) {
            return error;
        }
    }
    panic!("nothing was refused")
}

#[test]
fn violation_is_reported_to_the_peer() {
    let grant = Default::default();
    let ping = frame::header(Kind::Ping, grant);
    let pong = frame::header(Kind::Pong, grant);
    let data = frame::header(Kind::Data, grant);
    assert_eq!(refusal(&[&ping, &ping]), ProtocolError::PingUnanswered);
    assert_eq!(refusal(&[&pong]), ProtocolError::PongUnasked);
    let window = CreditError::DataBeyondWindow { window: 8 };
    assert_eq!(refusal(&[&data[..]; 9]), ProtocolError::Credit(window));
    let ack = frame::header(Kind::Ack, grant);
    assert_eq!(refusal(&[&ack]), ProtocolError::Credit(CreditError::EmptyAck));

    let first =
        Segment { number: 0, last: false, abort: false, head_end: false, offset: 0, total: 1000 };
    let segment = |segment, len| {
        let mut bytes = frame::segment_header(grant, segment).to_vec();
        bytes.resize(bytes.len() + len, 1);
        bytes
    };
    let start = segment(first, 100);
    let second = Segment { offset: 100, ..first };
    let cases = [
        (
            Segment { number: 1, ..second },
            10,
            ProtocolError::WrongMessageNumber { number: 1, expected: 0 },
        ),
        (
            Segment { total: 1001, ..second },
            10,
            ProtocolError::MessageTooLarge { total: 1001, max: 1000 },
        ),
        (Segment { total: 0, ..second }, 10, ProtocolError::EmptySegmentedMessage),
        (
            Segment { offset: 99, ..second },
            10,
            ProtocolError::WrongOffset { offset: 99, expected: 100 },
        ),
        (
            Segment { offset: u64::MAX, ..second },
            10,
            ProtocolError::WrongOffset { offset: u64::MAX, expected: 100 },
        ),
        (
            Segment { total: 999, ..second },
            10,
            ProtocolError::TotalChanged { first: 1000, now: 999 },
        ),
        (second, 0, ProtocolError::EmptySegment),
        (
            Segment { head_end: true, last: true, ..second },
            900,
            ProtocolError::HeadEndsAtTotal(1000),
        ),
        (Segment { abort: true, ..second }, 1, ProtocolError::AbortWithBytes(1)),
        (second, 901, ProtocolError::BeyondTotal { end: 1001, total: 1000 }),
        (
            Segment { last: true, ..second },
            10,
            ProtocolError::WrongLast { last: true, end: 110, total: 1000 },
        ),
        (second, 900, ProtocolError::WrongLast { last: false, end: 1000, total: 1000 }),
    ];
    for (bad, len, error) in cases {
        assert_eq!(refusal(&[&start, &segment(bad, len)]), error);
    }
    let ended = segment(Segment { head_end: true, ..first }, 100);
    let again = segment(Segment { head_end: true, ..second }, 100);
    assert_eq!(refusal(&[&ended, &again]), ProtocolError::HeadEndedTwice(100));
    let text = ProtocolError::MessageTooLarge { total: 2, max: 1 }.to_string();
    assert!(text.contains("max_message_bytes"), "{text}");
}

proptest! {
    /// Any frames of a peer in any state cause a named error at worst, and bounded memory.
    #[test]
    fn a_hostile_peer_is_harmless(
        frames in prop::collection::vec((0_u8..8, 0_u16..4, 0_u16..3, 0_u8..8, 0_usize..120), 1..60),
        random in prop::collection::vec(any::<u8>(), 120),
    ) {
        let now = Instant::now();
        let config = small_config().max_message_bytes(1000);
        let mut end = link(&config, &config, now);
        let mut offset = 0;
        for (index, (kind, data, ack, what, len)) in frames.into_iter().enumerate() {
            let lane = if index % 2 == 0 { Lane::Small } else { Lane::Bulk };
            end.submit(lane, index as u64, out(1, 10 + 5 * len)).unwrap();
            while end.poll_transmit().is_some() {}
            let grant = crate::protocol::credit::Grant { data, ack };
            let kind = Kind::from_byte(kind).unwrap_or(Kind::Data);
            let mut bytes = match what {
                // Segments that might fit the ones before.
                0..4 => {
                    let number = u32::from(what == 3);
                    let total = if what == 2 { 99 } else { 1000 };
                    let segment = Segment { number, last: what == 1, abort: false, head_end: false, offset, total };
                    offset += len as u64;
                    frame::segment_header(grant, segment).to_vec()
                }
                _ => frame::header(kind, grant).to_vec(),
            };
            bytes.extend_from_slice(&random[..if what == 7 { 0 } else { len }]);
            let imm = (kind == Kind::Ack).then_some(grant.to_imm());
            if let Err(error) = end.on_frame(now, imm, &bytes) {
                prop_assert!(!error.to_string().is_empty());
                break;
            }
            prop_assert!(end.metrics().assembly_bytes <= 1000);
        }
    }
}
