//! An end knows whose tails are copied out when the head of a large message arrives.

use rpc_transport::protocol::config::WhenFull;

use super::*;

type End = Session<(), ()>;

/// Carries all frames, and returns for how many the receiver says that their tail is copied out.
fn carry(from: &mut End, to: &mut End) -> usize {
    let mut copied = 0;
    while let Some(Transmit { frame, .. }) = from.poll_transmit(Instant::now) {
        copied += usize::from(to.copies_tail(&frame));
        let message = Message::private(frame.to_vec());
        to.on_message(message, Instant::now, &mut |_| Revoked::TooLate).expect("legal");
    }
    copied
}

fn body() -> OutBuf {
    let mut body = OutBuf::new();
    body.extend_from_slice(b"body");
    body
}

/// Makes a call with streams of a method that both ends know, and counts the requests, items of
/// arguments, items of results and responses whose tails are copied out.
fn call(client: &mut End, server: &mut End, copied_tails: CopiedTails) -> [usize; 4] {
    let streams = CallStreams { arguments: true, results: true, idle_deadline: false };
    let (method, method_index, signature, no_cancel) = (7, 7, 1, false);
    let head = CallHead { method, method_index, signature, no_cancel, streams, copied_tails };
    let options = CallOptions {
        codec: 0,
        deadline: None,
        until_taken: false,
        is_counted: false,
        when_full: WhenFull::Wait,
        is_nested: false,
        metadata: None,
    };
    let id = client.start_from(&head, &options, &mut Some(body()), None).expect("started");
    let requests = carry(client, server);
    let Some(Event::Request(incoming)) = server.poll_event() else { panic!("no request") };
    server.accept_same(incoming.id, copied_tails);
    client.send_item(id, body(), Instant::now).expect("there is room");
    let sent_items = carry(client, server);
    server.accept(incoming.id).expect("the caller waits");
    server.send_item(incoming.id, body(), Instant::now).expect("there is room");
    let items = carry(server, client);
    server.reply(incoming.id, Answer::Ok(body())).expect("the caller waits");
    let results = carry(server, client);
    [requests, sent_items, items, results]
}

#[test]
fn heads_say_whose_tails_are_copied() {
    let none = CopiedTails::NONE;
    for (copied_tails, expected) in [
        (none, [0, 0, 0, 0]),
        (CopiedTails { arguments: true, ..none }, [1, 0, 0, 0]),
        (CopiedTails { sent_items: true, ..none }, [0, 1, 0, 0]),
        (CopiedTails { items: true, ..none }, [0, 0, 1, 0]),
        (CopiedTails { results: true, ..none }, [0, 0, 0, 1]),
    ] {
        let mut client = End::new(Role::Client, SessionLimits::default());
        let mut server = End::new(Role::Server, SessionLimits::default());
        carry(&mut client, &mut server);
        carry(&mut server, &mut client);
        let first = call(&mut client, &mut server, copied_tails);
        assert_eq!(first[0], 0, "the server has not accepted the method yet");
        assert_eq!(first[1..], expected[1..]);
        carry(&mut client, &mut server);
        assert_eq!(call(&mut client, &mut server, copied_tails), expected);
    }
}
