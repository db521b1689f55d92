//! Streams of calls between two sessions, every frame carried by hand.

mod by_hand;

use std::time::{Duration, Instant};

use rpc_core::session::{
    Answer, CallId, CallStreams, Deadline, Event, Failure, IncomingId, Outcome, ReadItem,
    ReplyKind, Revoked, Role, SendError, SessionLimits, StartCall, StartError, StreamEnd, StreamId,
    StreamLimits,
};
use rpc_core::wire::{self, Frame, code};
use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;

use self::by_hand::*;

const ARGUMENTS: CallStreams =
    CallStreams { arguments: true, results: false, idle_deadline: false };
const RESULTS: CallStreams = CallStreams { arguments: false, results: true, idle_deadline: false };
const BOTH: CallStreams = CallStreams { arguments: true, results: true, idle_deadline: false };

fn long(len: usize) -> OutBuf {
    let mut out = OutBuf::new();
    out.extend_from_slice(&vec![7; len]);
    out
}

fn call(streams: CallStreams) -> StartCall<'static> {
    StartCall {
        method: 7,
        method_index: 7,
        signature: 0x51,
        codec: 1,
        deadline: None,
        no_cancel: false,
        when_full: rpc_core::transport::WhenFull::Wait,
        is_nested: false,
        metadata: &[],
        streams,
    }
}

/// Until neither end has frames left.
fn settle(client: &mut End, server: &mut End) {
    while carry(client, server) + carry(server, client) != 0 {}
}

fn pair_of(client: SessionLimits, server: SessionLimits) -> (End, End) {
    let mut client = End::new(Role::Client, client);
    let mut server = End::new(Role::Server, server);
    settle(&mut client, &mut server);
    (client, server)
}

fn pair() -> (End, End) {
    pair_of(SessionLimits::default(), SessionLimits::default())
}

fn limits(items: u32, bytes: u32) -> SessionLimits {
    let streams = StreamLimits { items, bytes, ..StreamLimits::default() };
    SessionLimits { streams: Some(streams), ..SessionLimits::default() }
}

/// Starts a call and carries it to its handler.
fn open(client: &mut End, server: &mut End, streams: CallStreams) -> (CallId, IncomingId) {
    let id = client.start(call(streams), body("ping"), None).expect("started");
    settle(client, server);
    let incoming = requested(server, streams);
    settle(client, server);
    (id, incoming)
}

fn requested(server: &mut End, streams: CallStreams) -> IncomingId {
    loop {
        match server.poll_event().expect("a request") {
            Event::Request(incoming) => {
                assert_eq!(incoming.streams, streams);
                server.accept_signature(incoming.id);
                return incoming.id;
            }
            _ => continue,
        }
    }
}

fn send(end: &mut End, id: impl Into<StreamId>, item: OutBuf) -> Result<(), SendError> {
    end.send_item(id, item, Instant::now).map_err(|not_sent| not_sent.error)
}

/// All items that can be read now, and the end if it is reached.
fn read(end: &mut End, id: impl Into<StreamId>) -> (Vec<String>, Option<StreamEnd>) {
    let id = id.into();
    let mut items = Vec::new();
    loop {
        match end.take_item(id) {
            ReadItem::Item(item) => {
                items.push(String::from_utf8(item.to_vec()).expect("a text"));
            }
            ReadItem::Pending => {
                assert!(!end.has_item(id));
                return (items, None);
            }
            ReadItem::End(end) => return (items, Some(end)),
        }
    }
}

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| String::from(*text)).collect()
}

fn reply(end: &mut End, id: CallId) -> (ReplyKind, bool) {
    match end.take_outcome(id) {
        Some(Outcome::Reply(reply)) => (reply.kind, reply.is_reset),
        other => panic!("no reply but {other:?}"),
    }
}

fn failure(end: &mut End, id: CallId) -> Failure {
    match end.take_outcome(id) {
        Some(Outcome::Failed { reason, .. }) => reason,
        other => panic!("no failure but {other:?}"),
    }
}

fn wakes(end: &mut End) -> Vec<u32> {
    let wakes = std::iter::from_fn(|| end.poll_event()).filter_map(|event| match event {
        Event::Wake(waiter) => Some(waiter),
        _ => None,
    });
    wakes.collect()
}

