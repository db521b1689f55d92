//! Connections: the memory of an idle one, and the rate of new ones.

use std::time::Instant;

use anyhow::Result;

use super::Target;
use crate::report::{Connect, Idle, Latency};
use crate::service::PerfClient;

/// Memory of idle connections, each of which has made one call.
#[allow(clippy::cast_precision_loss, reason = "bytes of a machine are far below 2^52")]
pub(super) async fn idle(target: &Target, client: &PerfClient) -> Result<Idle> {
    let data = target.data();
    let connections = target.options.connections;
    // The first one allocates everything that they share.
    let first = target.connect().await?;
    first.echo(&data).await?;
    let before = target.usages(client).await?;
    let mut idle = Vec::new();
    for _ in 0..connections {
        let client = target.connect().await?;
        client.echo(&data).await?;
        idle.push(client);
    }
    let after = target.usages(client).await?;
    let each = |before: Option<u64>, after: Option<u64>| {
        Some(after?.saturating_sub(before?) as f64 / f64::from(connections))
    };
    let own = each(before.client.resident_bytes, after.client.resident_bytes);
    let server_bytes = each(before.server.resident_bytes, after.server.resident_bytes);
    let one_process = !target.scope.is_process();
    let both_bytes =
        if one_process { own } else { own.zip(server_bytes).map(|(own, server)| own + server) };
    let client_bytes = own.filter(|_| !one_process);
    Ok(Idle { connections, client_bytes, server_bytes, both_bytes })
}

/// Consecutive connections, each until its first reply.
#[allow(clippy::cast_precision_loss, reason = "connections of a run are few")]
pub(super) async fn connect(target: &Target) -> Result<Connect> {
    let data = target.data();
    let mut histogram = rpc_perf::histogram();
    let start = Instant::now();
    while start.elapsed() < target.options.duration || histogram.is_empty() {
        let began = Instant::now();
        let client = target.connect().await?;
        client.echo(&data).await?;
        let took = began.elapsed();
        histogram.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }
    Ok(Connect {
        connections_per_second: histogram.len() as f64 / start.elapsed().as_secs_f64(),
        latency: Latency::of(&histogram, 0),
    })
}
