use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use rpc_transport::connect::schemes;
use rpc_transport::device::connection_error::ConnectError;
use rpc_transport::device::fault::{self, FaultPlan};
use rpc_transport::device::soft;
use rpc_transport::device::{
    CompletionQueue, Device, Established, Incoming, PeerIdentity, ProviderError, QpCapacity,
    QpHandle, QueueLimits,
};
use rpc_transport::engine::establish::completions_per_connection;
use rpc_transport::engine::locked_need::{connection_bytes, server_bytes};
use rpc_transport::memory::budget::MemoryBudget;
use rpc_transport::memory::region::{Access, ProtectionDomain};
use rpc_transport::protocol::config::LinkConfig;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

use super::builder::with_memory;
use super::*;
use crate::client::Channel;

/// A set-up that was under way when a server ended opened a shard that nobody would ever end.
#[tokio::test]
async fn a_server_that_has_ended_opens_no_shard() {
    let server = Server::builder().bind("mem://ended-server").await.unwrap();
    let acceptor = Arc::clone(&server.acceptor);
    let device = soft::mem_device();
    let shard = place(&acceptor, device).unwrap().shard;
    let again = place(&acceptor, device).unwrap().shard;
    assert!(Arc::ptr_eq(&shard, &again));
    drop(server.serve());
    assert!(!shard.is_over(), "serve was never polled");
    drop(EndShards(Arc::clone(&acceptor)));
    assert!(shard.is_over());
    assert_eq!(refusal(&acceptor, device), "the server is shutting down");
}

/// A place that nobody has to be waited for.
fn place(acceptor: &Acceptor, device: &Arc<dyn Device>) -> Result<acceptor::Place, String> {
    acceptor.place(device).now_or_never().expect("nobody else opens a shard")
}

fn refusal(acceptor: &Acceptor, device: &Arc<dyn Device>) -> String {
    place(acceptor, device).map(|_| ()).unwrap_err()
}

/// A regression: a shard whose driver had gone stayed in the list.
#[tokio::test]
async fn a_shard_without_a_driver_is_replaced() {
    let server = Server::builder().bind("mem://replaced-shard").await.unwrap();
    let device = soft::mem_device();
    let shard = place(&server.acceptor, device).unwrap().shard;
    shard.shutdown();
    let other = place(&server.acceptor, device).unwrap().shard;
    assert!(!Arc::ptr_eq(&shard, &other));
    assert_eq!(server.acceptor.all_shards().len(), 1);
}

/// Connections counted from when they had a queue pair: as many set-ups as were under way at once
/// went beyond the limit.
#[tokio::test]
async fn set_ups_under_way_count_as_connections() {
    let server = Server::builder().max_connections(2).bind("mem://exact-limit").await.unwrap();
    let acceptor = &server.acceptor;
    let device = soft::mem_device();
    let first = place(acceptor, device).unwrap();
    let _second = place(acceptor, device).unwrap();
    assert!(refusal(acceptor, device).contains("limit of 2 connections"));
    drop(first);
    let _third = place(acceptor, device).unwrap();
    assert!(refusal(acceptor, device).contains("limit of 2 connections"));
}

/// Of 256 clients at once, those for whom the completion queue had no entries left by the time
/// their queue pair was made were refused, though another shard would have had room.
#[tokio::test]
async fn pending_set_ups_take_room_of_their_shard() {
    let server = Server::builder().bind("mem://set-up-room").await.unwrap();
    let acceptor = &server.acceptor;
    let device = soft::mem_device();
    let places: Vec<_> =
        (0..=acceptor::CONNECTIONS_PER_CQ).map(|_| place(acceptor, device).unwrap()).collect();
    let last = &places[places.len() - 1].shard;
    let others = &places[..places.len() - 1];
    assert!(others.iter().all(|place| !Arc::ptr_eq(&place.shard, last)));
    assert_eq!(acceptor.all_shards().len(), 2);
}

/// Clients that came and went as fast as they could had a server open shards for what was leaving.
#[tokio::test]
async fn leaving_connections_get_as_many_extra_shards() {
    let server = Server::builder().max_connections(1500).bind("mem://leaving").await.unwrap();
    let acceptor = &server.acceptor;
    let device = soft::mem_device();
    let mut leaving = Vec::new();
    let refusal = loop {
        match place(acceptor, device) {
            Ok(acceptor::Place { under_way, .. }) => leaving.push(under_way),
            Err(text) => break text,
        }
        assert!(leaving.len() <= 4 * 1024, "there is no end of them");
    };
    assert_eq!((acceptor.all_shards().len(), leaving.len()), (3, 3 * 1024), "{refusal}");
    leaving.pop();
    place(acceptor, device).unwrap();
}

