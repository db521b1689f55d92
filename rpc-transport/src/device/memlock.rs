//! The limit on locked memory (`RLIMIT_MEMLOCK`), and how to raise it.
//!
//! Owns the advice. Registered memory counts against the limit on every NIC, and the memory of CQs and
//! QPs on those whose driver keeps it in user space: see [`locked`](super::locked).

use std::fs;

use rustix::process::{Resource, getrlimit};

/// Bit number within the effective capabilities.
const CAP_IPC_LOCK: u32 = 14;

/// The limit on locked memory of this process, bytes; `None` when there is none, or when this
/// process may pass it.
#[must_use]
pub fn limit_bytes() -> Option<u64> {
    let limit = getrlimit(Resource::Memlock).current;
    limit.filter(|_| !may_lock_all(&proc_self("status")))
}

/// Whether CAP_IPC_LOCK is effective, from `/proc/self/status`.
fn may_lock_all(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> CAP_IPC_LOCK & 1 == 1)
}

pub(crate) fn proc_self(file: &str) -> String {
    // The calling thread's: capabilities are a thread's.
    fs::read_to_string(format!("/proc/thread-self/{file}")).unwrap_or_default()
}

/// How to raise the limit, for this process.
#[must_use]
pub fn raise() -> String {
    raise_where(&proc_self("cgroup"))
}

/// The ways to raise the limit, and the one that counts for a process of these control groups
/// (`/proc/self/cgroup`). The limit is inherited from whoever has started the process.
pub(crate) fn raise_where(cgroups: &str) -> String {
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

/// Where the limit is set to at least `bytes`, and the line that does so, for each way that a program is
/// started.
#[must_use]
pub fn lines(bytes: u64) -> [(&'static str, String); 4] {
    let mib = bytes.div_ceil(1 << 20).max(1);
    [
        ("systemd", format!("LimitMEMLOCK={mib}M under [Service], by `systemctl edit NAME`")),
        ("docker", format!("docker run --ulimit memlock={}", mib << 20)),
        (
            "containerd",
            format!(
                "LimitMEMLOCK={mib}M under [Service], by `systemctl edit containerd` on every node: \
                 Kubernetes has no setting for it"
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
    fn each_place_has_its_line_in_its_own_unit_and_never_less() {
        let [systemd, docker, containerd, login] = lines((5 << 20) + 1).map(|(_, line)| line);
        assert!(systemd.starts_with("LimitMEMLOCK=6M "), "{systemd}");
        assert_eq!(docker, "docker run --ulimit memlock=6291456");
        assert!(containerd.contains("LimitMEMLOCK=6M") && containerd.contains("edit containerd"));
        assert!(login.starts_with("`* - memlock 6144`"), "{login}");
    }
}
