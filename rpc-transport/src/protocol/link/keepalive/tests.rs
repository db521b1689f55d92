//! Two ends, a slow wire and two machines, under virtual time. A healthy pair is never ended, a
//! dead peer always within the bound of invariant 5.
#![allow(clippy::cast_possible_truncation, reason = "small numbers")]

use std::collections::VecDeque;

use super::*;

const STEP: Duration = Duration::from_millis(25);
const INTERVAL: Duration = Duration::from_secs(15);
const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes that a host buffers for a process that does not read.
const HOST_BYTES: u64 = 128 << 10;
const SEGMENT: u64 = 256 << 10;
const SECOND: fn(u64) -> Duration = Duration::from_secs;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Data,
    Ping,
    Pong,
}

/// One end, its process, and its host's half of the wire.
struct End {
    keep: KeepAlive,
    /// Frames that the host has not sent in full, with the remaining bytes of each.
    out: VecDeque<(Kind, u64)>,
    posted: u64,
    accepted: u64,
    completed: u16,
    /// Arrived at the host: bytes that the process has not read, and the frames that end with them.
    unread: u64,
    frames: VecDeque<Kind>,
    received: u64,
    /// The process does nothing before this.
    stopped_until: Duration,
    verdict: Option<Duration>,
}

impl End {
    fn new(start: Instant, interval: Option<Duration>) -> Self {
        let config = LinkConfig::default().keep_alive(interval).keep_alive_timeout(TIMEOUT);
        Self {
            keep: KeepAlive::new(&config, start),
            out: VecDeque::new(),
            posted: 0,
            accepted: 0,
            completed: 0,
            unread: 0,
            frames: VecDeque::new(),
            received: 0,
            stopped_until: Duration::ZERO,
            verdict: None,
        }
    }

    fn send(&mut self, kind: Kind, bytes: u64) {
        self.out.push_back((kind, bytes));
        self.posted += bytes;
    }

    /// A relay between the hosts buffers `relay` bytes.
    fn moves(&self, has_counters: bool, relay: u64) -> Moves {
        let accepted = self.posted.min(self.accepted + relay);
        let device = Traffic { received: self.received, accepted, pending: self.posted - accepted };
        Moves { device: has_counters.then_some(device), completed: self.completed }
    }
}

struct World {
    start: Instant,
    now: Duration,
    ends: [End; 2],
    /// Bytes a second.
    rate: u64,
    cut: bool,
    /// Whether the device has traffic counters.
    has_counters: bool,
    /// Bytes that a relay between the hosts buffers.
    relay: u64,
}

impl World {
    fn new(rate: u64, intervals: [Option<Duration>; 2]) -> Self {
        let start = Instant::now();
        let ends = intervals.map(|interval| End::new(start, interval));
        Self { start, now: Duration::ZERO, ends, rate, cut: false, has_counters: true, relay: 0 }
    }

    fn both(rate: u64) -> Self {
        Self::new(rate, [Some(INTERVAL); 2])
    }

    /// The host of `from` moves bytes to the other one.
    fn carry(&mut self, from: usize) {
        let [a, b] = &mut self.ends;
        let (from, to) = if from == 0 { (a, b) } else { (b, a) };
        let mut budget = self.rate * STEP.as_millis() as u64 / 1000;
        while let Some((kind, left)) = from.out.front_mut() {
            let moved = budget.min(*left).min(HOST_BYTES.saturating_sub(to.unread));
            (budget, *left) = (budget - moved, *left - moved);
            from.accepted += moved;
            to.unread += moved;
            if *left > 0 {
                return;
            }
            to.frames.push_back(*kind);
            from.completed = from.completed.wrapping_add(1);
            from.out.pop_front();
        }
    }

