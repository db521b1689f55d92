//! Each thing that can be missing, and the finding that it must give.

use super::interfaces::{Detail, Fact};
use super::*;

fn gid(address: &str) -> Gid {
    let address = address.parse().unwrap();
    let network_device = Some("eth0".to_owned());
    Gid { index: 1, address, kind: "RoCE v2".to_owned(), network_device }
}

fn port() -> Port {
    Port {
        number: 1,
        is_active: true,
        is_ethernet: true,
        active_mtu_bytes: 4096,
        max_mtu_bytes: 4096,
        traffic_class: None,
        counters: PortCounters::default(),
        elsewhere: None,
        gids: vec![gid("fe80::1"), gid("::ffff:10.9.0.1")],
    }
}

fn device() -> DeviceReport {
    DeviceReport {
        name: "rxe0".to_owned(),
        open_error: None,
        max_qp: 10,
        max_cqe: 20,
        max_srq_wr: 25,
        max_mr: 30,
        numa: None,
        ports: vec![port()],
    }
}

fn good() -> Report {
    Report {
        devices: vec![device()],
        kernel_devices: vec!["rxe0".to_owned()],
        kernel_can_rdma: true,
        connection_manager_error: None,
        memlock_bytes: Some(64 << 20),
        traffic_class: None,
        findings: Vec::new(),
    }
}

fn judged(change: impl FnOnce(&mut Report)) -> Report {
    let mut report = good();
    change(&mut report);
    report.findings = judge(&report);
    report
}

/// A regression: the doctor's sum had completion queues that the device would have refused.
#[test]
fn reserved_cq_entries_hold_no_connections() {
    // The limit of Soft-RoCE.
    let device = DeviceReport { max_cqe: 32_767, ..device() };
    let limits = device.queue_limits();
    assert_eq!((limits.max_cqe, limits.max_srq_wr), (21_844, 25));
}

