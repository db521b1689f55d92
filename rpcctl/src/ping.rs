//! `ping`.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use anyhow::Result;
use rpc_core::health::HealthClient;
use rpc_core::{Code, Status};

use crate::options::{Common, Output, Ping};
use crate::target::{Target, of_status};
use crate::text::{json, time};

pub(crate) async fn ping(options: &Ping, common: &Common) -> Result<()> {
    let target = Target::connect(&options.address, common).await?;
    let health = HealthClient::new(target.channel.clone());
    let mut times = Vec::new();
    for at in 0..options.count {
        if at > 0 && !options.interval.is_zero() {
            tokio::time::sleep(options.interval).await;
        }
        let begin = Instant::now();
        let answer = health.check("").timeout(target.timeout).await.map_err(Status::from);
        let took = begin.elapsed();
        // A server without health also answers: with an error.
        if let Err(status) = answer
            && !is_answer(&status)
        {
            return Err(of_status(&status));
        }
        times.push(took);
    }
    times.sort_unstable();
    let path = target.channel.path().map(|path| path.to_string()).unwrap_or_default();
    let count = u32::try_from(times.len()).unwrap_or(u32::MAX);
    let mean = times.iter().sum::<Duration>() / count.max(1);
    let rank = |percent: usize| times[(times.len() * percent).div_ceil(100).max(1) - 1];
    let (least, most) = (rank(0), rank(100));
    let mut out = io::stdout();
    match common.output {
        Output::Text => {
            writeln!(out, "{}: {count} round trips over {path}", target.address)?;
            let times = [least, mean, rank(50), rank(99), most].map(time);
            let [least, mean, p50, p99, most] = times;
            writeln!(out, "min {least}, mean {mean}, p50 {p50}, p99 {p99}, max {most}")?;
        }
        Output::Json => {
            let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            let object = serde_json::json!({
                "address": target.address, "path": path, "count": count, "min_ns": nanos(least),
                "mean_ns": nanos(mean), "p50_ns": nanos(rank(50)), "p99_ns": nanos(rank(99)),
                "max_ns": nanos(most),
            });
            writeln!(out, "{}", json(&object)?)?;
        }
    }
    Ok(())
}

/// Whether the status comes from the called server.
fn is_answer(status: &Status) -> bool {
    let code = status.code();
    matches!(
        code,
        Code::Unimplemented | Code::NotFound | Code::Unauthenticated | Code::PermissionDenied
    )
}
