//! Ctrl-C and SIGTERM, as a future.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask a program to end. From [`EndSignals::install`] on they no longer end the
/// process by themselves.
#[derive(Debug)]
pub struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl EndSignals {
    /// Starts listening.
    ///
    /// # Errors
    /// The system's.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn install() -> io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        let terminate = signal(SignalKind::terminate())?;
        Ok(Self { interrupt, terminate })
    }

    /// Waits for the next one, since the last call or since [`EndSignals::install`].
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// Waits for SIGTERM; Ctrl-C does nothing meanwhile.
    pub async fn terminated(&mut self) {
        self.terminate.recv().await;
    }
}
