//! The server's side: bind, report it, serve until a signal.

use std::io::{self, Read, Write};

use rpc_core::{Server, signal};
use tokio::sync::oneshot;

use super::error::EchoError;
use super::options::ServerOptions;
use super::service::{EchoServer, Echoing};

/// Serves until Ctrl-C or SIGTERM.
pub(crate) async fn serve(options: &ServerOptions) -> Result<(), EchoError> {
    let signals = signal::shutdown();
    let server = Server::builder();
    let server = (options.tls.secure(server)?)
        .add_service(EchoServer::new(Echoing))
        .link(super::link())
        .poll_mode(options.poll.into())
        .bind(options.address.to_string())
        .await?;
    let mut stdout = io::stdout();
    writeln!(stdout, "READY {}", server.local_address())?;
    stdout.flush()?;
    server.serve_until(end(signals, options.until_stdin_closes)).await?;
    Ok(())
}

async fn end(mut signals: signal::Shutdown, with_stdin: bool) {
    if !with_stdin {
        return signals.await;
    }
    // A Ctrl-C at the terminal reaches both processes. The parent process decides.
    tokio::select! {
        () = signals.terminated() => {}
        () = stdin_closed() => {}
    }
}

/// Waits for the end of stdin, which comes at the latest when the process at its other end has
/// died. A thread of its own reads, because a read cannot be cancelled and must not block the
/// runtime.
async fn stdin_closed() {
    let (closed, wait) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        let _closed = closed;
        let mut stdin = io::stdin().lock();
        let mut byte = [0];
        while matches!(stdin.read(&mut byte), Ok(1)) {}
    });
    let _ = wait.await;
}
