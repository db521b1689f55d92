//! Errors for a reached limit on locked memory.
//!
//! Owns the error texts for refused objects of a device. Registering pins pages, and pinned pages
//! count against `RLIMIT_MEMLOCK`, each registration in full. The memory of CQs and QPs counts too,
//! on NICs whose driver keeps it in user space (mlx5 and most others).

use std::io;

use crate::device::ProviderError;
use crate::device::memlock::{limit_bytes, raise, raise_where};

/// Why this process's limit does not allow connections that register this many bytes, and lock
/// `in_all` bytes including their queues; `None` if it does.
pub(crate) fn too_little(registered: u64, in_all: impl FnOnce() -> u64) -> Option<String> {
    let limit = limit_bytes()?;
    too_little_under(limit, registered, in_all, &crate::device::memlock::proc_self("cgroup"))
}

/// The same check for a given limit, bytes. Only registered memory counts on every device, so a
/// limit between the two numbers is left to the device.
fn too_little_under(
    limit: u64,
    registered: u64,
    in_all: impl FnOnce() -> u64,
    cgroups: &str,
) -> Option<String> {
    (limit < registered).then(|| {
        let in_all = in_all();
        let raise = raise_where(cgroups);
        format!(
            "the limit on locked memory (RLIMIT_MEMLOCK) is {limit} bytes, but the first \
             connection with this configuration registers {registered} bytes, and locks about \
             {in_all} on a NIC that counts its queues: {raise}"
        )
    })
}

/// The error for a refused registration of `len` bytes.
pub(super) fn registration_refused(len: usize, error: &io::Error) -> ProviderError {
    let message = match over_the_limit(error) {
        Some(limit) => format!("{error}; registering {len} bytes locks them, and {limit}"),
        None => format!("{error} (registering {len} bytes)"),
    };
    ProviderError::Resources { what: "register memory", message }
}

/// The error for any other refusal of the device.
pub(super) fn refused(what: &'static str, error: &io::Error) -> ProviderError {
    let message = match over_the_limit(error) {
        Some(limit) => {
            format!("{error}; the queues of a device are locked memory too, and {limit}")
        }
        None => error.to_string(),
    };
    ProviderError::Resources { what, message }
}

/// Advice about the limit, if the error may be caused by it.
fn over_the_limit(error: &io::Error) -> Option<String> {
    if error.kind() != io::ErrorKind::OutOfMemory {
        return None;
    }
    let limit = limit_bytes()?;
    let raise = raise();
    Some(format!("the limit on locked memory (RLIMIT_MEMLOCK) is {limit} bytes: {raise}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enomem_names_the_limit_and_three_remedies() {
        let error = io::Error::from_raw_os_error(12);
        for (text, what) in [
            (registration_refused(1 << 20, &error).to_string(), "registering 1048576 bytes"),
            (refused("create completion queue", &error).to_string(), "create completion queue"),
        ] {
            assert!(text.contains(what), "{text}");
            let is_limited = limit_bytes().is_some();
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
    fn too_low_limit_names_the_need_and_remedy() {
        let unit = "0::/system.slice/kv.service\n";
        let text = too_little_under(65_536, 900_000, || 1_900_000, unit).unwrap();
        for part in [
            "is 65536 bytes",
            "registers 900000 bytes,",
            "locks about 1900000 ",
            "`ulimit -l unlimited`",
            "`* - memlock unlimited` in /etc/security/limits.conf",
            "LimitMEMLOCK=infinity",
            "`systemctl edit kv.service`",
        ] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
        assert!(too_little_under(899_999, 900_000, || 1_900_000, "").is_some());
        assert_eq!(too_little_under(900_000, 900_000, || 1_900_000, ""), None);
        assert_eq!(too_little_under(8 << 20, 900_000, || 1_900_000, ""), None);
    }
}
