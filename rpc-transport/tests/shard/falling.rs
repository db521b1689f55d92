//! Windows that fall again when they are not used, and the receive buffers that come home then.

use std::time::Duration;

use rpc_transport::device::SendOp;
use rpc_transport::device::fault::{FaultPlan, MLX5};
use rpc_transport::memory::budget::MemoryBudget;
use rpc_transport::protocol::config::LinkConfig;
use rpc_transport::protocol::credit::{FIRST_DATA_CREDITS, Grant};
use rpc_transport::protocol::frame::{self, Kind};
use rpc_transport::protocol::handshake::Features;
use tokio::time::{advance, pause, resume};

use crate::hostile::{suffer, suffer_from};
use crate::probe::{Habit, Probe};
use crate::raw::Raw;
use crate::windows::{out, pages, windows};
use crate::world::{ByHand, End, Options, WIRES, run, run_on_one_thread, unspawned};

/// Windows of both ends that nobody has used.
const FIRST: [(u16, u16); 2] = [(FIRST_DATA_CREDITS, FIRST_DATA_CREDITS); 2];
/// The same of windows that are used to the full.
const ALL: [(u16, u16); 2] = [(64, 64); 2];
/// Looks at the windows until they have fallen: two for each size, and as many for the credits that a
/// quiet peer keeps to come home.
const FALL_TURNS: usize = 12;
/// Pings until each RECV that was posted has been taken.
const RECV_TURNS: usize = 80;

/// Two ends that are driven by hand, so that time can be told.
pub(crate) struct Ends {
    pub(crate) ends: [End; 2],
    pub(crate) drivers: [ByHand; 2],
    pub(crate) sent: u64,
}

impl Ends {
    fn drive(&mut self) {
        for (end, driver) in self.ends.iter().zip(&mut self.drivers) {
            driver.until_parked(&end.shard);
        }
    }

    /// Calls of the first end that the second one echoes, so many at once.
    pub(crate) fn echo(&mut self, count: u64, at_once: u64) {
        for _ in 0..count {
            self.ends[0].with(|probe| (0..at_once).for_each(|_| probe.send(b"a small message")));
            self.sent += at_once;
            while self.ends[0].events().received < self.sent {
                self.drive();
            }
        }
    }

    /// Messages to the second end, which keeps them, so many at once. They are too long to be copied.
    fn keep(&mut self, at_once: u64) {
        self.ends[0].with(|probe| (0..at_once).for_each(|_| probe.send(&[7; 3000])));
        self.sent += at_once;
        while self.ends[1].events().received < self.sent {
            self.drive();
        }
    }

    /// So many intervals of keep-alive, in each of which there are some calls.
    pub(crate) async fn pass(&mut self, turns: usize, calls: u64) {
        for _ in 0..turns {
            advance(Duration::from_secs(15)).await;
            (0..4).for_each(|_| self.drive());
            self.echo(calls, 1);
        }
    }

    pub(crate) fn windows(&self) -> [(u16, u16); 2] {
        self.ends.each_ref().map(windows)
    }

    pub(crate) fn use_windows_up(&mut self) {
        while self.windows() != ALL {
            self.echo(1, 200);
        }
    }
}

/// Receive buffers of a connection whose windows have their first size.
fn first_recvs() -> usize {
    LinkConfig::default().first_window().rq_len() as usize + 1
}

#[test]
fn windows_that_are_not_used_fall_and_their_receive_buffers_come_home() {
    run_on_one_thread("windows_that_are_not_used_fall", async {
        for wire in WIRES {
            let config = LinkConfig::default();
            let (client, server, drivers, _listener) =
                unspawned(wire, &Options::alike(config.clone())).await;
            let mut pair =
                Ends { ends: [client, server], drivers: drivers.map(ByHand::new), sent: 0 };
            let all_out = config.window().rq_len() as usize + 1;
            pause();
            for calls in [0, 1, 30] {
                pair.use_windows_up();
                assert!(pair.ends.iter().all(|end| out(end, &config) == all_out), "{wire}");
                pair.pass(FALL_TURNS, calls).await;
                assert_eq!(pair.windows(), FIRST, "{wire}, {calls} calls");
                pair.pass(RECV_TURNS, calls).await;
                for end in &pair.ends {
                    assert_eq!(out(end, &config), first_recvs(), "{wire}, {calls} calls");
                    assert!(end.events().closed.is_empty(), "{wire}: {:?}", end.events().closed);
                }
            }
            pair.pass(5, 0).await;
            for end in &pair.ends {
                assert!(pages(end) <= 5, "{wire}: {} pages", pages(end));
            }
            resume();
        }
    });
}

