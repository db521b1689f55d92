//! Behaviour that only a real device has: one-sided access by a peer that never received a key, a
//! peer of another protocol, protection domains, the device's own counters and registrations.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

use futures::future::{join_all, try_join_all};
use rpc_core::transport::Isolation;
use rpc_core::{Bulk, LinkConfig};
use rpc_transport::device::{Capabilities, RemoteSlice};
use tests::hostile::HostilePeer;
use tests::hostile::bytes::{data, hello};
use tests::limit;
use tests::probe::ProbeClient;
use tests::process::output_there;
use tests::scheme::Scheme;
use tests::service::{checksum, pattern};
use tests::world::World;

use crate::SERVER;

/// Keys that an attacker might guess: the extremes, and the first ones that devices allocate.
fn guessed_keys() -> impl Iterator<Item = u32> {
    [0, u32::MAX].into_iter().chain((0..6).map(|index| index << 8 | 1)).chain(1..4)
}

/// Tries each key with a peer of its own.
fn keys_are_guessed(attack: impl AsyncFn(&mut HostilePeer, RemoteSlice)) {
    limit::run(async {
        let world = World::start(SERVER, Scheme::Rdma).await;
        let honest = world.client().await;
        let payload = pattern(100_000, 3);
        for rkey in guessed_keys() {
            let mut peer = HostilePeer::connect(&world.address).await.expect("a valid offer");
            peer.send(&data(&hello(0)));
            let target = RemoteSlice { address: 0x7f00_0000_0000, rkey };
            attack(&mut peer, target).await;
            peer.hear_to_the_end().await;
            assert_eq!(honest.add(20, 22).await, Ok(42), "after {target:?}");
            assert_eq!(honest.echo(&payload).await.as_ref(), Ok(&payload), "after {target:?}");
        }
        assert_eq!(world.client().await.add(1, 1).await, Ok(2));
    });
}

#[test]
fn guessed_keys_end_their_connection_over_rdma() {
    keys_are_guessed(async |peer, target| peer.write(target, &[0xab; 4096]));
}

#[test]
fn guessed_keys_of_reads_and_immediates_over_rdma() {
    tests::device::needs(Capabilities::READ.with(Capabilities::WRITE_WITH_IMM));
    keys_are_guessed(async |peer, target| peer.read(target, 4096));
    keys_are_guessed(async |peer, target| peer.write_with_imm(target, &[0xab; 64], 7));
}

/// rdmacm-utils' rping sends a request of its own protocol.
#[test]
fn another_protocol_is_refused_over_rdma() {
    limit::run(async {
        let world = World::start(SERVER, Scheme::Rdma).await;
        let honest = world.client().await;
        let address = world.address.strip_prefix("rdma://").expect("the scheme");
        let (host, port) = address.rsplit_once(':').expect("a port");
        let mut rping = Command::new("timeout");
        rping.args(["20", "rping", "-c", "-C", "1", "-a", host, "-p", port]);
        let output = rping.stdin(Stdio::null()).output().expect("rdmacm-utils' rping");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "it was not refused: {said}");
        assert_ne!(output.status.code(), Some(124), "it was left waiting: {said}");
        assert_eq!(honest.add(20, 22).await, Ok(42));
    });
}

/// Protection domains of a server, as the kernel counts them: it names the thread that created
/// each.
async fn domains_of(server: u32) -> usize {
    let text = output_there("rdma", &["resource", "show", "pd"]).await;
    let threads = output_there("ls", &[&format!("/proc/{server}/task")]).await;
    let thread_of = |line: &str| Some(line.split_once(" pid ")?.1.split(' ').next()?.to_owned());
    let makers = text.lines().filter_map(thread_of);
    makers.filter(|maker| threads.lines().any(|thread| thread == maker)).count()
}

#[test]
fn isolated_connections_have_own_domains_over_rdma() {
    limit::run(async {
        for (options, more) in [(&[][..], 0), (&["--isolated"][..], 5)] {
            let world = World::start_with(SERVER, Scheme::Rdma, options).await;
            let witness = world.client().await;
            assert_eq!(witness.add(1, 1).await, Ok(2));
            let before = domains_of(world.pid()).await;
            let mut clients = Vec::new();
            for _ in 0..5 {
                let client = world.client().await;
                let data = pattern(70_000, 5);
                assert_eq!(client.echo(&data).await, Ok(data));
                clients.push(client);
            }
            assert_eq!(domains_of(world.pid()).await, before + more);
            drop(clients);
            // They go with their connections; if one stays, the test's limit ends this loop.
            while domains_of(world.pid()).await != before {
                tokio::task::yield_now().await;
            }
        }
        // A client may be isolated as well.
        let world = World::start(SERVER, Scheme::Rdma).await;
        let link = LinkConfig::default().isolation(Isolation::PerConnection);
        let client = world.client_with(|builder| builder.link(link)).await;
        assert_eq!(client.add(1, 1).await, Ok(2));
    });
}

