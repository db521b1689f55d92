//! Two sessions with every frame carried by hand: calls on the wire, limit by limit and rule by
//! rule.

#[path = "../by_hand/mod.rs"]
mod by_hand;
mod ends;
mod given_up;
mod rules;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rpc_core::session::{
    Answer, CallId, CallStreams, Deadline, Event, Failure, INITIAL_CALLS, Incoming, Outcome,
    ReplyKind, Revoked, Role, SessionLimits, StartCall, StartError,
};
use rpc_core::wire::{self, Frame, Hello, code};
use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::part::OutPart;
use rpc_transport::message::received::Message;
use rpc_transport::protocol::config::WhenFull;
use rpc_transport::user_code::HoldsShard;

use self::by_hand::*;

const MILLISECOND: Duration = Duration::from_millis(1);

fn call(method: u32) -> StartCall<'static> {
    StartCall {
        method,
        method_index: method,
        signature: 0x51,
        codec: 1,
        deadline: None,
        no_cancel: false,
        when_full: WhenFull::Wait,
        is_nested: false,
        metadata: &[],
        streams: CallStreams::NONE,
    }
}

fn start(end: &mut End) -> CallId {
    end.start(call(7), body("ping"), None).expect("started")
}

fn pair_of(client: SessionLimits, server: SessionLimits) -> (End, End) {
    let mut client = End::new(Role::Client, client);
    let mut server = End::new(Role::Server, server);
    carry(&mut client, &mut server);
    carry(&mut server, &mut client);
    (client, server)
}

fn pair() -> (End, End) {
    pair_of(SessionLimits::default(), SessionLimits::default())
}

/// The next request, whose types are accepted.
fn request(end: &mut End) -> Incoming {
    let incoming = unread_request(end);
    end.accept_signature(incoming.id);
    incoming
}

fn unread_request(end: &mut End) -> Incoming {
    match end.poll_event() {
        Some(Event::Request(incoming)) => incoming,
        other => panic!("no request but {other:?}"),
    }
}

fn reply(end: &mut End, id: CallId) -> (ReplyKind, Vec<u8>) {
    match end.take_outcome(id) {
        Some(Outcome::Reply(reply)) => (reply.kind, reply.message.to_vec()),
        other => panic!("no reply but {other:?}"),
    }
}

fn failure(end: &mut End, id: CallId) -> (Failure, bool) {
    match end.take_outcome(id) {
        Some(Outcome::Failed { reason, never_sent }) => (reason, never_sent),
        other => panic!("no failure but {other:?}"),
    }
}

fn why_not(end: &mut End, call: StartCall<'_>) -> StartError {
    let refused = end.start(call, body("ping"), None).expect_err("refused");
    assert_eq!(&*refused.body, b"ping");
    refused.error
}

#[test]
fn an_answered_call_frees_its_slot() {
    let (mut client, mut server) = pair();
    let id = client.start(call(7), body("ping"), Some(42)).expect("started");
    assert_eq!(carry(&mut client, &mut server), 1);
    let incoming = request(&mut server);
    assert_eq!((incoming.body(), incoming.metadata()), (&b"ping"[..], &b""[..]));
    assert_eq!((incoming.method, incoming.codec, incoming.deadline), (7, 1, None));
    assert_eq!(server.incoming_calls(), 1);
    server.reply(incoming.id, Answer::Ok(body("pong"))).expect("the caller waits");
    carry(&mut server, &mut client);
    assert!(matches!(client.poll_event(), Some(Event::Wake(42))));
    assert_eq!(reply(&mut client, id), (ReplyKind::Ok, b"pong".to_vec()));
    assert_eq!((client.busy_slots(), server.incoming_calls()), (0, 0));
    assert_eq!(failure(&mut client, id), (Failure::NoSuchCall, false));
}

