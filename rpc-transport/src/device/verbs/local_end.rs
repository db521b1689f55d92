//! The devices and addresses of this machine that an address's `dev` and `src` select.
//!
//! Owns the choice, and the error texts for a missing device or address. Pure except for querying
//! the machine's devices.
//!
//! rdma_cm knows no devices, only addresses: a device is chosen by connecting from one of its
//! addresses, or by listening at them. If a device's addresses are not known (InfiniBand) the
//! system chooses, and its choice is compared afterwards.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

use crate::address::LocalEnd;
use crate::device::Device;

use super::preflight::{self, DeviceReport, Report};

/// One route to a peer: a source and a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Route {
    /// `None` for the system's choice.
    pub(super) from: Option<SocketAddr>,
    pub(super) to: SocketAddr,
}

/// The routes to a peer with these addresses, in the order in which to try them.
pub(super) async fn routes(local: &LocalEnd, peer: Vec<SocketAddr>) -> Result<Vec<Route>, String> {
    if *local == LocalEnd::default() {
        return Ok(peer.into_iter().map(|to| Route { from: None, to }).collect());
    }
    let report = look().await?;
    let mut routes = Vec::new();
    for to in &peer {
        routes.extend(routes_to(&report, local, *to)?);
    }
    if routes.is_empty() {
        let peer: Vec<_> = peer.iter().map(|to| to.ip().to_string()).collect();
        let there = what_there_is(&report);
        return Err(format!(
            "{local} has no address of the same family as {}; {there}",
            peer.join(", ")
        ));
    }
    Ok(routes)
}

/// The addresses to listen at.
pub(super) async fn to_listen_at(
    local: &LocalEnd,
    at: SocketAddr,
) -> Result<Vec<SocketAddr>, String> {
    if *local == LocalEnd::default() {
        return Ok(vec![at]);
    }
    listening(&look().await?, local, at)
}

/// Whether the system chose the requested device.
pub(super) fn is_through(local: &LocalEnd, device: &Arc<dyn Device>) -> Result<(), String> {
    let found = &device.attributes().name;
    match &local.device {
        Some(asked) if asked != found => Err(format!(
            "the route uses {found}, not {asked} (dev=); name an address of {asked}'s network \
             interface with src="
        )),
        _ => Ok(()),
    }
}

/// Queries the devices, which takes system calls.
async fn look() -> Result<Report, String> {
    let report = tokio::task::spawn_blocking(preflight::facts).await;
    report.map_err(|error| format!("cannot query the devices: {error}"))
}

fn routes_to(report: &Report, local: &LocalEnd, to: SocketAddr) -> Result<Vec<Route>, String> {
    let mut sources = match &local.device {
        Some(name) => addresses_of(device(report, name)?),
        None => Vec::new(),
    };
    if let Some(source) = local.source {
        let is_there = match local.device {
            Some(_) => sources.contains(&source),
            None => report.devices.iter().any(|device| addresses_of(device).contains(&source)),
        };
        // Nothing is known about a device without IP addresses among its GIDs.
        let is_known = match local.device {
            Some(_) => !sources.is_empty(),
            None => report.devices.iter().all(|device| !addresses_of(device).is_empty()),
        };
        if is_known && !is_there {
            let whose = match &local.device {
                Some(name) => format!("of {name} (dev=)"),
                None => "of an RDMA device with an active port".to_owned(),
            };
            let there = what_there_is(report);
            return Err(format!("{source} (src=) is not an address {whose}; {there}"));
        }
        sources = vec![source];
    }
    if sources.is_empty() {
        return Ok(vec![Route { from: None, to }]);
    }
    let sources = sources.into_iter().filter(|from| fits(*from, to.ip()));
    Ok(sources.map(|from| Route { from: Some(end(from, to)), to }).collect())
}

