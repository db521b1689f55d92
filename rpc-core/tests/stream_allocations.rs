//! In steady state the items of a stream cost a session no allocation: not to send, to read, or to
//! grant.

use std::time::Instant;

use rpc_core::session::{
    CallStreams, Event, ReadItem, Revoked, Role, Session, SessionLimits, StartCall, StreamId,
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

/// One item of 64 bytes.
fn send(end: &mut End, id: StreamId, now: Instant) {
    let mut item = OutBuf::new();
    item.extend_from_slice(&[7; 64]);
    end.send_item(id, item, || now).expect("there is credit");
}

#[test]
fn an_item_allocates_nothing() {
    let now = Instant::now();
    let mut client = End::new(Role::Client, SessionLimits::default());
    let mut server = End::new(Role::Server, SessionLimits::default());
    carry(&mut client, &mut server, now);
    carry(&mut server, &mut client, now);
    let call = StartCall {
        method: 7,
        method_index: 7,
        signature: 1,
        codec: 0,
        deadline: None,
        no_cancel: false,
        metadata: &[],
        streams: CallStreams { arguments: true, results: true, idle_deadline: false },
    };
    let call = client.start(call, OutBuf::new(), None).expect("started");
    carry(&mut client, &mut server, now);
    let Some(Event::Request(incoming)) = server.poll_event() else { panic!("no request") };
    let ids = [StreamId::from(call), StreamId::from(incoming.id)];
    let mut rounds = |count: u32| {
        for _ in 0..count {
            for (end, id) in [(&mut client, ids[0]), (&mut server, ids[1])] {
                send(end, id, now);
                send(end, id, now);
                end.set_reader(id, 1);
            }
            carry(&mut client, &mut server, now);
            carry(&mut server, &mut client, now);
            for (end, id) in [(&mut client, ids[0]), (&mut server, ids[1])] {
                while end.poll_event().is_some() {}
                for _ in 0..2 {
                    assert!(matches!(end.take_item(id), ReadItem::Item(item) if item.len() == 64));
                }
                assert!(matches!(end.take_item(id), ReadItem::Pending));
            }
            carry(&mut client, &mut server, now);
            carry(&mut server, &mut client, now);
        }
    };
    // Until the windows are as large as they become.
    rounds(5000);
    let counted = allocation_counter::measure(|| rounds(1000));
    assert_eq!((counted.count_total, counted.bytes_total), (0, 0));
}
