//! Peers that break the rules of streams: each rule has its own error, frames allowed by a race are
//! dropped, and memory is bounded.

use std::time::Instant;

use rpc_core::session::{
    Answer, CallId, CallStreams, Event, IncomingId, ReadItem, Revoked, Role, Session, SessionError,
    SessionLimits, StartCall, StreamLimits,
};
use rpc_core::wire::{
    self, HowRead, ItemHead, Kind, ReplyKind, RequestHead, ResponseHead, WireError, WireId,
};
use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::memory::budget::MemoryBudget;
use rpc_transport::message::outgoing::{LEAST_HELD_BYTES, OutBuf};
use rpc_transport::message::received::Message;

type End = Session<u32, u32>;

const ARGUMENTS: CallStreams =
    CallStreams { arguments: true, results: false, idle_deadline: false };
const RESULTS: CallStreams = CallStreams { arguments: false, results: true, idle_deadline: false };
/// Small, so that it is soon used up.
const WINDOW: StreamLimits =
    StreamLimits { items: 4, bytes: 100, max_window_bytes: 100, max_stream_bytes: 0 };
const ID: WireId = WireId { slot: 0, generation: 1 };

fn limits() -> SessionLimits {
    SessionLimits { max_incoming_calls: 8, streams: Some(WINDOW), ..SessionLimits::default() }
}

fn take(end: &mut End, frame: &[u8]) -> Result<(), SessionError> {
    end.on_message(Message::copied(frame), Instant::now, &mut |_| Revoked::TooLate)
}

fn frames(end: &mut End) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| end.poll_transmit(Instant::now)).map(|sent| sent.frame.to_vec()).collect()
}

/// Both ends, after their hellos.
fn pair() -> (End, End) {
    pair_of(limits())
}

fn pair_of(limits: SessionLimits) -> (End, End) {
    let mut client = End::new(Role::Client, limits);
    let mut server = End::new(Role::Server, limits);
    settle(&mut client, &mut server);
    (client, server)
}

/// Until neither end has frames left.
fn settle(client: &mut End, server: &mut End) {
    loop {
        let (to_server, to_client) = (frames(client), frames(server));
        to_server.iter().for_each(|frame| take(server, frame).expect("correct"));
        to_client.iter().for_each(|frame| take(client, frame).expect("correct"));
        if to_server.is_empty() && to_client.is_empty() {
            return;
        }
    }
}

fn request(id: WireId, streams: CallStreams) -> Vec<u8> {
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
    let mut frame = OutBuf::new();
    wire::prepend_request(&mut frame, &head, false);
    frame.to_vec()
}

fn item(id: WireId, results: bool, number: u32, len: usize) -> Vec<u8> {
    let mut frame = OutBuf::new();
    frame.extend_from_slice(&vec![7; len]);
    let read = if results { HowRead::Same } else { HowRead::Unsaid };
    wire::prepend_item(
        &mut frame,
        &ItemHead { id, results, number, has_parts: false, is_metadata: false, read },
    );
    frame.to_vec()
}

fn response(id: WireId, items: u32) -> Vec<u8> {
    let mut frame = OutBuf::new();
    let (read, has_parts, is_reset) = (HowRead::Same, false, false);
    let kind = ReplyKind::Ok;
    let metadata_bytes = 0;
    let head = ResponseHead { id, kind, read, has_parts, items, is_reset, metadata_bytes };
    wire::prepend_response(&mut frame, &head);
    frame.to_vec()
}

/// A server with one running call.
fn server_with(streams: CallStreams) -> (End, IncomingId) {
    let (_, mut server) = pair();
    take(&mut server, &request(ID, streams)).expect("correct");
    let id = running(&mut server);
    (server, id)
}

fn running(server: &mut End) -> IncomingId {
    match server.poll_event() {
        Some(Event::Request(incoming)) => {
            server.accept_signature(incoming.id);
            incoming.id
        }
        other => panic!("no request but {other:?}"),
    }
}

/// A client with one sent call.
fn client_with(streams: CallStreams) -> (End, CallId) {
    let (mut client, _) = pair();
    let id = start(&mut client, streams);
    assert_eq!(frames(&mut client).len(), 1);
    (client, id)
}

fn start(client: &mut End, streams: CallStreams) -> CallId {
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
        streams,
    };
    client.start(call, OutBuf::new(), None).expect("started")
}

fn error(end: &mut End, frame: &[u8]) -> SessionError {
    take(end, frame).expect_err("breaks a rule")
}