/// As many as workers, and no more than there are connections.
#[test]
fn shards_0_is_one_per_worker_if_needed() {
    let counts = |runtime: Runtime, name: &str| {
        runtime.block_on(async {
            let server = Server::builder().shards(0).bind(name).await.unwrap();
            let mut places = Vec::new();
            [(); 4].map(|()| {
                places.push(place(&server.acceptor, soft::mem_device()).unwrap());
                server.acceptor.all_shards().len()
            })
        })
    };
    let workers = |count| Builder::new_multi_thread().worker_threads(count).enable_all().build();
    assert_eq!(counts(workers(3).unwrap(), "mem://three-workers"), [1, 2, 3, 3]);
    let current = Builder::new_current_thread().enable_all().build();
    assert_eq!(counts(current.unwrap(), "mem://no-workers"), [1; 4]);
}

/// A server with eight shards took seven connections, where 8 MiB may be locked.
#[tokio::test]
async fn a_failed_shard_leaves_existing_room_usable() {
    let server = Server::builder().shards(8).bind("mem://few-shards").await.unwrap();
    let outgoing = schemes::resolve(&"mem://few-shards".parse().unwrap()).await.unwrap().outgoing;
    // For the completion queue of one shard, and not for two.
    let limit = MemoryBudget::new(3 << 19);
    let plan = FaultPlan::new(1).profile(&fault::MLX5).lock_limit(&limit);
    let outgoing = fault::outgoing(outgoing, &plan);
    let places = [(); 3].map(|()| place(&server.acceptor, outgoing.device()).unwrap());
    assert_eq!(server.acceptor.all_shards().len(), 1);
    assert!(places.iter().all(|place| Arc::ptr_eq(&place.shard, &places[0].shard)));
}

/// The first client of a server on a NIC cost 16 MiB of locked memory, of the 8 MiB that most
/// processes may lock.
#[test]
fn the_first_nic_client_gets_a_small_cq() {
    let sizes =
        |locks, shards| (0..7).map(move |count| acceptor::connections_of_cq(locks, count, shards));
    assert!(sizes(true, 1).eq([64, 128, 256, 512, 1024, 1024, 1024]));
    assert!(sizes(true, 3).eq([64, 64, 64, 128, 256, 512, 1024]));
    assert!(sizes(false, 1).all(|size| size == acceptor::CONNECTIONS_PER_CQ));
    // Entries of the default configuration, as mlx5 makes them: half as many again, rounded up to a
    // power of two, 64 bytes each.
    let needed = completions_per_connection(&LinkConfig::default());
    let first = server_bytes(&LinkConfig::default(), 1, 1, QueueLimits::UNLIMITED);
    let further = connection_bytes(&LinkConfig::default());
    let bytes =
        |connections: u32| u64::from((needed * connections / 2 * 3).next_power_of_two()) * 64;
    assert!(bytes(64) <= 1 << 20, "{}", bytes(64));
    assert_eq!(first - further, bytes(64));
    assert!(first < 2 << 20 && further < 1 << 20, "{first} {further}");
    assert!(bytes(1024) > 8 << 20, "{}", bytes(1024));
}

/// A limit on locked memory that was too low for `rdma://` kept the other addresses from being
/// served, too.
#[test]
fn addresses_without_locked_memory_are_skipped() {
    let lack = |address: &Address| {
        matches!(address, Address::Rdma(..)).then(|| format!("no memory for {address}"))
    };
    let served = |texts: &[&'static str]| {
        with_memory(texts.iter().map(|text| (text.parse().unwrap(), *text)).collect(), lack)
    };
    let rest = served(&["rdma://10.0.0.1:1", "tcp://10.0.0.1:2", "mem://memory"]).unwrap();
    assert_eq!(rest, ["tcp://10.0.0.1:2", "mem://memory"]);
    for alone in [&["rdma://10.0.0.1:1"][..], &["rdma://10.0.0.2:1", "rdma://10.0.0.1:1"]] {
        let error = served(alone).unwrap_err().to_string();
        assert!(error.ends_with("no memory for rdma://10.0.0.1:1"), "{error}");
    }
    assert!(served(&[]).unwrap().is_empty());
}

