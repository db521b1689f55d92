//! Connections whose ends must prove who they are, over every wire, with a fake handshake.

mod changed;
mod records;
mod sealed;
mod strangers;
mod tap;
mod turns;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rpc_transport::address::Address;
use rpc_transport::connect::schemes;
use rpc_transport::device::connection_error::{ConnectError, SetUpPhase};
use rpc_transport::device::fault::{self, FaultPlan};
use rpc_transport::device::{Listener, Outgoing};
use rpc_transport::engine::establish::{AcceptError, Connected};
use rpc_transport::engine::security::Security;
use rpc_transport::engine::spin::PollMode;
use rpc_transport::protocol::config::LinkConfig;
use rpc_transport::protocol::frame::{CloseCode, CloseReason};
use rpc_transport::protocol::handshake::{Features, Offer};
use rpc_transport::protocol::lock::FailureReason;
use rpc_transport::protocol::lock::fake::{FakeFactory, FakeIdentity};
use tokio::task::JoinHandle;

use crate::probe::{Habit, Probe};
use crate::world::{End, PATIENCE, ProbeShard, WIRES, fresh_address, run, shard};

/// Connects a client's shard to an address.
async fn connect(
    shard: &ProbeShard,
    address: &Address,
    probe: Probe,
    security: Option<&Security>,
    limit: Duration,
) -> Result<Connected, ConnectError> {
    let outgoing = schemes::resolve(address).await.unwrap().outgoing;
    shard.connect_with(outgoing, address, &config(), limit, probe, security).await
}

async fn outgoing(address: &Address, plan: Option<&FaultPlan>) -> Box<dyn Outgoing> {
    let outgoing = schemes::resolve(address).await.unwrap().outgoing;
    match plan {
        Some(plan) => fault::outgoing(outgoing, plan),
        None => outgoing,
    }
}

/// Accepts the next client.
async fn accept(
    shard: &ProbeShard,
    listener: &mut dyn Listener,
    probe: Probe,
    security: Option<&Security>,
) -> Result<Connected, AcceptError> {
    let incoming = listener.incoming().await.unwrap();
    shard.accept_with(incoming, &config(), probe, security).await
}

type Outcome = (Result<Connected, ConnectError>, Result<Connected, AcceptError>);

fn config() -> LinkConfig {
    LinkConfig::default().keep_alive(None)
}

fn with(factory: FakeFactory) -> Security {
    Security::new(Arc::new(factory))
}

fn client() -> Security {
    with(FakeFactory::new(1, "client")).expecting("server")
}

fn server() -> Security {
    with(FakeFactory::new(1, "server"))
}

/// A client's and a server's shard, and the server's listener.
struct World {
    near: ProbeShard,
    far: ProbeShard,
    listener: Box<dyn Listener>,
    address: Address,
    drivers: [JoinHandle<()>; 2],
    plan: Option<FaultPlan>,
}

impl World {
    async fn new(wire: &str) -> Self {
        Self::for_connections(wire, 4).await
    }

    async fn for_connections(wire: &str, count: u32) -> Self {
        Self::on(wire, count, None).await
    }

    /// On devices with faults, or with the limits of some NIC.
    async fn on(wire: &str, count: u32, plan: Option<FaultPlan>) -> Self {
        let mut listener = schemes::listen(&fresh_address(wire)).await.unwrap();
        if let Some(plan) = &plan {
            listener = fault::listener(listener, plan.clone());
        }
        let address = listener.local_address();
        let device = Arc::clone(outgoing(&address, plan.as_ref()).await.device());
        let shard = || shard(&device, &config(), count, PollMode::Event);
        let ((near, near_driver), (far, far_driver)) = (shard(), shard());
        let drivers = [tokio::spawn(near_driver), tokio::spawn(far_driver)];
        Self { near, far, listener, address, drivers, plan }
    }

    /// Connects to `address`, with what each end insists on.
    async fn meet_at(
        &mut self,
        address: &Address,
        [ours, theirs]: [Option<&Security>; 2],
        [near, far]: [Probe; 2],
    ) -> Outcome {
        let outgoing = outgoing(address, self.plan.as_ref()).await;
        let config = config();
        let connect = self.near.connect_with(outgoing, address, &config, PATIENCE, near, ours);
        let accept = accept(&self.far, &mut *self.listener, far, theirs);
        tokio::join!(connect, accept)
    }

    async fn meet(&mut self, securities: [Option<&Security>; 2], probes: [Probe; 2]) -> Outcome {
        let address = self.address.clone();
        self.meet_at(&address, securities, probes).await
    }

