//! One end of a locked connection, with a peer that plays the true handshake, repeats frames of
//! others, changes bytes, and makes frames up.
//!
//! The oracle: the end takes frames only in the order of the true handshake, keeps its bounds, and
//! unlocks only for the peer that has the key.

use std::sync::{Arc, Mutex};

use rpc_transport::protocol::config::LinkConfig;
use rpc_transport::protocol::frame::handshake_header;
use rpc_transport::protocol::handshake::{Features, Offer};
use rpc_transport::protocol::lock::fake::FakeFactory;
use rpc_transport::protocol::lock::{LockedLink, MAX_FRAMES, Parameters, Protection, Role, SetUp};
use test_kit::Rng;

use crate::Steps;

/// What happened in all runs together.
#[derive(Debug, Default)]
pub struct Tally {
    pub runs: u32,
    pub unlocked: u32,
    pub refused: u32,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.unlocked += other.unlocked;
        self.refused += other.refused;
    }

    pub fn check(&self) {
        assert!(self.unlocked * 100 > self.runs, "few unlocked: {self:?}");
        assert!(self.refused * 4 > self.runs, "few were refused: {self:?}");
    }
}

fn begin(role: Role, key: u64, nonce: u64, padding: usize) -> LockedLink {
    let config = LinkConfig::default().receive_buffer_bytes(4096);
    let offer = Offer::new(&config, Features::ARENA.with(Features::SECURE), nonce);
    let (request, reply) = (offer.to_request(), offer.to_reply());
    let (scheme, place, protection) = ("tcp", "", Protection::Authenticate);
    let set_up =
        SetUp { request: &request, reply: &reply, scheme, place, protection, exchange: None };
    let nonces = Arc::new(Mutex::new(nonce));
    let factory = FakeFactory { padding, nonces, ..FakeFactory::new(key, "peer") };
    let parameters = Parameters::new(role, &set_up);
    LockedLink::new(&factory, parameters, None, [&offer, &offer]).expect("a fake begins")
}

/// The next frame of an end that goes on by the rules.
fn next_frame(end: &mut LockedLink, role: Role) -> Option<Vec<u8>> {
    if end.is_finish_due() {
        end.finish().ok()?;
    }
    if let Some(frame) = end.poll_transmit() {
        return Some(frame);
    }
    if role == Role::Server && end.is_finished() && !end.is_unlocked() {
        return end.unlock().ok();
    }
    None
}

/// The frames that each end sends in a handshake of its own: another session.
fn recorded(nonce: u64) -> Vec<Vec<u8>> {
    let mut ends = [begin(Role::Client, 1, nonce, 0), begin(Role::Server, 1, nonce, 0)];
    let mut frames = Vec::new();
    loop {
        let before = frames.len();
        for (from, role) in [(0, Role::Client), (1, Role::Server)] {
            while let Some(frame) = next_frame(&mut ends[from], role) {
                ends[1 - from].on_frame(None, &frame).expect("a true frame");
                frames.push(frame);
            }
        }
        if frames.len() == before {
            return frames;
        }
    }
}

/// Runs one end against such a peer.
pub fn run(rng: &mut Rng) -> Tally {
    let (role, peer_role) = match rng.below(2) {
        0 => (Role::Client, Role::Server),
        _ => (Role::Server, Role::Client),
    };
    let knows_key = rng.chance(80);
    let is_honest = rng.chance(30);
    let others = recorded(9);
    let mut end = begin(role, 1, 5, rng.pick(&[0, 5_000]));
    let mut peer = begin(peer_role, if knows_key { 1 } else { 2 }, 5, rng.pick(&[0, 9_000]));
    let (mut taken, mut is_over, mut is_true) = (0, false, true);
    let mut tally = Tally { runs: 1, ..Tally::default() };
    let mut steps = Steps::new(rng, 60);
    while steps.next(rng) {
        if end.is_finish_due() {
            assert!(!end.has_transmit(), "something leaves before the checks");
            assert!(end.finish().is_ok(), "complete, and its set-up differs");
        }
        while let Some(frame) = end.poll_transmit() {
            let _ = peer.on_frame(None, &frame);
        }
        // Always drawn, so that bytes come to an end.
        let drawn = rng.below(10);
        let choice = if is_honest { 9 } else { drawn };
        let mut true_frame = || next_frame(&mut peer, peer_role);
        let (frame, is_made_up) = match choice {
            0 => (Some(others[rng.index(others.len())].clone()), true),
            1 => {
                let len = rng.index(40);
                (Some(rng.bytes(len)), true)
            }
            2 => {
                let changed = true_frame().map(|mut frame| {
                    let at = rng.index(frame.len());
                    frame[at] ^= 1 << rng.below(8);
                    frame
                });
                (changed, true)
            }
            3 => {
                let level = rng.byte() % 3;
                let header = handshake_header(level, u16::from(rng.byte() % 4));
                let len = rng.index(30);
                (Some([&header[..], &rng.bytes(len)].concat()), true)
            }
            _ => (true_frame(), false),
        };
        let Some(frame) = frame else { continue };
        is_true &= !is_made_up;
        match end.on_frame(None, &frame) {
            Ok(()) => {
                assert!(!is_over, "a frame is taken after the end");
                taken += usize::from(frame[0] == 7);
                assert!(taken <= usize::from(MAX_FRAMES), "more frames than the window has");
            }
            Err(failure) => {
                assert!(!failure.text.is_empty() && !failure.told.is_empty());
                assert!(!is_over || !is_true || !knows_key, "{failure}");
                assert!(!end.has_transmit() && !end.is_finish_due() && !end.is_finished());
                if !is_over {
                    let refusal = end.refusal(&failure);
                    assert!(matches!(refusal[0], 6 | 8), "neither Close nor UNLOCKED");
                    tally.refused += 1;
                }
                is_over = true;
            }
        }
        assert!(!end.is_finished() || knows_key, "a stranger was let in");
    }
    tally.unlocked = u32::from(end.is_finished() && !is_over);
    tally
}
