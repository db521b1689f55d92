//! The servers of a Kubernetes service, from its EndpointSlices.
//!
//! Owns the servers of each slice and the version that they are of. Decides what a message of a
//! watch means; never asks anything itself.
//!
//! Invariants:
//! 1. A service has several slices: the set is all of theirs.
//! 2. A version that is gone (410) lists anew. The normal end of a watch does not: the next one
//!    continues at the last version, which bookmarks renew.
//! 3. At most [`MAX_SERVERS`] servers are kept.
//! 4. An end point that cannot be used is left out alone.
//! 5. A pod is one server. In a service of two IP families it is in slices of both: its IPv4
//!    address counts, as with SRV records.

use core::net::IpAddr;
use std::collections::BTreeMap;

use rpc_core::client::resolve::Endpoint;
use serde::Deserialize;
use serde_json::Value;

use super::problems::Problems;
use super::reach;

/// Most servers of a service.
const MAX_SERVERS: usize = 4096;
/// Longest name of a zone, and longest id of a pod, bytes.
const MAX_ZONE_BYTES: usize = 64;
const MAX_ID_BYTES: usize = 64;

/// A list of slices.
#[derive(Debug, Deserialize)]
pub(crate) struct SliceList {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    items: Option<Vec<Slice>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    resource_version: String,
}

#[derive(Debug, Deserialize)]
struct Slice {
    metadata: Metadata,
    #[serde(default)]
    endpoints: Option<Vec<Member>>,
    #[serde(default)]
    ports: Option<Vec<Port>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Member {
    addresses: Vec<String>,
    conditions: Conditions,
    zone: Option<String>,
    target_ref: Option<Target>,
}

/// What an end point is an address of: a pod.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Target {
    uid: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conditions {
    ready: Option<bool>,
    serving: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Port {
    name: Option<String>,
    port: Option<u16>,
}

#[derive(Debug, Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Value,
}

/// What a message means.
#[derive(Debug, PartialEq)]
pub(crate) enum Told {
    Nothing,
    Changed,
    /// The version of the watch is not known any more, and why.
    ListAnew(String),
    /// The watch has failed, and why.
    Failed(String),
}

/// One address of a server.
#[derive(Debug)]
struct Known {
    pod: Pod,
    ip: IpAddr,
    server: Endpoint,
}

/// What the addresses of one server have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Pod {
    Uid(String),
    /// It is not said of which pod it is: that of no other address.
    Alone(IpAddr),
}

/// The servers of a service.
#[derive(Debug)]
pub(crate) struct Slices {
    /// The port's name or number; empty: the only one.
    port: String,
    slices: BTreeMap<String, Vec<Known>>,
    version: String,
    pub(crate) problems: Problems,
}

impl Slices {
    pub(crate) fn new(port: String) -> Self {
        let (slices, version, problems) = Default::default();
        Self { port, slices, version, problems }
    }

    pub(crate) fn on_list(&mut self, list: SliceList) {
        self.slices.clear();
        for slice in list.items.unwrap_or_default() {
            self.put(slice);
        }
        self.version = list.metadata.resource_version;
    }

    /// Where the next watch begins.
    pub(crate) fn version(&self) -> &str {
        &self.version
    }

    /// A line of a watch.
    pub(crate) fn on_event(&mut self, line: &[u8]) -> Told {
        let event: Event = match serde_json::from_slice(line) {
            Ok(event) => event,
            Err(error) => return Told::Failed(format!("an answer that is not an event: {error}")),
        };
        let text = |field: &str| event.object[field].as_str().unwrap_or_default().to_owned();
        if event.kind == "ERROR" {
            return match event.object["code"].as_u64() {
                Some(410) => Told::ListAnew(text("message")),
                _ => Told::Failed(text("message")),
            };
        }
        let version = event.object["metadata"]["resourceVersion"].as_str();
        self.version = version.unwrap_or(&self.version).to_owned();
        if !["ADDED", "MODIFIED", "DELETED"].contains(&&*event.kind) {
            return Told::Nothing;
        }
        let slice: Slice = match serde_json::from_value(event.object) {
            Ok(slice) => slice,
            Err(error) => {
                self.problems.add(b"an EndpointSlice", &error.to_string());
                return Told::Nothing;
            }
        };
        match &*event.kind {
            "DELETED" => drop(self.slices.remove(&slice.metadata.name)),
            _ => self.put(slice),
        }
        Told::Changed
    }

    /// The servers. One that moves from a slice to another is in both for a while, once each.
    pub(crate) fn servers(&self) -> Vec<Endpoint> {
        let mut pods: BTreeMap<&Pod, &Known> = BTreeMap::new();
        for known in self.slices.values().flatten() {
            let place = pods.entry(&known.pod).or_insert(known);
            let rank = |it: &Known| (it.ip.is_ipv6(), it.ip, it.server.is_draining());
            if rank(known) < rank(place) {
                *place = known;
            }
        }
        let servers = pods.into_values().map(|it| (it.server.address().to_string(), &it.server));
        let servers: BTreeMap<_, _> = servers.collect();
        servers.into_values().cloned().collect()
    }

