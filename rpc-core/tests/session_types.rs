//! What two ends say of the types of a call, every frame carried by hand: a value is given out only
//! if the callee has read the arguments as the caller wrote them.

mod by_hand;

use std::time::Instant;

use rpc_core::session::{
    Answer, CallId, CallStreams, Event, Failure, Incoming, Outcome, Role, SessionLimits, StartCall,
};
use rpc_core::wire::{self, Frame, HowRead, ItemHead, ReplyKind, ResponseHead, WireError};

use self::by_hand::*;

const ARGUMENTS: CallStreams =
    CallStreams { arguments: true, results: false, idle_deadline: false };

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

fn settle(client: &mut End, server: &mut End) {
    while carry(client, server) + carry(server, client) != 0 {}
}

fn pair_of(limits: SessionLimits) -> (End, End) {
    let mut client = End::new(Role::Client, SessionLimits::default());
    let mut server = End::new(Role::Server, limits);
    settle(&mut client, &mut server);
    (client, server)
}

fn request(server: &mut End) -> Incoming {
    match server.poll_event() {
        Some(Event::Request(incoming)) => incoming,
        other => panic!("no request but {other:?}"),
    }
}

/// The id of the only call on the wire.
fn wire_id(frame: &[u8]) -> wire::WireId {
    match wire::parse(frame).expect("a frame").0 {
        Frame::Request { head, .. } => head.id,
        other => panic!("no request but {other:?}"),
    }
}

fn response(id: wire::WireId, kind: ReplyKind, read: HowRead) -> Vec<u8> {
    let mut frame = body("");
    let (has_parts, items, is_reset, metadata_bytes) = (false, 0, false, 0);
    let head = ResponseHead { id, kind, read, has_parts, items, is_reset, metadata_bytes };
    wire::prepend_response(&mut frame, &head);
    frame.to_vec()
}

/// How a call ends that the callee answers like this. `asks`: its request has the signature.
fn answered(asks: bool, kind: ReplyKind, read: HowRead) -> Outcome {
    let (mut client, mut server) = pair_of(SessionLimits::default());
    if !asks {
        client.start(call(CallStreams::NONE), body(""), None).expect("started");
        settle(&mut client, &mut server);
        let first = request(&mut server).id;
        server.accept_signature(first);
        server.reply(first, Answer::Ok(body(""))).expect("the caller waits");
        settle(&mut client, &mut server);
    }
    let id = client.start(call(CallStreams::NONE), body(""), None).expect("started");
    let frame = frames(&mut client).remove(0);
    take(&mut client, &response(wire_id(&frame), kind, read)).expect("correct");
    client.take_outcome(id).expect("it has ended")
}

#[test]
fn a_value_needs_the_word_of_its_callee() {
    let status = ReplyKind::Status { code: 5, retryable: false, details_bytes: 0 };
    for kind in [ReplyKind::Ok, ReplyKind::UserError, status] {
        for (asks, read, is_read) in [
            (true, HowRead::Same, true),
            // No handler has run: there is a text to read, but no value.
            (true, HowRead::Unsaid, kind == status),
            (true, HowRead::BySchema, false),
            (false, HowRead::Unsaid, true),
            (false, HowRead::Same, true),
            (false, HowRead::BySchema, false),
        ] {
            let what = format!("{kind:?} {read:?}, asked: {asks}");
            match answered(asks, kind, read) {
                Outcome::Reply(reply) => assert!(is_read && reply.kind == kind, "{what}"),
                Outcome::Failed { reason: Failure::TypesDisagree, never_sent: false } => {
                    assert!(!is_read, "{what}");
                }
                other => panic!("{what}: {other:?}"),
            }
        }
    }
}

#[test]
fn arguments_stay_where_the_types_disagree() {
    for accepted in [false, true] {
        for read in [HowRead::Unsaid, HowRead::BySchema] {
            let (mut client, _server) = pair_of(SessionLimits::default());
            let id = client.start(call(ARGUMENTS), body(""), Some(1)).expect("started");
            let wire_id = wire_id(&frames(&mut client).remove(0));
            take(&mut client, &wire::opened(wire_id, accepted, read)).expect("correct");
            let ended = client.take_outcome(id);
            assert!(
                matches!(ended, Some(Outcome::Failed { reason: Failure::TypesDisagree, .. })),
                "{ended:?}"
            );
            let said = parsed(&mut client);
            assert_eq!(said, [Frame::Cancel(wire_id)], "its handler is stopped");
        }
    }
}

