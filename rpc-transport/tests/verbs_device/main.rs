//! Facts that only a real RDMA device can show (Soft-RoCE is one): claims of the RDMA literature
//! about rdma_cm and verbs, each named after its number in the project's notes, and this provider's
//! own promises about time, errors and leaks. Without a device every test fails.

#![allow(missing_docs, unsafe_code, reason = "tests")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]
#![allow(dead_code, reason = "shares the fixture of the conformance suite")]

#[path = "../conformance/fixture.rs"]
mod fixture;
#[path = "../conformance/verbs.rs"]
mod verbs;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use rpc_transport::address::{Address, HostPort};
use rpc_transport::device::connection_error::{ConnectError, ListenError};
use rpc_transport::device::verbs::{
    SetupOptions, VerbsConnector, devices, listen, preflight, wait_for_teardown,
};
use rpc_transport::device::{
    Capabilities, CompletionKind, Connector, Listener, Outgoing, PeerIdentity, PostErrorKind,
    ProviderError, QpCapacity, QpState, Source, Status,
};
use rpc_transport::memory::region::Access;

use fixture::*;
use verbs::{Verbs, listen_at, local_device, local_ip, local_ipv6};

/// Tests that count the objects of the whole machine run alone; all others share.
static ALONE: RwLock<()> = RwLock::new(());

macro_rules! shared {
    ($name:ident) => {
        let _shared = ALONE.read();
        let _watchdog = Watchdog::start(stringify!($name));
    };
}

macro_rules! alone {
    ($name:ident) => {
        let _alone = ALONE.write();
        let _watchdog = Watchdog::start(stringify!($name));
    };
}

// Below the macros that it uses.
mod connecting;

/// So it uses memory windows only where the user wants them (docs/verbs.md, Traps).
#[test]
fn only_soft_roce_repeats_binds() {
    shared!(only_soft_roce_repeats_binds);
    let device = local_device();
    let has = |ability| device.attributes().capabilities.contains(ability);
    let binds_once = has(Capabilities::WINDOWS) && !device.attributes().name.starts_with("rxe");
    assert_eq!(has(Capabilities::BINDS_ONCE), binds_once, "{:?}", device.attributes());
}

fn at(host: &str, port: u16) -> Address {
    Address::Rdma(HostPort { host: host.to_owned(), port }, Box::default())
}

fn here(port: u16) -> Address {
    at(&local_ip().to_string(), port)
}

fn port_of(address: &Address) -> u16 {
    let Address::Rdma(at, _) = address else { panic!("{address}") };
    at.port
}

/// Whether connections go over TCP.
fn is_iwarp() -> bool {
    let devices = preflight().devices;
    let mut gids = devices.iter().flat_map(|device| &device.ports).flat_map(|port| &port.gids);
    gids.any(|gid| gid.kind == "iWARP")
}

fn quick() -> SetupOptions {
    let mut options = SetupOptions::default();
    options.connect_timeout = Duration::from_millis(300);
    options.accept_timeout = Duration::from_millis(300);
    options
}

/// A QP made for an attempt; the objects keep it alive.
fn with_qp(outgoing: &mut Box<dyn Outgoing>) -> Objects {
    let options = Options::default();
    let mut objects = End::objects(outgoing.device(), &options);
    outgoing.create_qp(&mut *objects.cq, &objects.pd, End::capacity(&options)).unwrap();
    objects
}

async fn connect_error(connector: &dyn Connector, address: &Address) -> ConnectError {
    match connector.resolve(address).await {
        Err(error) => error,
        Ok(mut outgoing) => {
            let _objects = with_qp(&mut outgoing);
            outgoing.connect(b"").await.unwrap_err()
        }
    }
}

/// Objects of all devices, as the kernel counts them (`rdma resource`), and open fds.
fn resources() -> BTreeMap<String, u64> {
    let output = Command::new("rdma").args(["resource", "show"]).output().expect("iproute2's rdma");
    let text = String::from_utf8(output.stdout).unwrap();
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<_> = line.split_whitespace().skip(2).collect();
        for pair in words.chunks_exact(2) {
            *counts.entry(pair[0].to_owned()).or_default() += pair[1].parse::<u64>().unwrap();
        }
    }
    assert!(counts.contains_key("qp"), "{text}");
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().count();
    counts.insert("fd".to_owned(), fds as u64);
    counts
}

/// Waits until the device has forgotten everything, then counts.
fn settled() -> BTreeMap<String, u64> {
    assert!(wait_for_teardown(PATIENCE), "something is not destroyed");
    resources()
}

