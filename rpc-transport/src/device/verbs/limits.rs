//! The limit on locked memory, and the advice to give when it is reached.
//!
//! Owns the error texts for refused objects of a device. Registering pins pages, and pinned pages
//! count against `RLIMIT_MEMLOCK`, each registration in full; so does the memory of CQs and QPs on
//! NICs whose driver keeps it in user space (mlx5 and most others).

use std::fs;
use std::io;

use rustix::process::{Resource, getrlimit};

use crate::device::ProviderError;

/// Bit number within the effective capabilities.
const CAP_IPC_LOCK: u32 = 14;

/// The limit on locked memory of this process, bytes; `None` when there is none, or when this
/// process may pass it.
pub(super) fn memlock_bytes() -> Option<u64> {
    let limit = getrlimit(Resource::Memlock).current;
    limit.filter(|_| !may_lock_all(&proc_self("status")))
}

/// Whether CAP_IPC_LOCK is effective, from `/proc/self/status`.
fn may_lock_all(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1)
}

fn proc_self(file: &str) -> String {
    // The calling thread's: capabilities are a thread's.
    fs::read_to_string(format!("/proc/thread-self/{file}")).unwrap_or_default()
}

/// How to raise the limit, for this process.
pub(super) fn raise_memlock() -> String {
    raise_memlock_where(&proc_self("cgroup"))
}

/// The ways to raise the limit, and the one that counts for a process of these control groups
/// (`/proc/self/cgroup`). The limit is inherited from whoever has started the process.
fn raise_memlock_where(cgroups: &str) -> String {
    let mut text = "raise it by `ulimit -l unlimited` in the shell, by `* - memlock unlimited` in \
                    /etc/security/limits.conf for those who log in, or by LimitMEMLOCK=infinity in \
                    a systemd unit; CAP_IPC_LOCK lifts it where it is effective (CapEff in \
                    /proc/self/status), which it is not for users other than root in a container"
        .to_owned();
    let is_container = ["docker", "containerd", "kubepods", "crio", "libpod", "lxc"]
        .iter()
        .any(|runtime| cgroups.contains(runtime));
    let unit = cgroups.split(['/', '\n']).rfind(|part| part.ends_with(".service"));
    if is_container {
        text += ". This process is in a container, which has the limit of its runtime's unit: \
                 LimitMEMLOCK=infinity there (`systemctl edit containerd`, or docker, crio), or \
                 `docker run --ulimit memlock=-1`";
        if cgroups.contains("kubepods") {
            text += "; Kubernetes has no setting for it, so it is the unit's on every node";
        }
    } else if let Some(unit) = unit.filter(|unit| !unit.starts_with("user@")) {
        text += &format!(". This process belongs to {unit}: `systemctl edit {unit}`");
    }
    text
}

/// Why connections that register this many bytes, and lock `in_all` with their queues, cannot be had
/// under the limit of this process; `None` if they can.
pub(crate) fn too_little(registered: u64, in_all: u64) -> Option<String> {
    let limit = memlock_bytes()?;
    too_little_under(limit, registered, in_all, &proc_self("cgroup"))
}

/// The same for a limit in bytes. Only what is registered counts on every device, so a limit between
/// the two is left to the device.
fn too_little_under(limit: u64, registered: u64, in_all: u64, cgroups: &str) -> Option<String> {
    (limit < registered).then(|| {
        let raise = raise_memlock_where(cgroups);
        format!(
            "the limit on locked memory (RLIMIT_MEMLOCK) is {limit} bytes, and the first connection \
             of this configuration registers {registered}, and locks about {in_all} with its queues on a \
             NIC that counts them: {raise}"
        )
    })
}

/// The error for a refused registration of `len` bytes.
pub(super) fn registration_refused(len: usize, error: &io::Error) -> ProviderError {
    let message = match over_the_limit(error) {
        Some(limit) => format!("{error}; registering {len} bytes pins them, and {limit}"),
        None => format!("{error} (registering {len} bytes)"),
    };
    ProviderError::Resources { what: "register memory", message }
}