    /// The process of an end acts as a driver: consumes frames, handles timers, sends.
    fn drive(&mut self, at: usize) {
        let (now, has_counters, relay) = (self.start + self.now, self.has_counters, self.relay);
        let passed = self.now;
        let end = &mut self.ends[at];
        if passed < end.stopped_until || end.verdict.is_some() {
            return;
        }
        end.received += std::mem::take(&mut end.unread);
        for kind in std::mem::take(&mut end.frames) {
            end.keep.on_received(now);
            match kind {
                Kind::Data => {}
                Kind::Ping => end.keep.on_ping().unwrap(),
                Kind::Pong => end.keep.on_pong().unwrap(),
            }
        }
        let moves = end.moves(has_counters, relay);
        if end.keep.on_timeout(now, moves).is_err() {
            end.verdict = Some(passed);
        }
        match end.keep.take_due() {
            Some(Due::Ping) => {
                let slot = end.completed.wrapping_add(end.out.len() as u16 + 1);
                end.keep.on_ping_sent(slot);
                end.send(Kind::Ping, 16);
            }
            Some(Due::Pong) => end.send(Kind::Pong, 16),
            None => {}
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        for at in [0, 1] {
            if !self.cut {
                self.carry(at);
            }
            self.drive(at);
        }
    }

    fn run(&mut self, until: Duration, mut each: impl FnMut(&mut Self)) {
        while self.now < until {
            each(self);
            self.step();
        }
    }

    fn assert_alive(&self) {
        let verdicts = self.ends.each_ref().map(|end| end.verdict);
        assert_eq!(verdicts, [None, None], "a live peer was declared dead");
    }

    /// When end 0 gave the other one up, after `since`.
    fn found_after(&mut self, since: Duration, each: impl FnMut(&mut Self)) -> Duration {
        let bound = 2 * INTERVAL + 2 * TIMEOUT;
        self.run(since + bound, each);
        self.ends[0].verdict.expect("a dead peer is found") - since
    }
}

#[test]
fn slow_link_amid_a_payload_stays_alive() {
    for (rate, relay) in [(20_000, 0), (20_000, 300_000), (50_000, 300_000), (1_000_000, 0)] {
        for senders in [&[0][..], &[0, 1]] {
            let mut world = World::both(rate);
            world.relay = relay;
            for at in senders {
                (0..32).for_each(|_| world.ends[*at].send(Kind::Data, SEGMENT));
            }
            world.run(SECOND(1000), |_| ());
            world.assert_alive();
        }
    }
}

/// Such a device still says what has completed.
#[test]
fn slow_link_lives_while_work_requests_complete() {
    let mut world = World::both(20_000);
    world.has_counters = false;
    (0..1000).for_each(|_| world.ends[0].send(Kind::Data, 8 << 10));
    world.run(SECOND(1000), |_| ());
    world.assert_alive();
}

#[test]
fn idle_pair_lives_and_cut_link_is_detected() {
    let mut world = World::both(1_000_000);
    world.run(SECOND(100), |_| ());
    world.assert_alive();
    world.cut = true;
    let since = world.now;
    assert!(world.found_after(since, |_| ()) <= INTERVAL + TIMEOUT + 2 * STEP);
}

#[test]
fn link_cut_amid_a_payload_is_detected() {
    for at in (0..60).map(SECOND) {
        let mut world = World::both(20_000);
        (0..32).for_each(|_| world.ends[0].send(Kind::Data, SEGMENT));
        world.run(at, |_| ());
        world.cut = true;
        assert!(world.found_after(at, |_| ()) <= 2 * INTERVAL + TIMEOUT + 2 * STEP);
    }
}

/// Its host goes on acknowledging what somebody sends now and then.
#[test]
fn stopped_process_with_acking_host_is_dead() {
    let mut world = World::both(1_000_000);
    world.ends[1].stopped_until = Duration::MAX;
    let mut sent_at = Duration::ZERO;
    let found = world.found_after(Duration::ZERO, |world| {
        if world.now >= sent_at + SECOND(1) {
            sent_at = world.now;
            world.ends[0].send(Kind::Data, 100);
        }
    });
    assert!(found <= 2 * INTERVAL + TIMEOUT + 2 * STEP, "{found:?}");
}

/// The other one answers, a little later, when this one goes on.
#[test]
fn stopped_end_does_not_judge_its_peer() {
    for stopped_at in (0..40).map(SECOND) {
        for stop in [1, 3, 5, 8, 30, 300].map(SECOND) {
            let mut world = World::new(1_000_000, [Some(INTERVAL), None]);
            world.run(stopped_at, |_| ());
            // Nothing that lies in the queue then proves anything.
            world.ends[0].stopped_until = stopped_at + stop;
            world.ends[1].stopped_until = stopped_at + stop + SECOND(2);
            world.run(stopped_at + stop + SECOND(100), |_| ());
            world.assert_alive();
        }
    }
}

/// Its peer was silent for nearly too long before that, and answers a little later.
#[test]
fn an_end_that_stopped_looks_again_first() {
    let mut silent = Duration::ZERO;
    loop {
        silent += SECOND(1) / 5;
        let (from, goes_on) = (SECOND(1), SECOND(1) + silent + SECOND(60));
        let mut world = World::new(1_000_000, [Some(INTERVAL), None]);
        world.run(from, |_| ());
        world.ends[1].stopped_until = goes_on + SECOND(1);
        world.run(from + silent, |_| ());
        if world.ends[0].verdict.is_some() {
            break;
        }
        world.ends[0].stopped_until = goes_on;
        world.run(goes_on + SECOND(100), |_| ());
        world.assert_alive();
    }
    assert!(silent >= INTERVAL + TIMEOUT - SECOND(1), "{silent:?}");
}

#[test]
fn rarely_polling_end_does_not_judge_its_peer() {
    let mut world = World::new(1_000_000, [Some(INTERVAL), None]);
    world.run(SECOND(600), |world| {
        for (end, pause) in world.ends.iter_mut().zip([2, 9].map(SECOND)) {
            if end.stopped_until < world.now {
                end.stopped_until = world.now + pause;
            }
        }
    });
    world.assert_alive();
}

/// Random payloads both ways over random rates, and pauses that each end may take for itself.
#[test]
fn healthy_pairs_live_and_dead_ones_are_found() {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    for _ in 0..60 {
        let mut world = World::both(10_000 + random(500_000));
        world.has_counters = true;
        let dies_at = SECOND(50 + random(150));
        let mut pause_over = Duration::ZERO;
        world.run(dies_at, |world| {
            let at = random(2) as usize;
            if random(200) == 0 && world.ends[at].out.len() < 6 {
                let bytes = [100, 8 << 10, SEGMENT][random(3) as usize];
                world.ends[at].send(Kind::Data, bytes);
            }
            if random(500) == 0 && world.now > pause_over + SECOND(2) {
                pause_over = world.now + Duration::from_millis(random(4000));
                world.ends[at].stopped_until = pause_over;
            }
        });
        world.assert_alive();
        world.cut = true;
        let found = world.found_after(dies_at, |_| ());
        assert!(found <= 2 * INTERVAL + 2 * TIMEOUT, "{found:?}");
    }
}

fn sealed(rate: u64) -> World {
    let mut world = World::both(rate);
    world.ends.iter_mut().for_each(|end| end.keep.trust_frames_alone());
    world
}

/// Somebody on the way withholds all frames, and forges bytes and what is acknowledged.
fn forge(world: &mut World) {
    if world.now.as_millis().is_multiple_of(4000) {
        world.ends.iter_mut().for_each(|end| {
            end.received += 8;
            end.accepted = end.posted.min(end.accepted + 8);
        });
    }
}

#[test]
fn forged_bytes_keep_no_sealed_link_alive() {
    for at in (0..60).map(SECOND) {
        let mut world = sealed(20_000);
        (0..3).for_each(|_| world.ends[0].send(Kind::Data, SEGMENT));
        world.run(at, |_| ());
        world.cut = true;
        world.run(at + 2 * (INTERVAL + UNPROVEN * TIMEOUT), forge);
        for found in world.ends.map(|end| end.verdict.expect("a dead peer is found") - at) {
            assert!(found <= INTERVAL + UNPROVEN * TIMEOUT + 2 * STEP, "{found:?}");
        }
    }
    // They count where nothing is sealed.
    let mut world = World::both(20_000);
    world.cut = true;
    world.run(SECOND(240), forge);
    world.assert_alive();
}

#[test]
fn sealed_pairs_live_as_others_do() {
    let mut world = sealed(1_000_000);
    world.run(SECOND(200), |world| {
        if world.now.as_secs() % 3 == 0 && world.ends[0].out.len() < 6 {
            world.ends[0].send(Kind::Data, SEGMENT);
        }
    });
    world.assert_alive();
    for stop in [1, 8, 30, 300].map(SECOND) {
        let mut world = sealed(1_000_000);
        world.run(SECOND(20), |_| ());
        world.ends[0].stopped_until = SECOND(20) + stop;
        world.ends[1].stopped_until = SECOND(22) + stop;
        world.run(SECOND(120) + stop, |_| ());
        world.assert_alive();
    }
    // The one that is not stopped gives the other up.
    let mut world = sealed(1_000_000);
    world.ends[1].stopped_until = Duration::MAX;
    assert!(world.found_after(Duration::ZERO, |_| ()) <= INTERVAL + TIMEOUT + 2 * STEP);
}
