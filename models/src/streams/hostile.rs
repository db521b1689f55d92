//! One session with streams, and a peer that sends arbitrary, well-formed frames about calls that
//! are, were and never will be. Each frame is accepted or names a broken rule, the memory that the
//! peer can occupy stays within its grants, and nothing is left after the end.

use std::time::Instant;

use rpc_core::session::{
    Answer, CallId, CallStreams, Event, IncomingId, ReadItem, ReplyKind, Revoked, Role, Session,
    SessionLimits, StartCall, StreamId, StreamLimits,
};
use rpc_core::wire::{
    self, Frame, Hello, HowRead, ItemHead, RequestHead, ResponseHead, StreamWindow, WireId,
};
use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;
use test_kit::Rng;

use super::call::body;

type End = Session<u64, u64>;

const OPERATIONS: u64 = 150;
const WINDOW: u32 = 200;
const SLOTS: u32 = 3;
/// The longest item that the peer sends, bytes.
const LONGEST: usize = 300;

fn streams(rng: &mut Rng) -> CallStreams {
    CallStreams { arguments: rng.chance(60), results: rng.chance(60), idle_deadline: false }
}

/// The peer's knowledge of a call: enough to send what a correct peer could.
#[derive(Debug, Clone, Copy)]
struct Known {
    id: WireId,
    streams: CallStreams,
    number: u32,
    /// Items of the other end that were not granted again.
    heard: u32,
    opened: bool,
}

/// The peer: its own calls by slot, and those of the end under attack.
#[derive(Debug, Default)]
struct Peer {
    mine: [Option<Known>; SLOTS as usize],
    generations: [u32; SLOTS as usize],
    yours: Vec<Known>,
}

impl Peer {
    /// Receives a frame of the other end.
    fn hear(&mut self, bytes: &[u8]) {
        match wire::parse(bytes).expect("a session sends what it can read").0 {
            Frame::Request { head, .. } => {
                self.yours.push(Known {
                    id: head.id,
                    streams: head.streams,
                    number: 0,
                    heard: 0,
                    opened: false,
                });
            }
            Frame::Response(ResponseHead { id, .. }) | Frame::Cancelled(id) => {
                self.mine[id.slot as usize].take_if(|known| known.id == id);
            }
            Frame::Item(head) => {
                let known = self.mine[head.id.slot as usize].as_mut();
                if let Some(known) = known.filter(|known| known.id == head.id) {
                    known.heard += 1;
                }
            }
            _ => {}
        }
    }

    /// A frame that a correct peer may send now.
    fn plausible(&mut self, rng: &mut Rng) -> OutBuf {
        let slot = rng.index(SLOTS as usize);
        let bytes = vec![7; rng.index(30)];
        if rng.chance(50) && !self.yours.is_empty() {
            let at = rng.index(self.yours.len());
            let known = &mut self.yours[at];
            let (id, number) = (known.id, known.number);
            return match rng.below(6) {
                0 => {
                    self.yours.remove(at);
                    response(id, number, &bytes)
                }
                1 if known.streams.any() && !known.opened => {
                    known.opened = true;
                    wire::opened(id, true, HowRead::Same)
                }
                2 if known.streams.arguments => {
                    known.streams.arguments = false;
                    wire::stop(id, false, 0)
                }
                _ if known.streams.results => {
                    known.number += 1;
                    let is_metadata = number == 0 && bytes.len() % 2 == 1;
                    let (results, has_parts) = (true, false);
                    let read = HowRead::Same;
                    item(ItemHead { id, results, number, has_parts, is_metadata, read }, &bytes)
                }
                _ => {
                    self.yours.remove(at);
                    response(id, number, &bytes)
                }
            };
        }
        let Some(known) = &mut self.mine[slot] else {
            self.generations[slot] += 1;
            let slot_number = u32::try_from(slot).expect("small");
            let id = WireId { slot: slot_number, generation: self.generations[slot] };
            let streams = streams(rng);
            self.mine[slot] = Some(Known { id, streams, number: 0, heard: 0, opened: false });
            return request(id, streams, &bytes);
        };
        let (id, number) = (known.id, known.number);
        match rng.below(8) {
            0 => wire::cancel(id),
            1..=2 if known.heard > 0 => {
                known.heard -= 1;
                wire::credit(id, true, 1, 30)
            }
            3 if known.streams.arguments => {
                known.streams.arguments = false;
                if rng.chance(50) { wire::half_close(id, number) } else { wire::reset(id, 1) }
            }
            4 if known.streams.results => {
                known.streams.results = false;
                wire::stop(id, true, 0)
            }
            _ if known.streams.arguments => {
                known.number += 1;
                item(
                    ItemHead {
                        id,
                        results: false,
                        number,
                        has_parts: false,
                        is_metadata: false,
                        read: HowRead::Unsaid,
                    },
                    &bytes,
                )
            }
            _ => wire::cancel(id),
        }
    }
}