#[test]
fn a_process_far_from_all_devices_is_advised() {
    let report = |nodes: &[Overlap]| {
        judged(|facts| {
            facts.devices = nodes
                .iter()
                .map(|process| {
                    let (cores, process) = ("16-31".to_owned(), *process);
                    DeviceReport { numa: Some(NumaNode { number: 1, cores, process }), ..device() }
                })
                .collect();
        })
    };
    let far = report(&[Overlap::Far]);
    assert!(far.is_usable(), "it works from there, too");
    let text = far.to_string();
    let parts =
        ["NUMA node 1: cores 16-31; this process may run on none", "numactl --cpunodebind=1"];
    for part in parts {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    for near in [&[Overlap::Near][..], &[Overlap::Both], &[Overlap::Near, Overlap::Far]] {
        assert_eq!(report(near).findings, [], "{near:?}");
    }
}

#[test]
fn port_in_another_network_namespace_is_explained() {
    let gids = [gid("fe80::1"), gid("::ffff:10.9.0.1")];
    let ip = |interface: &str, ip: &str| {
        let detail = Detail::Ip(ip.parse().unwrap());
        Fact { interface: interface.to_owned(), detail }
    };
    let is_elsewhere = |here: &[Fact]| probe::elsewhere(&gids, here).is_some();
    assert!(!is_elsewhere(&[ip("lo", "127.0.0.1"), ip("eth0", "10.9.0.1")]));
    assert!(is_elsewhere(&[ip("lo", "127.0.0.1")]));
    // A new namespace has a loopback without addresses.
    assert!(is_elsewhere(&[Fact { interface: "lo".to_owned(), detail: Detail::Other }]));
    assert!(!is_elsewhere(&[]), "the system has not told");
    // A container's own device with that name.
    assert!(is_elsewhere(&[ip("eth0", "172.17.0.2")]));
    // Without addresses that could decide.
    let link_local = [gid("fe80::1")];
    assert_eq!(probe::elsewhere(&link_local, &[ip("eth0", "172.17.0.2")]), None);
    assert_eq!(probe::elsewhere(&[], &[]), None);
    let report = judged(|facts| facts.devices[0].ports[0].elsewhere = Some("eth7".to_owned()));
    assert!(!report.is_usable());
    assert_eq!(report.addresses(), Vec::<IpAddr>::new());
    let text = report.to_string();
    for part in ["eth7, which is not in this network namespace", "netns exclusive"] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
}

#[test]
fn port_counters_are_shown_with_their_meaning() {
    let report = judged(|facts| {
        let losses = vec![("out_of_sequence", 120)];
        facts.devices[0].ports[0].counters = PortCounters { losses, ..PortCounters::default() };
    });
    assert!(report.is_usable());
    let text = report.to_string();
    for part in ["counted: out_of_sequence 120", "priority flow control"] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
}

#[test]
fn a_good_machine_has_no_findings() {
    let report = judged(|_| {});
    assert_eq!(report.findings, []);
    let text = report.to_string();
    for part in ["rxe0", "MTU 4096", "10.9.0.1 RoCE v2 on eth0", "ready for rdma://"] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    assert!(!text.contains("not ready"));
}

#[test]
fn every_want_is_named_with_its_remedy() {
    type Change = fn(&mut Report);
    let cases: [(&[&str], Change); 9] = [
        (&["no RDMA device", "has no RDMA support", "cannot be created"], |report| {
            report.devices.clear();
            report.kernel_devices.clear();
            report.kernel_can_rdma = false;
        }),
        (&["no RDMA device", "modprobe rdma_rxe"], |report| {
            report.devices.clear();
            report.kernel_devices.clear();
        }),
        (&["libibverbs does not find", "rxe0", "ibverbs-providers"], |report| {
            report.devices.clear();
        }),
        (&["rdma_cm", "modprobe rdma_ucm", "No such file"], |report| {
            report.connection_manager_error = Some("No such file or directory".to_owned());
        }),
        (&["cannot open rxe0", "Permission denied", "/dev/infiniband/uverbs"], |report| {
            report.devices[0].open_error = Some("Permission denied".to_owned());
        }),
        (&["no active port", "rdma link"], |report| report.devices[0].ports[0].is_active = false),
        (&["no address (GID)"], |report| report.devices[0].ports[0].gids.clear()),
        (&["only link-local", "IP"], |report| report.devices[0].ports[0].gids.truncate(1)),
        (
            &["65536 bytes", "RLIMIT_MEMLOCK", "ulimit -l", "LimitMEMLOCK", "CAP_IPC_LOCK"],
            |report| {
                report.memlock_bytes = Some(65536);
            },
        ),
    ];
    for (parts, change) in cases {
        let report = judged(change);
        assert!(!report.is_usable());
        assert_eq!(report.findings.len(), 1, "{report}");
        let text = report.to_string();
        for part in parts {
            assert!(text.contains(part), "{part} is missing in:\n{text}");
        }
        assert!(text.contains("not ready for rdma://"));
    }
}

#[test]
fn down_port_is_reported_once_despite_missing_route() {
    let report = judged(|report| {
        let mut unplugged = device();
        unplugged.name = "mlx5_1".to_owned();
        unplugged.ports[0].is_active = false;
        report.devices.push(unplugged);
    });
    let reason = report.with_ports_down("Network is unreachable".to_owned());
    assert_eq!(
        reason,
        "Network is unreachable; port 1 of mlx5_1 is down: check the cable and `ip link`/`rdma link`"
    );
    assert_eq!(report.with_ports_down(reason.clone()), reason);
    assert_eq!(good().with_ports_down("no route".to_owned()), "no route");
}

#[test]
fn iwarp_port_uses_addresses_of_its_interface() {
    let report = judged(|report| {
        let gids = &mut report.devices[0].ports[0].gids;
        gids.iter_mut().for_each(|gid| gid.kind = IWARP.to_owned());
    });
    assert!(report.is_usable(), "{report}");
    let addresses: Vec<_> = report.devices[0].addresses().map(|ip| ip.to_string()).collect();
    assert_eq!(addresses, ["fe80::1", "10.9.0.1"]);
    assert!(report.to_string().contains("10.9.0.1 iWARP on eth0"), "{report}");
}

#[test]
fn lack_is_advice_if_another_device_works() {
    let report = judged(|report| {
        let mut unplugged = device();
        unplugged.name = "mlx5_1".to_owned();
        unplugged.ports[0].is_active = false;
        report.devices.insert(0, unplugged);
    });
    assert!(report.is_usable(), "{report}");
    assert!(report.to_string().contains("advice: mlx5_1 has no active port"), "{report}");
}

#[test]
fn a_small_mtu_is_advice_and_comes_last() {
    let report = judged(|report| {
        report.devices[0].ports[0].active_mtu_bytes = 1024;
        report.memlock_bytes = Some(0);
    });
    let severities: Vec<_> = report.findings.iter().map(|found| found.severity).collect();
    assert_eq!(severities, [Severity::Problem, Severity::Advice]);
    let report = judged(|report| report.devices[0].ports[0].active_mtu_bytes = 1024);
    assert!(report.is_usable());
    assert!(report.to_string().contains("1024"));
}

#[test]
fn traffic_class_is_shown_with_its_source() {
    let text = judged(|_| {}).to_string();
    assert!(
        text.contains("traffic class: the system's") && text.contains("RPC_RDMA_TOS"),
        "{text}"
    );
    let text = judged(|report| report.traffic_class = Some(104)).to_string();
    assert!(text.contains("traffic class: 104, set by RPC_RDMA_TOS"), "{text}");
    let text = judged(|report| report.devices[0].ports[0].traffic_class = Some(106)).to_string();
    assert!(text.contains("traffic class 106 for all connections"), "{text}");
    assert_eq!(probe::global_traffic_class("Global tclass=106\n"), Some(106));
    for none in ["", "Global tclass=0\n", "tclass=106\n", "Global tclass=many\n"] {
        assert_eq!(probe::global_traffic_class(none), None, "{none}");
    }
}

#[test]
fn probing_this_machine_does_not_fail() {
    // Whatever this machine has, the report says so and is consistent.
    let report = preflight();
    assert!(!report.devices.is_empty() || !report.is_usable(), "{report}");
}