#[test]
fn waiters_are_returned_never_dropped() {
    let (mut client, mut server) = pair();
    let id = start(&mut client);
    assert_eq!(client.set_waiter(id, 1), None);
    assert_eq!(client.set_waiter(id, 2), Some(1));
    assert_eq!(client.waiter(id), Some(&2));
    carry(&mut client, &mut server);
    let incoming = request(&mut server).id;
    server.reply(incoming, Answer::Ok(body(""))).expect("the caller waits");
    carry(&mut server, &mut client);
    assert!(matches!(client.poll_event(), Some(Event::Wake(2))));
    assert_eq!(client.set_waiter(id, 3), Some(3), "there is nothing to wait for");
    let dropped = client.start(call(7), body("ping"), Some(4)).expect("started");
    assert_eq!(client.cancel(dropped, &mut too_late), Some(4));
    assert_eq!(client.cancel(dropped, &mut too_late), None);
}

#[test]
fn both_ends_call_at_once() {
    let (mut client, mut server) = pair();
    let ids = [start(&mut client), start(&mut server)];
    carry(&mut client, &mut server);
    carry(&mut server, &mut client);
    for end in [&mut client, &mut server] {
        let id = request(end).id;
        end.reply(id, Answer::UserError(body("no"))).expect("the caller waits");
    }
    carry(&mut client, &mut server);
    carry(&mut server, &mut client);
    assert_eq!(reply(&mut client, ids[0]), (ReplyKind::UserError, b"no".to_vec()));
    assert_eq!(reply(&mut server, ids[1]), (ReplyKind::UserError, b"no".to_vec()));
}

#[test]
fn the_signature_is_sent_until_accepted() {
    let (mut client, mut server) = pair();
    let mut round = |accept: bool, method: u32| {
        client.start(call(method), body("ping"), None).expect("started");
        carry(&mut client, &mut server);
        let incoming = unread_request(&mut server);
        if accept {
            server.accept_signature(incoming.id);
        }
        server.reply(incoming.id, Answer::Ok(body(""))).expect("the caller waits");
        carry(&mut server, &mut client);
        incoming.signature
    };
    assert_eq!(round(false, 7), Some(0x51));
    assert_eq!(round(true, 7), Some(0x51));
    assert_eq!(round(true, 7), None);
    assert_eq!(round(true, 8), Some(0x51));
    assert_eq!(round(true, 8), None);
    assert_eq!(round(true, 7), None);
}

#[test]
fn an_unsigned_call_is_refused_before_acceptance() {
    let (mut client, mut server) = pair();
    let id = start(&mut client);
    let frame = frames(&mut client).remove(0);
    // The request, without the block and its flag.
    let unsigned = [&[frame[0], 0][..], &frame[2..16], &frame[24..]].concat();
    take(&mut server, &unsigned).expect("refused, but no error");
    assert!(server.poll_event().is_none());
    carry(&mut server, &mut client);
    let (kind, _) = reply(&mut client, id);
    assert!(matches!(kind, ReplyKind::Status { code: code::FAILED_PRECONDITION, .. }));
}

#[test]
fn a_status_keeps_its_code_text_and_details() {
    let (mut client, mut server) = pair();
    let id = start(&mut client);
    carry(&mut client, &mut server);
    let incoming = request(&mut server);
    let answer = Answer::Status { code: 5, retryable: true, text: "no key", details: b"\xff" };
    server.reply(incoming.id, answer).expect("the caller waits");
    carry(&mut server, &mut client);
    let Some(Outcome::Reply(reply)) = client.take_outcome(id) else { panic!("no reply") };
    assert_eq!((reply.text(), reply.details()), ("no key", &b"\xff"[..]));
    let expected = ReplyKind::Status { code: 5, retryable: true, details_bytes: 1 };
    assert_eq!(reply.kind, expected);
}

/// A reply's body with metadata in front.
fn with_metadata(text: &str) -> OutBuf {
    let mut answer = body(text);
    answer.prepend_marked(b"md");
    answer
}

#[test]
fn reply_metadata_precedes_the_body() {
    let (mut client, mut server) = pair();
    let id = start(&mut client);
    carry(&mut client, &mut server);
    let incoming = request(&mut server);
    server.reply(incoming.id, Answer::Ok(with_metadata("pong"))).expect("the caller waits");
    carry(&mut server, &mut client);
    let Some(Outcome::Reply(mut reply)) = client.take_outcome(id) else { panic!("no reply") };
    assert_eq!((reply.kind, reply.metadata()), (ReplyKind::Ok, &b"md"[..]));
    reply.message.skip_marked();
    assert_eq!((&reply.message[..], reply.metadata()), (&b"pong"[..], &b""[..]));
}

