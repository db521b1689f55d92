//! One end of a locked connection, with a peer that plays the true handshake, repeats frames of
//! others, changes bytes, and makes frames up.
//!
//! The oracle: the end takes frames only in the order of the true handshake, keeps its bounds, and
//! unlocks only for the peer that has the key.
//!
//! Behind UNLOCKED: one direction of sealed frames, with somebody on the way who does the same. The
//! oracle: what is opened is what was sealed, in that order, up to the first frame that is not.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use rpc_transport::protocol::config::LinkConfig;
use rpc_transport::protocol::credit::Grant;
use rpc_transport::protocol::frame::{HEADER_BYTES, Kind, handshake_header, header};
use rpc_transport::protocol::handshake::{Features, Offer};
use rpc_transport::protocol::lock::fake::{FakeFactory, FakeKey};
use rpc_transport::protocol::lock::{
    LockedLink, MAX_FRAMES, Opener, Parameters, Protection, REKEY_FRAMES, Role, Sealer, SetUp,
    TAG_BYTES,
};
use test_kit::Rng;

use crate::Steps;

/// What happened in all runs together.
#[derive(Debug, Default)]
pub struct Tally {
    pub runs: u32,
    pub unlocked: u32,
    pub refused: u32,
    /// Sealed frames that were opened, and directions that a forged one has ended.
    pub opened: u32,
    pub broken: u32,
}

impl Tally {
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.unlocked += other.unlocked;
        self.refused += other.refused;
        self.opened += other.opened;
        self.broken += other.broken;
    }

    pub fn check(&self) {
        assert!(self.unlocked * 100 > self.runs, "few unlocked: {self:?}");
        assert!(self.refused * 4 > self.runs, "few were refused: {self:?}");
        assert!(self.opened > self.runs, "few frames were opened: {self:?}");
        assert!(self.broken * 4 > self.runs, "few were forged: {self:?}");
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
    sealed(rng, &mut tally);
    tally
}

/// Seals the next frame, of which `payload` is behind the header.
fn next_sealed(sealer: &mut Sealer, payload: &[u8]) -> Vec<u8> {
    let header = header(Kind::Data, Grant::default());
    let mut frame = [&header[..], payload, &[0; TAG_BYTES]].concat();
    sealer.seal(&mut frame).expect("a fake key seals");
    frame
}

/// Runs one direction behind UNLOCKED.
fn sealed(rng: &mut Rng, tally: &mut Tally) {
    let key = || Box::new(FakeKey::new(1, Role::Client));
    let first = rng.pick(&[0, 1, REKEY_FRAMES - 4]);
    let (mut sealer, mut opener) = (Sealer::new(key(), first), Opener::new(key(), first));
    // Sealed frames on their way with what is in them, and what is to be opened next.
    let (mut wire, mut due) = (VecDeque::new(), VecDeque::new());
    let (mut is_touched, mut is_broken) = (false, false);
    let mut steps = Steps::new(rng, 40);
    while steps.next(rng) {
        let len = rng.index(20);
        let payload = rng.bytes(len);
        wire.push_back(next_sealed(&mut sealer, &payload));
        due.push_back(payload);
        let (is_true, frame) = match rng.below(12) {
            0 if wire.len() > 1 => {
                wire.swap(0, 1);
                (false, wire.pop_front())
            }
            1 => {
                wire.pop_front();
                (false, wire.pop_front())
            }
            2 => (false, wire.front().cloned().filter(|_| wire.len() > 1)),
            3 => {
                let len = rng.index(40);
                (false, Some(rng.bytes(len)))
            }
            4 => {
                let changed = wire.pop_front().map(|mut frame| {
                    let at = rng.index(frame.len());
                    frame[at] ^= 1 << rng.below(8);
                    frame
                });
                (false, changed)
            }
            // Nothing arrives.
            5 => continue,
            _ => (true, wire.pop_front()),
        };
        is_touched |= !is_true;
        let Some(mut frame) = frame else { continue };
        match opener.open(None, &mut frame) {
            Ok(len) => {
                assert!(!is_broken, "a frame is opened behind one that was not");
                assert_eq!(Some(&frame[HEADER_BYTES..len]), due.pop_front().as_deref());
                tally.opened += 1;
            }
            Err(error) => {
                assert!(is_touched, "a frame is refused that nobody touched: {error}");
                tally.broken += u32::from(!is_broken);
                is_broken = true;
            }
        }
    }
}
