//! The RDMA devices of this machine: by the preflight of the `verbs` feature, or, in a build
//! without it, by what the kernel shows to every user.

use std::io::{self, Write};

use super::need::{Nic, any_nic};

#[cfg(feature = "verbs")]
pub(crate) use self::with_verbs::{listen_address, print};
#[cfg(not(feature = "verbs"))]
pub(crate) use self::without_verbs::{listen_address, print};

/// Where to try rdma:// on a machine without a device.
fn point_to_the_lab(out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "  to try RDMA without a device, `tests/lab/lab run -c 'rdma link'` in this repository \
         boots a small virtual machine with the kernel's Soft-RoCE device (tests/lab/README.md)"
    )
}

#[cfg(feature = "verbs")]
mod with_verbs {
    use rpc_transport::device::verbs::preflight;

    use super::{Nic, Write, any_nic, io};

    /// The address at which a peer would reach this machine. Without such an address, listening
    /// reports the reason.
    pub(crate) fn listen_address() -> String {
        match preflight().addresses().first() {
            Some(std::net::IpAddr::V6(address)) => format!("rdma://[{address}]:0"),
            Some(address) => format!("rdma://{address}:0"),
            None => "rdma://0.0.0.0:0".to_owned(),
        }
    }

    /// Prints devices, ports, addresses, and problems. Returns the devices to compute for.
    pub(crate) fn print(out: &mut impl Write) -> io::Result<Vec<Nic>> {
        let report = preflight();
        for line in report.to_string().lines() {
            writeln!(out, "  {line}")?;
        }
        if report.devices.is_empty() {
            super::point_to_the_lab(out)?;
        }
        let usable = report.devices.into_iter().filter(|device| device.open_error.is_none());
        let nics = usable.map(|device| Nic { limits: device.queue_limits(), name: device.name });
        let nics: Vec<_> = nics.collect();
        Ok(if nics.is_empty() { vec![any_nic()] } else { nics })
    }
}

#[cfg(not(feature = "verbs"))]
mod without_verbs {
    use std::path::Path;

    use super::{Nic, Write, any_nic, io};

    /// Any address: listening reports what is missing.
    pub(crate) fn listen_address() -> String {
        "rdma://0.0.0.0:0".to_owned()
    }

    /// Prints the kernel's devices, and how to build with the feature. Nothing else is known about
    /// the devices.
    pub(crate) fn print(out: &mut impl Write) -> io::Result<Vec<Nic>> {
        print_from(Path::new("/sys/class/infiniband"), out).map(|()| vec![any_nic()])
    }

    fn print_from(devices: &Path, out: &mut impl Write) -> io::Result<()> {
        let entries = devices.read_dir().into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> = names.collect();
        names.sort();
        if names.is_empty() {
            writeln!(out, "  the kernel has no RDMA device")?;
            super::point_to_the_lab(out)?;
        } else {
            writeln!(out, "  the kernel has RDMA devices: {}", names.join(", "))?;
        }
        writeln!(
            out,
            "  this program was built without the `verbs` feature and cannot use them; to build it \
             with the feature:"
        )?;
        let missing = missing_packages(Path::new(INSTALLED));
        if !missing.is_empty() {
            writeln!(out, "    apt-get install {}   (on Debian)", missing.join(" "))?;
        }
        writeln!(out, "    cargo run --features verbs --example doctor")
    }

    /// The packages for a build, by Debian's names.
    const PACKAGES: [&str; 4] = ["libibverbs-dev", "librdmacm-dev", "libclang-dev", "pkg-config"];
    /// Where Debian lists the files of installed packages: `name.list`, or
    /// `name:architecture.list`.
    const INSTALLED: &str = "/var/lib/dpkg/info";

    /// The packages that are not installed, as far as this can be determined.
    fn missing_packages(installed: &Path) -> Vec<&'static str> {
        let entries = installed.read_dir().into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let package = |name: String| {
            let name = name.strip_suffix(".list")?;
            Some(name.split(':').next().unwrap_or(name).to_owned())
        };
        let there: Vec<String> = names.filter_map(package).collect();
        PACKAGES.into_iter().filter(|name| !there.iter().any(|there| there == name)).collect()
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn printed(devices: &str) -> String {
            let mut text = Vec::new();
            print_from(Path::new(devices), &mut text).unwrap();
            String::from_utf8(text).unwrap()
        }

        #[test]
        fn devices_of_the_kernel_are_named() {
            let text = printed("/nonexistent-directory");
            assert!(text.contains("the kernel has no RDMA device"), "{text}");
            assert!(text.contains("tests/lab"), "{text}");
            // Any directory with known entries.
            let text = printed("/proc/self/net");
            assert!(text.contains("has RDMA devices: ") && text.contains("tcp"), "{text}");
            assert!(text.contains("cargo run --features verbs --example doctor"), "{text}");
        }

        #[test]
        fn installed_packages_are_not_advised() {
            assert_eq!(missing_packages(Path::new("/nonexistent-directory")), PACKAGES);
            let dir = examples::testing::Scratch::new();
            for name in ["libibverbs-dev:amd64.list", "pkg-config.list", "libclang-dev-doc.list"] {
                std::fs::write(dir.path().join(name), "").unwrap();
            }
            assert_eq!(missing_packages(dir.path()), ["librdmacm-dev", "libclang-dev"]);
        }
    }
}