    /// Connects two ends that know each other, and checks that they talk.
    async fn check_works(&mut self) {
        let (near, far) = (Probe::new(Habit::Keep), Probe::new(Habit::Echo));
        let records = (near.record(), far.record());
        let (ours, theirs) = (client(), server());
        let (near, far) = self.meet([Some(&ours), Some(&theirs)], [near, far]).await;
        let (near, far) = (near.unwrap(), far.unwrap());
        for (connected, name) in [(&near, "server"), (&far, "client")] {
            let secured = connected.secured.as_ref().unwrap();
            let identity = secured.proof.downcast_ref::<FakeIdentity>();
            assert_eq!(identity, Some(&FakeIdentity(name.to_owned())));
        }
        let near = End { shard: Arc::clone(&self.near), key: near.key, record: records.0 };
        let far = End { shard: Arc::clone(&self.far), key: far.key, record: records.1 };
        for number in 0..100_u64 {
            near.send(&number.to_le_bytes());
            assert_eq!(*near.next().await.to_vec(), number.to_le_bytes());
        }
        let pools = [near.pools(), far.pools()].concat();
        near.leave().await;
        far.leave().await;
        crate::world::assert_home(&pools);
    }

    /// Without the requests that the listener may hold.
    async fn listen_anew(&mut self, wire: &str) {
        self.listener = schemes::listen(&fresh_address(wire)).await.unwrap();
        self.address = self.listener.local_address();
    }

    fn socket(&self) -> SocketAddr {
        let Address::Tcp(at) = &self.address else { panic!("not of tcp") };
        format!("{}:{}", at.host, at.port).parse().unwrap()
    }

    /// Ends the drivers, and checks that nothing is left.
    async fn end(self) {
        for shard in [&self.near, &self.far] {
            shard.shutdown();
        }
        for driver in self.drivers {
            driver.await.unwrap();
        }
        for shard in [&self.near, &self.far] {
            let stats = shard.stats();
            assert_eq!((stats.entries, stats.queue_pairs, stats.deadlines), (0, 0, 0));
        }
    }
}

fn probes() -> [Probe; 2] {
    [Probe::new(Habit::Keep), Probe::new(Habit::Echo)]
}

fn reason(failed: Result<Connected, ConnectError>) -> FailureReason {
    match failed.unwrap_err() {
        ConnectError::Handshake { failure, .. } => failure.reason,
        error => panic!("{error}"),
    }
}

#[test]
fn known_ends_talk_over_every_wire() {
    run("known ends", async {
        for wire in WIRES {
            let mut world = World::new(wire).await;
            for _ in 0..3 {
                world.check_works().await;
            }
            world.end().await;
        }
    });
}

#[test]
fn a_server_may_send_right_behind_unlocked() {
    run("late frames", async {
        for wire in WIRES {
            let mut world = World::new(wire).await;
            let [near, mut far] = probes();
            let record = near.record();
            for number in 0..7_u8 {
                far.send(&[number; 40]);
            }
            let (ours, theirs) = (client(), server());
            let (near, far) = world.meet([Some(&ours), Some(&theirs)], [near, far]).await;
            let end = End { shard: Arc::clone(&world.near), key: near.unwrap().key, record };
            for number in 0..7_u8 {
                assert_eq!(*end.next().await.to_vec(), [number; 40]);
            }
            world.far.release(far.unwrap().key);
            end.leave().await;
            world.end().await;
        }
    });
}

/// What a client learns of a server that closes as soon as it has accepted.
async fn why_closed_at_once(wire: &'static str, ours: &Security, theirs: &Security) -> String {
    let mut world = World::new(wire).await;
    let [near, far] = probes();
    let record = near.record();
    let connect = connect(&world.near, &world.address, near, Some(ours), PATIENCE);
    let accept = async {
        let accepted = accept(&world.far, &mut *world.listener, far, Some(theirs)).await;
        let key = accepted.unwrap().key;
        world.far.close(key, CloseReason::new(CloseCode::ShuttingDown, "for the night"));
        key
    };
    let (connected, key) = tokio::join!(connect, accept);
    let why = match connected {
        Ok(connected) => {
            let (shard, key) = (Arc::clone(&world.near), connected.key);
            let end = End { shard, key, record };
            let cause = end.cause().await.to_string();
            end.leave().await;
            cause
        }
        Err(error) => error.to_string(),
    };
    world.far.release(key);
    world.end().await;
    why
}

#[test]
fn a_server_that_closes_at_once_says_why() {
    run("closed at once", async {
        for wire in WIRES.repeat(20) {
            let why = why_closed_at_once(wire, &client(), &server()).await;
            assert!(why.contains("ShuttingDown: for the night"), "{wire}: {why}");
        }
    });
}