fn listening(report: &Report, local: &LocalEnd, at: SocketAddr) -> Result<Vec<SocketAddr>, String> {
    if let Some(source) = local.source {
        return Err(format!(
            "src= is for connecting; to listen at {source}, write it instead of {}",
            at.ip()
        ));
    }
    let Some(name) = &local.device else { return Ok(vec![at]) };
    let of_name = device(report, name)?;
    let addresses = addresses_of(of_name);
    if !at.ip().is_unspecified() {
        if addresses.is_empty() || addresses.contains(&at.ip().to_canonical()) {
            return Ok(vec![at]);
        }
        let there = what_there_is(report);
        return Err(format!("{} is not an address of {name} (dev=); {there}", at.ip()));
    }
    let both = at.is_ipv6();
    let ends = addresses.into_iter().filter(|ip| (both || ip.is_ipv4()) && !is_link_local(*ip));
    let ends: Vec<_> = ends.map(|ip| SocketAddr::new(ip, at.port())).collect();
    if ends.is_empty() {
        let mut ports = of_name.ports.iter();
        if let Some(why) = ports.find_map(|port| port.why_elsewhere(name)) {
            return Err(why);
        }
        return Err(format!(
            "the addresses of {name} (dev=) are unknown: write that of its network interface \
             instead of {}",
            at.ip()
        ));
    }
    Ok(ends)
}

/// The device of this name, if it can be used.
fn device<'a>(report: &'a Report, name: &str) -> Result<&'a DeviceReport, String> {
    let device = report.devices.iter().find(|device| device.name == name);
    let device = device.ok_or_else(|| {
        format!("there is no RDMA device {name} (dev=); {}", what_there_is(report))
    })?;
    if let Some(error) = &device.open_error {
        return Err(format!("{name} (dev=) cannot be opened: {error}"));
    }
    if device.ports.iter().all(|port| !port.is_active) {
        return Err(format!(
            "{name} (dev=) has no active port: check the cable and `ip link`/`rdma link`"
        ));
    }
    Ok(device)
}

