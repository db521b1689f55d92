//! How far the end of a server has come, and how its handlers learn of it.
//!
//! Invariant: phases only go forward. In a child of `fork(2)` the server is gone, and no lock is
//! taken.

use rpc_transport::memory::process::Process;

use super::watched::{self, Watched};

/// The phases of a server, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// It serves.
    Serving,
    /// It still serves, and will end soon: the lead time.
    Draining,
    /// It still serves, and clients are to find it no longer: registries remove it.
    Leaving,
    /// It takes no new connections and calls.
    Closing,
}

/// The server's end: sets the phase.
#[derive(Debug)]
pub(crate) struct Phases(Watched<Phase>, Process);

impl Phases {
    pub(crate) fn new() -> Self {
        Self(Watched::new(Phase::Serving), Process::current())
    }

    /// Goes forward to `phase`; does nothing if it is there already.
    pub(crate) fn advance(&self, phase: Phase) {
        if !self.1.is_current() {
            return;
        }
        self.0.update(|now| {
            let goes_on = *now < phase;
            if goes_on {
                *now = phase;
            }
            goes_on
        });
    }

    pub(crate) fn watch(&self) -> Watch {
        Watch(self.0.watch(), self.1)
    }
}

/// The other end: waits for a phase.
#[derive(Debug, Clone)]
pub(crate) struct Watch(watched::Watch<Phase>, Process);

impl Watch {
    pub(crate) fn has_reached(&self, phase: Phase) -> bool {
        !self.1.is_current() || self.0.get() >= phase
    }

    /// Waits until `phase` is reached, or the server is gone.
    pub(crate) async fn reached(mut self, phase: Phase) {
        if !self.1.is_current() {
            return;
        }
        let _ = self.0.until(|now| now >= phase).await;
    }
}