/// Waits until `count` of the remaining objects is as expected. Over iWARP a connect that was given
/// up keeps its id until its call returns. The peer decides when that is, so waiting for teardown
/// does not count it.
fn settles_to<T: PartialEq + Debug>(expected: &T, count: impl Fn(BTreeMap<String, u64>) -> T) {
    let began = Instant::now();
    let is_iwarp = !local_device().attributes().capabilities.contains(Capabilities::IMMEDIATE);
    loop {
        let left = count(settled());
        if left == *expected {
            return;
        }
        let may_be_late = is_iwarp && began.elapsed() < PATIENCE;
        assert!(may_be_late, "{left:?} are left instead of {expected:?}");
        std::thread::yield_now();
    }
}

#[test]
fn the_device_says_what_it_can() {
    shared!(the_device_says_what_it_can);
    let devices = devices().unwrap();
    assert!(!devices.is_empty(), "no RDMA device:\n{}", preflight());
    for device in devices {
        let attributes = device.attributes();
        assert!(attributes.max_inline_bytes >= 64, "{attributes:?}");
        assert!(attributes.max_qp_wr >= 256 && attributes.max_cqe >= 1024, "{attributes:?}");
        assert!(attributes.max_message_bytes >= 1 << 20, "{attributes:?}");
        let again = rpc_transport::device::verbs::devices().unwrap();
        assert!(again.iter().any(|other| Arc::ptr_eq(other, &device)), "one object per device");
    }
}

#[test]
fn preflight_finds_nothing_wrong() {
    shared!(preflight_finds_nothing_wrong);
    let report = preflight();
    assert!(report.is_usable(), "{report}");
    assert!(report.to_string().contains("ready for rdma://"));
}

/// S28: everything in the queues when a QP goes to ERR comes back, each WR once. That includes
/// unsignaled WRs that had succeeded, if the device still takes SENDs then; otherwise they come
/// back as the QP is destroyed.
#[test]
fn s28_every_wr_completes_when_the_qp_fails() {
    shared!(s28_every_wr_completes_when_the_qp_fails);
    for silent in [0, 1, 5] {
        let mut pair = Pair::new(&Verbs);
        let free = pair.client.send_pool.free_count();
        for wr_id in 0..silent {
            let source = pair.client.filled(b"silent");
            pair.client.post(&mut [send(wr_id, false, source)]).unwrap();
        }
        for _ in 0..silent {
            pair.next_recv(Server);
        }
        let qp = pair.client.qp;
        pair.client.cq.modify_to_error(qp).unwrap();
        let is_told = pair.client.has(Capabilities::FLUSHES_LATE_SENDS);
        for wr_id in 0..if is_told { silent } else { 0 } {
            let flushed = pair.next_of(Client, false);
            assert_eq!((flushed.wr_id, flushed.status), (wr_id, Status::FlushError));
        }
        for wr_id in 0..8 {
            let flushed = pair.next_of(Client, true);
            assert_eq!((flushed.wr_id, flushed.status), (wr_id, Status::FlushError));
        }
        pair.pump();
        assert!(pair.client.got.is_empty(), "{:?}", pair.client.got);
        if !is_told {
            assert_eq!(pair.client.send_pool.free_count(), free - silent as usize);
            pair.client.cq.destroy_qp(qp).unwrap();
            assert!(wait_for_teardown(PATIENCE), "something is not destroyed");
        }
        assert_eq!(pair.client.send_pool.free_count(), free);
    }
}

/// Soft-RoCE never flushes a RECV that comes after the QP went to ERR; the provider does.
#[test]
fn recvs_posted_in_error_come_back() {
    shared!(recvs_posted_in_error_come_back);
    let mut pair = Pair::new(&Verbs);
    let qp = pair.client.qp;
    pair.client.cq.modify_to_error(qp).unwrap();
    pair.client.post_recv(100);
    for wr_id in (0..8).chain([100]) {
        let flushed = pair.next_of(Client, true);
        assert_eq!((flushed.wr_id, flushed.status), (wr_id, Status::FlushError));
    }
}

#[test]
fn s33_largest_inline_size_is_found_by_trial() {
    shared!(s33_largest_inline_size_is_found_by_trial);
    let limit = local_device().attributes().max_inline_bytes;
    let mut pair = Pair::with(&Verbs, Options { inline: u32::MAX, ..Options::default() });
    assert_eq!(pair.client.cq.max_inline_bytes(pair.client.qp), limit);
    let bytes = pattern(3, limit as usize);
    pair.client.send(1, &bytes);
    assert_eq!(payload(&pair.next_recv(Server)), bytes);
}

