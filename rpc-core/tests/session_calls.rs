//! Two sessions, every frame carried by hand: what each call does on the wire.

use std::time::Instant;

use rpc_core::session::{
    Answer, CallId, Event, Incoming, Outcome, ReplyKind, Revoked, Role, Session, SessionLimits,
    StartCall,
};
use rpc_transport::message::Message;
use rpc_transport::outbound::OutBuf;

type End = Session<u32, u32>;

fn body(text: &str) -> OutBuf {
    let mut out = OutBuf::new();
    out.extend_from_slice(text.as_bytes());
    out
}

fn call(method: u32) -> StartCall<'static> {
    StartCall {
        method,
        method_index: method,
        signature: 0x51,
        codec: 1,
        deadline: None,
        no_cancel: false,
        metadata: &[],
    }
}

/// Carries every frame that `from` has to `to`.
fn carry(from: &mut End, to: &mut End) -> usize {
    let mut count = 0;
    while let Some(transmit) = from.poll_transmit(Instant::now) {
        let message = Message::copied(&transmit.frame);
        to.on_message(message, Instant::now, &mut |_| Revoked::TooLate).expect("a correct peer");
        count += 1;
    }
    count
}

fn pair() -> (End, End) {
    let mut client = End::new(Role::Client, SessionLimits::default());
    let mut server = End::new(Role::Server, SessionLimits::default());
    carry(&mut client, &mut server);
    carry(&mut server, &mut client);
    (client, server)
}

fn request(end: &mut End) -> Incoming {
    match end.poll_event() {
        Some(Event::Request(incoming)) => incoming,
        other => panic!("no request but {other:?}"),
    }
}

fn reply_text(end: &mut End, id: CallId) -> (ReplyKind, Vec<u8>) {
    match end.take_outcome(id) {
        Some(Outcome::Reply(reply)) => (reply.kind, reply.message.to_vec()),
        other => panic!("no reply but {other:?}"),
    }
}

#[test]
fn a_call_is_answered_and_its_slot_comes_home() {
    let (mut client, mut server) = pair();
    let id = client.start(call(7), body("ping"), Some(42)).expect("started");
    assert_eq!(carry(&mut client, &mut server), 1);
    let incoming = request(&mut server);
    assert_eq!(incoming.body(), b"ping");
    assert_eq!(incoming.signature, Some(0x51));
    server.accept_signature(incoming.id);
    server.reply(incoming.id, Answer::Ok(body("pong"))).expect("the caller waits");
    carry(&mut server, &mut client);
    assert!(matches!(client.poll_event(), Some(Event::Wake(42))));
    assert_eq!(reply_text(&mut client, id), (ReplyKind::Ok, b"pong".to_vec()));
    assert_eq!((client.busy_slots(), server.incoming_calls()), (0, 0));

    client.start(call(7), body("again"), None).expect("started");
    carry(&mut client, &mut server);
    assert_eq!(request(&mut server).signature, None, "accepted, so left out");
}