#[test]
fn strangers_never_establish_anything() {
    run("strangers", async {
        for wire in WIRES {
            let mut world = World::new(wire).await;
            for (ours, theirs, expected) in [
                (FakeFactory::new(2, "client"), FakeFactory::new(1, "server"), "wrong tag"),
                (FakeFactory::new(1, "client"), FakeFactory::new(1, "other"), "wrong name"),
            ] {
                let [near, far] = probes();
                let records = [near.record(), far.record()];
                let (ours, theirs) = (with(ours).expecting("server"), with(theirs));
                let (near, far) = world.meet([Some(&ours), Some(&theirs)], [near, far]).await;
                let reason = reason(near);
                match expected {
                    "wrong name" => assert_eq!(reason, FailureReason::WrongName),
                    _ => assert_eq!(reason, FailureReason::BrokenRule),
                }
                let Err(AcceptError::Handshake(failure)) = far else { panic!("{far:?}") };
                // The client found it, and its Close says so.
                assert_eq!(failure.reason, FailureReason::RefusedByPeer, "{failure}");
                for record in records {
                    assert_eq!(record.events().established, 0);
                    assert_eq!(record.events().closed.len(), 1);
                }
            }
            world.check_works().await;
            world.end().await;
        }
    });
}

#[test]
fn a_denied_client_hears_the_reason() {
    run("denied", async {
        for wire in WIRES {
            let mut world = World::new(wire).await;
            let denied = vec!["client".to_owned()];
            let theirs = with(FakeFactory { denied, ..FakeFactory::new(1, "server") });
            let (near, far) = world.meet([Some(&client()), Some(&theirs)], probes()).await;
            let Err(ConnectError::Handshake { failure, .. }) = near else { panic!("{near:?}") };
            assert_eq!(failure.reason, FailureReason::DeniedByPeer);
            assert!(failure.text.contains("denied by a rule"), "{failure}");
            let Err(AcceptError::Handshake(failure)) = far else { panic!("{far:?}") };
            assert_eq!(failure.reason, FailureReason::Denied);
            world.check_works().await;
            world.end().await;
        }
    });
}

#[test]
fn neither_end_steps_down_to_plain() {
    run("plain", async {
        for wire in WIRES {
            let mut world = World::new(wire).await;
            let (near, far) = world.meet([None, Some(&server())], probes()).await;
            let Err(ConnectError::Rejected { reason, .. }) = near else { panic!("{near:?}") };
            assert!(reason.contains("this server requires TLS"), "{reason}");
            assert!(matches!(far, Err(AcceptError::Refused(_))), "{far:?}");
            let far_probe = Probe::new(Habit::Keep);
            let record = far_probe.record();
            let probes = [Probe::new(Habit::Keep), far_probe];
            let (near, far) = world.meet([Some(&client()), None], probes).await;
            assert_eq!(self::reason(near), FailureReason::NotOffered);
            let far = End { shard: Arc::clone(&world.far), key: far.unwrap().key, record };
            far.cause().await;
            far.leave().await;
            world.check_works().await;
            world.end().await;
        }
    });
}

#[test]
fn a_silent_server_is_given_up() {
    run("silent server", async {
        for wire in WIRES {
            let mut world = World::new(wire).await;
            let near = Probe::new(Habit::Keep);
            let record = near.record();
            let accept = async {
                let incoming = world.listener.incoming().await.unwrap();
                // Set-up alone, as a server that hangs behind it.
                let secure = Features::ARENA.with(Features::SECURE);
                let mut incoming = incoming;
                let domain = incoming.device().allocate_pd().unwrap();
                let mut cq = incoming.device().create_cq(64).unwrap();
                let capacity = rpc_transport::device::QpCapacity {
                    max_send_wr: 8,
                    max_recv_wr: 16,
                    max_inline_bytes: 256,
                    uses_srq: false,
                };
                incoming.create_qp(&mut *cq, &domain, capacity).unwrap();
                let reply = Offer::new(&config(), secure, 1).to_reply();
                let established = incoming.accept(&reply).await.unwrap();
                established.attach.run(&mut *cq).unwrap();
                cq
            };
            let (security, limit) = (client(), Duration::from_millis(200));
            let connect = connect(&world.near, &world.address, near, Some(&security), limit);
            let (connected, cq) = tokio::join!(connect, accept);
            let error = connected.unwrap_err();
            let ConnectError::TimedOut { phase, .. } = error else { panic!("{wire}: {error}") };
            assert_eq!(phase, SetUpPhase::Handshake, "{wire}");
            assert_eq!(record.events().established, 0);
            drop(cq);
            world.check_works().await;
            world.end().await;
        }
    });
}

