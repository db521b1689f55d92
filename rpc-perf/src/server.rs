//! `rpc-perf server`, and the server in the client's process.

use std::io::{self, Read, Write};
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, anyhow};
use rpc_core::{Server, ServerBuilder};
use rpc_perf::cores;
use tokio::sync::oneshot;

use crate::options::{MeasureOptions, Poll, ServerOptions};
use crate::service::{PerfServer, Store, link};
use crate::tls;
use crate::usage::Scope;

fn builder(scope: Scope, poll: Poll, certificates: Option<&Path>) -> Result<ServerBuilder> {
    let store = PerfServer::new(Store::new(scope));
    let server = Server::builder().add_service(store).link(link()).poll_mode(poll.mode());
    tls::serve(server, certificates)
}

/// Serves until Ctrl-C or SIGTERM, or until stdin ends if requested.
pub(crate) async fn serve(options: &ServerOptions) -> Result<()> {
    let mut signals = rpc_core::signal::shutdown();
    if let Some(cpu) = options.cpu {
        cores::try_pin(cpu).with_context(|| pin_remedy(cpu))?;
    }
    let builder = builder(Scope::Process, options.poll, options.tls.as_deref())?;
    let server = builder.bind(options.address.to_string()).await?;
    let mut stdout = io::stdout();
    writeln!(stdout, "READY {}", server.local_address())?;
    stdout.flush()?;
    let end = async {
        if options.until_stdin_closes {
            // A Ctrl-C at the terminal reaches both processes. The parent decides.
            tokio::select! {
                () = signals.terminated() => {}
                () = stdin_closed() => {}
            }
        } else {
            signals.await;
        }
    };
    Ok(server.serve_until(end).await?)
}

pub(crate) fn pin_remedy(cpu: usize) -> String {
    format!("CPU {cpu} cannot be used; `taskset -p $$` shows which ones can")
}

/// Waits for the end of stdin, on a separate thread: a read cannot be cancelled.
async fn stdin_closed() {
    let (closed, wait) = oneshot::channel::<()>();
    thread::spawn(move || {
        let _closed = closed;
        let mut stdin = io::stdin().lock();
        let mut byte = [0];
        while matches!(stdin.read(&mut byte), Ok(1)) {}
    });
    let _ = wait.await;
}

/// A server on a thread of this process. Stops on drop.
#[derive(Debug)]
pub(crate) struct LocalServer {
    address: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<Result<()>>>,
}

impl LocalServer {
    /// Starts it at a unique address, on the given CPU.
    pub(crate) async fn start(options: &MeasureOptions, cpu: Option<usize>) -> Result<Self> {
        let builder = builder(Scope::Thread, options.poll, options.tls.as_deref())?;
        let (ready, is_ready) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = thread::spawn(move || {
            if let Some(cpu) = cpu {
                cores::pin(cpu);
            }
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let server = builder.bind("mem://").await?;
                let _ = ready.send(server.local_address().to_string());
                let end = async {
                    let _ = stopped.await;
                };
                Ok(server.serve_until(end).await?)
            })
        });
        match is_ready.await {
            Ok(address) => Ok(Self { address, stop: Some(stop), thread: Some(thread) }),
            Err(_) => match thread.join() {
                Ok(Err(error)) => Err(error),
                _ => Err(anyhow!("the server's thread ended before it served")),
            },
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        // Its connections end with this thread's runtime, so it must not be joined here.
        drop(self.thread.take());
    }
}