/// S26: objects of one device mean nothing to another; the other device here is not even a verbs
/// device.
#[test]
fn s26_objects_of_another_device_are_refused() {
    shared!(s26_objects_of_another_device_are_refused);
    let soft = rpc_transport::device::soft::mem_device();
    let listener = Verbs.listen();
    runtime().block_on(async {
        let mut outgoing = resolve(&Verbs, &listener.local_address()).await;
        let mut objects = End::objects(outgoing.device(), &Options::default());
        let capacity = End::capacity(&Options::default());
        let foreign = soft.allocate_pd().unwrap();
        let error = outgoing.create_qp(&mut *objects.cq, &foreign, capacity).unwrap_err();
        assert!(matches!(error, ProviderError::WrongDevice("protection domain")), "{error}");
        let mut foreign = soft.create_cq(64).unwrap();
        let error = outgoing.create_qp(&mut *foreign, &objects.pd, capacity).unwrap_err();
        assert!(matches!(error, ProviderError::WrongDevice("completion queue")), "{error}");
        // Neither has used the attempt up; one QP does.
        outgoing.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
        let error = outgoing.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap_err();
        assert!(matches!(error, ProviderError::Unsupported(_)), "{error}");
    });
}

#[test]
fn s32_limits_are_named_when_they_are_passed() {
    shared!(s32_limits_are_named_when_they_are_passed);
    let device = local_device();
    let too_many = device.attributes().max_cqe + 1;
    let error = device.create_cq(too_many).unwrap_err();
    assert!(matches!(error, ProviderError::Limit { .. }), "{error}");
    assert!(error.to_string().contains(&too_many.to_string()), "{error}");
    // The largest CQ in the device's attributes can be created.
    let cq = device.create_cq(device.attributes().max_cqe).unwrap();
    assert!(cq.capacity() >= device.attributes().max_cqe);
    let listener = Verbs.listen();
    runtime().block_on(async {
        let mut outgoing = resolve(&Verbs, &listener.local_address()).await;
        let mut objects = End::objects(outgoing.device(), &Options::default());
        let max_send_wr = device.attributes().max_qp_wr + 1;
        let capacity =
            QpCapacity { max_send_wr, max_recv_wr: 1, max_inline_bytes: 0, uses_srq: false };
        let created = outgoing.create_qp(&mut *objects.cq, &objects.pd, capacity);
        assert!(matches!(created, Err(ProviderError::Limit { .. })), "{created:?}");
    });
}

/// Whether the device reports the last RECV that it takes, or never does.
#[test]
fn a_queue_pair_of_an_srq_drains() {
    alone!(a_queue_pair_of_an_srq_drains);
    let device = local_device();
    if device.attributes().max_srq_wr == 0 {
        return;
    }
    let before = settled()["qp"];
    let listener = Verbs.listen();
    let (pd, mut cq) = (device.allocate_pd().unwrap(), device.create_cq(40).unwrap());
    cq.create_srq(&pd, 8).unwrap();
    let capacity =
        QpCapacity { max_send_wr: 4, max_recv_wr: 0, max_inline_bytes: 0, uses_srq: true };
    let qp = runtime().block_on(async {
        let mut outgoing = resolve(&Verbs, &listener.local_address()).await;
        outgoing.create_qp(&mut *cq, &pd, capacity).unwrap()
    });
    assert_eq!(resources()["qp"], before + 1);
    assert!(!cq.has_drained(qp), "it is not in ERR");
    cq.modify_to_error(qp).unwrap();
    while !cq.has_drained(qp) {
        assert_eq!(cq.poll(&mut Vec::new(), 4).unwrap(), 0);
    }
    cq.destroy_qp(qp).unwrap();
    assert_eq!(settled()["qp"], before);
}

/// A regression: libsiw mistakes the offset of page 144 of a device's mappings for an error, so
/// anything mapped there was refused without a reason.
#[test]
fn queues_may_lie_at_any_mapped_page() {
    shared!(queues_may_lie_at_any_mapped_page);
    let device = local_device();
    // One page each, if queues are mapped at all: one of them would be at that page, whatever else
    // is mapped.
    let created = (0..160).map(|_| device.create_cq(1));
    let queues: Result<Vec<_>, _> = created.collect();
    assert_eq!(queues.unwrap().len(), 160);
}