fn request(id: WireId, streams: CallStreams, bytes: &[u8]) -> OutBuf {
    let mut frame = body(bytes);
    let head = RequestHead {
        id,
        method: 7,
        codec: 0,
        no_cancel: false,
        remaining_micros: None,
        signature: Some(1),
        has_parts: false,
        streams,
    };
    wire::prepend_request(&mut frame, &head, false);
    frame
}

fn response(id: WireId, items: u32, bytes: &[u8]) -> OutBuf {
    let mut frame = body(bytes);
    let (read, has_parts, is_reset) = (HowRead::Same, false, false);
    let kind = ReplyKind::Ok;
    let metadata_bytes = 0;
    let head = ResponseHead { id, kind, read, has_parts, items, is_reset, metadata_bytes };
    wire::prepend_response(&mut frame, &head);
    frame
}

fn item(head: ItemHead, bytes: &[u8]) -> OutBuf {
    let mut frame = body(bytes);
    wire::prepend_item(&mut frame, &head);
    frame
}

/// Mostly what a correct callee says.
fn how_read(rng: &mut Rng) -> HowRead {
    match rng.below(10) {
        0 => HowRead::Unsaid,
        1 => HowRead::BySchema,
        _ => HowRead::Same,
    }
}

/// Any frame that its receiver can read.
fn frame(rng: &mut Rng) -> OutBuf {
    let slot = u32::try_from(rng.below(u64::from(SLOTS))).expect("small");
    let generation = 1 + u32::try_from(rng.below(4)).expect("small");
    let id = WireId { slot, generation };
    let few = u32::try_from(rng.below(6)).expect("small");
    let number = if rng.chance(90) { few } else { u32::MAX - few };
    let results = rng.chance(50);
    let code = u8::try_from(rng.below(17)).expect("small");
    let bytes = vec![7; rng.index(LONGEST)];
    match rng.below(12) {
        0..=1 => request(id, streams(rng), &bytes),
        2 => response(id, few, &bytes),
        3..=6 => {
            let (has_parts, is_metadata) = (false, rng.chance(5));
            let read = if results { how_read(rng) } else { HowRead::Unsaid };
            item(ItemHead { id, results, number, has_parts, is_metadata, read }, &bytes)
        }
        7 => wire::half_close(id, number),
        8 => wire::reset(id, code.max(1)),
        9 => {
            let items = if rng.chance(95) { few.max(1) } else { u32::MAX };
            let bytes = if rng.chance(95) { 100 } else { u64::MAX };
            wire::credit(id, results, items, bytes)
        }
        10 if rng.chance(50) => wire::opened(id, results, how_read(rng)),
        10 => wire::stop(id, results, code),
        _ if rng.chance(50) => wire::cancel(id),
        _ => wire::cancelled(id),
    }
}

#[derive(Default)]
struct Calls {
    calls: Vec<CallId>,
    handlers: Vec<IncomingId>,
}

impl Calls {
    fn any(&self, rng: &mut Rng) -> Option<StreamId> {
        let all = self.calls.iter().map(|id| StreamId::from(*id));
        let all: Vec<StreamId> = all.chain(self.handlers.iter().map(|id| (*id).into())).collect();
        (!all.is_empty()).then(|| all[rng.index(all.len())])
    }
}

fn settle(end: &mut End, calls: &mut Calls, peer: &mut Peer) {
    while let Some(event) = end.poll_event() {
        if let Event::Request(incoming) = event {
            end.accept_signature(incoming.id);
            calls.handlers.push(incoming.id);
        }
    }
    while let Some(sent) = end.poll_transmit(Instant::now) {
        peer.hear(&sent.frame);
    }
}

