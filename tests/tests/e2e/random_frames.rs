//! Random frames at a server that serves others: whatever arrives, it neither panics nor hangs, and
//! the others are not affected.
//!
//! The seed is printed; `RPC_TEST_SEED` repeats a run, `RPC_TEST_CASES` makes it longer.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use rpc_core::service::Dispatch;
use tests::hostile::HostilePeer;
use tests::hostile::bytes::{data, hello, link_header, request, segment, session_header};
use tests::limit;
use tests::probe::{ProbeClient, ProbeServer};
use tests::scheme::Scheme;
use tests::service::ProbeService;
use tests::world::World;
use tokio::runtime::Runtime;

use crate::SERVER;

/// Mostly small, sometimes extreme.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..4_u32, 2 => 0..300_u32, 1 => Just(u32::MAX), 1 => any::<u32>()]
}

fn credits() -> impl Strategy<Value = u16> {
    prop_oneof![6 => Just(0), 2 => 1..4_u16, 1 => any::<u16>()]
}

fn garbage() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![4 => vec(any::<u8>(), 0..64), 1 => vec(any::<u8>(), 0..9000)]
}

/// A request of a real method, with arguments that may be valid.
fn real_request() -> impl Strategy<Value = Vec<u8>> {
    let methods = ProbeServer::new(ProbeService::default()).descriptor().methods;
    // Without the method that blocks a thread of the server permanently.
    let methods: Vec<_> = methods.iter().filter(|it| it.name != "Probe.block").copied().collect();
    let deadline = proptest::option::of(prop_oneof![Just(0), 1..50_000_u64, any::<u64>()]);
    let parts = (prop::sample::select(methods), number(), number(), deadline, garbage());
    parts.prop_map(|(method, slot, generation, deadline, body)| {
        request(slot, generation, method, deadline, &body)
    })
}

fn session_frame() -> impl Strategy<Value = Vec<u8>> {
    let header = (0..12_u8, prop_oneof![3 => 0..16_u8, 1 => any::<u8>()], 0..20_u8);
    let any_header = (header, number(), number(), number(), garbage()).prop_map(
        |((kind, flags, code), method, slot, generation, body)| {
            [session_header(kind, flags, code, method, slot, generation), body].concat()
        },
    );
    prop_oneof![4 => real_request(), 2 => any_header, 1 => Just(hello(0)), 1 => garbage()]
}

fn frame() -> impl Strategy<Value = Vec<u8>> {
    let control = (2..7_u8, credits(), credits(), garbage()).prop_map(|(kind, a, b, body)| {
        let body = if kind == 6 { body } else { Vec::new() };
        [link_header(kind, 0, a, b), body].concat()
    });
    let part = (number(), 0..5_u32, number(), number(), garbage()).prop_map(
        |(message, bits, offset, total, body)| {
            segment(message, bits, offset.into(), total.into(), &body)
        },
    );
    prop_oneof![
        8 => session_frame().prop_map(|session| data(&session)),
        2 => control,
        2 => part,
        1 => garbage(),
    ]
}

/// One connection's frames, most of which get past the hello; some are sent twice, some truncated.
fn frames() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let changed =
        (frame(), 0..8_u8, any::<prop::sample::Index>()).prop_map(|(frame, how, at)| match how {
            0 => vec![frame.clone(), frame],
            1 if !frame.is_empty() => vec![frame[..at.index(frame.len())].to_vec()],
            _ => vec![frame],
        });
    (prop::bool::weighted(0.9), vec(changed, 1..20)).prop_map(|(polite, frames)| {
        let greeting = if polite { vec![data(&hello(0))] } else { Vec::new() };
        [greeting, frames.concat()].concat()
    })
}

/// A random number, printed; or the number in `RPC_TEST_SEED`.
pub(crate) fn seed_word() -> u64 {
    let given = std::env::var("RPC_TEST_SEED").ok();
    let word = match given.map(|text| text.parse()) {
        Some(word) => word.expect("RPC_TEST_SEED is a number"),
        None => {
            use std::hash::{BuildHasher, RandomState};
            RandomState::new().hash_one(std::process::id())
        }
    };
    println!("RPC_TEST_SEED={word}");
    word
}

fn seed() -> [u8; 32] {
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&seed_word().to_le_bytes());
    seed
}

fn cases() -> u32 {
    let given = std::env::var("RPC_TEST_CASES").ok();
    given.map_or(150, |text| text.parse().expect("RPC_TEST_CASES is a number"))
}

fn random_frames(scheme: Scheme) {
    let _watchdog = limit::Watchdog::within(2 * limit::LIMIT);
    let runtime = Runtime::new().expect("a runtime");
    let (world, honest) = limit::block_on(&runtime, async {
        let world = World::start(SERVER, scheme).await;
        let honest = world.client().await;
        (world, honest)
    });
    let config = Config {
        cases: cases(),
        failure_persistence: None,
        max_shrink_iters: 200,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed());
    let mut runner = TestRunner::new_with_rng(config, rng);
    let outcome = runner.run(&frames(), |frames| {
        limit::block_on(&runtime, one_case(&world.address, &honest, frames))
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, frames)) => panic!("{reason} after {frames:02x?}"),
        Err(other) => panic!("{other}"),
    }
    // Dropping the child needs the runtime.
    let _inside = runtime.enter();
    drop(world);
}

async fn one_case(
    address: &str,
    honest: &ProbeClient,
    frames: Vec<Vec<u8>>,
) -> Result<(), TestCaseError> {
    // A share of shared receives does not grow, so no more than this fits.
    let at_once = if tests::device::shares_recvs() { 6 } else { frames.len().max(1) };
    for frames in frames.chunks(at_once) {
        let mut peer = HostilePeer::connect(address)
            .await
            .map_err(|error| TestCaseError::fail(format!("no connection any more: {error}")))?;
        if !tests::device::shares_recvs() {
            peer.widen().await;
        }
        for frame in frames {
            peer.send(frame);
        }
        // Certainly against the rules: the end of the connection shows that everything before was
        // processed.
        peer.send(&link_header(0, 0, 0, 0));
        peer.hear_to_the_end().await;
    }
    prop_assert_eq!(honest.add(20, 22).await, Ok(42));
    Ok(())
}

#[test]
fn random_frames_over_mem() {
    random_frames(Scheme::Mem);
}

#[test]
fn random_frames_over_shm() {
    random_frames(Scheme::ShmName);
}

#[test]
fn random_frames_over_tcp() {
    random_frames(Scheme::Tcp);
}

#[cfg(feature = "verbs")]
#[test]
fn random_frames_over_rdma() {
    random_frames(Scheme::Rdma);
}
