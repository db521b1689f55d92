//! SRV records of a name server of their own: `apt-get install knot`.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod knot;

use std::net::{IpAddr, Ipv4Addr};

use futures::StreamExt;
use rpc_core::client::resolve::Resolve;
use rpc_discovery::Srv;
use test_kit::Watchdog;

use self::knot::Knot;

fn resolver(knot: &Knot, name: &str) -> Srv {
    let srv: Srv = format!("srv://{name}").parse().unwrap();
    srv.name_server((IpAddr::from(Ipv4Addr::LOCALHOST), knot.port()).into())
}

async fn shown(srv: &Srv) -> Vec<String> {
    let servers = srv.resolve().await.unwrap();
    let shown = servers.iter().map(|it| {
        let address = it.address();
        format!("{address} {} {}", it.priority(), it.weight())
    });
    let mut shown: Vec<_> = shown.collect();
    shown.sort();
    shown
}

#[tokio::test]
async fn one_query_gives_ports_weights_and_addresses() {
    let _watchdog = Watchdog::start("SRV records");
    let knot = Knot::start(
        "_rpc._tcp SRV 10 60 7000 a\n_rpc._tcp SRV 10 40 7001 b\n_rpc._tcp SRV 20 0 7002 far.away.\n\
         a A 10.0.0.1\nb AAAA fd00::2\n",
    );
    assert_eq!(
        shown(&resolver(&knot, "_rpc._tcp.kv.example")).await,
        ["auto://10.0.0.1:7000 0 60", "auto://[fd00::2]:7001 0 40", "auto://far.away:7002 1 1"]
    );
}

#[tokio::test]
async fn two_hundred_records_come_over_tcp() {
    let _watchdog = Watchdog::start("many SRV records");
    let records =
        |at| format!("_rpc._tcp SRV 0 5 {} host-{at}\nhost-{at} A 10.0.0.{at}\n", 7000 + at);
    let knot = Knot::start(&(0..200).map(records).collect::<String>());
    let servers = resolver(&knot, "_rpc._tcp.kv.example").resolve().await.unwrap();
    assert_eq!(servers.len(), 200);
}

#[tokio::test]
async fn a_changed_zone_is_seen_after_its_ttl() {
    let _watchdog = Watchdog::start("an SRV record that changes");
    let mut knot = Knot::start("_rpc._tcp 1 SRV 0 5 7000 a\na 1 A 10.0.0.1\n");
    let resolver = resolver(&knot, "_rpc._tcp.kv.example");
    let mut sets = resolver.watch().unwrap();
    let first = sets.next().await.unwrap().unwrap();
    assert_eq!(first[0].address().to_string(), "auto://10.0.0.1:7000");
    knot.change("_rpc._tcp 1 SRV 0 5 7000 a\na 1 A 10.0.0.9\n");
    loop {
        let set = sets.next().await.unwrap().unwrap();
        if set[0].address().to_string() == "auto://10.0.0.9:7000" {
            break;
        }
    }
    // The next questions have no answer, and the stream goes on.
    knot.kill();
    let error = sets.next().await.unwrap().unwrap_err().to_string();
    assert!(error.contains("srv://_rpc._tcp.kv.example"), "{error}");
    sets.next().await.unwrap().unwrap_err();
}

#[tokio::test]
async fn an_unknown_name_is_an_error() {
    let _watchdog = Watchdog::start("a name without SRV records");
    let knot = Knot::start("_rpc._tcp SRV 0 5 7000 a\n");
    let error = resolver(&knot, "_none._tcp.kv.example").resolve().await.unwrap_err().to_string();
    assert!(error.contains("has SRV records"), "{error}");
}
