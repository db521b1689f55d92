//! The service of the fleet, and the process of one of its servers.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rpc_core::{Server, Status, signal};
use rustix::process::{Signal, set_parent_process_death_signal};

use super::Outcome;
use super::options::MemberArgs;

/// How often a server reports its counts.
const TELL_EVERY: Duration = Duration::from_millis(100);
/// Time to leave the registry before clients are asked to go away.
const DRAIN_LEAD: Duration = Duration::from_millis(300);
/// A server that is killed or stopped is gone from the registry after this time.
const LEASE: Duration = Duration::from_secs(2);

/// The word of a server that listens; its address follows.
pub(crate) const READY: &str = "READY";
/// The word before the counts: calls done, and calls answered with an error.
pub(crate) const COUNTS: &str = "COUNTS";
/// The command that makes a server ill.
pub(crate) const POISON: &str = "poison";
/// The command that makes it well again.
pub(crate) const HEAL: &str = "heal";

#[rpc_core::service]
pub(crate) trait Work {
    /// May run any number of times.
    #[rpc(idempotent)]
    async fn read(&self, key: u64) -> Result<u64, Status>;
    /// Must not run twice with the same number.
    async fn book(&self, number: u64) -> Result<(), Status>;
}

/// The service of one process.
struct Bench {
    journal: File,
    is_ill: AtomicBool,
    done: AtomicU64,
    failed: AtomicU64,
}

impl Bench {
    /// Counts a call.
    fn begin(&self) -> Result<(), Status> {
        if self.is_ill.load(Ordering::Relaxed) {
            self.failed.fetch_add(1, Ordering::Relaxed);
            return Err(Status::internal("this server is ill"));
        }
        self.done.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

impl Work for Bench {
    async fn read(&self, key: u64) -> Result<u64, Status> {
        // Another server may answer.
        self.begin().map_err(|status| status.with_retryable(true))?;
        Ok(key)
    }

    async fn book(&self, number: u64) -> Result<(), Status> {
        self.begin()?;
        // Survives the end of this process in any case.
        let written = (&self.journal).write_all(&number.to_le_bytes());
        written.map_err(|error| Status::internal(error.to_string()))
    }
}

/// Serves until SIGTERM. Takes commands on stdin, and ends with it.
pub(crate) async fn serve(args: &MemberArgs) -> Outcome<()> {
    // Also if it is stopped when its parent ends.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let journal = OpenOptions::new().create(true).append(true).open(&args.journal)?;
    let (done, failed, is_ill) = Default::default();
    let bench = Arc::new(Bench { journal, is_ill, done, failed });
    let server = Server::builder()
        .add_service(WorkServer::from_arc(Arc::clone(&bench)))
        .link(super::load::link())
        .register(args.register.clone().lease(LEASE))
        .drain_lead(DRAIN_LEAD)
        .bind(args.listen.to_string())
        .await?;
    tell(&format!("{READY} {}", server.local_address()));
    let commanded = Arc::clone(&bench);
    std::thread::Builder::new().name("commands".to_owned()).spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            commanded.is_ill.store(line == POISON, Ordering::Relaxed);
        }
        std::process::exit(1);
    })?;
    let telling = async {
        loop {
            let count = |it: &AtomicU64| it.load(Ordering::Relaxed);
            tell(&format!("{COUNTS} {} {}", count(&bench.done), count(&bench.failed)));
            tokio::time::sleep(TELL_EVERY).await;
        }
    };
    tokio::select! {
        ended = server.serve_until(signal::shutdown()) => Ok(ended?),
        () = telling => Ok(()),
    }
}

fn tell(line: &str) {
    let mut stdout = io::stdout().lock();
    // Without a reader this process ends anyway.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}