/// The IP addresses of a device's active ports, each once.
fn addresses_of(device: &DeviceReport) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for address in device.addresses() {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// The devices and their addresses, as part of a sentence.
fn what_there_is(report: &Report) -> String {
    if report.devices.is_empty() {
        return "this machine has none".to_owned();
    }
    let devices = report.devices.iter().map(|device| {
        let addresses: Vec<_> = addresses_of(device).iter().map(ToString::to_string).collect();
        match &*addresses {
            [] => format!("{} (no IP address of an active port is known)", device.name),
            some => format!("{} ({})", device.name, some.join(", ")),
        }
    });
    format!("there are {}", devices.collect::<Vec<_>>().join("; "))
}

/// Whether there can be a route from one address to the other.
fn fits(from: IpAddr, to: IpAddr) -> bool {
    let to = to.to_canonical();
    from.is_ipv4() == to.is_ipv4() && is_link_local(from) == is_link_local(to)
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// A source address: without a port, and with the zone of its peer.
fn end(from: IpAddr, to: SocketAddr) -> SocketAddr {
    match (from, to) {
        (IpAddr::V6(ip), SocketAddr::V6(to)) => SocketAddrV6::new(ip, 0, 0, to.scope_id()).into(),
        _ => SocketAddr::new(from, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::super::preflight::{Gid, Port, PortCounters};
    use super::*;

    fn machine(devices: &[(&str, bool, &[&str])]) -> Report {
        let gid = |(index, text): (usize, &&str)| {
            let ip: IpAddr = text.parse().unwrap();
            let address = match ip {
                IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                IpAddr::V6(v6) => v6,
            };
            let index = u32::try_from(index).unwrap();
            Gid { index, address, kind: "RoCE v2".to_owned(), network_device: None }
        };
        let device = |&(name, is_active, gids): &(&str, bool, &[&str])| DeviceReport {
            name: name.to_owned(),
            open_error: None,
            max_qp: 1,
            max_cqe: 1,
            max_srq_wr: 1,
            max_mr: 1,
            numa: None,
            ports: vec![Port {
                number: 1,
                is_active,
                is_ethernet: true,
                active_mtu_bytes: 1024,
                max_mtu_bytes: 1024,
                traffic_class: None,
                counters: PortCounters::default(),
                elsewhere: None,
                gids: gids.iter().enumerate().map(gid).collect(),
            }],
        };
        Report {
            devices: devices.iter().map(device).collect(),
            kernel_devices: Vec::new(),
            kernel_can_rdma: true,
            connection_manager_error: None,
            memlock_bytes: None,
            traffic_class: None,
            findings: Vec::new(),
        }
    }

    fn rails() -> Report {
        machine(&[
            ("rail0", true, &["fe80::1", "10.0.0.1", "10.0.0.1", "fd00::1"]),
            ("rail1", true, &["10.1.0.1"]),
            ("down", false, &["10.2.0.1"]),
            ("ib0", true, &[]),
        ])
    }

    fn local(device: Option<&str>, source: Option<&str>) -> LocalEnd {
        LocalEnd {
            device: device.map(str::to_owned),
            source: source.map(|source| source.parse().unwrap()),
        }
    }

    fn sources(local: &LocalEnd, to: &str) -> Result<Vec<String>, String> {
        let routes = routes_to(&rails(), local, to.parse().unwrap())?;
        let from = |route: Route| route.from.map_or("any".to_owned(), |from| from.to_string());
        Ok(routes.into_iter().map(from).collect())
    }

    #[test]
    fn device_stands_for_addresses_of_the_peers_family() {
        let rail0 = local(Some("rail0"), None);
        assert_eq!(sources(&rail0, "10.0.0.9:1").unwrap(), ["10.0.0.1:0"]);
        assert_eq!(sources(&rail0, "[fd00::9]:1").unwrap(), ["[fd00::1]:0"]);
        assert_eq!(sources(&rail0, "[fe80::9%3]:1").unwrap(), ["[fe80::1%3]:0"]);
        assert_eq!(sources(&local(Some("rail1"), None), "[fd00::9]:1").unwrap(), [""; 0]);
        // Its addresses are unknown: the system chooses, and its choice is checked.
        assert_eq!(sources(&local(Some("ib0"), None), "10.0.0.9:1").unwrap(), ["any"]);
        assert_eq!(
            sources(&local(Some("ib0"), Some("10.9.9.9")), "10.0.0.9:1").unwrap(),
            ["10.9.9.9:0"]
        );
        assert_eq!(sources(&local(None, Some("10.1.0.1")), "10.0.0.9:1").unwrap(), ["10.1.0.1:0"]);
    }

    #[test]
    fn wrong_name_lists_the_valid_ones() {
        let there = "rail0 (fe80::1, 10.0.0.1, fd00::1); rail1 (10.1.0.1); down (no IP";
        for (device, source, said) in [
            (Some("mlx5_9"), None, "there is no RDMA device mlx5_9 (dev=)"),
            (Some("rail1"), Some("10.0.0.1"), "10.0.0.1 (src=) is not an address of rail1 (dev=)"),
        ] {
            let error = sources(&local(device, source), "10.0.0.9:1").unwrap_err();
            assert!(error.contains(said) && error.contains(there), "{error}");
        }
        let error = sources(&local(Some("down"), None), "10.0.0.9:1").unwrap_err();
        assert!(error.contains("no active port"), "{error}");
        let one = machine(&[("rail0", true, &["10.0.0.1"])]);
        let to = "10.0.0.9:1".parse().unwrap();
        let error = routes_to(&one, &local(None, Some("10.0.0.2")), to).unwrap_err();
        assert_eq!(
            error,
            "10.0.0.2 (src=) is not an address of an RDMA device with an active port; there are \
             rail0 (10.0.0.1)"
        );
        let error = routes_to(&machine(&[]), &local(Some("rail0"), None), to).unwrap_err();
        assert!(error.contains("this machine has none"), "{error}");
    }

    #[test]
    fn device_listener_is_at_all_its_addresses() {
        let at = |host: &str, local: &LocalEnd| {
            let ends = listening(&rails(), local, format!("{host}:7").parse().unwrap())?;
            Ok::<_, String>(ends.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let rail0 = local(Some("rail0"), None);
        assert_eq!(at("0.0.0.0", &rail0).unwrap(), ["10.0.0.1:7"]);
        assert_eq!(at("[::]", &rail0).unwrap(), ["10.0.0.1:7", "[fd00::1]:7"]);
        assert_eq!(at("10.0.0.1", &rail0).unwrap(), ["10.0.0.1:7"]);
        assert!(at("10.1.0.1", &rail0).unwrap_err().contains("is not an address of rail0 (dev=)"));
        assert_eq!(at("10.9.9.9", &local(Some("ib0"), None)).unwrap(), ["10.9.9.9:7"]);
        assert!(at("0.0.0.0", &local(Some("ib0"), None)).unwrap_err().contains("instead of"));
        let error = at("0.0.0.0", &local(None, Some("10.1.0.1"))).unwrap_err();
        assert!(error.contains("src= is for connecting"), "{error}");
    }
}