#[test]
fn an_older_peer_gets_no_reply_metadata() {
    let mut client = End::new(Role::Client, SessionLimits::default());
    let mut server = End::new(Role::Server, SessionLimits::default());
    let id = start(&mut client);
    let sent = frames(&mut client);
    let old =
        Hello { min_version: 1, max_version: 1, max_calls: 0, features: 0, stream_window: None };
    take(&mut server, &wire::hello(&old)).expect("a correct peer");
    take(&mut server, &sent[1]).expect("a correct peer");
    let incoming = request(&mut server);
    server.reply(incoming.id, Answer::Ok(with_metadata("pong"))).expect("the caller waits");
    let answers = frames(&mut server);
    let last = answers.last().expect("the answer");
    assert_eq!((last[1] & 0x80, &last[16..]), (0, &b"pong"[..]), "not a flag that it knows");
    for frame in &answers {
        take(&mut client, frame).expect("a correct peer");
    }
    assert_eq!(reply(&mut client, id), (ReplyKind::Ok, b"pong".to_vec()));
}

#[test]
fn metadata_stands_beside_the_body() {
    let (mut client, mut server) = pair();
    let metadata = vec![3; wire::MAX_METADATA_BYTES];
    let with = StartCall { metadata: &metadata, ..call(7) };
    client.start(with, body("ping"), None).expect("started");
    carry(&mut client, &mut server);
    let incoming = request(&mut server);
    assert_eq!((incoming.metadata(), incoming.body()), (&metadata[..], &b"ping"[..]));
    assert_eq!(&*incoming.into_body(), b"ping");
    let metadata = vec![3; wire::MAX_METADATA_BYTES + 1];
    let error = why_not(&mut client, StartCall { metadata: &metadata, ..call(7) });
    assert_eq!(error, StartError::MetadataTooLong(metadata.len()));
}

#[test]
fn calls_wait_for_the_hello_within_bounds() {
    let mut client = End::new(Role::Client, SessionLimits::default());
    let few = SessionLimits { max_incoming_calls: 70, ..SessionLimits::default() };
    let mut server = End::new(Role::Server, few);
    assert!(server.poll_transmit(Instant::now).is_none(), "the client speaks first");
    start(&mut server);
    assert!(server.poll_transmit(Instant::now).is_none(), "the hello goes first");
    for _ in 0..80 {
        start(&mut client);
    }
    let sent = frames(&mut client);
    assert_eq!(sent.len(), 1 + INITIAL_CALLS as usize);
    for frame in &sent {
        take(&mut server, frame).expect("a correct peer");
    }
    let answer = parsed(&mut server);
    assert!(matches!(answer[..], [Frame::Hello(_), Frame::Request { .. }]));
    let hello =
        Hello { min_version: 1, max_version: 1, max_calls: 70, features: 0, stream_window: None };
    take(&mut client, &wire::hello(&hello)).expect("a correct peer");
    assert_eq!(carry(&mut client, &mut server), 69, "up to the announced limit");
    let incoming = request(&mut server);
    server.reply(incoming.id, Answer::Ok(body(""))).expect("the caller waits");
    carry(&mut server, &mut client);
    assert_eq!(carry(&mut client, &mut server), 1, "one ended, one goes out");
}

#[test]
fn calls_before_the_hello_are_not_refused() {
    let one = SessionLimits { max_incoming_calls: 1, ..SessionLimits::default() };
    let mut client = End::new(Role::Client, SessionLimits::default());
    let mut server = End::new(Role::Server, one);
    let ids = [start(&mut client), start(&mut client), start(&mut client)];
    for id in ids {
        carry(&mut client, &mut server);
        let incoming = request(&mut server).id;
        assert!(server.poll_event().is_none(), "one at a time");
        server.reply(incoming, Answer::Ok(body("pong"))).expect("the caller waits");
        carry(&mut server, &mut client);
        assert_eq!(reply(&mut client, id).0, ReplyKind::Ok);
    }
}

