//! The ports of a device that are down, as its asynchronous events report.
//!
//! Owns that memory, and nothing else: an established connection outlives a short loss of its link,
//! and its keep-alive decides when it is dead. This knowledge spares a new connection from waiting
//! for an answer that cannot come.

use std::sync::atomic::{AtomicU64, Ordering};

/// The ports of one device. Ports beyond the 63rd count as up.
#[derive(Debug, Default)]
pub(super) struct Ports {
    down: AtomicU64,
}

impl Ports {
    /// A port has gone down, or has come up.
    pub(super) fn set(&self, port: u8, is_up: bool) {
        if is_up {
            self.down.fetch_and(!bit(port), Ordering::Relaxed);
        } else {
            self.down.fetch_or(bit(port), Ordering::Relaxed);
        }
    }

    /// Whether a port is down. `ask` is called only if the port was reported down, and returns
    /// whether it is up by now: the event that reports this may still be on its way.
    pub(super) fn is_down(&self, port: u8, ask: impl FnOnce() -> bool) -> bool {
        if self.down.load(Ordering::Relaxed) & bit(port) == 0 {
            return false;
        }
        let is_up = ask();
        if is_up {
            self.set(port, true);
        }
        !is_up
    }
}

fn bit(port: u8) -> u64 {
    1_u64.checked_shl(port.into()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_is_down_from_event_to_event() {
        let ports = Ports::default();
        let never = || -> bool { panic!("asked about a port that never went down") };
        assert!(!ports.is_down(1, never));
        ports.set(1, false);
        assert!(ports.is_down(1, || false));
        assert!(!ports.is_down(2, never), "the other port");
        ports.set(1, true);
        assert!(!ports.is_down(1, never));
    }

    #[test]
    fn late_or_lost_port_event_triggers_a_query() {
        let ports = Ports::default();
        ports.set(1, false);
        assert!(!ports.is_down(1, || true));
        assert!(!ports.is_down(1, || panic!("asked once is enough")));
    }

    #[test]
    fn ports_beyond_the_last_bit_are_up() {
        let ports = Ports::default();
        for port in [64, 200, u8::MAX] {
            ports.set(port, false);
            assert!(!ports.is_down(port, || false));
        }
        ports.set(63, false);
        assert!(ports.is_down(63, || false));
    }
}
