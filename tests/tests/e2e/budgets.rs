//! Memory that peers can make a server hold: bounded, shared fairly, and returned.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::{join_all, join3};
use rpc_core::{Bulk, Code, Status};
use tests::probe::Mark;
use tests::process::{Child, READY};
use tests::resources::{peak_rss_bytes_of, rss_bytes_of};
use tests::scheme::Scheme;
use tests::world::{World, marked};

use crate::{CLIENT, SERVER};

on_scheme!(
    shm,
    ShmName,
    a_client_that_never_reads_costs_only_budget,
    large_requests_beyond_memory_are_survived,
    memory_of_a_burst_is_freed,
    replies_that_wait_for_room_all_arrive
);
on_scheme!(
    tcp,
    Tcp,
    a_client_that_never_reads_costs_only_budget,
    large_requests_beyond_memory_are_survived,
    memory_of_a_burst_is_freed,
    replies_that_wait_for_room_all_arrive
);

const MIB: u64 = 1 << 20;

/// Whether a call was refused for lack of memory, with advice.
fn is_refused(status: &Status) -> bool {
    status.code() == Code::ResourceExhausted && status.message().contains("`memory_budget`")
}

/// A regression: 63 GiB of replies for one client waited in the server's queue, as far as it had
/// memory.
async fn a_client_that_never_reads_costs_only_budget(scheme: Scheme) {
    let (space, budget) = ((2048 * MIB).to_string(), (256 * MIB).to_string());
    let options = ["--address-space", &space, "--memory-budget", &budget];
    let world = World::start_with(SERVER, scheme, &options).await;
    let honest = world.client().await;
    // With its header, as long as a message can be.
    let bytes = (63 * MIB).to_string();
    let arguments = ["--address", &world.address, "hold-zeros", "1", "1024", &bytes];
    let mut greedy = Child::start(CLIENT, arguments);
    greedy.expect(READY).await;
    marked(&honest, 1, Mark::Started, 1024).await;
    greedy.stop();
    honest.open(1).await.expect("the server lives");
    marked(&honest, 1, Mark::Finished, 1024).await;
    for a in 0..100 {
        assert_eq!(honest.add(a, 1).await, Ok(a + 1));
    }
    // One connection has taken at most half of the budget.
    let data = Bulk::from(vec![7; 8 << 20]);
    assert_eq!(honest.bulk(data.clone()).await.expect("the other half is free").len(), 8 << 20);
    greedy.kill().await;
    // The dead client's memory is free again, at a time that the server decides.
    let large = vec![7; 60 << 20];
    loop {
        match honest.digest(&large).await {
            Ok((len, _)) => break assert_eq!(len, 60 << 20),
            Err(status) => assert!(is_refused(&status), "{status}"),
        }
    }
}

/// A regression: 200 calls of 8 MiB under a limit of 500 MiB ended the server by a failed
/// allocation.
async fn large_requests_beyond_memory_are_survived(scheme: Scheme) {
    let space = (500 * MIB).to_string();
    let world = World::start_with(SERVER, scheme, &["--address-space", &space]).await;
    let client = world.client().await;
    let witness = world.client().await;
    let data = Bulk::from(vec![7; 8 << 20]);
    let refused = Arc::new(AtomicU64::new(0));
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let (call, refused) = (client.hold_bulk(1, data.clone()).start(), refused.clone());
            tokio::spawn(async move {
                let outcome = call.await;
                refused.fetch_add(outcome.is_err().into(), Ordering::Relaxed);
                outcome
            })
        })
        .collect();
    // All of them are there at once, except the refused ones.
    while refused.load(Ordering::Relaxed)
        + witness.marks(1, Mark::Started).await.expect("the server lives")
        < 200
    {
        assert_eq!(witness.add(1, 1).await, Ok(2));
    }
    witness.open(1).await.expect("the server lives");
    let outcomes: Vec<_> =
        join_all(calls).await.into_iter().map(|call| call.expect("no panic")).collect();
    assert!(refused.load(Ordering::Relaxed) > 0, "there was no lack of memory");
    for status in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
        assert!(is_refused(status), "{status}");
    }
    assert!(outcomes.iter().any(Result::is_ok), "{:?}", outcomes[0]);
    // All of it is free again.
    assert_eq!(client.digest_bulk(data).await.expect("there is room").0, 8 << 20);
}

async fn memory_of_a_burst_is_freed(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    drop(world.client().await);
    let base = rss_bytes_of(world.pid());
    let client = world.client().await;
    let data = Bulk::from(vec![7; 8 << 20]);
    let vec = data.to_vec().expect("readable");
    let echoes = join_all((0..24).map(|_| client.echo(&vec)));
    let bulks = join_all((0..24).map(|_| client.bulk(data.clone())));
    let produced = join_all((0..24).map(|seed| client.produce_bulk(8 << 20, seed)));
    let (echoes, bulks, produced) = join3(echoes, bulks, produced).await;
    assert!(echoes.iter().all(Result::is_ok) && bulks.iter().all(Result::is_ok));
    assert!(produced.iter().all(Result::is_ok));
    // Some of it may have been returned already.
    let burst = peak_rss_bytes_of(world.pid());
    assert!(burst > base + 64 * MIB, "{base} to {burst} bytes is no burst");
    drop((echoes, bulks, produced, client));
    // If it stays, the test's limit ends this loop.
    while rss_bytes_of(world.pid()) > base + 64 * MIB {
        tokio::task::yield_now().await;
    }
}

/// One reply in the queue at a time: all others wait with their handlers, some of which are
/// cancelled in the meantime.
async fn replies_that_wait_for_room_all_arrive(scheme: Scheme) {
    let world = World::start_with(SERVER, scheme, &["--queued-bytes", "1"]).await;
    let client = world.client().await;
    let mut kept = Vec::new();
    for number in 0..200 {
        // Handlers that complete at once, and handlers with a task.
        let call = client.hold_zeros(number % 2, 100_000).start();
        if number % 3 > 0 {
            kept.push(call);
        } else {
            drop(call);
        }
        if number == 100 {
            client.open(0).await.expect("the server answers");
        }
    }
    client.open(1).await.expect("the server answers");
    for outcome in join_all(kept).await {
        assert_eq!(outcome.expect("there is room in the end").len(), 100_000);
    }
    assert_eq!(client.add(1, 1).await, Ok(2));
}
