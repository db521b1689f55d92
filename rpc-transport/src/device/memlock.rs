//! The limit on locked memory (`RLIMIT_MEMLOCK`), and how to raise it.
//!
//! Owns the advice. Registered memory counts against the limit on every NIC; the memory of CQs and
//! QPs counts on NICs whose driver keeps it in user space: see [`locked`](super::locked).

use std::fs;

use crate::memory::limits::{Limited, limit};

/// Bit number within the effective capabilities.
const CAP_IPC_LOCK: u32 = 14;

/// The limit on locked memory of this process, bytes; `None` when there is no limit, or when this
/// process may exceed it.
#[must_use]
pub fn limit_bytes() -> Option<u64> {
    limit(Limited::LockedMemory).filter(|_| !may_lock_all(&proc_self("status")))
}

/// Whether CAP_IPC_LOCK is effective, from `/proc/self/status`.
fn may_lock_all(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1)
}

pub(crate) fn proc_self(file: &str) -> String {
    // Of the calling thread: capabilities belong to threads.
    fs::read_to_string(format!("/proc/thread-self/{file}")).unwrap_or_default()
}

/// How to raise the limit, for this process.
#[must_use]
pub fn raise() -> String {
    raise_where(&proc_self("cgroup"))
}

/// The ways to raise the limit, and the one that applies to a process in these control groups
/// (`/proc/self/cgroup`). A process inherits the limit from its parent.
pub(crate) fn raise_where(cgroups: &str) -> String {
    let mut text = "raise it with `ulimit -l unlimited` in the shell, `* - memlock unlimited` in \
                    /etc/security/limits.conf for logins, or LimitMEMLOCK=infinity in a systemd \
                    unit; CAP_IPC_LOCK lifts the limit where it is effective (CapEff in \
                    /proc/self/status), which in a container it is for root only"
        .to_owned();
    let is_container = ["docker", "containerd", "kubepods", "crio", "libpod", "lxc"]
        .iter()
        .any(|runtime| cgroups.contains(runtime));
    let unit = cgroups.split(['/', '\n']).rfind(|part| part.ends_with(".service"));
    if is_container {
        text += ". This process is in a container, which inherits the limit of its runtime's unit: \
                 set LimitMEMLOCK=infinity there (`systemctl edit containerd`, or docker, crio), \
                 or use `docker run --ulimit memlock=-1`";
        if cgroups.contains("kubepods") {
            text += "; Kubernetes has no setting for it, so set it in the unit on every node";
        }
    } else if let Some(unit) = unit.filter(|unit| !unit.starts_with("user@")) {
        text += &format!(". This process belongs to {unit}: use `systemctl edit {unit}`");
    }
    text
}

/// For each way to start a program: where its limit is set, and the line that sets it to at least
/// `bytes`.
#[must_use]
pub fn lines(bytes: u64) -> [(&'static str, String); 4] {
    let mib = bytes.div_ceil(1 << 20).max(1);
    [
        ("systemd", format!("LimitMEMLOCK={mib}M under [Service], with `systemctl edit NAME`")),
        ("docker", format!("docker run --ulimit memlock={}", mib << 20)),
        (
            "containerd",
            format!(
                "LimitMEMLOCK={mib}M under [Service], with `systemctl edit containerd` on every \
                 node: Kubernetes has no setting for it"
            ),
        ),
        ("login", format!("`* - memlock {}` in /etc/security/limits.conf", mib << 10)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_advice_names_where_the_limit_comes_from() {
        let general = raise_where("0::/user.slice/user-0.slice/session-1.scope\n");
        assert!(!general.contains("This process"), "{general}");
        let pod = "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-ab12.scope\n";
        assert!(raise_where(pod).contains("systemctl edit containerd"));
        assert!(raise_where(pod).contains("Kubernetes"));
        assert!(!raise_where("12:pids:/docker/0123\n").contains("Kubernetes"));
        assert!(raise_where("12:pids:/docker/0123\n0::/\n").contains("--ulimit memlock=-1"));
        let unit = raise_where("0::/system.slice/kv.service\n");
        assert!(unit.contains("systemctl edit kv.service"), "{unit}");
        let login = "0::/user.slice/user-7.slice/user@7.service/app.slice/shell.scope\n";
        assert_eq!(raise_where(login), general);
    }

    #[test]
    fn each_setting_uses_its_unit_and_rounds_up() {
        let [systemd, docker, containerd, login] = lines((5 << 20) + 1).map(|(_, line)| line);
        assert!(systemd.starts_with("LimitMEMLOCK=6M "), "{systemd}");
        assert_eq!(docker, "docker run --ulimit memlock=6291456");
        assert!(containerd.contains("LimitMEMLOCK=6M") && containerd.contains("edit containerd"));
        assert!(login.starts_with("`* - memlock 6144`"), "{login}");
    }
}