#[test]
fn items_beyond_their_credits_are_refused() {
    let (mut server, _) = server_with(ARGUMENTS);
    (0..4).for_each(|number| take(&mut server, &item(ID, false, number, 1)).expect("four items"));
    let beyond = SessionError::ItemBeyondCredit(ID);
    assert_eq!(error(&mut server, &item(ID, false, 4, 1)), beyond);

    let (mut server, _) = server_with(ARGUMENTS);
    take(&mut server, &item(ID, false, 0, 99)).expect("a byte is left");
    take(&mut server, &item(ID, false, 1, 5000)).expect("one item may overdraw");
    assert_eq!(error(&mut server, &item(ID, false, 2, 0)), beyond);

    // The overdrawing item arrived first: only the last in order may overdraw.
    let (mut server, _) = server_with(ARGUMENTS);
    take(&mut server, &item(ID, false, 2, 5000)).expect("the others are on their way");
    take(&mut server, &item(ID, false, 0, 50)).expect("there is credit");
    assert_eq!(error(&mut server, &item(ID, false, 1, 50)), beyond);

    // Numbers beyond all credits, so that the receiver would keep items that it cannot deliver.
    let (mut server, _) = server_with(ARGUMENTS);
    assert_eq!(error(&mut server, &item(ID, false, 4, 1)), beyond);
}

/// The unread items are bounded by the window plus one item.
#[test]
fn an_unread_stream_is_bounded() {
    let (mut server, id) = server_with(ARGUMENTS);
    let mut bytes = 0;
    for number in 0.. {
        if take(&mut server, &item(ID, false, number, 60)).is_err() {
            break;
        }
        bytes += 60;
        assert!(frames(&mut server).iter().all(|frame| frame[0] != Kind::StreamCredit as u8));
    }
    assert_eq!(bytes, 120, "100 bytes of credit, and what is left of the last item");
    let read = std::iter::from_fn(|| match server.take_item(id) {
        ReadItem::Item(item) => Some(item.len()),
        _ => None,
    });
    assert_eq!(read.sum::<usize>(), 120);
}

fn metadata(number: u32, len: usize) -> Vec<u8> {
    let mut frame = OutBuf::new();
    frame.extend_from_slice(&vec![7; len]);
    let (has_parts, is_metadata) = (false, true);
    let read = HowRead::Same;
    let head = ItemHead { id: ID, results: true, number, has_parts, is_metadata, read };
    wire::prepend_item(&mut frame, &head);
    frame.to_vec()
}

/// Initial metadata comes once, before all items, is bounded, and takes credit like an item.
#[test]
fn each_initial_metadata_rule_has_its_error() {
    let (mut client, _) = client_with(RESULTS);
    take(&mut client, &metadata(0, 9)).expect("correct");
    let twice = SessionError::InitialMetadataTwice(ID);
    assert_eq!(error(&mut client, &metadata(0, 9)), twice);
    let (mut client, _) = client_with(RESULTS);
    take(&mut client, &metadata(0, 9)).expect("correct");
    assert_eq!(error(&mut client, &metadata(1, 9)), twice);

    let (mut client, _) = client_with(RESULTS);
    take(&mut client, &item(ID, true, 0, 1)).expect("correct");
    let late = SessionError::InitialMetadataLate(ID);
    assert_eq!(error(&mut client, &metadata(1, 9)), late);
    let (mut client, _) = client_with(RESULTS);
    take(&mut client, &item(ID, true, 0, 1)).expect("correct");
    assert_eq!(error(&mut client, &metadata(0, 9)), SessionError::ItemRepeated(ID));

    let (mut client, _) = client_with(RESULTS);
    take(&mut client, &metadata(0, 65_535)).expect("as long as it may be");
    assert_eq!(error(&mut client, &item(ID, true, 1, 1)), SessionError::ItemBeyondCredit(ID));
    let (mut client, _) = client_with(RESULTS);
    let too_long = SessionError::from(WireError::MetadataTooLong(65_536));
    assert_eq!(error(&mut client, &metadata(0, 65_536)), too_long);
    let empty = SessionError::from(WireError::EmptyBlock(Kind::StreamData));
    assert_eq!(error(&mut client, &metadata(0, 0)), empty);

    let (mut server, _) = server_with(ARGUMENTS);
    let mut of_arguments = metadata(0, 9);
    of_arguments[1] = 4;
    let conflict = SessionError::from(WireError::ItemFlagsConflict(4));
    assert_eq!(error(&mut server, &of_arguments), conflict);
    let mut of_parts = metadata(0, 9);
    of_parts[1] = 0x15;
    let conflict = SessionError::from(WireError::ItemFlagsConflict(0x15));
    assert_eq!(error(&mut server, &of_parts), conflict);
}

