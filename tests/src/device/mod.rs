//! The kind of device at both ends of a test.
//!
//! `RPC_TEST_DEVICE=mlx5` (or another of [`PROFILES`] that has RC) limits the devices of servers
//! and channels that are configured here, also in the programs that the tests start, to what this
//! kind of NIC supports. Without it devices keep their own limits, and so do those of a test that
//! asks for faults of its own.
//!
//! With `RPC_TEST_SHARED_RECVS=1` the connections of servers that are configured here share their
//! receives, also in the programs that the tests start.
//!
//! With the feature `tls` and `RPC_TEST_TLS=1` servers and channels that are configured here have
//! TLS, also in the programs that the tests start. Their keys are of no use for anything else. With
//! `RPC_TEST_TLS=authenticate` they prove who they are and do not encrypt, with
//! `RPC_TEST_TLS=local` frames are encrypted over shared memory, too.

use std::time::Duration;

use rpc_core::transport::FaultPlan;
use rpc_core::{Channel, ChannelBuilder, LinkConfig, Server, ServerBuilder};
use rpc_transport::connect::schemes;
use rpc_transport::device::Capabilities;
#[cfg(feature = "verbs")]
use rpc_transport::device::DeviceAttributes;
use rpc_transport::device::fault::{DeviceProfile, PROFILES};

use crate::limit::paced;

/// Configures a server.
///
/// # Panics
/// When `RPC_TEST_DEVICE` is not a kind of device.
#[must_use]
pub fn server() -> ServerBuilder {
    let mut server = served();
    if has_tls() {
        server = with_tls(server);
    }
    match plan() {
        Some(plan) => server.faults(plan),
        None => server,
    }
}

/// Configures what a channel serves.
#[must_use]
pub fn served() -> ServerBuilder {
    Server::builder().link(server_link(link()))
}

/// The links of both ends: an emulated machine is slow, even to answer a ping.
#[must_use]
pub fn link() -> LinkConfig {
    LinkConfig::default().keep_alive_timeout(paced(Duration::from_secs(5)))
}

/// The links of a server that configures its own.
#[must_use]
pub fn server_link(link: LinkConfig) -> LinkConfig {
    link.shared_receive_queue(shares_recvs())
}

/// Whether the connections of servers share their receives.
#[must_use]
pub fn shares_recvs() -> bool {
    std::env::var_os("RPC_TEST_SHARED_RECVS").is_some_and(|value| value != "0")
}

/// Configures a channel.
///
/// # Panics
/// Like [`server`].
#[must_use]
pub fn channel() -> ChannelBuilder {
    let mut channel = Channel::builder().link(link());
    if has_tls() {
        channel = channel_with_tls(channel);
    }
    match plan() {
        Some(plan) => channel.faults(plan),
        None => channel,
    }
}

/// Whether servers and channels have TLS.
///
/// # Panics
/// They should, and these tests were built without it.
#[must_use]
pub fn has_tls() -> bool {
    let has_tls = std::env::var_os("RPC_TEST_TLS").is_some_and(|value| value != "0");
    assert!(!has_tls || cfg!(feature = "tls"), "RPC_TEST_TLS needs the feature `tls`");
    has_tls
}

#[cfg(feature = "tls")]
fn with_tls(server: ServerBuilder) -> ServerBuilder {
    server.tls(tls(include_str!("server-key.pem"), include_str!("client-public.pem")))
}

#[cfg(feature = "tls")]
fn channel_with_tls(channel: ChannelBuilder) -> ChannelBuilder {
    channel.tls(tls(include_str!("client-key.pem"), include_str!("server-public.pem")))
}

#[cfg(not(feature = "tls"))]
fn with_tls(server: ServerBuilder) -> ServerBuilder {
    server
}

#[cfg(not(feature = "tls"))]
fn channel_with_tls(channel: ChannelBuilder) -> ChannelBuilder {
    channel
}

#[cfg(feature = "tls")]
fn tls(own: &str, peer: &str) -> rpc_core::security::Tls {
    use rpc_core::identity::Protection;
    use rpc_core::security::{Local, Tls};

    let tls = Tls::raw_keys(own, [peer]).expect("keys of these tests");
    match std::env::var("RPC_TEST_TLS").as_deref() {
        Ok("authenticate") => tls.protection(Protection::Authenticate),
        Ok("local") => tls.local(Local::Encrypt),
        _ => tls,
    }
}

/// Whether `RPC_TEST_DEVICE` names a device.
#[must_use]
pub fn is_chosen() -> bool {
    std::env::var_os("RPC_TEST_DEVICE").is_some()
}

/// For a test over `rdma://` that proves nothing on a device without these capabilities: there it
/// fails with this message, and the script for such a device names the test (`tests/e2e_in_lab`).
///
/// # Panics
/// When this machine's device lacks it.
#[cfg(feature = "verbs")]
pub fn needs(capabilities: Capabilities) {
    let device = rdma_device();
    assert!(
        device.capabilities.contains(capabilities),
        "not for this device: {} lacks {:?}",
        device.name,
        capabilities.without(device.capabilities)
    );
}

/// For a test over `rdma://` that reads the counters of Soft-RoCE.
///
/// # Panics
/// On other devices.
#[cfg(feature = "verbs")]
pub fn needs_rxe_counters() {
    let name = rdma_device().name;
    assert!(name.starts_with("rxe"), "not for this device: {name} lacks Soft-RoCE's counters");
}

/// The attributes of the device whose address the tests use.
#[cfg(feature = "verbs")]
fn rdma_device() -> DeviceAttributes {
    let name = crate::scheme::rdma_device();
    let devices = rpc_transport::device::verbs::devices().expect("librdmacm works");
    let attributes = devices.iter().map(|device| device.attributes());
    attributes.into_iter().find(|device| device.name == name).expect("a device with RC").clone()
}

fn plan() -> Option<FaultPlan> {
    chosen().map(|profile| FaultPlan::new(1).profile(profile))
}

/// Whether servers that are configured here have these abilities at such an address.
///
/// # Panics
/// When nobody listens there.
pub async fn has(address: &str, capabilities: Capabilities) -> bool {
    let address = address.parse().expect("an address");
    let way = schemes::resolve(&address).await.expect("a server");
    let lacks = chosen().map_or(Capabilities::NONE, |profile| profile.lacks);
    way.outgoing.device().attributes().capabilities.without(lacks).contains(capabilities)
}

fn chosen() -> Option<&'static DeviceProfile> {
    let driver = std::env::var("RPC_TEST_DEVICE").ok()?;
    let usable = || PROFILES.into_iter().filter(|profile| profile.has_rc);
    let profile = usable().find(|profile| profile.driver == driver).unwrap_or_else(|| {
        let known: Vec<_> = usable().map(|profile| profile.driver).collect();
        panic!("RPC_TEST_DEVICE is one of {}", known.join(", "))
    });
    Some(profile)
}