#[test]
fn an_end_without_services_refuses_calls() {
    let none = SessionLimits { max_incoming_calls: 0, ..SessionLimits::default() };
    let mut client = End::new(Role::Client, SessionLimits::default());
    let mut server = End::new(Role::Server, none);
    let id = start(&mut client);
    carry(&mut client, &mut server);
    assert!(server.poll_event().is_none(), "it is refused");
    let sent = frames(&mut server);
    for frame in &sent {
        take(&mut client, frame).expect("a correct peer");
    }
    let (kind, _) = reply(&mut client, id);
    let code = code::RESOURCE_EXHAUSTED;
    assert_eq!(kind, ReplyKind::Status { code, retryable: true, details_bytes: 0 });
    assert_eq!(why_not(&mut client, call(7)), StartError::PeerTakesNoCalls);
}

#[test]
fn a_peer_that_takes_no_calls_gets_none() {
    let none = SessionLimits { max_incoming_calls: 0, ..SessionLimits::default() };
    let (_, mut server) = pair_of(none, SessionLimits::default());
    assert_eq!(why_not(&mut server, call(7)), StartError::PeerTakesNoCalls);

    let mut server = End::new(Role::Server, SessionLimits::default());
    let waiting = server.start(call(7), body("ping"), Some(9)).expect("nothing is known yet");
    carry(&mut End::new(Role::Client, none), &mut server);
    assert!(matches!(server.poll_event(), Some(Event::Wake(9))));
    assert_eq!(failure(&mut server, waiting), (Failure::PeerTakesNoCalls, true));
}

#[test]
fn the_table_of_calls_is_bounded() {
    let three =
        SessionLimits { max_outgoing_calls: 2, max_waiting_calls: 1, ..SessionLimits::default() };
    let (mut client, _) = pair_of(three, SessionLimits::default());
    let first = start(&mut client);
    start(&mut client);
    start(&mut client);
    assert_eq!(why_not(&mut client, call(7)), StartError::TooManyCalls);
    client.cancel(first, &mut too_late);
    start(&mut client);
}

#[test]
fn calls_above_the_callers_limit_wait() {
    let two = SessionLimits { max_outgoing_calls: 2, ..SessionLimits::default() };
    let (mut client, mut server) = pair_of(two, SessionLimits::default());
    let refuse = StartCall { when_full: WhenFull::Refuse, ..call(7) };
    let first = client.start(refuse, body("ping"), None).expect("nobody else is there");
    let second = start(&mut client);
    let (third, fourth) = (start(&mut client), start(&mut client));
    assert_eq!(why_not(&mut client, refuse), StartError::Full(2), "none has left yet");
    carry(&mut client, &mut server);
    let incoming = [request(&mut server).id, request(&mut server).id];
    assert!(server.poll_event().is_none(), "two in flight");
    assert_eq!(why_not(&mut client, refuse), StartError::Full(2));
    // A dropped call leaves its place in the queue to the next.
    client.cancel(third, &mut too_late);
    let reply = |server: &mut End, id| server.reply(id, Answer::Ok(body("pong"))).expect("running");
    reply(&mut server, incoming[0]);
    carry(&mut server, &mut client);
    client.take_outcome(first).expect("answered");
    assert_eq!(why_not(&mut client, refuse), StartError::Full(2), "it does not jump the line");
    carry(&mut client, &mut server);
    let fourths = request(&mut server).id;
    for id in [incoming[1], fourths] {
        reply(&mut server, id);
    }
    carry(&mut server, &mut client);
    assert!(client.take_outcome(second).is_some() && client.take_outcome(fourth).is_some());
    client.start(refuse, body("ping"), None).expect("there is room");
    // A slot in quarantine counts as a call that the server still runs.
    let last = start(&mut client);
    carry(&mut client, &mut server);
    client.cancel(last, &mut too_late);
    assert_eq!(why_not(&mut client, refuse), StartError::Full(2));
}

