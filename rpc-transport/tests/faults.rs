//! The fault wrapper: each fault does what its documentation says, and only requested faults occur.

#![allow(missing_docs, unsafe_code, dead_code, reason = "tests; parts of a shared fixture")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "conformance/fixture.rs"]
mod fixture;
#[path = "conformance/seeds.rs"]
mod seeds;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rpc_transport::device::fault::{self, FaultPlan, FaultyConnector, POISON};
use rpc_transport::device::soft;
use rpc_transport::device::{
    CompletionKind, Connector, Listener, QpEvent, QpState, Source, Status,
};
use rpc_transport::memory::region::Access;

use fixture::*;

struct Faulty(FaultPlan);

impl Fixture for Faulty {
    fn listen(&self) -> Box<dyn Listener> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("faults-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        fault::listener(soft::listen_mem(&name).unwrap(), self.0.clone())
    }

    fn connector(&self) -> Arc<dyn Connector> {
        Arc::new(FaultyConnector::new(Arc::new(soft::MemConnector), self.0.clone()))
    }
}

/// The server's polls until each of several messages is delivered.
fn polls_until_delivered(plan: FaultPlan) -> Vec<u32> {
    let mut pair = Pair::new(&Faulty(plan));
    (0..30)
        .map(|wr_id| {
            pair.client.send(wr_id, b"x");
            let mut polls = 0;
            while pair.server.got.is_empty() {
                pair.client.pump();
                pair.server.pump();
                polls += 1;
            }
            drop(pair.server.got.pop_front());
            pair.server.post_recv(0);
            while pair.client.got.pop_front().is_none() {
                pair.pump();
            }
            polls
        })
        .collect()
}

#[test]
fn a_quiet_plan_delays_nothing() {
    assert_eq!(polls_until_delivered(FaultPlan::new(1)), [1; 30]);
}

#[test]
fn delays_come_from_the_seed_alone() {
    let plan = |seed| FaultPlan::new(seed).delay_completions(7);
    let first = polls_until_delivered(plan(1));
    assert!(first.iter().any(|polls| *polls > 3), "{first:?}");
    assert!(first.iter().all(|polls| *polls <= 8), "{first:?}");
    assert_eq!(first, polls_until_delivered(plan(1)));
    assert_ne!(first, polls_until_delivered(plan(2)));
}

#[test]
fn receive_buffers_are_poisoned_only_if_asked() {
    for on in [false, true] {
        let mut pair = Pair::new(&Faulty(FaultPlan::new(1).poison_receives(on)));
        pair.client.send(1, b"message");
        let received = pair.next_recv(Server);
        let buffer = received.buffer.as_ref().unwrap();
        assert_eq!(&buffer[..7], b"message");
        assert_eq!(buffer[7..].iter().all(|byte| *byte == POISON), on);
        let qp = pair.server.qp;
        pair.server.cq.modify_to_error(qp).unwrap();
        let flushed = pair.next_of(Server, true);
        let buffer = flushed.buffer.as_ref().unwrap();
        assert_eq!(buffer.iter().all(|byte| *byte == POISON), on);
    }
}

/// How many of 20 messages show bytes that were written after the post.
fn late_reads(plan: FaultPlan) -> usize {
    let mut pair = Pair::with(&Faulty(plan), Options { sends: 4, ..Options::default() });
    let shared = region(&pair.client.pd, 64, Access::LOCAL, 0);
    (0..20_u8)
        .filter(|round| {
            // SAFETY: no WR names the region now.
            unsafe { shared.copy_in(0, &[*round; 64]) };
            pair.client.post(&mut [send(1, true, whole(&shared))]).unwrap();
            // SAFETY: raw bytes; a WR names them on purpose.
            unsafe { shared.copy_in(0, &[0xaa; 64]) };
            let received = pair.next_recv(Server);
            let late = payload(&received) == [0xaa; 64];
            assert!(late || payload(&received) == [*round; 64]);
            drop(received);
            pair.server.post_recv(0);
            pair.next_sent(Client);
            late
        })
        .count()
}

#[test]
fn memory_is_touched_late_only_if_asked() {
    assert_eq!(late_reads(FaultPlan::new(3)), 0);
    assert!(late_reads(FaultPlan::new(3).touch_memory_late(4)) > 5);
}

