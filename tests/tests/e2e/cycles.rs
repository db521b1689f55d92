//! Connect, call, close, again and again: no file descriptor, mapping, task or memory stays behind
//! in either process.
//!
//! 10,000 times over shared memory and over TCP. The other addresses lead to the same connections,
//! so fewer cycles cover their own parts: a rendezvous file, a choice. Fewer cycles also on devices
//! that a test chooses, and over RDMA, since Soft-RoCE in an emulated machine is slow; there the
//! kernel also counts the device's objects.

use tests::probe::{ProbeClient, Resources};
use tests::process::{Child, READY, output_there};
use tests::scheme::Scheme;
use tests::world::World;

use crate::{CLIENT, SERVER};

between_processes! {
    connecting_and_closing_leaks_nothing,
}

/// Resources that may be kept permanently, or be on their way out, when they are counted.
const SLACK: u64 = 8;
/// Growth of resident memory that is no leak: the allocator's own.
const RSS_SLACK_BYTES: u64 = 4 << 20;
/// Growth of resident memory for each cycle that is still no leak: far below one connection.
const RSS_PER_CYCLE_BYTES: u64 = 256;

/// Cycles to warm up, and cycles that count.
fn cycles(scheme: Scheme) -> (u64, u64) {
    match scheme {
        // The messages of the warm-up fill every shared receive once.
        Scheme::ShmName | Scheme::Tcp if tests::device::shares_recvs() => (10_000, 2_000),
        // Handshakes of debug builds take milliseconds.
        Scheme::ShmName | Scheme::Tcp if tests::device::has_tls() => (200, 1_000),
        Scheme::ShmName | Scheme::Tcp if !tests::device::is_chosen() => (200, 10_000),
        #[cfg(feature = "verbs")]
        Scheme::Rdma => (20, 1_000),
        _ => (200, 1_000),
    }
}

async fn connecting_and_closing_leaks_nothing(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let witness = world.client().await;
    let empty = witness.resources().await.expect("the server answers");
    let objects = device_objects(scheme).await;
    let (warm_up, count) = cycles(scheme);
    let (warm_up_text, count_text) = (warm_up.to_string(), count.to_string());
    let arguments = ["--address", &world.address, "cycle", &warm_up_text, &count_text];
    let mut client = Child::start(CLIENT, arguments);
    client.expect(READY).await;
    let client_before = parse(&client.expect("RESOURCES").await);
    let warm = witness.resources().await.expect("the server answers");
    let client_after = parse(&client.expect("RESOURCES").await);
    check("client", count, client_before, client_after);
    // The warm-up's connections may still be ending, so only their memory counts.
    let server_before = Resources { rss_bytes: warm.rss_bytes, ..empty };
    let server_after = settled(&witness, server_before).await;
    check("server", count, server_before, server_after);
    client.kill().await;
    // A thread of its own destroys objects, which takes time; a leak ends this loop by the test's
    // limit.
    while device_objects(scheme).await != objects {
        // Shared receives that connections have left are posted until messages have taken them.
        witness.resources().await.expect("the server answers");
    }
}

/// The objects of all RDMA devices of the server's machine, as the kernel counts them: QPs, CQs,
/// MRs, PDs, ids.
async fn device_objects(scheme: Scheme) -> String {
    if !scheme.is_rdma() {
        return String::new();
    }
    let objects = output_there("rdma", &["resource", "show"]).await;
    assert!(!objects.is_empty(), "there is no device");
    objects
}

/// Asks until what was closed is gone. The client's last connections take their time to be taken
/// down, with shared receives a second on a device that does not say when a queue pair has left;
/// what has leaked stays and ends this loop by the number of asks, and the test with the numbers.
async fn settled(witness: &ProbeClient, before: Resources) -> Resources {
    let mut now = before;
    for _ in 0..100_000 {
        now = witness.resources().await.expect("the server answers");
        if are_gone(before, now) {
            break;
        }
    }
    now
}

/// Whether everything that was closed is gone, except memory of the allocator.
fn are_gone(before: Resources, after: Resources) -> bool {
    after.fds <= before.fds + SLACK
        && after.tasks <= before.tasks + SLACK
        && after.mappings <= before.mappings + 2 * SLACK
}

fn parse(line: &str) -> Resources {
    let numbers: Vec<u64> =
        line.split(' ').map(|text| text.parse().expect("the client says numbers")).collect();
    let [fds, rss_bytes, mappings, tasks] = numbers[..] else { panic!("four numbers: {line}") };
    Resources { fds, rss_bytes, mappings, tasks }
}

fn check(who: &str, cycles: u64, before: Resources, after: Resources) {
    let text = format!("{who}: {before:?} before, {after:?} after {cycles} cycles");
    println!("{text}");
    assert!(are_gone(before, after), "{text}");
    let growth = RSS_SLACK_BYTES + cycles * RSS_PER_CYCLE_BYTES;
    assert!(after.rss_bytes <= before.rss_bytes + growth, "{text}");
}