#[test]
fn the_callers_limit_holds_until_the_hello() {
    let mut client = End::new(Role::Client, SessionLimits::default());
    let refuse = StartCall { when_full: WhenFull::Refuse, ..call(7) };
    for _ in 0..5 {
        client.start(refuse, body("ping"), None).expect("it waits for the hello");
    }
    let four = SessionLimits { max_incoming_calls: 4, ..SessionLimits::default() };
    let mut server = End::new(Role::Server, four);
    carry(&mut client, &mut server);
    carry(&mut server, &mut client);
    assert_eq!(why_not(&mut client, refuse), StartError::Full(4));
    let none = SessionLimits { max_outgoing_calls: 0, ..SessionLimits::default() };
    let (mut client, _) = pair_of(none, SessionLimits::default());
    assert_eq!(why_not(&mut client, call(7)), StartError::TooManyCalls);
}

#[test]
fn dropping_a_call_stops_its_handler() {
    let (mut client, mut server) = pair();
    let id = start(&mut client);
    carry(&mut client, &mut server);
    let incoming = request(&mut server);
    server.attach_handler(incoming.id, 5).expect("the caller waits");
    assert_eq!(client.cancel(id, &mut too_late), None);
    assert_eq!((client.outgoing_calls(), client.quarantined_slots()), (0, 1));
    assert_eq!(carry(&mut client, &mut server), 1);
    assert!(matches!(server.poll_event(), Some(Event::CancelHandler(5))));
    assert_eq!(carry(&mut server, &mut client), 0, "the handler still runs");
    assert!(server.reply(incoming.id, Answer::Ok(body("late"))).is_err());
    assert!(matches!(parsed(&mut server)[..], [Frame::Cancelled(_)]));
    assert_eq!(server.incoming_calls(), 0);
}

#[test]
fn a_request_cancelled_early_never_runs() {
    let (mut client, mut server) = pair();
    let id = start(&mut client);
    carry(&mut client, &mut server);
    client.cancel(id, &mut too_late);
    carry(&mut client, &mut server);
    assert!(matches!(parsed(&mut server)[..], [Frame::Cancelled(_)]));
    assert!(server.poll_event().is_none());
    assert_eq!(server.incoming_calls(), 0);
}

#[test]
fn a_dropped_unsent_call_is_taken_back() {
    let (mut client, mut server) = pair();
    let id = start(&mut client);
    let sent = client.poll_transmit(Instant::now).expect("a request");
    let mut asked = Vec::new();
    client.cancel(id, &mut |tag| {
        asked.push(tag);
        Revoked::Aborted
    });
    assert_eq!(asked, [sent.tag]);
    assert_eq!((client.busy_slots(), carry(&mut client, &mut server)), (0, 0));
}

#[test]
fn a_dropped_unpolled_call_leaves_no_trace() {
    let (mut client, mut server) = pair();
    let ids: Vec<CallId> = (0..200).map(|_| start(&mut client)).collect();
    let mut nothing_to_revoke = |_: u64| -> Revoked { panic!("nothing is with the link") };
    for id in &ids[..199] {
        client.cancel(*id, &mut nothing_to_revoke);
    }
    assert_eq!(carry(&mut client, &mut server), 1);
    assert_eq!((client.outgoing_calls(), client.busy_slots()), (1, 1));
}

#[test]
fn a_cancelled_waiting_answer_is_taken_back() {
    for (revoked, expected) in [(Revoked::Whole, 1), (Revoked::TooLate, 0)] {
        let (mut client, mut server) = pair();
        let id = start(&mut client);
        carry(&mut client, &mut server);
        let incoming = request(&mut server).id;
        server.reply(incoming, Answer::Ok(body("large"))).expect("the caller waits");
        let answer = server.poll_transmit(Instant::now).expect("the answer is with the link");
        client.cancel(id, &mut too_late);
        let cancel = frames(&mut client).remove(0);
        let mut revoke = |tag| if tag == answer.tag { revoked } else { Revoked::TooLate };
        server.on_message(Message::copied(&cancel), Instant::now, &mut revoke).expect("correct");
        assert_eq!(parsed(&mut server).len(), expected, "{revoked:?}");
    }
}