    fn put(&mut self, slice: Slice) {
        self.slices.remove(&slice.metadata.name);
        let others: usize = self.slices.values().map(Vec::len).sum();
        let name = slice.metadata.name;
        let ports = slice.ports.unwrap_or_default();
        let is_meant = |it: &&Port| match &*self.port {
            "" => ports.len() == 1,
            wanted => {
                it.name.as_deref() == Some(wanted)
                    || it.port.is_some_and(|port| port.to_string() == wanted)
            }
        };
        let members = slice.endpoints.unwrap_or_default();
        let Some(port) = ports.iter().find(is_meant).and_then(|it| it.port) else {
            if !members.is_empty() {
                let reason = format!("it has no port `{}`, or several", self.port);
                self.problems.add(name.as_bytes(), &reason);
            }
            return;
        };
        let mut servers = Vec::new();
        for member in members {
            let Conditions { ready, serving, terminating } = member.conditions;
            let is_ready = ready.unwrap_or(true);
            let is_draining = !is_ready && serving == Some(true) && terminating == Some(true);
            // All addresses of a member are of one server.
            let Some(ip) = member.addresses.first().filter(|_| is_ready || is_draining) else {
                continue;
            };
            let Ok(ip) = ip.parse::<IpAddr>() else {
                let reason = format!("`{ip}` is not an IP address (slices of FQDNs are not used)");
                self.problems.add(name.as_bytes(), &reason);
                continue;
            };
            let host = if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() };
            let mut server = match reach::read(&format!("auto://{host}:{port}")) {
                Ok(address) => Endpoint::from(address),
                Err(reason) => {
                    self.problems.add(name.as_bytes(), &reason);
                    continue;
                }
            };
            if let Some(zone) = member.zone.filter(|zone| zone.len() <= MAX_ZONE_BYTES) {
                server = server.with_zone(zone);
            }
            if others + servers.len() >= MAX_SERVERS {
                self.problems.add(name.as_bytes(), &format!("more than {MAX_SERVERS} servers"));
                break;
            }
            if is_draining {
                server = server.draining();
            }
            let uid = member.target_ref.map(|it| it.uid).unwrap_or_default();
            let pod = match uid.len() {
                1..=MAX_ID_BYTES => Pod::Uid(uid),
                _ => Pod::Alone(ip),
            };
            servers.push(Known { pod, ip, server });
        }
        self.slices.insert(name, servers);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn slice(name: &str, version: u64, members: &[(&str, Value)]) -> Value {
        let members = members.iter().map(
            |(ip, conditions)| json!({ "addresses": [ip], "conditions": conditions, "zone": "a" }),
        );
        json!({
            "metadata": { "name": name, "resourceVersion": version.to_string() },
            "addressType": "IPv4", "endpoints": members.collect::<Vec<_>>(),
            "ports": [{ "name": "rpc", "port": 7000, "protocol": "TCP" }, { "name": "http", "port": 80 }],
        })
    }

    fn listed(port: &str, items: &[Value]) -> Slices {
        let list = json!({ "metadata": { "resourceVersion": "10" }, "items": items });
        let mut slices = Slices::new(port.to_owned());
        slices.on_list(serde_json::from_value(list).unwrap());
        slices
    }

    fn event(slices: &mut Slices, kind: &str, object: &Value) -> Told {
        slices.on_event(json!({ "type": kind, "object": object }).to_string().as_bytes())
    }

    fn shown(slices: &Slices) -> Vec<String> {
        let servers = slices.servers();
        let state = |it: &Endpoint| if it.is_draining() { " draining" } else { "" };
        servers.iter().map(|it| format!("{}{}", it.address(), state(it))).collect()
    }

    #[test]
    fn conditions_become_states() {
        let slices = listed(
            "rpc",
            &[slice(
                "x",
                1,
                &[
                    ("10.0.0.1", json!({ "ready": true })),
                    ("10.0.0.2", json!({})),
                    ("10.0.0.3", json!({ "ready": false, "serving": true, "terminating": true })),
                    ("10.0.0.4", json!({ "ready": false, "serving": false, "terminating": true })),
                    ("10.0.0.5", json!({ "ready": false })),
                    ("0.0.0.0", json!({ "ready": true })),
                    ("fd00::6", json!({ "ready": true })),
                ],
            )],
        );
        let mut expected = vec![
            "auto://10.0.0.1:7000",
            "auto://10.0.0.2:7000",
            "auto://10.0.0.3:7000 draining",
            "auto://[fd00::6]:7000",
        ];
        expected.sort_unstable();
        assert_eq!(shown(&slices), expected);
        assert_eq!(slices.servers()[0].zone(), Some("a"));
    }

