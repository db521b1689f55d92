//! When an end pings, and when it gives its peer up.

use std::time::{Duration, Instant};

use super::{Lane, LinkError, Pair, link, small_config};
use crate::protocol::link::Inbound;

#[test]
fn a_silent_peer_is_pinged_then_dead() {
    let mut pair = Pair::new(&small_config());
    let start = pair.now;
    let after = |seconds| start + Duration::from_secs(seconds);
    assert_eq!(pair.ends[0].next_deadline(), Some(after(15)));
    pair.ends[0].on_timeout(after(14), None).unwrap();
    pair.pump(0);
    assert!(pair.wires[1].is_empty());
    pair.ends[0].on_timeout(after(15), None).unwrap();
    pair.pump(0);
    assert_eq!(pair.wires[1].len(), 1);
    assert_eq!(pair.look(0, after(19)), Ok(()));
    // The Ping was answered, so the connection lives on.
    pair.now = after(16);
    pair.run();
    assert_eq!(pair.ends[0].next_deadline(), Some(after(31)));
    pair.ends[0].on_timeout(after(31), None).unwrap();
    pair.pump(0);
    assert_eq!(pair.wires[1].len(), 1);
    assert_eq!(pair.look(0, after(35)), Ok(()));
    let error = pair.look(0, after(36)).unwrap_err();
    assert_eq!(error, LinkError::PingTimeout(Duration::from_secs(5)));
    assert!(error.to_string().contains("5s"));
}

#[test]
fn traffic_without_pong_lives_then_silence_kills() {
    let mut pair = Pair::new(&small_config());
    let start = pair.now;
    let after = |seconds| start + Duration::from_secs(seconds);
    pair.ends[0].on_timeout(after(15), None).unwrap();
    pair.pump(0);
    // The peer sends data, and never a Pong.
    pair.submit(1, Lane::Small, 1, 10);
    pair.pump(1);
    pair.now = after(16);
    assert!(matches!(pair.receive(0), Some(Inbound::Message { .. })));
    pair.ends[0].on_timeout(after(30), None).unwrap();
    pair.ends[0].on_timeout(after(31), None).unwrap();
    pair.pump(0);
    // No second Ping while one is unanswered, but the timeout runs.
    assert_eq!(pair.wires[1].len(), 1);
    assert_eq!(pair.look(0, after(35)), Ok(()));
    pair.look(0, after(36)).unwrap_err();
}

#[test]
fn unsendable_ping_counts_as_silence() {
    let mut pair = Pair::new(&small_config());
    for tag in 0..8 {
        pair.submit(0, Lane::Small, tag, 10);
    }
    pair.pump(0);
    let start = pair.now;
    let after = |seconds| start + Duration::from_secs(seconds);
    pair.ends[0].on_timeout(after(15), None).unwrap();
    assert!(pair.ends[0].poll_transmit().is_none());
    assert_eq!(pair.look(0, after(19)), Ok(()));
    pair.look(0, after(20)).unwrap_err();
}

#[test]
fn no_ping_without_keep_alive() {
    let now = Instant::now();
    let config = small_config().keep_alive(None);
    let mut end = link(&config, &config, now);
    assert_eq!(end.next_deadline(), None);
    end.on_timeout(now + Duration::from_secs(1_000_000), None).unwrap();
    assert!(end.poll_transmit().is_none());
}
