//! How far the end of a server has come, and how its handlers learn of it.
//!
//! Invariant: phases only go forward.

use tokio::sync::watch;

/// The phases of a server, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// It serves.
    Serving,
    /// It still serves, and will end soon: the lead time.
    Draining,
    /// It takes no new connections and calls.
    Closing,
}

/// The server's end: sets the phase.
#[derive(Debug)]
pub(crate) struct Phases(watch::Sender<Phase>);

impl Phases {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(Phase::Serving))
    }

    /// Goes forward to `phase`; does nothing if it is there already.
    pub(crate) fn advance(&self, phase: Phase) {
        self.0.send_if_modified(|now| {
            let goes_on = *now < phase;
            if goes_on {
                *now = phase;
            }
            goes_on
        });
    }

    pub(crate) fn watch(&self) -> Watch {
        Watch(self.0.subscribe())
    }
}

/// The other end: waits for a phase.
#[derive(Debug, Clone)]
pub(crate) struct Watch(watch::Receiver<Phase>);

impl Watch {
    pub(crate) fn has_reached(&self, phase: Phase) -> bool {
        *self.0.borrow() >= phase
    }

    /// Waits until `phase` is reached, or the server is gone.
    pub(crate) async fn reached(mut self, phase: Phase) {
        let _ = self.0.wait_for(|now| *now >= phase).await;
    }
}