fn status(code: u8) -> Answer<'static> {
    Answer::Status { code, retryable: false, text: "so it is", details: &[] }
}

fn assert_nothing_left(ends: [&End; 2]) {
    for end in ends {
        assert_eq!(end.stream_calls(), (0, 0));
        assert_eq!((end.stream_window_bytes(), end.running_deadlines()), (0, 0));
        assert_eq!((end.outgoing_calls(), end.busy_slots(), end.incoming_calls()), (0, 0, 0));
    }
}

#[test]
fn results_are_ordered_and_end_the_call() {
    let (mut client, mut server) = pair();
    let (id, incoming) = open(&mut client, &mut server, RESULTS);
    assert_eq!(client.set_reader(id, 1), None);
    assert!(!client.is_accepted(id));
    server.accept(incoming).expect("the caller waits");
    carry(&mut server, &mut client);
    assert!(client.is_accepted(id));
    assert_eq!(wakes(&mut client), [1]);
    assert_eq!(client.set_reader(id, 2), None);
    for item in ["a", "", "c"] {
        send(&mut server, incoming, body(item)).expect("there is credit");
    }
    carry(&mut server, &mut client);
    assert_eq!(wakes(&mut client), [2]);
    assert_eq!(read(&mut client, id), (texts(&["a", "", "c"]), None));
    assert_eq!(client.set_reader(id, 3), None);
    send(&mut server, incoming, body("d")).expect("there is credit");
    server.reply(incoming, Answer::Ok(body("sum"))).expect("the caller waits");
    settle(&mut client, &mut server);
    assert_eq!(wakes(&mut client), [3]);
    assert_eq!(read(&mut client, id), (texts(&["d"]), Some(StreamEnd::Response)));
    assert_eq!(reply(&mut client, id), (ReplyKind::Ok, false));
    assert_nothing_left([&client, &server]);
}

#[test]
fn arguments_follow_the_request_with_their_end() {
    let (mut client, mut server) = pair();
    let id = client.start(call(ARGUMENTS), body("ping"), None).expect("started");
    for item in ["a", "b"] {
        send(&mut client, id, body(item)).expect("the window is known");
    }
    client.finish(id);
    assert_eq!(send(&mut client, id, body("c")), Err(SendError::NotOpen));
    // One flight: request, items, the end.
    assert_eq!(carry(&mut client, &mut server), 4);
    let incoming = requested(&mut server, ARGUMENTS);
    assert_eq!(read(&mut server, incoming), (texts(&["a", "b"]), Some(StreamEnd::Clean)));
    server.reply(incoming, Answer::Ok(body("2"))).expect("the caller waits");
    settle(&mut client, &mut server);
    assert_eq!(reply(&mut client, id), (ReplyKind::Ok, false));
    assert_nothing_left([&client, &server]);
}

#[test]
fn both_directions_are_independent() {
    let (mut client, mut server) = pair();
    let (id, incoming) = open(&mut client, &mut server, BOTH);
    send(&mut server, incoming, body("first")).expect("there is credit");
    settle(&mut client, &mut server);
    assert_eq!(read(&mut client, id), (texts(&["first"]), None));
    send(&mut client, id, body("second")).expect("there is credit");
    client.finish(id);
    settle(&mut client, &mut server);
    assert_eq!(read(&mut server, incoming), (texts(&["second"]), Some(StreamEnd::Clean)));
    send(&mut server, incoming, body("third")).expect("there is credit");
    server.reply(incoming, Answer::UserError(body("e"))).expect("the caller waits");
    settle(&mut client, &mut server);
    assert_eq!(read(&mut client, id), (texts(&["third"]), Some(StreamEnd::Response)));
    assert_eq!(reply(&mut client, id), (ReplyKind::UserError, false));
    assert_nothing_left([&client, &server]);
}

