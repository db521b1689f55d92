//! The reason why a connection could not be set up, as text for people.
//!
//! Owns the meaning of the connection manager's events, statuses and reject reasons. Pure.

use std::io;
use std::time::Duration;

use rustix::io::Errno;

use crate::address::Address;
use crate::device::connection_error::{ConnectError, ListenError, SetUpPhase};
use crate::device::{ProviderError, REJ_PRIVATE_DATA_BYTES};

use super::cm::Event;

/// The cause of a failure.
#[derive(Debug)]
pub(super) enum Failure {
    /// The kernel's connection manager reported it.
    Event {
        /// Which event.
        event: Event,
        /// Negative errno, or a reject reason.
        status: i32,
        /// Private data of the peer.
        private_data: Vec<u8>,
    },
    /// A call failed.
    Call {
        /// The attempted call.
        what: &'static str,
        /// The operating system's error.
        error: io::Error,
    },
    /// No answer in time.
    Deadline(Duration),
    /// The id is gone: its device was removed, or its owner has dropped it.
    Gone,
    /// No libibverbs device fits.
    Device(String),
    /// The port through which the peer is reached has no link.
    PortDown {
        /// The device's name.
        device: String,
        /// The port's number, from 1.
        port: u8,
    },
}

/// The reasons of `enum ib_cm_rej_reason` that occur in practice.
const REJECT_TIMEOUT: i32 = 4;
const REJECT_NO_LISTENER: i32 = 8;
const REJECT_STALE: i32 = 10;
const REJECT_BY_APPLICATION: i32 = 28;

impl Failure {
    /// Converts to the error of connecting to, or accepting from, `address`.
    pub(super) fn into_connect_error(self, address: &Address) -> ConnectError {
        match self {
            Self::Event { event: Event::Rejected, status, private_data } => {
                rejected(address, status, private_data)
            }
            Self::Event { event, status, .. } => unreachable(address, event_text(event, status)),
            Self::Call { what, error } => call_failed(address, what, &error),
            Self::Deadline(after) => ConnectError::TimedOut {
                address: address.clone(),
                after,
                phase: SetUpPhase::Connecting,
            },
            Self::Gone => unreachable(address, "the connection attempt is over".to_owned()),
            Self::Device(reason) => ConnectError::Unavailable { scheme: "rdma", reason },
            Self::PortDown { device, port } => unreachable(address, port_down(&device, port)),
        }
    }

    /// Converts to the error of listening at `address`.
    pub(super) fn into_listen_error(self, address: &Address) -> ListenError {
        let address = address.clone();
        let reason = match self {
            Self::Call { error, .. } if error.kind() == io::ErrorKind::AddrInUse => {
                let reason = format!("{error}; stop the other listener or choose another port");
                return ListenError::InUse { address, reason };
            }
            Self::Call { what, error } if is_errno(&error, Errno::NODEV) => {
                format!(
                    "{what}: {error} (no RDMA device has this address; the `doctor` example lists \
                     the addresses that have one)"
                )
            }
            Self::Call { what, error } => format!("{what}: {error}"),
            Self::Event { event, status, .. } => event_text(event, status),
            Self::Deadline(after) => format!("no event within {after:?}"),
            Self::Gone => "the listener is gone".to_owned(),
            Self::Device(reason) => reason,
            Self::PortDown { device, port } => port_down(&device, port),
        };
        ListenError::Failed { address, reason }
    }
}

fn rejected(address: &Address, status: i32, mut private_data: Vec<u8>) -> ConnectError {
    let address = address.clone();
    let reason = match status {
        REJECT_NO_LISTENER => {
            let reason = format!("no listener at this port (reject reason {status})");
            return ConnectError::Refused { address, reason };
        }
        // iWARP has no reject reasons: TCP reports the refusal. That holds only without private
        // data: see below.
        _ if is_status(status, Errno::CONNREFUSED) && is_silent(&private_data) => {
            return ConnectError::Refused { address, reason: NO_TCP_LISTENER.to_owned() };
        }
        // On iWARP a refusal by the application has the status of a connection that was reset (siw,
        // erdma) or refused (cxgb4, irdma).
        status
            if status == REJECT_BY_APPLICATION
                || is_status(status, Errno::CONNRESET)
                || is_status(status, Errno::CONNREFUSED) =>
        {
            private_data.resize(REJ_PRIVATE_DATA_BYTES, 0);
            // The kernel reports the same if the port has a listener at another address only.
            let reason = if !is_silent(&private_data) {
                "the application refused".to_owned()
            } else if status == REJECT_BY_APPLICATION {
                "the application refused without a reason, or listens at another address of that \
                 host"
                    .to_owned()
            } else {
                "the application refused without a reason, or the connection was reset".to_owned()
            };
            return ConnectError::Rejected { address, reason, private_data };
        }
        REJECT_STALE => "a stale connection with the same numbers still exists; try again (reject \
                         reason 10)"
            .to_owned(),
        REJECT_TIMEOUT => "the peer timed out waiting for a message (reject reason 4)".to_owned(),
        other => format!("reject reason {other}"),
    };
    ConnectError::Rejected { address, reason, private_data: Vec::new() }
}

