//! Whether `rdma://` can be measured here, and where.

#[cfg(feature = "verbs")]
pub(crate) fn listen_address() -> Result<String, String> {
    let report = rpc_transport::device::verbs::preflight();
    match report.addresses().first() {
        Some(std::net::IpAddr::V6(address)) => Ok(format!("rdma://[{address}]:0")),
        Some(address) => Ok(format!("rdma://{address}:0")),
        None => Err("no RDMA device has an IP address".to_owned()),
    }
}

#[cfg(not(feature = "verbs"))]
pub(crate) fn listen_address() -> Result<String, String> {
    let devices = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().count();
    Err(match devices {
        0 => "this machine has no RDMA device".to_owned(),
        _ => "this rpc-perf was built without the feature `verbs`, which RDMA devices need"
            .to_owned(),
    })
}