#[test]
fn an_item_without_credit_waits() {
    let (mut client, mut server) = pair_of(limits(16, 100), limits(16, 100));
    let (id, incoming) = open(&mut client, &mut server, RESULTS);
    send(&mut server, incoming, long(60)).expect("there is credit");
    send(&mut server, incoming, long(300)).expect("a byte of credit is enough");
    assert_eq!(frames(&mut server).len(), 2);
    // The window is overdrawn: the next item waits here, and the one after that is refused.
    send(&mut server, incoming, long(1)).expect("one waits");
    assert_eq!(send(&mut server, incoming, long(1)), Err(SendError::Full));
    assert_eq!(server.set_writer(incoming, 5), None);
    assert_eq!(frames(&mut server).len(), 0, "not a frame without credit");
    drop((client, id));

    let (mut client, mut server) = pair_of(limits(16, 100), limits(16, 100));
    let (id, incoming) = open(&mut client, &mut server, RESULTS);
    send(&mut server, incoming, long(300)).expect("a byte of credit is enough");
    settle(&mut client, &mut server);
    send(&mut server, incoming, long(1)).expect("one waits");
    assert_eq!(server.set_writer(incoming, 5), None);
    assert!(matches!(client.take_item(id), ReadItem::Item(item) if item.len() == 300));
    settle(&mut client, &mut server);
    assert_eq!(wakes(&mut server), [5], "there is a place again");
    assert!(matches!(client.take_item(id), ReadItem::Item(item) if item.len() == 1));
    server.reply(incoming, Answer::Ok(body(""))).expect("the caller waits");
    settle(&mut client, &mut server);
    assert_eq!(reply(&mut client, id), (ReplyKind::Ok, false));
    assert_nothing_left([&client, &server]);
}

#[test]
fn a_response_stands_behind_the_items_that_wait() {
    let (mut client, mut server) = pair_of(limits(1, 100), limits(1, 100));
    let (id, incoming) = open(&mut client, &mut server, RESULTS);
    send(&mut server, incoming, body("a")).expect("there is credit");
    settle(&mut client, &mut server);
    send(&mut server, incoming, body("b")).expect("one waits");
    server.reply(incoming, Answer::Ok(body("end"))).expect("the caller waits");
    assert!(server.reply(incoming, Answer::Ok(body(""))).is_err());
    server.handler_ended(incoming);
    settle(&mut client, &mut server);
    assert!(!client.has_outcome(id));
    assert_eq!(server.incoming_calls(), 1, "its answer waits");
    assert_eq!(read(&mut client, id), (texts(&["a"]), None));
    settle(&mut client, &mut server);
    assert_eq!(read(&mut client, id), (texts(&["b"]), Some(StreamEnd::Response)));
    assert_eq!(reply(&mut client, id), (ReplyKind::Ok, false));
    assert_nothing_left([&client, &server]);
}

#[test]
fn items_and_ends_may_be_reordered() {
    let (mut client, mut server) = pair();
    let (id, incoming) = open(&mut client, &mut server, BOTH);
    for item in ["a", "b", "c"] {
        send(&mut server, incoming, body(item)).expect("there is credit");
        send(&mut client, id, body(item)).expect("there is credit");
    }
    client.finish(id);
    let mut upward = frames(&mut client);
    upward.reverse();
    upward.iter().for_each(|frame| take(&mut server, frame).expect("the end first"));
    assert_eq!(read(&mut server, incoming), (texts(&["a", "b", "c"]), Some(StreamEnd::Clean)));
    server.reply(incoming, Answer::Ok(body("end"))).expect("the caller waits");
    let mut downward = frames(&mut server);
    downward.reverse();
    for frame in &downward {
        assert!(!client.has_outcome(id), "its items are missing");
        take(&mut client, frame).expect("the response first");
    }
    assert_eq!(read(&mut client, id), (texts(&["a", "b", "c"]), Some(StreamEnd::Response)));
    assert_eq!(reply(&mut client, id), (ReplyKind::Ok, false));
    assert_nothing_left([&client, &server]);
}

