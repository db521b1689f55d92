//! The signals that ask a program to terminate, as a future.
//!
//! A supervisor (systemd, Docker, Kubernetes) sends SIGTERM, a terminal sends SIGINT for Ctrl-C. A
//! server that handles only one of them is killed by the other in the middle of its calls.
//!
//! ```no_run
//! # async fn run(server: rpc_core::Server) -> Result<(), rpc_core::ListenError> {
//! server.serve_until(rpc_core::signal::shutdown()).await?;
//! # Ok(()) }
//! ```

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Waits for SIGINT (Ctrl-C) or SIGTERM. From this call on, even before the future is awaited,
/// neither signal terminates the process. This also works for process 1 of a container, for which
/// the kernel ignores SIGTERM until the program handles it.
///
/// The future can be awaited again, as `(&mut shutdown).await`: it then waits for the next signal,
/// for example to end without waiting for calls in flight. Dropping it does not restore the default
/// handling.
///
/// If a signal cannot be watched, a warning is logged, and the signal keeps its default effect.
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
#[must_use = "a future does nothing unless it is awaited"]
pub fn shutdown() -> Shutdown {
    Shutdown {
        interrupt: watch(SignalKind::interrupt()),
        terminate: watch(SignalKind::terminate()),
    }
}

fn watch(kind: SignalKind) -> Option<Signal> {
    let watched = signal(kind);
    watched.inspect_err(|error| tracing::warn!(?kind, %error, "a signal cannot be watched")).ok()
}

/// Completes at SIGINT or SIGTERM; see [`shutdown`].
#[derive(Debug)]
pub struct Shutdown {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
}

impl Shutdown {
    /// Waits for SIGTERM only; Ctrl-C has no effect meanwhile. For a process that is started and
    /// terminated by another one at the same terminal.
    pub async fn terminated(&mut self) {
        std::future::poll_fn(|cx| poll(&mut self.terminate, cx)).await;
    }
}

fn poll(signal: &mut Option<Signal>, cx: &mut Context<'_>) -> Poll<()> {
    match signal.as_mut().map(|signal| signal.poll_recv(cx)) {
        Some(Poll::Ready(_)) => Poll::Ready(()),
        _ => Poll::Pending,
    }
}

impl Future for Shutdown {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if poll(&mut self.interrupt, cx).is_ready() {
            return Poll::Ready(());
        }
        poll(&mut self.terminate, cx)
    }
}