#[test]
fn an_abandoned_uncancellable_call_is_still_answered() {
    let (mut client, mut server) = pair();
    let keep = StartCall { no_cancel: true, ..call(7) };
    let sent = client.start(keep, body("sent"), None).expect("started");
    carry(&mut client, &mut server);
    let unsent = client.start(keep, body("unsent"), None).expect("started");
    for id in [sent, unsent] {
        client.cancel(id, &mut |_| panic!("it must not be taken back"));
    }
    assert_eq!(carry(&mut client, &mut server), 1, "the second request, and no cancel");
    assert_eq!((client.outgoing_calls(), client.quarantined_slots()), (0, 2));
    for _ in 0..2 {
        let id = request(&mut server).id;
        server.reply(id, Answer::Ok(body("done"))).expect("somebody could wait");
    }
    carry(&mut server, &mut client);
    assert_eq!((client.busy_slots(), client.poll_event().is_none()), (0, true));
}

/// Starts a call with `timeout` at `now`.
fn start_timed(end: &mut End, now: Instant, timeout: Duration) -> CallId {
    let deadline = Some(Deadline { at: now + timeout, now });
    end.start(StartCall { deadline, ..call(7) }, body("ping"), Some(1)).expect("started")
}

#[test]
fn a_deadline_is_sent_as_time_left() {
    let (mut client, mut server) = pair();
    let now = Instant::now();
    start_timed(&mut client, now, 10 * MILLISECOND);
    let sent = client.poll_transmit(|| now + 4 * MILLISECOND).expect("a request");
    let (Frame::Request { head, .. }, _) = wire::parse(&sent.frame).expect("well-formed") else {
        panic!("no request");
    };
    assert_eq!(head.remaining_micros, Some(6000));
    let arrival = now + 100 * MILLISECOND;
    let message = Message::copied(&sent.frame);
    server.on_message(message, || arrival, &mut too_late).expect("correct");
    assert_eq!(request(&mut server).deadline, Some(arrival + 6 * MILLISECOND));
    assert_eq!((client.running_deadlines(), server.running_deadlines()), (1, 1));
}

#[test]
fn a_passed_deadline_stops_call_and_handler() {
    let (mut client, mut server) = pair();
    let now = Instant::now();
    let id = start_timed(&mut client, now, MILLISECOND);
    let sent = client.poll_transmit(|| now).expect("a request");
    server.on_message(Message::copied(&sent.frame), || now, &mut too_late).expect("correct");
    let incoming = request(&mut server).id;
    server.attach_handler(incoming, 3).expect("the caller waits");

    client.on_timeout(now + MILLISECOND - Duration::from_micros(1), &mut too_late);
    assert!(client.poll_event().is_none(), "not before its time");
    let late = now + MILLISECOND + Duration::from_micros(256);
    client.on_timeout(late, &mut too_late);
    assert!(matches!(client.poll_event(), Some(Event::Wake(1))));
    assert_eq!(failure(&mut client, id), (Failure::DeadlineExceeded, false));
    assert!(matches!(parsed(&mut client)[..], [Frame::Cancel(_)]));

    server.on_timeout(late, &mut too_late);
    assert!(matches!(server.poll_event(), Some(Event::CancelHandler(3))));
    server.handler_ended(incoming);
    carry(&mut server, &mut client);
    assert_eq!((client.busy_slots(), server.incoming_calls()), (0, 0));
    assert_eq!((client.next_deadline(), server.next_deadline()), (None, None));
}

#[test]
fn an_expired_request_never_runs() {
    let (mut client, mut server) = pair();
    let id = start(&mut client);
    let frame = frames(&mut client).remove(0);
    let expired = [&[frame[0], frame[1] | 1][..], &frame[2..16], &[0; 8], &frame[16..]].concat();
    take(&mut server, &expired).expect("correct");
    assert!(server.poll_event().is_none());
    carry(&mut server, &mut client);
    let (kind, _) = reply(&mut client, id);
    assert!(matches!(kind, ReplyKind::Status { code: code::DEADLINE_EXCEEDED, .. }));
}

#[test]
fn a_late_deadline_keeps_the_request_unsent() {
    let (mut client, _) = pair();
    let now = Instant::now();
    let id = start_timed(&mut client, now, MILLISECOND);
    assert!(client.poll_transmit(|| now + MILLISECOND).is_none());
    assert_eq!(failure(&mut client, id), (Failure::DeadlineExceeded, true));
    let error =
        why_not(&mut client, StartCall { deadline: Some(Deadline { at: now, now }), ..call(7) });
    assert_eq!(error, StartError::DeadlineExceeded);
}
