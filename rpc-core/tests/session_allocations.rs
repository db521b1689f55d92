//! In steady state a session allocates nothing: not for calls, deadlines, cancels or quarantine.

use std::time::{Duration, Instant};

use rpc_core::session::{
    Answer, CallStreams, Deadline, Event, Outcome, Revoked, Role, Session, SessionLimits, StartCall,
};
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;

type End = Session<u32, u32>;

fn carry(from: &mut End, to: &mut End, now: Instant) {
    while let Some(sent) = from.poll_transmit(|| now) {
        let message = Message::copied(&sent.frame);
        to.on_message(message, || now, &mut |_| Revoked::TooLate).expect("a correct peer");
    }
}

/// Sixteen calls at once: replied to, dropped and expired by turns.
fn round(client: &mut End, server: &mut End, now: Instant) {
    let ids: [_; 16] = std::array::from_fn(|index| {
        let deadline = (index % 2 == 0).then(|| Deadline { at: now + Duration::from_secs(1), now });
        let call = StartCall {
            method: 7,
            method_index: 7,
            signature: 1,
            codec: 0,
            deadline,
            no_cancel: false,
            when_full: rpc_core::transport::WhenFull::Wait,
            is_nested: false,
            metadata: &[],
            streams: CallStreams::NONE,
        };
        let mut body = OutBuf::new();
        body.extend_from_slice(b"some arguments");
        client.start(call, body, Some(1)).expect("started")
    });
    carry(client, server, now);
    for id in &ids[12..] {
        client.cancel(*id, &mut |_| Revoked::TooLate);
    }
    carry(client, server, now);
    while let Some(event) = server.poll_event() {
        let Event::Request(incoming) = event else { continue };
        if incoming.signature.is_some() {
            server.accept_signature(incoming.id);
        }
        server.attach_handler(incoming.id, 1).expect("the caller waits");
        let mut body = OutBuf::new();
        body.extend_from_slice(incoming.body());
        server.reply(incoming.id, Answer::Ok(body)).expect("the caller waits");
    }
    carry(server, client, now);
    client.on_timeout(now, &mut |_| Revoked::TooLate);
    while client.poll_event().is_some() {}
    for id in &ids[..12] {
        assert!(matches!(client.take_outcome(*id), Some(Outcome::Reply(_))));
    }
    assert_eq!((client.busy_slots(), client.running_deadlines()), (0, 0));
}

#[test]
fn a_session_in_steady_state_allocates_nothing() {
    let mut client = End::new(Role::Client, SessionLimits::default());
    let mut server = End::new(Role::Server, SessionLimits::default());
    let start = Instant::now();
    carry(&mut client, &mut server, start);
    carry(&mut server, &mut client, start);
    let mut now = start;
    let mut rounds = |count: u32| {
        for _ in 0..count {
            now += Duration::from_millis(3);
            round(&mut client, &mut server, now);
        }
    };
    rounds(4);
    let counted = allocation_counter::measure(|| rounds(1000));
    assert_eq!((counted.count_total, counted.bytes_total), (0, 0));
}