/// A device that had been replaced was distinguished from the new one by its name, so a new shard
/// got the protection domain of the old one, and no connection could be made on it.
#[tokio::test]
async fn a_replaced_device_shares_nothing() {
    let builder = Server::builder().shards(2);
    let server = builder.bind("mem://replaced-device").await.unwrap();
    let address = "mem://replaced-device".parse().unwrap();
    let mut devices = Vec::new();
    for _ in 0..2 {
        let outgoing = schemes::resolve(&address).await.unwrap().outgoing;
        let plan = FaultPlan::new(1).profile(&fault::MLX5);
        devices.push(Arc::clone(fault::outgoing(outgoing, &plan).device()));
    }
    assert_eq!(devices[0].attributes().name, devices[1].attributes().name);
    let mut domains = Vec::new();
    for device in &devices {
        let places = [(); 3].map(|()| place(&server.acceptor, device).unwrap());
        assert!(places.iter().all(|place| Arc::ptr_eq(place.shard.device(), device)));
        assert!(!Arc::ptr_eq(&places[0].shard, &places[1].shard), "two shards are wanted");
        domains.extend(places.each_ref().map(|place| {
            let region = place.shard.domain().allocate(1, Access::LOCAL).unwrap();
            region.domain()
        }));
    }
    assert!(domains[..3].iter().all(|domain| *domain == domains[0]), "{domains:?}");
    assert!(domains[3..].iter().all(|domain| *domain == domains[3]), "{domains:?}");
    assert_ne!(domains[0], domains[3]);
    assert_eq!(server.acceptor.all_shards().len(), 4);
}

#[tokio::test]
async fn an_ended_connection_frees_its_place() {
    let server = Server::builder().max_connections(1).bind("mem://freed-place").await.unwrap();
    let serving = tokio::spawn(server.serve());
    for _ in 0..20 {
        // The server learns of the end in its own time.
        let channel = loop {
            match Channel::connect("mem://freed-place").await {
                Ok(channel) => break channel,
                Err(error) => assert!(error.to_string().contains("limit of 1 connections")),
            }
            tokio::task::yield_now().await;
        };
        let refused = Channel::connect("mem://freed-place").await.unwrap_err();
        assert!(refused.to_string().contains("limit of 1 connections"), "{refused}");
        drop(channel);
    }
    serving.abort();
}

#[crate::service]
trait Slow {
    async fn wait(&self) -> u32;
}

struct Waits(Arc<[Notify; 2]>);

impl Slow for Waits {
    async fn wait(&self) -> u32 {
        self.0[0].notify_one();
        self.0[1].notified().await;
        7
    }
}

/// A listener that lives until the test ends it.
#[derive(Debug)]
struct Mortal {
    end: Arc<Notify>,
    panics: bool,
}

#[async_trait]
impl Listener for Mortal {
    fn local_address(&self) -> Address {
        Address::Mem("mortal".to_owned())
    }

    async fn incoming(&mut self) -> Result<Box<dyn Incoming>, ListenError> {
        self.end.notified().await;
        assert!(!self.panics, "on purpose");
        Err(ProviderError::CompletionQueueDead("it was pulled out".to_owned()).into())
    }
}