/// S57: destroying a CQ waits until exactly as many events are acknowledged as were taken.
#[test]
fn s57_event_accounts_are_balanced() {
    shared!(s57_event_accounts_are_balanced);
    for rounds in [0, 1, 63, 64, 65, 200] {
        let mut pair = Pair::new(&Verbs);
        for round in 0..rounds {
            pair.server.cq.arm().unwrap();
            pair.client.send(round, b"x");
            assert!(pair.server.is_woken(PATIENCE));
            pair.server.cq.clear_events().unwrap();
            pair.next_recv(Server);
            pair.server.post_recv(round);
            pair.next_sent(Client);
        }
    }
    // Would hang here.
    assert!(wait_for_teardown(PATIENCE));
}

/// S17: after a `kill -9` of its process the peer is notified, and posted WRs come back.
#[test]
fn s17_a_killed_peer_is_noticed() {
    shared!(s17_a_killed_peer_is_noticed);
    let mut listener = Verbs.listen();
    let port = port_of(&listener.local_address()).to_string();
    // A special client: it sends one message and waits for an answer that never comes.
    let mut victim = Command::new("rping")
        .args(["-c", "-a", &local_ip().to_string(), "-p", &port])
        .spawn()
        .expect("rdmacm-utils' rping");
    let mut server = runtime().block_on(accept(&mut listener, &Options::default()));
    while server.got.is_empty() {
        server.pump();
    }
    victim.kill().unwrap();
    victim.wait().unwrap();
    server.cq.arm().unwrap();
    server.pump();
    while !server.is_disconnected() {
        assert!(server.is_woken(PATIENCE), "the death is not noticed");
        server.cq.clear_events().unwrap();
        server.pump();
        server.cq.arm().unwrap();
        server.pump();
    }
    assert_eq!(server.state(), QpState::Error);
    // Seven RECVs were left.
    while server.got.len() < 8 {
        server.pump();
    }
    let statuses: Vec<_> = server.got.iter().map(|completion| completion.status).collect();
    assert_eq!(statuses[0], Status::Success);
    assert_eq!(statuses[1..], [Status::FlushError; 7]);
}

/// A client that disappears between the steps of set-up leaves nothing behind.
#[test]
fn attempts_may_be_dropped_at_every_step() {
    alone!(attempts_may_be_dropped_at_every_step);
    drop(Pair::new(&Verbs));
    let before = settled();
    for _ in 0..5 {
        runtime().block_on(async {
            let mut listener = Verbs.listen();
            let address = listener.local_address();
            let connector = VerbsConnector::default();
            // While the address is being resolved.
            let resolving = tokio::time::timeout(Duration::ZERO, connector.resolve(&address));
            drop(resolving.await);
            // Resolved, with and without a QP.
            drop(connector.resolve(&address).await.unwrap());
            let mut outgoing = connector.resolve(&address).await.unwrap();
            let objects = with_qp(&mut outgoing);
            drop(outgoing);
            drop(objects);
            // The other way round.
            let mut outgoing = connector.resolve(&address).await.unwrap();
            drop(with_qp(&mut outgoing));
            let error = outgoing.connect(b"").await.unwrap_err();
            assert!(error.to_string().contains("destroyed"), "{error}");
            // While the peer is asked, and never answers.
            let mut outgoing = connector.resolve(&address).await.unwrap();
            let _objects = with_qp(&mut outgoing);
            let mut connecting = outgoing.connect(b"");
            let incoming = tokio::select! {
                _ = &mut connecting => panic!("nobody has accepted"),
                incoming = listener.incoming() => incoming,
            };
            drop(connecting);
            // The QP still exists, but its id does not: only the listener's and the request's ids
            // do.
            settles_to(&(before["cm_id"] + 2), |left| left["cm_id"]);
            drop(incoming);
            // While the server accepts.
            let mut outgoing = connector.resolve(&address).await.unwrap();
            let mut client = with_qp(&mut outgoing);
            let accepting = async {
                let mut incoming = listener.incoming().await.unwrap();
                let options = Options::default();
                let mut objects = End::objects(incoming.device(), &options);
                let capacity = End::capacity(&options);
                incoming.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
                drop(tokio::time::timeout(Duration::ZERO, incoming.accept(b"")).await);
            };
            let (connected, ()) = tokio::join!(outgoing.connect(b""), accepting);
            if let Ok(established) = connected {
                // It was accepted after all, before it was given up.
                established.attach.run(&mut *client.cq).unwrap();
            }
        });
    }
    settles_to(&before, |left| left);
}