    #[test]
    fn several_slices_are_one_set() {
        let ready = json!({ "ready": true });
        let leaves = json!({ "ready": false, "serving": true, "terminating": true });
        let mut slices = listed(
            "7000",
            &[
                slice("x", 1, &[("10.0.0.1", ready.clone())]),
                slice("y", 2, &[("10.0.0.2", ready.clone())]),
            ],
        );
        assert_eq!(slices.version(), "10");
        let moved = slice("y", 11, &[("10.0.0.1", leaves), ("10.0.0.3", ready)]);
        assert_eq!(event(&mut slices, "MODIFIED", &moved), Told::Changed);
        assert_eq!(shown(&slices), ["auto://10.0.0.1:7000", "auto://10.0.0.3:7000"]);
        assert_eq!(event(&mut slices, "DELETED", &slice("y", 12, &[])), Told::Changed);
        assert_eq!(shown(&slices), ["auto://10.0.0.1:7000"]);
        let bookmark = json!({ "metadata": { "resourceVersion": "99" } });
        assert_eq!(event(&mut slices, "BOOKMARK", &bookmark), Told::Nothing);
        assert_eq!(slices.version(), "99");
    }

    /// A slice whose end points are pods.
    fn of_pods(name: &str, family: &str, pods: &[(&str, &str)]) -> Value {
        let pods = pods.iter().map(
            |(uid, ip)| json!({ "addresses": [ip], "targetRef": { "kind": "Pod", "uid": uid } }),
        );
        json!({
            "metadata": { "name": name }, "addressType": family,
            "endpoints": pods.collect::<Vec<_>>(), "ports": [{ "name": "rpc", "port": 7000 }],
        })
    }

    /// A regression: each pod was two servers.
    #[test]
    fn a_pod_of_two_families_is_one_server() {
        let v4 = of_pods("four", "IPv4", &[("a", "10.0.0.1"), ("b", "10.0.0.2")]);
        let v6 = of_pods("six", "IPv6", &[("a", "fd00::1"), ("b", "fd00::2"), ("c", "fd00::3")]);
        for both in [[v4.clone(), v6.clone()], [v6, v4]] {
            let mut slices = listed("rpc", &both);
            let expected =
                ["auto://10.0.0.1:7000", "auto://10.0.0.2:7000", "auto://[fd00::3]:7000"];
            assert_eq!(shown(&slices), expected);
            // It leaves the slice of one family before that of the other.
            let less = of_pods("four", "IPv4", &[("b", "10.0.0.2")]);
            assert_eq!(event(&mut slices, "MODIFIED", &less), Told::Changed);
            assert_eq!(shown(&slices).len(), 3);
        }
    }

    #[test]
    fn an_address_without_a_pod_stands_alone() {
        let nobody = of_pods("x", "IPv4", &[("", "10.0.0.1"), ("", "10.0.0.2")]);
        assert_eq!(shown(&listed("rpc", &[nobody])).len(), 2);
        let mut names = listed("rpc", &[of_pods("x", "FQDN", &[("a", "kv.example")])]);
        assert_eq!(shown(&names), [""; 0]);
        assert!(names.problems.take().0[0].contains("not an IP address"));
    }

    #[test]
    fn a_version_that_is_gone_lists_anew() {
        let mut slices = listed("rpc", &[]);
        let gone = json!({ "code": 410, "message": "too old resource version" });
        let told = event(&mut slices, "ERROR", &gone);
        assert_eq!(told, Told::ListAnew("too old resource version".to_owned()));
        let other = json!({ "code": 500, "message": "etcd" });
        assert_eq!(event(&mut slices, "ERROR", &other), Told::Failed("etcd".to_owned()));
        assert!(matches!(slices.on_event(b"<html>"), Told::Failed(_)));
        assert_eq!(event(&mut slices, "ADDED", &json!({ "metadata": 7 })), Told::Nothing);
        assert_eq!(slices.problems.take().0.len(), 1);
    }

    #[test]
    fn the_port_must_be_known() {
        let one = slice("x", 1, &[("10.0.0.1", json!({}))]);
        for (port, count) in [("rpc", 1), ("7000", 1), ("80", 1), ("", 0), ("grpc", 0)] {
            let mut slices = listed(port, std::slice::from_ref(&one));
            assert_eq!(slices.servers().len(), count, "{port}");
            assert_eq!(slices.problems.take().0.len(), 1 - count, "{port}");
        }
    }

    #[test]
    fn servers_of_a_service_are_bounded() {
        let members: Vec<_> = (0..3000_u32)
            .map(|at| (format!("10.0.{}.{}", at / 250, at % 250), json!({})))
            .collect();
        let members: Vec<(&str, Value)> =
            members.iter().map(|(ip, it)| (ip.as_str(), it.clone())).collect();
        let mut slices = listed("rpc", &[slice("x", 1, &members), slice("y", 1, &members)]);
        assert_eq!(slices.slices.values().map(Vec::len).sum::<usize>(), MAX_SERVERS);
        assert_eq!(slices.problems.take().0.len(), 1);
    }
}