/// A listener that died ended the connections of all the others at once.
#[tokio::test]
async fn a_dying_listener_is_named_and_calls_finish() {
    for panics in [false, true] {
        let waits = Arc::new([Notify::new(), Notify::new()]);
        let address = format!("mem://beside-mortal-{panics}");
        let service = SlowServer::new(Waits(Arc::clone(&waits)));
        let mut server = Server::builder().add_service(service).bind(&address).await.unwrap();
        let end = Arc::new(Notify::new());
        server.listeners.push(Box::new(Mortal { end: Arc::clone(&end), panics }));
        let mut serving = tokio::spawn(server.serve());
        let slow = SlowClient::connect(&address).await.unwrap();
        let call = tokio::spawn(slow.wait().start());
        waits[0].notified().await;
        end.notify_one();
        // The other listener is closed, and the call goes on.
        while Channel::connect(&address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert!((&mut serving).now_or_never().is_none(), "a call is in flight");
        waits[1].notify_one();
        assert_eq!(call.await.unwrap(), Ok(7));
        let error = serving.await.unwrap().unwrap_err().to_string();
        assert!(error.starts_with("cannot listen at mem://mortal: "), "{error}");
        assert_eq!(error.ends_with("it was pulled out"), !panics, "{error}");
    }
}

/// Peers that ask and then never take the last step, as far as the server can see.
#[derive(Debug)]
struct Stalls {
    count: usize,
    inner: Box<dyn Listener>,
}

#[async_trait]
impl Listener for Stalls {
    fn local_address(&self) -> Address {
        self.inner.local_address()
    }

    async fn incoming(&mut self) -> Result<Box<dyn Incoming>, ListenError> {
        let incoming = self.inner.incoming().await?;
        if self.count == 0 {
            return Ok(incoming);
        }
        self.count -= 1;
        Ok(Box::new(Stalled(incoming)))
    }
}

#[derive(Debug)]
struct Stalled(Box<dyn Incoming>);

#[async_trait]
impl Incoming for Stalled {
    fn device(&self) -> &Arc<dyn Device> {
        self.0.device()
    }

    fn private_data(&self) -> &[u8] {
        self.0.private_data()
    }

    fn peer(&self) -> PeerIdentity {
        self.0.peer()
    }

    fn create_qp(
        &mut self,
        cq: &mut dyn CompletionQueue,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<QpHandle, ProviderError> {
        self.0.create_qp(cq, pd, capacity)
    }

    async fn accept(self: Box<Self>, _: &[u8]) -> Result<Established, ConnectError> {
        std::future::pending().await
    }

    async fn reject(self: Box<Self>, private_data: &[u8]) {
        self.0.reject(private_data).await;
    }
}

/// Set-ups that gave way, or that were under way when the server ended, were counted nowhere.
#[tokio::test]
async fn cut_off_set_ups_count_as_failed() {
    let mut server = Server::builder().bind("mem://cut-off-set-ups").await.unwrap();
    let inner = server.listeners.pop().unwrap();
    server.listeners.push(Box::new(Stalls { count: 2, inner }));
    let (stats, end) = (server.stats_handle(), server.shutdown_handle());
    let serving = tokio::spawn(server.serve());
    let stalled: Vec<_> =
        (0..2).map(|_| tokio::spawn(Channel::connect("mem://cut-off-set-ups"))).collect();
    while stats.stats().set_ups < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(stats.stats().set_ups_failed, 0);
    end.shutdown();
    serving.await.unwrap().unwrap();
    let stats = stats.stats();
    assert_eq!((stats.set_ups_failed, stats.accepted, stats.refused), (2, 0, 0));
    drop(stalled);
}

/// Its word when it is dropped.
struct Gone(Arc<Notify>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

struct Departs(#[expect(dead_code, reason = "dropped")] Gone);

impl Slow for Departs {
    async fn wait(&self) -> u32 {
        7
    }
}

/// A handle that reads the numbers kept the services, and all that they hold, of a server that had
/// ended.
#[tokio::test]
async fn a_stats_handle_keeps_no_services_alive() {
    let gone = Arc::<Notify>::default();
    let service = SlowServer::new(Departs(Gone(Arc::clone(&gone))));
    let builder = Server::builder().add_service(service);
    let server = builder.bind("mem://stats-after-the-end").await.unwrap();
    let (stats, end) = (server.stats_handle(), server.shutdown_handle());
    let serving = tokio::spawn(server.serve());
    let client = SlowClient::connect("mem://stats-after-the-end").await.unwrap();
    assert_eq!(client.wait().await, Ok(7));
    end.shutdown();
    serving.await.unwrap().unwrap();
    drop(client);
    tokio::time::timeout(Duration::from_secs(60), gone.notified()).await.expect("it is dropped");
    let stats = stats.stats();
    let started: u64 = stats.methods.iter().map(|method| method.started).sum();
    assert_eq!((stats.accepted, started), (1, 1));
}

/// 64 peers that never took the last step kept everybody else out for 15 s, and could come back.
#[tokio::test]
async fn peers_stalling_in_set_up_block_nobody() {
    let count = set_ups::SLOTS + 64;
    let mut server = Server::builder().bind("mem://stalled-set-ups").await.unwrap();
    let inner = server.listeners.pop().unwrap();
    server.listeners.push(Box::new(Stalls { count, inner }));
    let serving = tokio::spawn(server.serve());
    let stalled: Vec<_> =
        (0..count).map(|_| tokio::spawn(Channel::connect("mem://stalled-set-ups"))).collect();
    let channel = loop {
        match Channel::connect("mem://stalled-set-ups").await {
            Ok(channel) => break channel,
            // It came before one of the others, and was taken for a peer that stalls.
            Err(ConnectError::Rejected { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    };
    assert!(channel.close_cause().is_none());
    drop(stalled);
    serving.abort();
}
