//! Ctrl-C and SIGTERM, as a future.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask a program to end; once installed they do not end it by themselves.
#[derive(Debug)]
pub(crate) struct EndSignals([Signal; 2]);

impl EndSignals {
    pub(crate) fn install() -> io::Result<Self> {
        Ok(Self([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?]))
    }

    /// Waits for either.
    pub(crate) async fn next(&mut self) {
        let [interrupt, terminate] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }

    /// Waits for SIGTERM alone.
    pub(crate) async fn terminated(&mut self) {
        self.0[1].recv().await;
    }
}