/// What frames say, byte by byte: `docs/wire-format.md`.
#[test]
fn each_answer_has_its_own_bytes() {
    let id = wire::WireId { slot: 0x0102_0304, generation: 0x0506_0708 };
    let item = |read| {
        let mut frame = body("i");
        let (results, number, has_parts, is_metadata) = (true, 0, false, false);
        let head = ItemHead { id, results, number, has_parts, is_metadata, read };
        wire::prepend_item(&mut frame, &head);
        frame.to_vec()
    };
    for (read, flag, byte) in
        [(HowRead::Unsaid, 0, 0), (HowRead::Same, 0x08, 0), (HowRead::BySchema, 0, 1)]
    {
        for (frame, kind, flags) in [
            (response(id, ReplyKind::Ok, read), 3, 0),
            (response(id, ReplyKind::UserError, read), 3, 1),
            (item(read), 6, 1),
            (wire::opened(id, false, read).to_vec(), 11, 0),
            (wire::opened(id, true, read).to_vec(), 11, 1),
        ] {
            assert_eq!(frame[..4], [kind, flags | flag, 0, byte]);
            let said = match wire::parse(&frame).expect("a frame").0 {
                Frame::Response(head) => head.read,
                Frame::Item(head) => head.read,
                Frame::Opened { read, .. } => read,
                other => panic!("{other:?}"),
            };
            assert_eq!(said, read);
            // Both at once, and a byte that is not known, are refused.
            for (flag, byte) in [(0x08, 1), (0, 2), (0x08, 0xff)] {
                let changed = [&[kind, flags | flag, 0, byte][..], &frame[4..]].concat();
                let error = wire::parse(&changed).expect_err("it says two things, or nothing");
                assert!(matches!(error, WireError::UnknownReading { .. }), "{error:?}");
            }
        }
    }
}

/// Starts an upload whose writer waits until its arguments may leave.
fn upload(client: &mut End, waiter: u32) -> CallId {
    let id = client.start(call(ARGUMENTS), body(""), None).expect("started");
    assert_eq!(client.watch_writer(id, waiter), None);
    id
}

fn woken(client: &mut End) -> Vec<u32> {
    let mut woken = Vec::new();
    while let Some(event) = client.poll_event() {
        if let Event::Wake(waiter) = event {
            woken.push(waiter);
        }
    }
    woken
}

/// A regression: whether the writer had to be woken was asked of the method, not of the call, so
/// the answer to another call in between left it waiting for ever.
#[test]
fn each_held_writer_is_woken() {
    let (mut client, mut server) = pair_of(SessionLimits::default());
    let [one, two] = [1, 2].map(|waiter| upload(&mut client, waiter));
    settle(&mut client, &mut server);
    let [first, second] = [(); 2].map(|()| request(&mut server).id);
    assert_eq!(woken(&mut client), []);
    // The response of one overtakes what is said of the other.
    server.accept_signature(first);
    server.reply(first, Answer::Ok(body(""))).expect("the caller waits");
    settle(&mut client, &mut server);
    assert_eq!(woken(&mut client), [1]);
    assert!(client.has_outcome(one));
    server.accept_signature(second);
    settle(&mut client, &mut server);
    assert_eq!(woken(&mut client), [2], "its types are accepted, too");
    assert!(client.send_item(two, body("a"), Instant::now).is_ok());
}

/// As above: the call waited in line while the types were accepted, so its request does not ask.
#[test]
fn a_writer_in_line_is_woken_later() {
    let limits = SessionLimits { max_incoming_calls: 1, ..SessionLimits::default() };
    let (mut client, mut server) = pair_of(limits);
    let _one = upload(&mut client, 1);
    let two = upload(&mut client, 2);
    settle(&mut client, &mut server);
    let first = request(&mut server).id;
    server.accept_signature(first);
    server.reply(first, Answer::Ok(body(""))).expect("the caller waits");
    settle(&mut client, &mut server);
    assert_eq!(request(&mut server).signature, None);
    assert!(woken(&mut client).contains(&2));
    assert!(client.send_item(two, body("a"), Instant::now).is_ok());
}