fn operate(end: &mut End, calls: &mut Calls, peer: &mut Peer, rng: &mut Rng) {
    let chosen = calls.any(rng);
    match (rng.below(8), chosen) {
        (0, _) if calls.calls.len() < 4 => {
            let call = StartCall {
                method: 7,
                method_index: 7,
                signature: 1,
                codec: 0,
                deadline: None,
                no_cancel: false,
                when_full: rpc_core::transport::WhenFull::Wait,
                is_nested: false,
                metadata: &[],
                streams: streams(rng),
            };
            calls.calls.extend(end.start(call, body(&[]), None).ok());
        }
        (1, Some(id)) => _ = end.send_item(id, body(&[7; 40]), Instant::now),
        (2, Some(id)) => _ = end.take_item(id),
        (3, Some(id)) => end.stop(id, 1),
        (4, Some(StreamId::Call(id))) => end.finish(id),
        (5, Some(StreamId::Call(id))) => end.reset(id, 1),
        (6, Some(StreamId::Call(id))) if end.has_outcome(id) || rng.chance(20) => {
            end.cancel(id, &mut |_| Revoked::TooLate);
            calls.calls.retain(|call| *call != id);
        }
        (4..=6, Some(StreamId::Incoming(id))) => match rng.below(3) {
            0 => end.handler_ended(id),
            1 => _ = end.reply(id, Answer::Ok(body(&[]))),
            _ => _ = end.accept(id),
        },
        _ => {}
    }
    settle(end, calls, peer);
}

/// One run, to its end: returns how many frames were accepted before one broke a rule.
///
/// # Panics
/// If a promise is broken.
pub fn run_hostile(rng: &mut Rng) -> u64 {
    let limits =
        StreamLimits { items: 4, bytes: WINDOW, max_window_bytes: WINDOW, max_stream_bytes: 0 };
    let limits = SessionLimits {
        max_outgoing_calls: 4,
        max_waiting_calls: 4,
        max_incoming_calls: SLOTS,
        streams: Some(limits),
    };
    let mut end = End::new(Role::Server, limits);
    let hello = Hello {
        min_version: 1,
        max_version: 1,
        max_calls: SLOTS,
        features: 0,
        stream_window: Some(StreamWindow { items: 3, bytes: 100 }),
    };
    let take = |end: &mut End, frame: &[u8]| {
        end.on_message(Message::copied(frame), Instant::now, &mut |_| Revoked::TooLate)
    };
    take(&mut end, &wire::hello(&hello)).expect("a good hello");
    let mut calls = Calls::default();
    let mut peer = Peer::default();
    let mut taken = 0;
    for _ in 0..OPERATIONS {
        if rng.chance(50) {
            operate(&mut end, &mut calls, &mut peer, rng);
            continue;
        }
        let said = if rng.chance(97) { peer.plausible(rng) } else { frame(rng) };
        if take(&mut end, &said).is_err() {
            break;
        }
        taken += 1;
        settle(&mut end, &mut calls, &mut peer);
        let (ours, theirs) = end.stream_calls();
        assert!(ours <= 4 && theirs <= SLOTS, "more streams than calls");
        assert!(end.stream_window_bytes() <= u64::from(WINDOW * (ours + theirs)));
    }
    end.on_closed(CloseCause::Disconnected, &mut |_| Revoked::TooLate);
    settle(&mut end, &mut calls, &mut peer);
    for id in &calls.handlers {
        let mut kept = 0;
        while let ReadItem::Item(item) = end.take_item(*id) {
            kept += item.len();
        }
        assert!(kept < WINDOW as usize + LONGEST, "kept {kept} bytes of one stream");
        end.handler_ended(*id);
    }
    for id in &calls.calls {
        assert!(end.take_outcome(*id).is_some(), "a call without an outcome");
    }
    assert_eq!((end.stream_calls(), end.stream_window_bytes()), ((0, 0), 0), "streams are left");
    assert_eq!((end.outgoing_calls(), end.incoming_calls(), end.waiting_frames()), (0, 0, 0));
    taken
}
