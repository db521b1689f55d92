//! Frames that break a rule, each with its own error.

use rpc_core::session::SessionError;
use rpc_core::wire::{HowRead, RequestHead, ResponseHead, WireId};

use super::*;

fn wire_id(slot: u32, generation: u32) -> WireId {
    WireId { slot, generation }
}

fn request_frame(id: WireId, no_cancel: bool) -> Vec<u8> {
    let head = RequestHead {
        id,
        method: 7,
        codec: 0,
        no_cancel,
        remaining_micros: None,
        signature: Some(0x51),
        has_parts: false,
        streams: CallStreams::NONE,
    };
    let mut frame = OutBuf::new();
    wire::prepend_request(&mut frame, &head, false);
    frame.to_vec()
}

fn response_frame(id: WireId) -> Vec<u8> {
    let mut frame = OutBuf::new();
    let head = ResponseHead {
        id,
        kind: ReplyKind::Ok,
        read: HowRead::Same,
        has_parts: false,
        items: 0,
        is_reset: false,
        metadata_bytes: 0,
    };
    wire::prepend_response(&mut frame, &head);
    frame.to_vec()
}

fn error(end: &mut End, frame: &[u8]) -> SessionError {
    take(end, frame).expect_err("breaks a rule")
}

#[test]
fn each_hello_rule_has_its_error() {
    let mut server = End::new(Role::Server, SessionLimits::default());
    let first = request_frame(wire_id(0, 1), false);
    assert_eq!(error(&mut server, &first), SessionError::HelloMissing);
    let newer =
        Hello { min_version: 2, max_version: 3, max_calls: 1, features: 0, stream_window: None };
    let refused = SessionError::NoCommonVersion { min: 2, max: 3, ours: wire::VERSION };
    assert_eq!(error(&mut server, &wire::hello(&newer)), refused);
    let hello = wire::hello(&Hello { min_version: 0, ..newer });
    take(&mut server, &hello).expect("version 1 is among them");
    assert_eq!(error(&mut server, &hello), SessionError::HelloTwice);
}

#[test]
fn a_held_hello_lets_nothing_in() {
    let (mut client, mut server) =
        [Role::Client, Role::Server].map(|role| End::new(role, SessionLimits::default())).into();
    client.present(b"tok");
    server.hold_hello();
    let sent = frames(&mut client);
    take(&mut server, &sent[0]).expect("a correct peer");
    let Some(Event::Hello(credentials)) = server.poll_event() else { panic!("no hello") };
    assert_eq!(credentials.as_deref(), Some(&b"tok"[..]));
    assert!(server.poll_transmit(Instant::now).is_none());
    let early = request_frame(wire_id(0, 1), false);
    assert_eq!(error(&mut server, &early), SessionError::NotAdmitted);
    assert_eq!(error(&mut server, &sent[0]), SessionError::HelloTwice);
    server.admit();
    carry(&mut server, &mut client);
    assert!(matches!(client.poll_event(), Some(Event::Hello(None))));
    let id = start(&mut client);
    carry(&mut client, &mut server);
    let incoming = request(&mut server).id;
    server.reply(incoming, Answer::Ok(body("pong"))).expect("the caller waits");
    carry(&mut server, &mut client);
    assert_eq!(reply(&mut client, id).0, ReplyKind::Ok);
    assert_eq!(error(&mut server, &sent[0]), SessionError::HelloTwice);
}

#[test]
fn each_caller_rule_has_its_error() {
    let (_, mut server) = pair();
    let id = wire_id(3, 9);
    let out = request_frame(wire_id(1024, 1), false);
    let limit = SessionError::SlotOutOfRange { slot: 1024, limit: 1024 };
    assert_eq!(error(&mut server, &out), limit);
    assert_eq!(error(&mut server, &wire::cancel(wire_id(1024, 1))), limit);
    take(&mut server, &request_frame(id, true)).expect("correct");
    assert_eq!(error(&mut server, &wire::cancel(id)), SessionError::CancelForbidden(id));
    let again = wire_id(3, 10);
    assert_eq!(error(&mut server, &request_frame(again, false)), SessionError::SlotInUse(again));
    let running = request(&mut server).id;
    server.reply(running, Answer::Ok(body(""))).expect("the caller waits");
    let repeated = SessionError::GenerationRepeated(id);
    assert_eq!(error(&mut server, &request_frame(id, false)), repeated);
    take(&mut server, &request_frame(again, false)).expect("correct");
    take(&mut server, &wire::cancel(id)).expect("a stale cancel is nobody's fault");
    assert_eq!(server.stale_cancels(), 1);
}

#[test]
fn each_callee_rule_has_its_error() {
    let (mut client, _) = pair();
    let id = wire_id(0, 1);
    let stray = response_frame(id);
    assert_eq!(error(&mut client, &stray), SessionError::ResponseToNoCall(id));
    assert_eq!(error(&mut client, &wire::cancelled(id)), SessionError::CancelledNoCall(id));
    start(&mut client);
    assert_eq!(frames(&mut client).len(), 1);
    assert_eq!(error(&mut client, &wire::cancelled(id)), SessionError::CancelledUnasked(id));
    let stale = wire_id(0, 2);
    let no_call = SessionError::ResponseToNoCall(stale);
    assert_eq!(error(&mut client, &response_frame(stale)), no_call);
    take(&mut client, &stray).expect("now it answers a call");
    assert_eq!(error(&mut client, &stray), SessionError::ResponseToNoCall(id));
}

#[test]
fn each_shutdown_rule_has_its_error() {
    let (_, mut server) = pair();
    assert_eq!(error(&mut server, &wire::go_away(true)), SessionError::DrainedUnasked);
    take(&mut server, &request_frame(wire_id(0, 1), false)).expect("correct");
    server.go_away();
    assert_eq!(error(&mut server, &wire::go_away(true)), SessionError::CallAfterDrained);
    let id = request(&mut server).id;
    server.handler_ended(id);
    take(&mut server, &wire::go_away(true)).expect("correct");
    assert_eq!(error(&mut server, &wire::go_away(true)), SessionError::GoAwayTwice);
    let late = request_frame(wire_id(0, 2), false);
    assert_eq!(error(&mut server, &late), SessionError::CallAfterDrained);
    take(&mut server, &wire::go_away(false)).expect("correct");
    assert_eq!(error(&mut server, &wire::go_away(false)), SessionError::GoAwayTwice);
}

/// The attack that is known as rapid reset: it must not gather handlers without a bound.
#[test]
fn cancelled_requests_hold_slots_until_handlers_end() {
    let (_, mut server) = pair();
    take(&mut server, &request_frame(wire_id(0, 1), false)).expect("correct");
    let running = request(&mut server).id;
    take(&mut server, &wire::cancel(wire_id(0, 1))).expect("correct");
    let next = wire_id(0, 2);
    assert_eq!(error(&mut server, &request_frame(next, false)), SessionError::SlotInUse(next));
    assert_eq!(server.attach_handler(running, 6), Err(6));
    server.handler_ended(running);
    take(&mut server, &request_frame(next, false)).expect("now the slot is free");
}