#[test]
fn windows_that_are_used_do_not_fall() {
    run_on_one_thread("windows_that_are_used", async {
        let config = LinkConfig::default();
        let (client, server, drivers, _listener) = unspawned("mem", &Options::alike(config)).await;
        let mut pair = Ends { ends: [client, server], drivers: drivers.map(ByHand::new), sent: 0 };
        pause();
        pair.use_windows_up();
        for _ in 0..FALL_TURNS {
            pair.pass(1, 0).await;
            pair.echo(1, 40);
            assert_eq!(pair.windows(), ALL);
        }
        resume();
    });
}

/// What a connection had locked once for its windows it kept as long as it lived.
#[test]
fn on_a_nic_memory_that_was_locked_for_windows_is_given_up_when_they_are_not_used() {
    run_on_one_thread("memory_that_was_locked_for_windows", async {
        let config = LinkConfig::default();
        let limits = [(); 2].map(|()| MemoryBudget::new(64 << 20));
        let plan = |limit| FaultPlan::new(1).profile(&MLX5).lock_limit(limit);
        let faults = Some(limits.each_ref().map(plan));
        let options = Options { faults, ..Options::alike(config) };
        let (client, server, drivers, _listener) = unspawned("mem", &options).await;
        let mut pair = Ends { ends: [client, server], drivers: drivers.map(ByHand::new), sent: 0 };
        let locked = || limits.each_ref().map(MemoryBudget::used_bytes);
        let idle = locked();
        pause();
        let mut grown = None;
        for calls in [0, 5, 0] {
            pair.use_windows_up();
            assert!(locked().iter().zip(idle).all(|(now, idle)| *now > idle + (300 << 10)));
            assert_eq!(*grown.get_or_insert(locked()), locked(), "it grows as far each time");
            pair.pass(FALL_TURNS + RECV_TURNS, calls).await;
            assert_eq!((pair.windows(), locked()), (FIRST, idle), "{calls} calls");
        }
        // Up again while RECVs of the last time are posted still.
        for turns in 1..FALL_TURNS {
            pair.use_windows_up();
            assert_eq!(grown, Some(locked()));
            pair.pass(turns, 1).await;
        }
        pair.pass(FALL_TURNS + RECV_TURNS, 0).await;
        assert_eq!(locked(), idle);
        pair.use_windows_up();
        assert_eq!(grown, Some(locked()));
        resume();
    });
}

/// What the application keeps while a window has fallen is none of the buffers that it grows into.
#[test]
fn a_window_that_has_fallen_grows_again_whatever_is_kept_meanwhile() {
    run_on_one_thread("whatever_is_kept", async {
        for profile in [None, Some(&MLX5)] {
            let plan = |profile| FaultPlan::new(1).profile(profile);
            let faults = profile.map(|profile| [plan(profile), plan(profile)]);
            let habits = [Habit::Keep; 2];
            let options = Options { faults, habits, ..Options::alike(LinkConfig::default()) };
            let (client, server, drivers, _listener) = unspawned("mem", &options).await;
            let ends = [client, server];
            let mut pair = Ends { ends, drivers: drivers.map(ByHand::new), sent: 0 };
            pause();
            for round in 0..6 {
                while windows(&pair.ends[1]).0 < 64 {
                    pair.keep(200);
                }
                pair.pass(FALL_TURNS, 0).await;
                assert_eq!(windows(&pair.ends[1]).0, FIRST_DATA_CREDITS);
                (0..round * 20).for_each(|_| pair.keep(1));
                if round % 2 == 1 {
                    drop(pair.ends[1].with(|probe| std::mem::take(&mut probe.inbox)));
                }
            }
            assert!(pair.ends.iter().all(|end| end.events().closed.is_empty()));
            drop(pair.ends[1].with(|probe| std::mem::take(&mut probe.inbox)));
            resume();
        }
    });
}

/// The window grows once for the raw peer, which then has all credits of it.
async fn grow(raw: &mut Raw) {
    raw.send(Grant { data: 0, ack: Grant::ASKS }, b"more");
    raw.frames().await;
}

const RETURNS: Grant = Grant { data: 0, ack: Grant::RETURNS };

#[test]
fn a_peer_that_gives_back_what_it_was_not_lent_is_told() {
    run("not_lent", async {
        let cause = suffer(Probe::new(Habit::Count), async |raw, _| raw.send(RETURNS, b"take it"));
        let text = "gave back a part of a window of 8 credits, with which it began";
        assert_eq!(cause.await, format!("the peer broke the protocol: peer {text}"));
    });
}