#[test]
fn five_ends_of_arguments_can_be_told_apart() {
    let ended = |end: &dyn Fn(&mut End, &mut End, CallId)| {
        let (mut client, mut server) = pair();
        let (id, incoming) = open(&mut client, &mut server, ARGUMENTS);
        send(&mut client, id, body("a")).expect("there is credit");
        settle(&mut client, &mut server);
        assert_eq!(server.set_reader(incoming, 1), Some(1), "there is something to read");
        end(&mut client, &mut server, id);
        let found = read(&mut server, incoming);
        assert_eq!(found.0, ["a"], "what has arrived is read first");
        found.1
    };
    assert_eq!(ended(&|_, _, _| {}), None);
    let clean = |client: &mut End, server: &mut End, id| {
        client.finish(id);
        settle(client, server);
    };
    assert_eq!(ended(&clean), Some(StreamEnd::Clean));
    let reset = |client: &mut End, server: &mut End, id| {
        client.reset(id, code::CANCELLED);
        settle(client, server);
    };
    assert_eq!(ended(&reset), Some(StreamEnd::Reset(code::CANCELLED)));
    let cancelled = |client: &mut End, server: &mut End, id| {
        client.cancel(id, &mut too_late);
        carry(client, server);
    };
    assert_eq!(ended(&cancelled), Some(StreamEnd::Gone));
    let lost = |_: &mut End, server: &mut End, _| {
        server.on_closed(CloseCause::Disconnected, &mut too_late);
    };
    assert_eq!(ended(&lost), Some(StreamEnd::ConnectionLost));
}

