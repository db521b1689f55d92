//! A test that takes two machines: a peer whose machine is switched off is silent, and the sender
//! still detects its loss. Connects to an `rping -s` at `VERBS_PEER` (address:port), writes to it
//! once, then runs the command `VERBS_CONNECTED`, after which that machine must die. Fails without
//! them.

#![allow(missing_docs, unsafe_code, reason = "tests")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]
#![allow(dead_code, reason = "shares the fixture of the conformance suite")]

#[path = "conformance/fixture.rs"]
mod fixture;
#[path = "conformance/verbs.rs"]
mod verbs;

use std::process::Command;

use rpc_transport::device::{RemoteSlice, Source, Status};

use fixture::*;
use verbs::Verbs;

#[test]
fn a_peer_whose_machine_is_off_is_found() {
    let _watchdog = Watchdog::start("peer");
    let peer = std::env::var("VERBS_PEER").expect("VERBS_PEER=address:port of an `rping -s`");
    let connected = std::env::var("VERBS_CONNECTED").expect("VERBS_CONNECTED=command");
    let address = format!("rdma://{peer}").parse().unwrap();
    let mut client = runtime().block_on(connect(&Verbs, &address, &Options::default()));
    // A WRITE without bytes takes no RECV and touches no memory, but requires an acknowledgement.
    let nowhere = RemoteSlice { address: 0, rkey: 0 };
    for wr_id in 0.. {
        client.post(&mut [write(wr_id, nowhere, Source::Empty)]).unwrap();
        while client.got.is_empty() {
            client.cq.arm().unwrap();
            client.pump();
            if client.got.is_empty() {
                assert!(client.is_woken(PATIENCE), "WRITE {wr_id} never completes");
                client.cq.clear_events().unwrap();
                client.pump();
            }
        }
        let completion = client.got.pop_front().unwrap();
        assert_eq!(completion.wr_id, wr_id);
        if wr_id == 0 {
            assert_eq!(completion.status, Status::Success, "the peer is there at first");
            let status = Command::new("sh").args(["-c", &connected]).status().unwrap();
            assert!(status.success(), "{connected}: {status}");
        } else if completion.status != Status::Success {
            assert_eq!(completion.status, Status::RetryExceeded);
            return;
        }
    }
}
