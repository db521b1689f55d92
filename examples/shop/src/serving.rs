//! The common surroundings of the two servers: health, the admin page, and an end.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use parking_lot::Mutex;
use rpc_admin::{Admin, Metrics, Recent};
use rpc_core::health::HealthReporter;
use rpc_core::service::Dispatch;
use rpc_core::{Channel, Server};

use crate::cli::Role;
use crate::journal::Journal;

/// Serves until SIGTERM. Prints its addresses on stdout.
pub(crate) async fn serve(
    title: &str,
    role: &Role,
    service: impl Dispatch,
    upstream: Option<&Channel>,
) -> Result<()> {
    let mut signals = rpc_core::signal::shutdown();
    let (recent, health) = (Recent::new(), HealthReporter::new());
    let server = (role.tls.of_server().secure(Server::builder())?)
        .interceptor(recent.clone())
        .add_service(service)
        .health(&health)
        .grace(Duration::from_secs(5))
        .bind(&role.listen)
        .await?;
    let mut admin = Admin::new(server.stats_handle()).title(title).recent(recent).health(&health);
    if let Some(channel) = upstream {
        admin = admin.channel("upstream", channel);
    }
    let admin = admin.bind(role.admin).await?;
    let metrics = match role.metrics {
        Some(address) => {
            let mut metrics = Metrics::new(server.stats_handle()).health(&health).public();
            if let Some(channel) = upstream {
                metrics = metrics.channel("upstream", channel);
            }
            Some(metrics.bind(address).await?)
        }
        None => None,
    };
    let told = metrics.as_ref().map(|metrics| metrics.local_address().to_string());
    let (listens, page) = (server.local_address().to_string(), admin.local_address().to_string());
    ready(&listens, &page, told.as_deref().unwrap_or("-"))?;
    let admin = tokio::spawn(admin.serve());
    let metrics = metrics.map(|metrics| tokio::spawn(metrics.serve()));
    server.serve_until(async { signals.terminated().await }).await?;
    admin.abort();
    if let Some(metrics) = metrics {
        metrics.abort();
    }
    Ok(())
}

/// Reports readiness to the parent process, and ends this process when the parent does.
pub(crate) fn ready(address: &str, admin: &str, metrics: &str) -> Result<()> {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(1);
    });
    let mut stdout = std::io::stdout();
    writeln!(stdout, "READY {address} {admin} {metrics}")?;
    Ok(stdout.flush()?)
}

pub(crate) fn journal(role: &Role) -> Result<Arc<Mutex<Journal>>> {
    let path = role.journal.as_deref().context("--journal is missing")?;
    let journal = Journal::open(path).with_context(|| path.display().to_string())?;
    Ok(Arc::new(Mutex::new(journal)))
}

/// A channel that waits for a server that is away, and retries idempotent calls.
pub(crate) fn upstream(role: &Role) -> Result<Channel> {
    let address = role.upstream.as_deref().context("--upstream is missing")?;
    let builder = role.tls.secure(Channel::builder())?;
    Ok(builder.wait_for_ready(true).connect_lazy(address)?)
}