/// A counter of the server's device.
async fn counter(name: &str) -> u64 {
    let path = format!("/sys/class/infiniband/rxe0/ports/1/hw_counters/{name}");
    let text = output_there("cat", &[&path]).await;
    text.trim().parse().expect("the kernel's number")
}

/// Soft-RoCE counts packets, and received SENDs, but not WRITEs: bytes that came in packets and
/// cannot have come in the RECVs were written.
#[test]
fn the_device_counts_payload_writes_over_rdma() {
    const BYTES: u64 = 1 << 20;
    const CALLS: u64 = 8;
    const MTU: u64 = 4096;
    const RECEIVE_BUFFER: u64 = 4 << 10;
    tests::device::needs_rxe_counters();
    limit::run(async {
        let world = World::start(SERVER, Scheme::Rdma).await;
        let client = world.client().await;
        let data = pattern(usize::try_from(BYTES).expect("small"), 3);
        let before = (counter("rcvd_pkts").await, counter("rdma_recvs").await);
        for _ in 0..CALLS {
            let digest = client.digest_bulk(Bulk::from(data.clone())).await;
            assert_eq!(digest, Ok((BYTES, checksum(&data))));
        }
        let packets = counter("rcvd_pkts").await - before.0;
        let receives = counter("rdma_recvs").await - before.1;
        println!("{} MiB in {packets} packets and {receives} SENDs", (CALLS * BYTES) >> 20);
        assert!(packets >= CALLS * BYTES / MTU, "{packets} packets");
        // Even full ones would not have carried a quarter of it.
        assert!(receives * RECEIVE_BUFFER * 4 < CALLS * BYTES, "{receives} SENDs");
        assert!(receives >= CALLS, "{receives} SENDs");
    });
}

/// Concurrent calls with payloads of every kind.
async fn load(client: &ProbeClient) {
    let data = pattern(700_000, 5);
    let slot = || client.channel().bulk_pool().slot(data.len()).expect("a slot");
    let up = join_all((0..4).map(|_| client.digest_bulk(Bulk::from(data.clone()))));
    let back = join_all((0..2).map(|_| client.bulk(Bulk::from(data.clone()))));
    let down = join_all((0..2).map(|_| client.produce_bulk(data.len() as u64, 5).into(slot())));
    let vectors = join_all((0..2).map(|_| client.echo(&data)));
    let (up, back, down, vectors) = tokio::join!(up, back, down, vectors);
    assert_eq!(up, vec![Ok((data.len() as u64, checksum(&data))); 4]);
    assert!(back.into_iter().all(|bulk| bulk.expect("given back") == data));
    assert!(down.into_iter().all(|bulk| bulk.expect("produced").expect("a pool") == data));
    assert!(vectors.into_iter().all(|bytes| bytes.expect("echoed") == data));
}

/// A call registers nothing. The registrations that both ends made under a threefold load serve a
/// single one; idle ones may go.
#[test]
fn registrations_are_stable_under_payloads_over_rdma() {
    limit::run(async {
        let world = World::start(SERVER, Scheme::Rdma).await;
        let client = world.client().await;
        let registrations = || async {
            let show = ["resource", "show", "mr"];
            let here = Command::new("rdma").args(show).output();
            let here = String::from_utf8_lossy(&here.expect("iproute2's rdma").stdout).into_owned();
            let there = output_there("rdma", &show).await;
            // Numbers and keys are not reused soon, so a line is one registration.
            let ends = [("here", here), ("there", there)];
            let lines = |(end, text): &(&str, String)| {
                text.lines().map(|line| format!("{end}: {line}")).collect::<Vec<_>>()
            };
            ends.iter().flat_map(lines).collect::<BTreeSet<_>>()
        };
        // Windows grow to their final size, and receive buffers with them, only under many calls.
        for _ in 0..8 {
            try_join_all((0..200).map(|a| client.add(a, 1))).await.expect("all are answered");
        }
        let mut before = registrations().await;
        let (mut warm_up, mut quiet) = (0, 0);
        while quiet < 2 {
            tokio::join!(load(&client), load(&client), load(&client));
            let after = registrations().await;
            quiet = if after == before { quiet + 1 } else { 0 };
            before = after;
            warm_up += 1;
            assert!(warm_up < 30, "memory is registered again and again: {before:#?}");
        }
        println!("{} MRs after {warm_up} rounds of warm-up", before.len());
        assert!(!before.is_empty());
        for round in 0..5 {
            let ((), during) = tokio::join!(load(&client), registrations());
            let after = registrations().await;
            let new: Vec<_> = during.union(&after).filter(|one| !before.contains(*one)).collect();
            assert!(new.is_empty(), "round {round}: {new:#?}");
        }
    });
}