/// Whether an answer carries no data of the application: some drivers pad an empty answer with
/// zeros.
fn is_silent(private_data: &[u8]) -> bool {
    private_data.iter().all(|byte| *byte == 0)
}

fn is_status(status: i32, errno: Errno) -> bool {
    status == -errno.raw_os_error()
}

fn unreachable(address: &Address, reason: String) -> ConnectError {
    ConnectError::Unreachable { address: address.clone(), reason }
}

/// The error for a port without a link, with a remedy.
pub(super) fn port_down(device: &str, port: u8) -> String {
    format!("port {port} of {device} is down: check the cable and `ip link`/`rdma link`")
}

fn event_text(event: Event, status: i32) -> String {
    // Negative statuses are errno values; where librdmacm converts an error itself, it is just -1.
    let cause = match status {
        0 | -1 => String::new(),
        errno if errno < 0 => format!(": {}", io::Error::from_raw_os_error(-errno)),
        reason => format!(" (status {reason})"),
    };
    let text = match event {
        Event::AddressError => {
            "the address was not resolved: no such host on a network of an RDMA device"
        }
        Event::RouteError => "there is no route to it through an RDMA device",
        Event::Unreachable => "its connection manager does not answer",
        Event::ConnectError => "the connection could not be completed",
        Event::Disconnected => "it disconnected during connection set-up",
        Event::DeviceRemoval => "the RDMA device was removed",
        other => return format!("unexpected event {other:?}{cause}"),
    };
    format!("{text}{cause}")
}

fn call_failed(address: &Address, what: &'static str, error: &io::Error) -> ConnectError {
    let unreachable_errnos =
        [Errno::NETUNREACH, Errno::HOSTUNREACH, Errno::ADDRNOTAVAIL, Errno::NODEV, Errno::INVAL];
    let resolving = [RESOLVE_ADDRESS, RESOLVE_ROUTE].contains(&what);
    if resolving && unreachable_errnos.iter().any(|errno| is_errno(error, *errno)) {
        let reason = format!("{error} ({NO_DEVICE})");
        return unreachable(address, reason);
    }
    // On some iWARP devices the call waits for TCP.
    let unreachable_by_tcp = [Errno::NETUNREACH, Errno::HOSTUNREACH, Errno::TIMEDOUT];
    if what == CONNECT && unreachable_by_tcp.iter().any(|errno| is_errno(error, *errno)) {
        return unreachable(address, error.to_string());
    }
    if what == CONNECT && is_errno(error, Errno::CONNREFUSED) {
        let (address, reason) = (address.clone(), NO_TCP_LISTENER.to_owned());
        return ConnectError::Refused { address, reason };
    }
    ConnectError::Provider(ProviderError::Resources { what, message: error.to_string() })
}

/// Name of the call that contacts a peer.
pub(super) const CONNECT: &str = "connect";

const NO_TCP_LISTENER: &str = "no listener at this port (connection refused)";

/// Names of the calls that fail when there is no route.
pub(super) const RESOLVE_ADDRESS: &str = "resolve address";
pub(super) const RESOLVE_ROUTE: &str = "resolve route";

/// A frequent first attempt is 127.0.0.1, so the text mentions loopback.
const NO_DEVICE: &str = "no RDMA device has a route to it; no device serves loopback addresses: \
                         use the address of an RDMA port (the `doctor` example lists them)";