#[test]
fn queue_pairs_die_and_everything_is_flushed() {
    for seed in 0..20 {
        let plan = FaultPlan::new(seed).kill_queue_pairs(10).delay_completions(3);
        println!("{plan:?}");
        let mut pair = Pair::new(&Faulty(plan));
        let mut posted = 0;
        while pair.client.state() == QpState::ReadyToSend {
            pair.client.send(posted, b"x");
            posted += 1;
            let completion = pair.next_of(Client, false);
            if completion.status != Status::Success {
                assert_eq!(completion.status, Status::FlushError);
                break;
            }
            pair.next_recv(Server);
            pair.server.post_recv(0);
        }
        for _ in 0..8 {
            assert_eq!(pair.next_of(Client, true).status, Status::FlushError);
        }
        pair.wait("the disconnect", |pair| pair.server.is_disconnected());
    }
}

#[test]
fn lost_peer_is_reported_and_sends_fail() {
    let mut pair = Pair::new(&Faulty(FaultPlan::new(1).lose_peer(1)));
    let mut list = [send(1, true, Source::Inline(b"x")), send(2, true, Source::Inline(b"y"))];
    pair.client.post(&mut list).unwrap();
    let failed = pair.next_of(Client, false);
    assert_eq!((failed.wr_id, failed.status), (1, Status::RetryExceeded));
    let flushed = pair.next_of(Client, false);
    assert_eq!((flushed.wr_id, flushed.status), (2, Status::FlushError));
    let qp = pair.client.qp;
    pair.wait("the report", |pair| pair.client.events.contains(&QpEvent::Disconnected(qp)));
}

#[test]
fn order_holds_under_faults_for_every_seed() {
    for seed in 0..15 {
        let _watchdog = Watchdog::start("order on a bad day");
        let plan = FaultPlan::new(seed)
            .delay_completions(5)
            .interleave_queues(true)
            .poison_receives(true)
            .touch_memory_late(3);
        println!("{plan:?}");
        seeds::s74_in_order_exactly_once(&Faulty(plan));
    }
}

#[test]
fn queues_keep_their_order_unless_they_are_interleaved() {
    let inversions = |plan: FaultPlan| {
        let mut pair = Pair::new(&Faulty(plan));
        let mut inverted = 0;
        for round in 0..50 {
            pair.client.send(round, b"request");
            drop(pair.next_recv(Server));
            pair.server.post_recv(0);
            pair.server.send(round, b"reply");
            let first = pair.next(Client);
            inverted += usize::from(first.kind == CompletionKind::Recv);
            drop(first);
            pair.next(Client);
            pair.client.post_recv(0);
            pair.next_sent(Server);
        }
        inverted
    };
    assert!(inversions(FaultPlan::new(1).delay_completions(4).interleave_queues(true)) > 0);
}

#[test]
fn profile_grants_what_its_nic_grants() {
    for profile in fault::PROFILES.iter().filter(|profile| profile.has_rc) {
        let pair = Pair::with(
            &Faulty(FaultPlan::new(0).profile(profile)),
            Options { inline: u32::MAX, ..Options::default() },
        );
        let (client, driver) = (&pair.client, profile.driver);
        let attributes = client.device.attributes();
        let granted = client.cq.max_inline_bytes(client.qp);
        assert_eq!(
            (granted, attributes.max_inline_bytes),
            (profile.max_inline_bytes, granted),
            "{driver}"
        );
        assert!(attributes.name.contains(driver), "{}", attributes.name);
        assert!(attributes.max_qp_wr <= profile.max_qp_wr, "{driver}");
        assert!(attributes.max_cqe <= profile.max_cqe, "{driver}");
        assert_eq!(
            attributes.capabilities.without(profile.lacks),
            attributes.capabilities,
            "{driver}"
        );
        let error = client.device.create_cq(attributes.max_cqe + 1).unwrap_err();
        assert!(error.to_string().contains("beyond the device's limit"), "{driver}: {error}");
    }
}

#[test]
fn a_profile_without_rc_makes_no_queue_pair() {
    let fixture = Faulty(FaultPlan::new(0).profile(&fault::EFA));
    let listener = fixture.listen();
    runtime().block_on(async {
        let mut outgoing = resolve(&fixture, &listener.local_address()).await;
        let mut objects = End::objects(outgoing.device(), &Options::default());
        let capacity = End::capacity(&Options::default());
        let error = outgoing.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap_err();
        assert_eq!(error.to_string(), "an RC queue pair is not supported by this device");
    });
}
