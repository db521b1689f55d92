//! What a peer can do with the key of another connection's arena, which it has somehow learned.

use rpc_core::LinkConfig;
use rpc_core::service::Dispatch;
use rpc_core::transport::Isolation;
use rpc_transport::device::{Capabilities, RemoteSlice};
use rpc_transport::protocol::handshake::{Features, Offer};
use tests::hostile::bytes::{data, hello, link_header, request, session_of};
use tests::hostile::{Heard, HostilePeer};
use tests::probe::{ProbeClient, ProbeServer};
use tests::scheme::Scheme;
use tests::service::{ProbeService, pattern};

on_every_device! {
    a_foreign_key_needs_a_domain_without_windows,
    a_foreign_key_of_another_tenant_is_refused,
}

/// A peer that uses arenas, and the arena that the server advertised.
async fn peer_with_arena(address: &str) -> (HostilePeer, RemoteSlice) {
    let features = Features::ACK_IMMEDIATE.with(Features::ARENA);
    let offer = Offer::new(&LinkConfig::default(), features, 7);
    let peer = HostilePeer::connect_saying(address, &offer.to_request()).await;
    let mut peer = peer.expect("an honest handshake");
    peer.send(&data(&hello(0)));
    // A Release frame with only the STARVED flag.
    peer.send(&link_header(3, 0x20, 0, 0));
    loop {
        let Heard::Frame(frame, _) = peer.hear().await else { panic!("the server is gone") };
        // ARENA, and no SEGMENT before it; operation 0 advertises.
        if frame[1] & 0x03 != 0x02 || frame[8] != 0 {
            continue;
        }
        let rkey = frame[16..20].try_into().map(u32::from_le_bytes).expect("four bytes");
        let address = frame[24..32].try_into().map(u64::from_le_bytes).expect("eight bytes");
        return (peer, RemoteSlice { address, rkey });
    }
}

/// Whether the server still answers a peer: `Probe.nothing` in an unused slot.
async fn is_served(peer: &mut HostilePeer, slot: u32) -> bool {
    let server = ProbeServer::new(ProbeService::default());
    let methods = server.descriptor().methods;
    let nothing = methods.iter().find(|method| method.name == "Probe.nothing").expect("there");
    peer.send(&data(&request(slot, 1, nothing, None, b"")));
    loop {
        match peer.hear().await {
            Heard::Gone => return false,
            Heard::Frame(frame, _) if session_of(&frame) == Some((3, 0, slot)) => return true,
            Heard::Frame(..) => {}
        }
    }
}

/// A server at two addresses, and these.
async fn served(link: LinkConfig, scheme: Scheme) -> [String; 2] {
    let server = tests::device::server()
        .add_service(ProbeServer::new(ProbeService::default()))
        .link(tests::device::server_link(link))
        .bind_all([scheme.fresh_address(), scheme.fresh_address()])
        .await
        .expect("fresh addresses");
    let addresses = [0, 1].map(|index| server.local_addresses()[index].to_string());
    tokio::spawn(async move { server.serve().await.expect("it listens") });
    addresses
}

/// Whether a peer at address `thief` may write into the arena of a peer at address `owner`.
async fn is_open(addresses: &[String; 2], [owner, thief]: [usize; 2]) -> bool {
    let honest = tests::limit::patient_channel().connect(&addresses[owner]).await;
    let honest = ProbeClient::new(honest.expect("an honest peer"));
    let (mut owner, arena) = peer_with_arena(&addresses[owner]).await;
    let (mut thief, own) = peer_with_arena(&addresses[thief]).await;
    assert_ne!(arena.rkey, own.rkey);
    // Its own arena accepts its writes, under every setting.
    thief.write(own, &[1; 4096]);
    assert!(is_served(&mut thief, 0).await);
    thief.write(arena, &[0xab; 4096]);
    let is_open = is_served(&mut thief, 1).await;
    // Only the thief's connection ends, without effect on other calls.
    assert!(is_served(&mut owner, 0).await);
    let payload = pattern(300_000, 3);
    assert_eq!(honest.echo(&payload).await.as_ref(), Ok(&payload));
    is_open
}

async fn a_foreign_key_needs_a_domain_without_windows(scheme: Scheme) {
    let isolated = |isolation| LinkConfig::default().isolation(isolation);
    let by_default = Capabilities::WINDOWS.with(Capabilities::BINDS_ONCE);
    for (link, shares_domain, binds_with) in [
        (LinkConfig::default().memory_windows(false), true, None),
        (LinkConfig::default(), true, Some(by_default)),
        (LinkConfig::default().memory_windows(true), true, Some(Capabilities::WINDOWS)),
        (isolated(Isolation::Shared), true, Some(by_default)),
        (isolated(Isolation::PerTenant), true, Some(by_default)),
        (isolated(Isolation::PerTenant).memory_windows(true), true, Some(Capabilities::WINDOWS)),
        (isolated(Isolation::PerConnection), false, None),
        (isolated(Isolation::PerConnection).memory_windows(true), false, None),
    ] {
        let addresses = served(link.clone(), scheme).await;
        let binds = match binds_with {
            Some(abilities) => tests::device::has(&addresses[0], abilities).await,
            None => false,
        };
        let expected = shares_domain && !binds;
        assert_eq!(is_open(&addresses, [0, 0]).await, expected, "{link:?}");
    }
}

async fn a_foreign_key_of_another_tenant_is_refused(scheme: Scheme) {
    let tenants = LinkConfig::default().isolation(Isolation::PerTenant).memory_windows(false);
    let tenants = served(tenants, scheme).await;
    assert!(is_open(&tenants, [0, 0]).await, "one tenant");
    assert!(!is_open(&tenants, [0, 1]).await, "two tenants");
    let shared = served(LinkConfig::default().memory_windows(false), scheme).await;
    // With faults each address has a device object of its own, and so a domain.
    let is_one_tenant = !tests::device::is_chosen();
    assert_eq!(is_open(&shared, [0, 1]).await, is_one_tenant, "two addresses of one device");
}