#[test]
fn five_ends_of_results_can_be_told_apart() {
    let ended = |end: &dyn Fn(&mut End, &mut End, IncomingId)| {
        let (mut client, mut server) = pair();
        let (id, incoming) = open(&mut client, &mut server, RESULTS);
        send(&mut server, incoming, body("a")).expect("there is credit");
        settle(&mut client, &mut server);
        end(&mut client, &mut server, incoming);
        carry(&mut server, &mut client);
        assert_eq!(read(&mut client, id), (texts(&["a"]), Some(StreamEnd::Response)));
        client.take_outcome(id).expect("it has ended")
    };
    let clean = |_: &mut End, server: &mut End, id| {
        server.reply(id, Answer::Ok(body(""))).expect("the caller waits");
    };
    let is_ok = |outcome: &Outcome| matches!(outcome, Outcome::Reply(reply) if reply.kind == ReplyKind::Ok && !reply.is_reset);
    assert!(is_ok(&ended(&clean)));
    let code_of = |outcome: Outcome| match outcome {
        Outcome::Reply(reply) => match reply.kind {
            ReplyKind::Status { code, .. } => (code, reply.is_reset),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let with_status = |_: &mut End, server: &mut End, id| {
        server.reply(id, status(5)).expect("the caller waits");
    };
    assert_eq!(code_of(ended(&with_status)), (5, false));
    let reset = |_: &mut End, server: &mut End, id| {
        server.reset_results(id, status(14)).expect("the caller waits");
    };
    assert_eq!(code_of(ended(&reset)), (14, true));
    let dropped = |_: &mut End, server: &mut End, id| server.handler_ended(id);
    assert_eq!(code_of(ended(&dropped)), (code::INTERNAL, true), "never a clean end");
    let lost = |client: &mut End, _: &mut End, _| {
        client.on_closed(CloseCause::Disconnected, &mut too_late);
    };
    let is_closed = |outcome: &Outcome| {
        matches!(outcome, Outcome::Failed { reason: Failure::Closed, never_sent: false })
    };
    assert!(is_closed(&ended(&lost)));
}

#[test]
fn a_stopped_receiver_leaves_the_call_running() {
    let (mut client, mut server) = pair_of(limits(1, 100), limits(1, 100));
    let (id, incoming) = open(&mut client, &mut server, BOTH);
    for round in 0..2 {
        assert_eq!(send(&mut client, id, body("up")).is_ok(), round < 2);
        send(&mut server, incoming, body("down")).expect("one goes, one waits");
        settle(&mut client, &mut server);
    }
    assert_eq!(client.set_writer(id, 1), None);
    assert_eq!(server.set_writer(incoming, 2), None);
    server.stop(incoming, 8);
    client.stop(id, 0);
    settle(&mut client, &mut server);
    assert_eq!((wakes(&mut client), wakes(&mut server)), (vec![1], vec![2]));
    assert_eq!(client.writable(id), Err(SendError::Stopped(8)));
    assert_eq!(server.writable(incoming), Err(SendError::Stopped(0)));
    assert_eq!(read(&mut client, id), (vec![], Some(StreamEnd::NotOpen)));
    client.finish(id);
    client.reset(id, 1);
    server.reply(incoming, Answer::Ok(body("end"))).expect("the caller waits");
    settle(&mut client, &mut server);
    assert_eq!(reply(&mut client, id), (ReplyKind::Ok, false));
    assert_nothing_left([&client, &server]);
}

#[test]
fn waiting_items_are_returned_at_the_end() {
    use rpc_transport::message::part::OutPart;
    let with_tail = || {
        let mut item = body("");
        item.push_tail(OutPart::shared(std::sync::Arc::new(vec![7; 10])));
        wire::prepend_parts(&mut item, [wire::Part { at: 0, len: 10 }].into_iter());
        item
    };
    let discarded = |end: &mut End| {
        std::iter::from_fn(|| end.poll_event())
            .filter(|event| matches!(event, Event::Discard(_)))
            .count()
    };
    for how in 0..4 {
        let (mut client, mut server) = pair_of(limits(1, 100), limits(1, 100));
        let (id, incoming) = open(&mut client, &mut server, ARGUMENTS);
        send(&mut client, id, body("a")).expect("there is credit");
        settle(&mut client, &mut server);
        send(&mut client, id, with_tail()).expect("one waits");
        match how {
            0 => client.reset(id, 1),
            1 => drop(client.cancel(id, &mut too_late)),
            2 => {
                server.stop(incoming, 0);
                settle(&mut client, &mut server);
            }
            _ => client.on_closed(CloseCause::Disconnected, &mut too_late),
        }
        assert_eq!(discarded(&mut client), 1, "{how}");
    }
}

#[test]
fn a_peer_without_streams_gets_other_calls() {
    let without = SessionLimits { streams: None, ..SessionLimits::default() };
    let (mut client, mut server) = pair_of(SessionLimits::default(), without);
    let refused = client.start(call(RESULTS), body(""), None).expect_err("not agreed");
    assert_eq!(refused.error, StartError::PeerHasNoStreams);
    let refused = server.start(call(RESULTS), body(""), None).expect_err("not agreed");
    assert_eq!(refused.error, StartError::NoStreams);
    let (id, incoming) = open(&mut client, &mut server, CallStreams::NONE);
    server.reply(incoming, Answer::Ok(body(""))).expect("the caller waits");
    settle(&mut client, &mut server);
    assert_eq!(reply(&mut client, id), (ReplyKind::Ok, false));

    // A call that waited for the hello.
    let mut client = End::new(Role::Client, SessionLimits::default());
    let mut server = End::new(Role::Server, without);
    let id = client.start(call(RESULTS), body(""), Some(1)).expect("nothing is known yet");
    assert_eq!(carry(&mut client, &mut server), 1, "the hello alone");
    carry(&mut server, &mut client);
    assert_eq!(wakes(&mut client), [1]);
    assert_eq!(failure(&mut client, id), Failure::PeerHasNoStreams);
    assert_nothing_left([&client, &server]);
}

#[test]
fn an_idle_deadline_starts_anew_with_each_item() {
    let (mut client, mut server) = pair();
    let start = Instant::now();
    let period = Duration::from_millis(100);
    let idle = CallStreams { idle_deadline: true, ..RESULTS };
    let deadline = Some(Deadline { at: start + period, now: start });
    let id = client.start(StartCall { deadline, ..call(idle) }, body(""), None).expect("started");
    let carry_at = |from: &mut End, to: &mut End, now: Instant| {
        while let Some(sent) = from.poll_transmit(|| now) {
            to.on_message(Message::copied(&sent.frame), || now, &mut too_late).expect("correct");
        }
    };
    carry_at(&mut client, &mut server, start);
    let incoming = requested(&mut server, idle);
    let mut now = start;
    for _ in 0..10 {
        now += period * 4 / 5;
        server.send_item(incoming, body("a"), || now).expect("there is credit");
        carry_at(&mut server, &mut client, now);
        client.on_timeout(now, &mut too_late);
        server.on_timeout(now, &mut too_late);
        assert!(!client.has_outcome(id));
        assert_eq!(read(&mut client, id).0.len(), 1);
        carry_at(&mut client, &mut server, now);
    }
    now += period * 2;
    client.on_timeout(now, &mut too_late);
    assert_eq!(read(&mut client, id), (vec![], Some(StreamEnd::Response)));
    assert_eq!(failure(&mut client, id), Failure::DeadlineExceeded);
    server.on_timeout(now, &mut too_late);
    assert_eq!(server.writable(incoming), Err(SendError::Ended));
    server.handler_ended(incoming);
    settle(&mut client, &mut server);
    assert_nothing_left([&client, &server]);
}

#[test]
fn opened_says_that_types_are_accepted() {
    let (mut client, mut server) = pair();
    client.start(call(ARGUMENTS), body("ping"), None).expect("started");
    settle(&mut client, &mut server);
    let Some(Event::Request(incoming)) = server.poll_event() else { panic!("no request") };
    assert!(frames(&mut server).is_empty(), "it may still be refused");
    for _ in 0..2 {
        server.accept_signature(incoming.id);
    }
    let opened = parsed(&mut server);
    assert!(matches!(opened[..], [Frame::Opened { accepted: false, .. }]), "{opened:?}");
    // Without a signature nothing is left to check.
    server.reply(incoming.id, Answer::Ok(body(""))).expect("the caller waits");
    settle(&mut client, &mut server);
    client.start(call(ARGUMENTS), body("ping"), None).expect("started");
    carry(&mut client, &mut server);
    let opened = parsed(&mut server);
    assert!(matches!(opened[..], [Frame::Opened { accepted: false, .. }]), "{opened:?}");
}

#[test]
fn items_wait_for_a_long_request() {
    let (mut client, mut server) = pair();
    let id = client.start(call(BOTH), long(5000), None).expect("started");
    send(&mut client, id, body("a")).expect("the window is known");
    client.finish(id);
    client.stop(id, 3);
    let request = frames(&mut client);
    assert_eq!(request.len(), 1, "what is short would overtake it");
    take(&mut server, &request[0]).expect("correct");
    let incoming = requested(&mut server, BOTH);
    assert_eq!(parsed(&mut server).len(), 1);
    let wire_id = rpc_core::wire::WireId { slot: 0, generation: 1 };
    take(&mut client, &wire::opened(wire_id, false, wire::HowRead::Same)).expect("correct");
    settle(&mut client, &mut server);
    assert_eq!(read(&mut server, incoming), (texts(&["a"]), Some(StreamEnd::Clean)));
    assert_eq!(server.writable(incoming), Err(SendError::Stopped(3)));
    server.reply(incoming, Answer::Ok(body(""))).expect("the caller waits");
    settle(&mut client, &mut server);
    assert_eq!(reply(&mut client, id), (ReplyKind::Ok, false));
    assert_nothing_left([&client, &server]);
}

/// The link still holds everything: no frame of the withdrawn call may remain.
#[test]
fn a_request_is_taken_back_with_items() {
    let (mut client, mut server) = pair();
    let id = client.start(call(ARGUMENTS), body("ping"), None).expect("started");
    send(&mut client, id, body("a")).expect("the window is known");
    send(&mut client, id, body("b")).expect("the window is known");
    client.finish(id);
    let mut queued: Vec<u64> = std::iter::from_fn(|| client.poll_transmit(Instant::now))
        .map(|sent| {
            assert!(!sent.urgent, "it would overtake the request");
            sent.tag
        })
        .collect();
    assert_eq!(queued.len(), 4);
    client.cancel(id, &mut |tag| match queued.iter().position(|queued| *queued == tag) {
        Some(at) => {
            queued.remove(at);
            Revoked::Whole
        }
        None => Revoked::TooLate,
    });
    assert_eq!(queued, [], "left in the link");
    assert_eq!(carry(&mut client, &mut server), 0, "and nothing to say about it");
    assert_nothing_left([&client, &server]);
}

#[test]
fn no_reset_after_the_calls_end() {
    let (mut client, mut server) = pair();
    let (id, incoming) = open(&mut client, &mut server, ARGUMENTS);
    server.reply(incoming, Answer::Ok(body(""))).expect("the caller waits");
    settle(&mut client, &mut server);
    client.reset(id, 1);
    assert_eq!(frames(&mut client).len(), 0, "its slot may be another call's");

    let (mut client, mut server) = pair();
    let (id, _) = open(&mut client, &mut server, ARGUMENTS);
    client.on_closed(CloseCause::Disconnected, &mut too_late);
    client.reset(id, 1);
    assert_eq!(frames(&mut client).len(), 0, "the connection is gone");
}