/// It is delivered before the items, in whatever order the lanes of the link deliver them.
#[test]
fn overtaken_initial_metadata_is_read_first() {
    let (mut client, id) = client_with(RESULTS);
    take(&mut client, &item(ID, true, 1, 1)).expect("the metadata is on its way");
    assert!(matches!(client.take_item(id), ReadItem::Pending));
    take(&mut client, &metadata(0, 9)).expect("correct");
    let marked = |client: &mut End| match client.take_item(id) {
        ReadItem::Item(item) => (item.marked().len(), item.len()),
        other => panic!("no item but {other:?}"),
    };
    assert_eq!(marked(&mut client), (9, 9));
    assert_eq!(marked(&mut client), (0, 1));
}

#[test]
fn each_sender_rule_has_its_error() {
    let (mut server, _) = server_with(ARGUMENTS);
    take(&mut server, &item(ID, false, 0, 1)).expect("correct");
    assert_eq!(error(&mut server, &item(ID, false, 0, 1)), SessionError::ItemRepeated(ID));
    let (mut server, _) = server_with(ARGUMENTS);
    take(&mut server, &item(ID, false, 2, 1)).expect("correct");
    assert_eq!(error(&mut server, &item(ID, false, 2, 1)), SessionError::ItemRepeated(ID));

    let (mut server, _) = server_with(ARGUMENTS);
    take(&mut server, &wire::half_close(ID, 1)).expect("its item is on its way");
    take(&mut server, &item(ID, false, 0, 1)).expect("correct");
    assert_eq!(error(&mut server, &item(ID, false, 1, 1)), SessionError::ItemAfterEnd(ID));
    let twice = SessionError::StreamEndedTwice(ID);
    assert_eq!(error(&mut server, &wire::half_close(ID, 1)), twice);
    assert_eq!(error(&mut server, &wire::reset(ID, 1)), twice);
    let (mut server, _) = server_with(ARGUMENTS);
    take(&mut server, &wire::reset(ID, 1)).expect("correct");
    take(&mut server, &item(ID, false, 0, 1)).expect("overtaken by the reset");
    assert_eq!(error(&mut server, &wire::half_close(ID, 1)), twice);

    let miscounted = SessionError::ItemsMiscounted(ID);
    let (mut server, _) = server_with(ARGUMENTS);
    assert_eq!(error(&mut server, &wire::half_close(ID, 5)), miscounted, "there is credit for 4");
    take(&mut server, &item(ID, false, 1, 1)).expect("correct");
    assert_eq!(error(&mut server, &wire::half_close(ID, 1)), miscounted);

    let (mut client, _) = client_with(RESULTS);
    assert_eq!(error(&mut client, &response(ID, 5)), miscounted);
    take(&mut client, &response(ID, 2)).expect("they are on their way");
    assert_eq!(error(&mut client, &response(ID, 2)), SessionError::ResponseToNoCall(ID));
    take(&mut client, &item(ID, true, 1, 1)).expect("correct");
    assert_eq!(error(&mut client, &item(ID, true, 2, 1)), SessionError::ItemAfterEnd(ID));
}

#[test]
fn each_receiver_rule_has_its_error() {
    let (mut server, id) = server_with(RESULTS);
    let grant = |items, bytes| wire::credit(ID, true, items, bytes).to_vec();
    assert_eq!(error(&mut server, &grant(1, 1)), SessionError::GrantUnasked(ID));
    let one = || {
        let mut item = OutBuf::new();
        item.extend_from_slice(&[7]);
        item
    };
    server.send_item(id, one(), Instant::now).expect("there is credit");
    assert_eq!(frames(&mut server).len(), 1);
    let overflow = SessionError::GrantOverflow(ID);
    assert_eq!(error(&mut server, &grant(u32::MAX, 1)), overflow);
    assert_eq!(error(&mut server, &grant(1, u64::MAX)), overflow);
    take(&mut server, &grant(1, 1)).expect("one item, one grant");
    assert_eq!(error(&mut server, &grant(1, 1)), SessionError::GrantUnasked(ID));
    assert_eq!(error(&mut server, &grant(0, 0)), SessionError::Wire(WireError::EmptyGrant));
    take(&mut server, &wire::stop(ID, true, 0)).expect("correct");
    assert_eq!(error(&mut server, &wire::stop(ID, true, 0)), SessionError::StopTwice(ID));

    let (mut client, _) = client_with(ARGUMENTS);
    take(&mut client, &wire::opened(ID, false, HowRead::Same)).expect("correct");
    take(&mut client, &wire::opened(ID, true, HowRead::Same)).expect("correct");
    let twice = SessionError::OpenedTwice(ID);
    assert_eq!(error(&mut client, &wire::opened(ID, true, HowRead::Same)), twice);
    assert_eq!(error(&mut client, &wire::opened(ID, false, HowRead::Same)), twice);
}