/// 200 connections, one after the other, leave no QP, CQ, MR, PD, id or fd.
#[test]
fn hundreds_of_connections_leave_nothing() {
    let _alone = ALONE.write();
    drop(Pair::new(&Verbs));
    let before = settled();
    let runtime = runtime();
    let mut listener = Verbs.listen();
    let address = listener.local_address();
    let options = Options { posted: 2, ..Options::default() };
    let mut watchdog = None;
    for round in 0..200_u32 {
        if round % 100 == 0 {
            watchdog = Some(Watchdog::start("hundreds_of_connections_leave_nothing"));
        }
        let (mut client, server) = runtime.block_on(async {
            tokio::join!(connect(&Verbs, &address, &options), accept(&mut listener, &options))
        });
        match round % 4 {
            0 => drop(server),
            1 => client.send(1, b"into the void"),
            2 => {
                let qp = client.qp;
                client.cq.modify_to_error(qp).unwrap();
            }
            _ => {}
        }
    }
    drop((listener, runtime));
    assert_eq!(settled(), before);
    drop(watchdog);
}

#[test]
fn memory_over_the_lock_limit_names_the_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    // The limit applies to the whole process; but only this thread drops the right to exceed it.
    alone!(memory_over_the_lock_limit_names_the_limit);
    let device = local_device();
    let pd = device.allocate_pd().unwrap();
    let old = getrlimit(Resource::Memlock);
    let before = capabilities(None).unwrap();
    let mut without = before;
    without.effective.remove(CapabilitySet::IPC_LOCK);
    let low = Rlimit { current: Some(256 * 1024), maximum: old.maximum };
    setrlimit(Resource::Memlock, low).unwrap();
    set_capabilities(None, without).unwrap();
    let small = pd.allocate(16 * 1024, Access::LOCAL);
    let large = pd.allocate(1024 * 1024, Access::LOCAL);
    set_capabilities(None, before).unwrap();
    setrlimit(Resource::Memlock, old).unwrap();
    assert!(small.is_ok(), "{small:?}");
    let error = large.unwrap_err().to_string();
    for part in ["1048576 bytes", "262144 bytes", "RLIMIT_MEMLOCK", "ulimit -l", "CAP_IPC_LOCK"] {
        assert!(error.contains(part), "{part} is missing in: {error}");
    }
}

/// A connection whose sides offer 0 and 4 READs.
struct Depths {
    server: u8,
    client: u8,
}

impl Fixture for Depths {
    fn listen(&self) -> Box<dyn Listener> {
        let mut options = SetupOptions::default();
        options.read_depth = self.server;
        listen_at(&local_ip().to_string(), 0, options)
    }

    fn connector(&self) -> Arc<dyn Connector> {
        let mut options = SetupOptions::default();
        options.read_depth = self.client;
        Arc::new(VerbsConnector::new(options))
    }
}

/// A side that offers no READ still connects to one that does.
#[test]
fn s24_sides_that_offer_other_depths_connect() {
    shared!(s24_sides_that_offer_other_depths_connect);
    for (server, client) in [(0, 4), (4, 0)] {
        let mut pair = Pair::new(&Depths { server, client });
        let target = pair.server_region(64, Access::REMOTE_WRITE, 0);
        let source = pair.client.filled(&[7; 64]);
        pair.client.post(&mut [write(1, remote(&target, 0), source)]).unwrap();
        assert_eq!(pair.next_sent(Client).wr_id, 1);
        pair.client.send(2, b"there");
        assert_eq!(payload(&pair.next_recv(Server)), b"there");
        pair.server.send(3, b"back");
        assert_eq!(payload(&pair.next_recv(Client)), b"back");
    }
}

/// READ requires agreement: a side that offers none gets none. Over iWARP none is offered.
#[test]
fn s50_reads_respect_the_depth_of_both_sides() {
    shared!(s50_reads_respect_the_depth_of_both_sides);
    let mut pair = Pair::new(&Verbs);
    let source = pair.server_region(4096, Access::REMOTE_READ, 7);
    // More at once than the depth of four.
    for wr_id in 0..8 {
        let wr = read(wr_id, remote(&source, 0), &pair.client.pd, 4096);
        let posted = pair.client.post(&mut [wr]);
        if !pair.client.has(Capabilities::READ) {
            assert_eq!(posted.unwrap_err().kind, PostErrorKind::Unsupported);
            return;
        }
        posted.unwrap();
    }
    for wr_id in 0..8 {
        let done = pair.next_sent(Client);
        assert_eq!(done.wr_id, wr_id);
        assert_eq!(brought(&done, 4096), [7; 4096]);
    }
}
