//! What only a real device has: one-sided access by a peer that was never given a key, a peer of
//! another protocol, protection domains.

use std::process::{Command, Stdio};

use rpc_core::Isolation;
use rpc_transport::provider::RemoteSlice;
use tests::hostile::HostilePeer;
use tests::hostile::bytes::{data, hello};
use tests::limit;
use tests::process::output_there;
use tests::scheme::Scheme;
use tests::service::pattern;
use tests::world::World;

use crate::SERVER;

/// Keys that somebody might guess: the ends, and the first ones that devices give out.
fn guessed_keys() -> impl Iterator<Item = u32> {
    [0, u32::MAX].into_iter().chain((0..6).map(|index| index << 8 | 1)).chain(1..4)
}

#[test]
fn guessed_keys_end_their_own_connection_alone_over_rdma() {
    limit::run(async {
        let world = World::start(SERVER, Scheme::Rdma).await;
        let honest = world.client().await;
        let payload = pattern(100_000, 3);
        for (number, rkey) in guessed_keys().enumerate() {
            let mut peer = HostilePeer::connect(&world.address).await.expect("a valid offer");
            peer.send(&data(&hello(0)));
            let target = RemoteSlice { address: 0x7f00_0000_0000, rkey };
            match number % 3 {
                0 => peer.write(target, &[0xab; 4096]),
                1 => peer.read(target, 4096),
                _ => peer.write_with_imm(target, &[0xab; 64], 7),
            }
            peer.hear_to_the_end().await;
            assert_eq!(honest.add(20, 22).await, Ok(42), "after {target:?}");
            assert_eq!(honest.echo(&payload).await.as_ref(), Ok(&payload), "after {target:?}");
        }
        assert_eq!(world.client().await.add(1, 1).await, Ok(2));
    });
}

/// rdmacm-utils' rping comes with a request of its own kind.
#[test]
fn a_peer_of_another_protocol_is_refused_over_rdma() {
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

/// Protection domains of a server, as the kernel counts them: it names the thread that made each.
async fn domains_of(server: u32) -> usize {
    let text = output_there("rdma", &["resource", "show", "pd"]).await;
    let threads = output_there("ls", &[&format!("/proc/{server}/task")]).await;
    let thread_of = |line: &str| Some(line.split_once(" pid ")?.1.split(' ').next()?.to_owned());
    let makers = text.lines().filter_map(thread_of);
    makers.filter(|maker| threads.lines().any(|thread| thread == maker)).count()
}

#[test]
fn isolated_connections_have_domains_of_their_own_over_rdma() {
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
            // They go with their connections; what stays ends this by the test's limit.
            while domains_of(world.pid()).await != before {
                tokio::task::yield_now().await;
            }
        }
        // A client may be isolated as well.
        let world = World::start(SERVER, Scheme::Rdma).await;
        let link = rpc_core::LinkConfig::default().isolation(Isolation::PerConnection);
        let client = world.client_with(|builder| builder.link(link)).await;
        assert_eq!(client.add(1, 1).await, Ok(2));
    });
}
