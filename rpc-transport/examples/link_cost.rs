//! The cost of the link per message:
//! `cargo run --release -p rpc-over-rdma-transport --example link_cost`.
//!
//! Two links in one thread exchange a 64-byte message each way per round, as in a call and its
//! reply. The first line is the round without a link: the message is built, framed and received by
//! hand. The difference is the price of `submit`, `poll_transmit` (until it returns nothing),
//! `on_frame` and the send completions.

use std::hint::black_box;
use std::time::Instant;

use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;
use rpc_transport::protocol::config::LinkConfig;
use rpc_transport::protocol::handshake::{Features, Offer};
use rpc_transport::protocol::link::{FrameBytes, Inbound, Lane, Link};

/// Short batches, of which the fastest counts: other work on the machine only ever adds time.
const BATCHES: u32 = 300;
const ROUNDS: u32 = 5_000;
const PAYLOAD: [u8; 64] = [7; 64];
const HEADER: [u8; 8] = [1, 0, 0, 0, 0, 0, 0, 0];

fn main() {
    for _ in 0..3 {
        let without = nanoseconds(|| {
            for _ in 0..2 {
                let mut out = build();
                out.prepend(&black_box(HEADER));
                let mut message = Message::copied(&out);
                message.advance(HEADER.len());
                black_box(&message);
            }
        });
        let now = Instant::now();
        let mut ends = [link(now), link(now)];
        let with = nanoseconds(|| {
            let [client, server] = &mut ends;
            send(client, server, now);
            send(server, client, now);
        });
        let link = (with - without) / 2.0;
        let without = without / 2.0;
        println!("per message: {without:.1} ns without, {link:.1} ns more with the link");
    }
}

fn link(now: Instant) -> Link {
    let config = LinkConfig::default();
    let offer = Offer::new(&config, Features::ACK_IMMEDIATE, 1);
    let agreed = offer.agree_as_server(&offer).expect("equal offers agree");
    Link::new(&config, &agreed, now).expect("the default is valid")
}

fn build() -> OutBuf {
    let mut out = OutBuf::new();
    out.extend_from_slice(black_box(&PAYLOAD));
    out
}

/// A message from one end to the other.
fn send(from: &mut Link, to: &mut Link, now: Instant) {
    from.submit(Lane::Small, 1, build()).expect("open");
    let mut completed = None;
    while let Some(transmit) = from.poll_transmit() {
        if transmit.signaled {
            completed = Some(transmit.token);
        }
        let FrameBytes::Message(frame) = &transmit.frame else { continue };
        let inbound = to.on_frame(now, transmit.imm, frame).expect("legal");
        let Inbound::Message { payload_at, .. } = inbound else { panic!("no message") };
        black_box(&Message::copied(&frame[payload_at..]));
        while to.poll_transmit().is_some() {}
    }
    if let Some(token) = completed {
        from.on_send_completion(token);
    }
}

fn nanoseconds(mut round: impl FnMut()) -> f64 {
    let mut batch = || {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            round();
        }
        start.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS)
    };
    (0..BATCHES).map(|_| batch()).fold(f64::INFINITY, f64::min)
}
