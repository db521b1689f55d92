//! From a name to what knows its servers.

use std::sync::Arc;

use rpc_core::client::resolve::{Dns, File, Resolve, StaticList};

use crate::name_error::NameError;

/// The resolver of a name, for
/// [`connect_balanced`](rpc_core::ChannelBuilder::connect_balanced). Nothing is looked up yet.
///
/// | name | servers |
/// |---|---|
/// | `etcd://host:port,host:port/prefix` | in etcd, below a prefix (feature `etcd`) |
/// | `srv://_service._tcp.domain` | in SRV records of DNS (feature `dns-srv`) |
/// | `k8s:///namespace/service:port` | of a Kubernetes service (feature `kubernetes`) |
/// | `file:///path` | in a file: [`File`] |
/// | `auto://host:port`, or with `tcp`, `rdma` | all addresses of the host in DNS: [`Dns`] |
/// | `shm://name`, `mem://name` | that one |
///
/// # Errors
/// [`NameError`]: what is wrong with the name, or the feature that it needs.
pub fn resolver(name: &str) -> Result<Arc<dyn Resolve>, NameError> {
    let wrong = |reason: &dyn std::fmt::Display| NameError::new(name, reason.to_string());
    match name.split_once("://").map_or("", |(scheme, _)| scheme) {
        "etcd" => etcd(name),
        "srv" => srv(name),
        "k8s" => kubernetes(name),
        "file" => {
            let path = name.trim_start_matches("file://");
            match path.starts_with('/') {
                true => Ok(Arc::new(File::new(path))),
                false => Err(wrong(&"write file:///path, with three slashes")),
            }
        }
        "auto" | "tcp" | "rdma" => Ok(Arc::new(Dns::new(name).map_err(|error| wrong(&error))?)),
        "shm" | "mem" => Ok(Arc::new(StaticList::new([name]).map_err(|error| wrong(&error))?)),
        _ => Err(wrong(
            &"write etcd://host:port/prefix, file:///path, auto://host:port or another address",
        )),
    }
}

#[cfg(feature = "etcd")]
fn etcd(name: &str) -> Result<Arc<dyn Resolve>, NameError> {
    Ok(Arc::new(name.parse::<crate::etcd::Etcd>()?))
}

#[cfg(not(feature = "etcd"))]
fn etcd(name: &str) -> Result<Arc<dyn Resolve>, NameError> {
    Err(NameError::new(name, "this program was built without the feature `etcd`"))
}

#[cfg(feature = "dns-srv")]
fn srv(name: &str) -> Result<Arc<dyn Resolve>, NameError> {
    Ok(Arc::new(name.parse::<crate::srv::Srv>()?))
}

#[cfg(not(feature = "dns-srv"))]
fn srv(name: &str) -> Result<Arc<dyn Resolve>, NameError> {
    Err(NameError::new(name, "this program was built without the feature `dns-srv`"))
}

#[cfg(feature = "kubernetes")]
fn kubernetes(name: &str) -> Result<Arc<dyn Resolve>, NameError> {
    Ok(Arc::new(name.parse::<crate::kubernetes::Kubernetes>()?))
}

#[cfg(not(feature = "kubernetes"))]
fn kubernetes(name: &str) -> Result<Arc<dyn Resolve>, NameError> {
    Err(NameError::new(name, "this program was built without the feature `kubernetes`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_resolvers() {
        for name in [
            #[cfg(feature = "etcd")]
            "etcd://a:1,b:2/rpc/kv",
            #[cfg(feature = "dns-srv")]
            "srv://_rpc._tcp.kv.example",
            #[cfg(feature = "kubernetes")]
            "k8s:///shop/kv:rpc",
            "auto://kv.example:7471",
        ] {
            assert_eq!(resolver(name).unwrap().name(), name);
        }
        assert_eq!(resolver("file:///etc/kv").unwrap().name(), "/etc/kv");
        assert_eq!(resolver("shm://kv").unwrap().name(), "[shm://kv]");
        for (name, part) in [
            ("kv", "write etcd://"),
            ("http://kv:1", "write etcd://"),
            ("file://etc/kv", "three slashes"),
            ("tcp://kv", "port"),
            ("etcd://a", "etcd"),
            ("srv://", "srv"),
            ("k8s://kv", "k8s"),
            ("srv://a b", "srv"),
            ("a\u{7}b", "bad name"),
        ] {
            let error = resolver(name).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains('\u{7}'), "{name}: {error}");
        }
    }
}
