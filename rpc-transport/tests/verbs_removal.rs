//! Removes a Soft-RoCE device while connections are live. Needs the privilege to do so and the tool
//! `rdma` (iproute2); fails if the device is of another kind. A program of its own, since every
//! other test on the machine would lose its device, and since the kernel removes a Soft-RoCE device
//! only when the processes that have it open have ended.

#![allow(missing_docs, unsafe_code, reason = "tests")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]
#![allow(dead_code, reason = "shares the fixture of the conformance suite")]

#[path = "conformance/fixture.rs"]
mod fixture;
#[path = "conformance/verbs.rs"]
mod verbs;

use std::process::{Command, Stdio};

use rpc_transport::device::verbs::{SetupOptions, preflight, wait_for_teardown};

use fixture::*;
use verbs::{Verbs, listen_at, local_ip};

#[test]
fn a_removed_device_ends_its_connections_and_listeners() {
    let _watchdog = Watchdog::start("removal");
    let report = preflight();
    let device = &report.devices[0];
    let name = &device.name;
    let network = device.ports[0].gids.iter().find_map(|gid| gid.network_device.clone()).unwrap();
    assert!(name.starts_with("rxe"), "{name} is not a Soft-RoCE device");
    let mut pair = Pair::new(&Verbs);
    let mut bound = listen_at(&local_ip().to_string(), 0, SetupOptions::default());

    // In the background: it continues when this process has ended, and restores the device.
    let remove = format!("rdma link del {name}; rdma link add {name} type rxe netdev {network}");
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("({remove}) &")]);
    shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    assert!(shell.status().unwrap().success());

    pair.wait("the removal", |pair| pair.client.is_disconnected() && pair.server.is_disconnected());
    let error = runtime().block_on(bound.incoming()).unwrap_err();
    assert!(error.to_string().contains("removed"), "{error}");
    drop((pair, bound));
    assert!(wait_for_teardown(PATIENCE), "a removed device keeps its objects");
}