#[test]
fn frames_for_missing_streams_are_refused() {
    let not_open = SessionError::StreamNotOpen(ID);
    for streams in [CallStreams::NONE, RESULTS] {
        let (mut server, _) = server_with(streams);
        assert_eq!(error(&mut server, &item(ID, false, 0, 1)), not_open);
        assert_eq!(error(&mut server, &wire::half_close(ID, 0)), not_open);
        assert_eq!(error(&mut server, &wire::reset(ID, 1)), not_open);
    }
    for streams in [CallStreams::NONE, ARGUMENTS] {
        let (mut server, _) = server_with(streams);
        assert_eq!(error(&mut server, &wire::credit(ID, true, 1, 1)), not_open);
        assert_eq!(error(&mut server, &wire::stop(ID, true, 1)), not_open);
        let (mut client, _) = client_with(streams);
        assert_eq!(error(&mut client, &item(ID, true, 0, 1)), not_open);
        assert_eq!(error(&mut client, &response(ID, 1)), not_open);
    }
    let (mut client, _) = client_with(CallStreams::NONE);
    assert_eq!(error(&mut client, &wire::opened(ID, true, HowRead::Same)), not_open);

    let unknown = SessionError::UnknownStream(ID);
    let (mut client, mut server) = pair();
    for (end, results) in [(&mut server, false), (&mut client, true)] {
        assert_eq!(error(end, &item(ID, results, 0, 1)), unknown);
    }
    assert_eq!(error(&mut server, &wire::half_close(ID, 0)), unknown);
    assert_eq!(error(&mut client, &wire::opened(ID, false, HowRead::Same)), unknown);

    // A peer whose hello did not offer streams.
    let without = SessionLimits { streams: None, ..limits() };
    let mut old = End::new(Role::Client, without);
    let mut server = End::new(Role::Server, limits());
    frames(&mut old).iter().for_each(|hello| take(&mut server, hello).expect("correct"));
    let not_agreed = SessionError::StreamsNotAgreed(Kind::Request);
    assert_eq!(error(&mut server, &request(ID, RESULTS)), not_agreed);
    let not_agreed = SessionError::StreamsNotAgreed(Kind::StreamData);
    assert_eq!(error(&mut server, &item(ID, false, 0, 1)), not_agreed);
}

/// Opened and cancelled calls with all frames that may follow too late: exactly those are dropped,
/// and one more frame ends the connection.
#[test]
fn frames_for_ended_calls_are_bounded() {
    let (_, mut server) = pair();
    let id = |generation| WireId { slot: 3, generation };
    for generation in 1..1000 {
        let id = id(generation);
        take(&mut server, &request(id, ARGUMENTS)).expect("correct");
        let handler = running(&mut server);
        take(&mut server, &wire::cancel(id)).expect("correct");
        server.handler_ended(handler);
        while server.poll_event().is_some() {}
        assert_eq!(frames(&mut server).len(), 2, "opened, and the proof");
        assert_eq!((server.stream_calls(), server.stream_window_bytes()), ((0, 0), 0));
    }
    // Four items and one end for each of 999 calls.
    let late = id(999);
    for _ in 0..999 {
        (0..4).for_each(|number| take(&mut server, &item(late, false, number, 1)).expect("late"));
        take(&mut server, &wire::reset(late, 1)).expect("late");
    }
    assert_eq!(server.stale_stream_frames(), 999 * 5);
    assert_eq!(error(&mut server, &wire::reset(late, 1)), SessionError::UnknownStream(late));
}

#[test]
fn abandoned_streams_are_bounded_by_calls() {
    let (_, mut server) = pair();
    for slot in 0..8 {
        let id = WireId { slot, generation: 1 };
        take(&mut server, &request(id, ARGUMENTS)).expect("correct");
        (0..4).for_each(|number| take(&mut server, &item(id, false, number, 25)).expect("credit"));
    }
    let out = WireId { slot: 8, generation: 1 };
    let limit = SessionError::SlotOutOfRange { slot: 8, limit: 8 };
    assert_eq!(error(&mut server, &request(out, ARGUMENTS)), limit);
    assert_eq!(server.stream_calls(), (0, 8));
    assert_eq!(server.stream_window_bytes(), 800);
    let used = SessionError::SlotInUse(WireId { slot: 7, generation: 2 });
    let again = request(WireId { slot: 7, generation: 2 }, ARGUMENTS);
    assert_eq!(error(&mut server, &again), used);
}

