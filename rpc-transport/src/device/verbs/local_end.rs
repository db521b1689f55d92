//! Which devices and addresses of this machine an address's `dev` and `src` leave.
//!
//! Owns the choice, and the sentences for a device or an address that is not there. Pure but for the
//! look at the machine's devices.
//!
//! rdma_cm knows no devices, only addresses: a device is chosen by connecting from one of its
//! addresses, or by listening at them. Where a device's addresses are not known (InfiniBand) the
//! system chooses, and its choice is compared afterwards.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

use crate::connect::address::LocalEnd;
use crate::device::Device;

use super::preflight::{self, DeviceReport, Report};

/// One way to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Way {
    /// `None` for the system's choice.
    pub(super) from: Option<SocketAddr>,
    pub(super) to: SocketAddr,
}

/// The ways to a peer with these addresses, in the order in which to try them.
pub(super) async fn ways(local: &LocalEnd, peer: Vec<SocketAddr>) -> Result<Vec<Way>, String> {
    if *local == LocalEnd::default() {
        return Ok(peer.into_iter().map(|to| Way { from: None, to }).collect());
    }
    let report = look().await?;
    let mut ways = Vec::new();
    for to in &peer {
        ways.extend(ways_to(&report, local, *to)?);
    }
    if ways.is_empty() {
        let peer: Vec<_> = peer.iter().map(|to| to.ip().to_string()).collect();
        let there = what_there_is(&report);
        return Err(format!(
            "no address of {local} is of the kind of {}; {there}",
            peer.join(", ")
        ));
    }
    Ok(ways)
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

/// Whether the system's choice is the device that was asked for.
pub(super) fn is_through(local: &LocalEnd, device: &Arc<dyn Device>) -> Result<(), String> {
    let found = &device.attributes().name;
    match &local.device {
        Some(asked) if asked != found => Err(format!(
            "the route leads through {found}, not through {asked} (dev=); name an address of \
             {asked}'s network interface by src="
        )),
        _ => Ok(()),
    }
}

/// Asks the devices, which takes system calls.
async fn look() -> Result<Report, String> {
    let report = tokio::task::spawn_blocking(preflight::facts).await;
    report.map_err(|error| format!("the devices cannot be asked: {error}"))
}

fn ways_to(report: &Report, local: &LocalEnd, to: SocketAddr) -> Result<Vec<Way>, String> {
    let mut sources = match &local.device {
        Some(name) => addresses_of(device(report, name)?),
        None => Vec::new(),
    };
    if let Some(source) = local.source {
        let is_there = match local.device {
            Some(_) => sources.contains(&source),
            None => report.devices.iter().any(|device| addresses_of(device).contains(&source)),
        };
        // Of a device without IP addresses among its GIDs nothing is known.
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
            return Err(format!("{source} (src=) is no address {whose}; {there}"));
        }
        sources = vec![source];
    }
    if sources.is_empty() {
        return Ok(vec![Way { from: None, to }]);
    }
    let sources = sources.into_iter().filter(|from| fits(*from, to.ip()));
    Ok(sources.map(|from| Way { from: Some(end(from, to)), to }).collect())
}

fn listening(report: &Report, local: &LocalEnd, at: SocketAddr) -> Result<Vec<SocketAddr>, String> {
    if let Some(source) = local.source {
        return Err(format!(
            "src= is for those who connect; to listen at {source}, write it in place of {}",
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
        return Err(format!("{} is no address of {name} (dev=); {there}", at.ip()));
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
            "the addresses of {name} (dev=) are not known here: write that of its network interface \
             in place of {}",
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

/// The devices and their addresses, for a sentence.
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

/// A source has no port, and the zone of its peer.
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
        let ways = ways_to(&rails(), local, to.parse().unwrap())?;
        let from = |way: Way| way.from.map_or("any".to_owned(), |from| from.to_string());
        Ok(ways.into_iter().map(from).collect())
    }

    #[test]
    fn a_device_stands_for_its_addresses_of_the_peers_kind() {
        let rail0 = local(Some("rail0"), None);
        assert_eq!(sources(&rail0, "10.0.0.9:1").unwrap(), ["10.0.0.1:0"]);
        assert_eq!(sources(&rail0, "[fd00::9]:1").unwrap(), ["[fd00::1]:0"]);
        assert_eq!(sources(&rail0, "[fe80::9%3]:1").unwrap(), ["[fe80::1%3]:0"]);
        assert_eq!(sources(&local(Some("rail1"), None), "[fd00::9]:1").unwrap(), [""; 0]);
        // Nothing is known of it: the system chooses, and is checked.
        assert_eq!(sources(&local(Some("ib0"), None), "10.0.0.9:1").unwrap(), ["any"]);
        assert_eq!(
            sources(&local(Some("ib0"), Some("10.9.9.9")), "10.0.0.9:1").unwrap(),
            ["10.9.9.9:0"]
        );
        assert_eq!(sources(&local(None, Some("10.1.0.1")), "10.0.0.9:1").unwrap(), ["10.1.0.1:0"]);
    }

    #[test]
    fn what_is_wrong_is_told_with_what_there_is() {
        let there = "rail0 (fe80::1, 10.0.0.1, fd00::1); rail1 (10.1.0.1); down (no IP";
        for (device, source, said) in [
            (Some("mlx5_9"), None, "there is no RDMA device mlx5_9 (dev=)"),
            (Some("rail1"), Some("10.0.0.1"), "10.0.0.1 (src=) is no address of rail1 (dev=)"),
        ] {
            let error = sources(&local(device, source), "10.0.0.9:1").unwrap_err();
            assert!(error.contains(said) && error.contains(there), "{error}");
        }
        let error = sources(&local(Some("down"), None), "10.0.0.9:1").unwrap_err();
        assert!(error.contains("no active port"), "{error}");
        let one = machine(&[("rail0", true, &["10.0.0.1"])]);
        let to = "10.0.0.9:1".parse().unwrap();
        let error = ways_to(&one, &local(None, Some("10.0.0.2")), to).unwrap_err();
        assert_eq!(
            error,
            "10.0.0.2 (src=) is no address of an RDMA device with an active port; there are rail0 \
             (10.0.0.1)"
        );
        let error = ways_to(&machine(&[]), &local(Some("rail0"), None), to).unwrap_err();
        assert!(error.contains("this machine has none"), "{error}");
    }

    #[test]
    fn a_listener_of_a_device_is_at_all_its_addresses() {
        let at = |host: &str, local: &LocalEnd| {
            let ends = listening(&rails(), local, format!("{host}:7").parse().unwrap())?;
            Ok::<_, String>(ends.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        let rail0 = local(Some("rail0"), None);
        assert_eq!(at("0.0.0.0", &rail0).unwrap(), ["10.0.0.1:7"]);
        assert_eq!(at("[::]", &rail0).unwrap(), ["10.0.0.1:7", "[fd00::1]:7"]);
        assert_eq!(at("10.0.0.1", &rail0).unwrap(), ["10.0.0.1:7"]);
        assert!(at("10.1.0.1", &rail0).unwrap_err().contains("is no address of rail0 (dev=)"));
        assert_eq!(at("10.9.9.9", &local(Some("ib0"), None)).unwrap(), ["10.9.9.9:7"]);
        assert!(at("0.0.0.0", &local(Some("ib0"), None)).unwrap_err().contains("in place of"));
        let error = at("0.0.0.0", &local(None, Some("10.1.0.1"))).unwrap_err();
        assert!(error.contains("src= is for those who connect"), "{error}");
    }
}