/// The error for any other refusal of the device.
pub(super) fn refused(what: &'static str, error: &io::Error) -> ProviderError {
    let message = match over_the_limit(error) {
        Some(limit) => format!("{error}; queues of a device are locked memory, too, and {limit}"),
        None => error.to_string(),
    };
    ProviderError::Resources { what, message }
}

/// What to say of the limit, if the error may come from it.
fn over_the_limit(error: &io::Error) -> Option<String> {
    if error.kind() != io::ErrorKind::OutOfMemory {
        return None;
    }
    let limit = memlock_bytes()?;
    let raise = raise_memlock();
    Some(format!("the limit on locked memory (RLIMIT_MEMLOCK) is {limit} bytes: {raise}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_refused_for_want_of_memory_names_the_limit_and_three_ways_out() {
        let error = io::Error::from_raw_os_error(12);
        for (text, what) in [
            (registration_refused(1 << 20, &error).to_string(), "registering 1048576 bytes"),
            (refused("create completion queue", &error).to_string(), "create completion queue"),
        ] {
            assert!(text.contains(what), "{text}");
            let is_limited = memlock_bytes().is_some();
            for part in ["RLIMIT_MEMLOCK", "ulimit -l", "LimitMEMLOCK", "CAP_IPC_LOCK"] {
                assert_eq!(text.contains(part), is_limited, "{part}: {text}");
            }
        }
        // Another errno has another cause.
        for error in [22, 24].map(io::Error::from_raw_os_error) {
            for text in [registration_refused(0, &error), refused("open device", &error)] {
                assert!(!text.to_string().contains("ulimit"), "{text}");
            }
        }
    }

    #[test]
    fn a_capability_counts_where_it_is_effective() {
        let status =
            |line: &str| format!("Name:\tx\nCapPrm:\t000001ffffffffff\n{line}\nCapBnd:\t0\n");
        assert!(may_lock_all(&status("CapEff:\t000001ffffffffff")));
        assert!(may_lock_all(&status("CapEff:\t0000000000004000")));
        assert!(!may_lock_all(&status("CapEff:\t0000000000000000")));
        assert!(!may_lock_all(&status("CapEff:\t000001ffffffbfff")));
        assert!(!may_lock_all(&status("CapEff:\tnonsense")));
        assert!(!may_lock_all(""));
    }

    #[test]
    fn a_limit_below_what_every_connection_registers_is_told_with_the_need_and_the_remedy() {
        let unit = "0::/system.slice/kv.service\n";
        let text = too_little_under(65_536, 900_000, 1_900_000, unit).unwrap();
        for part in [
            "is 65536 bytes",
            "registers 900000,",
            "locks about 1900000 ",
            "`ulimit -l unlimited`",
            "`* - memlock unlimited` in /etc/security/limits.conf",
            "LimitMEMLOCK=infinity",
            "`systemctl edit kv.service`",
        ] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
        assert!(too_little_under(899_999, 900_000, 1_900_000, "").is_some());
        assert_eq!(too_little_under(900_000, 900_000, 1_900_000, ""), None);
        assert_eq!(too_little_under(8 << 20, 900_000, 1_900_000, ""), None);
    }

    #[test]
    fn the_advice_names_where_the_limit_comes_from() {
        let general = raise_memlock_where("0::/user.slice/user-0.slice/session-1.scope\n");
        assert!(!general.contains("This process"), "{general}");
        let pod = "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-ab12.scope\n";
        assert!(raise_memlock_where(pod).contains("systemctl edit containerd"));
        assert!(raise_memlock_where(pod).contains("Kubernetes"));
        assert!(!raise_memlock_where("12:pids:/docker/0123\n").contains("Kubernetes"));
        assert!(
            raise_memlock_where("12:pids:/docker/0123\n0::/\n").contains("--ulimit memlock=-1")
        );
        let unit = raise_memlock_where("0::/system.slice/kv.service\n");
        assert!(unit.contains("systemctl edit kv.service"), "{unit}");
        let login = "0::/user.slice/user-7.slice/user@7.service/app.slice/shell.scope\n";
        assert_eq!(raise_memlock_where(login), general);
    }
}