fn is_errno(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address() -> Address {
        "rdma://10.9.0.7:7471".parse().unwrap()
    }

    fn event(event: Event, status: i32) -> ConnectError {
        let private_data = vec![1, 2, 3];
        Failure::Event { event, status, private_data }.into_connect_error(&address())
    }

    #[test]
    fn s18_no_listener_is_refused_and_not_unreachable() {
        for status in [8, -111] {
            let failure =
                Failure::Event { event: Event::Rejected, status, private_data: vec![0; 52] };
            let error = failure.into_connect_error(&address());
            assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
        }
        // On iWARP the call reports this directly if the peer is on the same machine.
        let refused = || io::Error::from_raw_os_error(111);
        let call = |what| Failure::Call { what, error: refused() }.into_connect_error(&address());
        assert!(matches!(call(CONNECT), ConnectError::Refused { .. }));
        assert!(matches!(call(RESOLVE_ROUTE), ConnectError::Provider(_)));
        let error = event(Event::Unreachable, -110);
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
    }

    #[test]
    fn s19_reject_data_of_the_application_is_padded() {
        for status in [28, -104, -111] {
            let ConnectError::Rejected { private_data, .. } = event(Event::Rejected, status) else {
                panic!("not a rejection")
            };
            assert_eq!(private_data[..4], [1, 2, 3, 0]);
            assert_eq!(private_data.len(), REJ_PRIVATE_DATA_BYTES);
        }
        for status in [4, 10, 12, -110] {
            let error = event(Event::Rejected, status);
            let ConnectError::Rejected { private_data, .. } = &error else { panic!("{error}") };
            assert!(private_data.is_empty(), "{status}");
        }
        assert!(event(Event::Rejected, 10).to_string().contains("try again"));
    }

    #[test]
    fn refusal_without_data_may_be_the_kernels() {
        let refused = |private_data| {
            let event = Event::Rejected;
            let failure = Failure::Event { event, status: 28, private_data };
            failure.into_connect_error(&address()).to_string()
        };
        assert!(refused(vec![0; 148]).contains("listens at another address"));
        assert!(!refused(vec![1; 148]).contains("listens at another address"));
    }

    #[test]
    fn every_failure_names_the_address_and_what_happened() {
        let call = |what, errno| {
            let error = io::Error::from_raw_os_error(errno);
            Failure::Call { what, error }.into_connect_error(&address())
        };
        for (error, part) in [
            (event(Event::AddressError, -110), "timed out"),
            (event(Event::AddressError, -1), "no such host"),
            (event(Event::RouteError, -22), "no route"),
            (event(Event::ConnectError, -22), "Invalid argument"),
            (event(Event::Disconnected, 0), "disconnected"),
            (event(Event::DeviceRemoval, 0), "removed"),
            (event(Event::Unknown(40), 0), "Unknown(40)"),
            (call(RESOLVE_ADDRESS, 101), "Network is unreachable"),
            (call(RESOLVE_ADDRESS, 19), "No such device"),
            (call(RESOLVE_ROUTE, 19), "no device serves loopback addresses"),
            (call(CONNECT, 113), "cannot reach"),
            (Failure::Gone.into_connect_error(&address()), "over"),
        ] {
            let text = error.to_string();
            assert!(matches!(error, ConnectError::Unreachable { .. }), "{text}");
            assert!(text.contains(part) && text.contains("10.9.0.7:7471"), "{part}: {text}");
        }
        let error = call("connect", 12).to_string();
        assert!(error.contains("connect") && error.contains("allocate memory"), "{error}");
        let late = Failure::Deadline(Duration::from_secs(3)).into_connect_error(&address());
        assert!(matches!(late, ConnectError::TimedOut { .. }), "{late}");
    }

    #[test]
    fn port_without_link_has_its_own_message() {
        let failure = Failure::PortDown { device: "mlx5_0".to_owned(), port: 2 };
        let error = failure.into_connect_error(&address());
        assert!(matches!(error, ConnectError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("port 2 of mlx5_0 is down: check the cable"), "{error}");
    }

    #[test]
    fn a_listener_says_what_to_do() {
        let call = |errno| {
            let error = io::Error::from_raw_os_error(errno);
            Failure::Call { what: "bind", error }.into_listen_error(&address())
        };
        let in_use = call(98);
        assert!(matches!(in_use, ListenError::InUse { .. }), "{in_use}");
        assert!(in_use.to_string().contains("another port"));
        assert!(call(19).to_string().contains("no RDMA device has this address"));
    }
}