#[test]
fn a_cancelled_connect_leaves_nothing() {
    run("cancelled", async {
        for wire in WIRES {
            for polls in 1..12 {
                let mut world = World::new(wire).await;
                let [near, far] = probes();
                let (ours, theirs, address) = (client(), server(), world.address.clone());
                {
                    let connect = connect(&world.near, &address, near, Some(&ours), PATIENCE);
                    let accept = accept(&world.far, &mut *world.listener, far, Some(&theirs));
                    // One end may be done before the other.
                    let connect = async {
                        connect.await.iter().for_each(|it| world.near.release(it.key));
                    };
                    let accept = async {
                        accept.await.iter().for_each(|it| world.far.release(it.key));
                    };
                    // Dropped after so many turns of both.
                    let mut both = Box::pin(async { tokio::join!(connect, accept) });
                    for _ in 0..polls {
                        let poll = std::future::poll_fn(|context| {
                            std::task::Poll::Ready(both.as_mut().poll(context).is_ready())
                        });
                        if poll.await {
                            break;
                        }
                        tokio::task::yield_now().await;
                    }
                }
                // On the same shards. The old listener may hold the request.
                world.listen_anew(wire).await;
                world.check_works().await;
                world.near.shutdown_now();
                world.far.shutdown_now();
                world.end().await;
            }
        }
    });
}

#[test]
fn a_server_that_goes_away_fails_the_connect() {
    run("server gone", async {
        for wire in WIRES {
            let mut world = World::new(wire).await;
            let [near, far] = probes();
            let (ours, theirs, configuration) = (client(), server(), config());
            let connect = connect(&world.near, &world.address, near, Some(&ours), PATIENCE);
            let far_shard = Arc::clone(&world.far);
            let accept = async {
                let incoming = world.listener.incoming().await.unwrap();
                let accepting = far_shard.accept_with(incoming, &configuration, far, Some(&theirs));
                let mut accepting = Box::pin(accepting);
                // Begun, and dropped.
                std::future::poll_fn(|context| {
                    let _ = accepting.as_mut().poll(context);
                    std::task::Poll::Ready(())
                })
                .await;
                drop(accepting);
            };
            let (connected, ()) = tokio::join!(connect, accept);
            assert!(connected.is_err(), "{wire}");
            world.check_works().await;
            world.end().await;
        }
    });
}

#[test]
fn settings_that_security_needs_are_checked() {
    run("settings", async {
        let world = World::new("mem").await;
        for (config, field) in [
            (config().data_credits(7), "data_credits with TLS"),
            (config().receive_buffer_bytes(2048), "receive_buffer_bytes with TLS"),
            (config().arena_segment_bytes(512 << 10), "arena_segment_bytes with TLS"),
            (
                config().shared_receive_queue(true),
                "shared_receive_queue with TLS is true, allowed is false;",
            ),
        ] {
            let outgoing = schemes::resolve(&world.address).await.unwrap().outgoing;
            let (probe, security) = (Probe::new(Habit::Keep), client());
            let connect = world.near.connect_with(
                outgoing,
                &world.address,
                &config,
                PATIENCE,
                probe,
                Some(&security),
            );
            let error = connect.await.unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
        world.end().await;
    });
}

/// The exchange of `auto://` that led here is part of what the ends compare.
#[test]
fn the_answer_of_auto_is_confirmed() {
    run("auto", async {
        // Which is what `auto://` chooses here.
        let mut world = World::new("shm").await;
        world.listener = schemes::listen(&"auto://127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = world.listener.local_address();
        for (case, expected) in [
            ("as answered", None),
            ("changed", Some(FailureReason::SetUpChanged)),
            ("found in another way", None),
        ] {
            let theirs = server().with_exchange(world.listener.exchange());
            let [near, far] = probes();
            let connect = async {
                let resolved = schemes::resolve(&address).await.unwrap();
                assert_eq!(resolved.address.scheme(), "shm");
                let mut exchange = (*resolved.exchange.unwrap()).clone();
                if case == "changed" {
                    *exchange.answer.last_mut().unwrap() ^= 1;
                }
                let known = (case != "found in another way").then(|| Arc::new(exchange));
                let ours = client().with_exchange(known);
                let (shard, configuration) = (&world.near, config());
                let (outgoing, at) = (resolved.outgoing, resolved.address);
                shard.connect_with(outgoing, &at, &configuration, PATIENCE, near, Some(&ours)).await
            };
            let accept = accept(&world.far, &mut *world.listener, far, Some(&theirs));
            let (near, far) = tokio::join!(connect, accept);
            match expected {
                None => {
                    world.near.release(near.unwrap().key);
                    world.far.release(far.unwrap().key);
                }
                Some(expected) => assert_eq!(reason(near), expected, "{case}"),
            }
        }
        world.end().await;
    });
}