/// A peer that grants the maximum and reads nothing: the link's limit is the bound.
#[test]
fn items_wait_while_the_link_is_full() {
    let (mut server, id) = server_with(RESULTS);
    server.send_item(id, OutBuf::new(), Instant::now).expect("there is credit");
    assert_eq!(frames(&mut server).len(), 1);
    take(&mut server, &wire::credit(ID, true, 1 << 30, 1 << 40)).expect("correct");
    server.set_item_room(16 * LEAST_HELD_BYTES);
    let mut left = 0;
    for _ in 0..1000 {
        if server.send_item(id, OutBuf::new(), Instant::now).is_err() {
            break;
        }
        left += frames(&mut server).len();
    }
    assert!((2..=16).contains(&left), "{left}: each counts by what it holds");
    assert!(!server.may_transmit());
    assert_eq!(server.set_writer(id, 9), None);
    server.set_item_room(1000);
    assert_eq!(frames(&mut server).len(), 1, "the one that waited");
    assert!(matches!(server.poll_event(), Some(Event::Wake(9))));
    server.reply(id, Answer::Ok(OutBuf::new())).expect("the caller waits");
    assert_eq!(frames(&mut server).len(), 1);
}

fn long() -> OutBuf {
    let mut item = OutBuf::new();
    item.extend_from_slice(&[7; 400]);
    item
}

/// Number of bytes that can be read now.
fn read(server: &mut End, id: IncomingId) -> u64 {
    let mut bytes = 0;
    while let ReadItem::Item(item) = server.take_item(id) {
        bytes += item.len() as u64;
    }
    bytes
}

/// Readers that keep up until their windows are at their maximum, then stop reading: their memory
/// is charged to the shared budget, at most half of it.
#[test]
fn windows_grow_only_with_spare_memory() {
    const STREAMS: u64 = 8;
    let window = StreamLimits { items: 4, bytes: 1000, ..StreamLimits::default() };
    let limits = SessionLimits { streams: Some(window), ..SessionLimits::default() };
    let (first, limit) = (2 * STREAMS * 1000, 16 * 1000);
    let whole = MemoryBudget::new(limit);
    let mut all = Vec::new();
    for _ in 0..2 {
        let (mut client, mut server) = pair_of(limits);
        server.set_stream_memory(whole.share());
        let opened = (0..STREAMS).map(|_| {
            let id = start(&mut client, ARGUMENTS);
            settle(&mut client, &mut server);
            (id, running(&mut server))
        });
        let calls: Vec<_> = opened.collect();
        all.push((client, server, calls));
    }
    for _ in 0..100 {
        for (client, server, calls) in &mut all {
            for (id, incoming) in calls {
                while client.send_item(*id, long(), Instant::now).is_ok() {}
                settle(client, server);
                read(server, *incoming);
                settle(client, server);
            }
        }
        let windows: u64 = all.iter().map(|(_, server, _)| server.stream_window_bytes()).sum();
        assert_eq!(whole.used_bytes(), windows - first, "all growth is charged");
        assert!(whole.used_bytes() <= limit / 2, "{whole:?}");
    }
    assert!(whole.used_bytes() > limit / 4, "nothing has grown: {whole:?}");
    // An idle reader holds its window and one item.
    let mut unread = 0;
    for (client, server, calls) in &mut all {
        for (id, _) in &*calls {
            while client.send_item(*id, long(), Instant::now).is_ok() {
                settle(client, server);
            }
        }
        unread += calls.iter().map(|(_, incoming)| read(server, *incoming)).sum::<u64>();
    }
    assert!(unread <= first + limit / 2 + 2 * STREAMS * 400, "{unread} bytes were held");
    assert!(unread > first, "{unread} bytes were held");
    // Released by readers that stop, and by calls that end.
    for (_, server, calls) in &mut all {
        server.stop(calls[0].1, 0);
        server.on_closed(CloseCause::Local, &mut |_| Revoked::TooLate);
        calls.iter().for_each(|(_, incoming)| server.handler_ended(*incoming));
    }
    assert_eq!(whole.used_bytes(), 0);
}