#[test]
fn a_peer_that_gives_back_what_it_cannot_have_is_told() {
    run("cannot_have", async {
        let cause = suffer(Probe::new(Habit::Count), async |raw, end| {
            grow(raw).await;
            raw.send(Grant::default(), b"its credit is owed");
            end.received(2).await;
            raw.send(RETURNS, b"take it");
        });
        let text =
            "gave back a part of its window, of which it had not been granted all: 1 missing";
        assert_eq!(cause.await, format!("the peer broke the protocol: peer {text}"));
    });
}

/// It was taken, though only what is counted as data says how much of a window is out.
#[test]
fn a_peer_that_gives_back_by_an_ack_is_told() {
    run("by_an_ack", async {
        let cause = suffer(Probe::new(Habit::Count), async |raw, _| {
            grow(raw).await;
            let grant = Grant { data: 0, ack: Grant::RETURNS | 1 };
            let immediate = u32::from(grant.ack) << 16;
            raw.post(SendOp::SendWithImm(immediate), &frame::header(Kind::Ack, grant));
        });
        let text = "gave back a part of its window in an ack; data class frames do that";
        assert_eq!(cause.await, format!("the peer broke the protocol: peer {text}"));
    });
}

#[test]
fn a_peer_that_spends_what_it_has_given_back_is_told() {
    run("given_back", async {
        let cause = suffer(Probe::new(Habit::Count), async |raw, end| {
            grow(raw).await;
            assert_eq!(windows(end).0, 16);
            raw.send(RETURNS, b"take it");
            // No ack credit comes back, so of these few are granted anew.
            (0..16).for_each(|_| raw.send(Grant::default(), b"and give me more"));
        });
        let text = "sent data beyond our window of 8 unreturned messages";
        assert_eq!(cause.await, format!("the peer broke the protocol: peer {text}"));
    });
}

/// A peer of the build before.
/// Two ends on NICs, driven by hand; the second one keeps what it gets.
async fn on_nics(configs: [LinkConfig; 2], limits: &[MemoryBudget; 2]) -> Ends {
    let plan = |limit| FaultPlan::new(1).profile(&MLX5).lock_limit(limit);
    let faults = Some(limits.each_ref().map(plan));
    let options = Options { configs, faults, habits: [Habit::Keep; 2], ..Options::default() };
    let (client, server, drivers, _listener) = unspawned("mem", &options).await;
    Ends { ends: [client, server], drivers: drivers.map(ByHand::new), sent: 0 }
}

/// Memory was given up on which the window counted when it grew again: the connection ended.
#[test]
fn a_window_that_fell_while_messages_were_kept_grows_again_on_a_nic() {
    run_on_one_thread("falling-kept", async {
        let limits = [(); 2].map(|()| MemoryBudget::new(64 << 20));
        let mut pair = on_nics([LinkConfig::default(), LinkConfig::default()], &limits).await;
        pause();
        while windows(&pair.ends[1]).0 < 64 {
            pair.keep(200);
        }
        pair.pass(FALL_TURNS + RECV_TURNS, 0).await;
        assert_eq!(windows(&pair.ends[1]).0, FIRST_DATA_CREDITS);
        for _ in 0..3 {
            pair.keep(200);
            let closed = |end: &End| end.events().closed.is_empty();
            assert!(pair.ends.iter().all(closed), "{:?}", pair.ends[1].events().closed);
        }
        drop(pair.ends[1].with(|probe| std::mem::take(&mut probe.inbox)));
        resume();
    });
}

/// Without a timer of its own an end never gave up what came with a window that its peer gave back.
#[test]
fn an_end_without_keep_alive_keeps_the_window_that_it_has() {
    run_on_one_thread("falling-no-timer", async {
        let limits = [(); 2].map(|()| MemoryBudget::new(64 << 20));
        let configs = [LinkConfig::default(), LinkConfig::default().keep_alive(None)];
        let mut pair = on_nics(configs, &limits).await;
        pause();
        while windows(&pair.ends[1]).0 < 64 {
            pair.keep(200);
        }
        let grown = pair.windows();
        pair.pass(FALL_TURNS, 0).await;
        assert_eq!(pair.windows(), grown);
        drop(pair.ends[1].with(|probe| std::mem::take(&mut probe.inbox)));
        resume();
    });
}

#[test]
fn windows_that_were_not_agreed_to_fall_do_not() {
    run("not_agreed", async {
        let probe = Probe::new(Habit::Count);
        let cause = suffer_from(Features::ARENA, probe, async |raw, _| {
            grow(raw).await;
            raw.send(RETURNS, b"take it");
        });
        let text = "gave back a part of its window, but windows that fall were not agreed on";
        assert_eq!(cause.await, format!("the peer broke the protocol: peer {text}"));
    });
}
