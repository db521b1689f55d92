//! Connections that come and go next to calls: the remaining rate of those calls, on a device whose
//! commands take no time and on one that takes 1 ms for each, as a NIC does.

use std::time::Duration;

use anyhow::{Context as _, Result};
use rpc_core::transport::FaultPlan;
use rpc_core::{Channel, PollMode, Server};
use rpc_perf::cores;
use rpc_perf::server_process::ServerProcess;
use rpc_transport::device::fault::MLX5;
use tokio::time::MissedTickBehavior;

use crate::ours::{self, EchoClient, echo_server};
use crate::report::{at_least, row};

/// Connections a second.
const ARRIVALS: u32 = 500;
const IN_FLIGHT: usize = 32;

/// Serves echo on a device with slow commands, as [`ours::serve`] does on others.
pub(crate) async fn serve(address: &str, mode: PollMode) -> Result<()> {
    let plan = FaultPlan::new(1).profile(&MLX5);
    let builder = Server::builder().add_service(echo_server()).poll_mode(mode).faults(plan);
    let server = builder.bind(address).await?;
    println!("READY {}", server.local_address());
    server.serve().await?;
    Ok(())
}

/// Connects, calls and leaves `ARRIVALS` times a second, until the process is killed; prints
/// `READY` and the number of connections in the first second.
pub(crate) async fn arrive(address: &str) -> Result<()> {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / ARRIVALS);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in 0_u32.. {
        ticks.tick().await;
        let address = address.to_owned();
        tokio::spawn(async move {
            // Refused and cut-off connections appear in the server's log.
            if let Ok(channel) =
                Channel::builder().poll_mode(PollMode::Event).connect(&address).await
            {
                let _ = EchoClient::new(channel).echo(&[7; 64]).await;
            }
        });
        if number == ARRIVALS {
            println!("READY {number}");
        }
    }
    Ok(())
}

pub(crate) async fn run(scheme: &str, rounds: usize, duration: Duration) -> Result<()> {
    cores::pin(crate::CPUS.client);
    println!("{IN_FLIGHT} calls in flight over {scheme}, beside {ARRIVALS} connections a second");
    for (who, name) in [("ours", "commands take no time"), ("ours-mlx5", "commands take 1 ms")] {
        let mut rates = [Vec::new(), Vec::new()];
        for round in 0..rounds {
            let address = match scheme {
                "tcp" => "tcp://127.0.0.1:0".to_owned(),
                _ => format!("shm://bench-arrivals-{}-{who}-{round}", std::process::id()),
            };
            let server = crate::start_server(who, &address, "adaptive")?;
            let client = ours::connect(server.address(), PollMode::Adaptive).await?;
            rates[0].push(ours::rate(&client, 64, IN_FLIGHT, duration).await?);
            let arguments = ["arrive", server.address()].map(str::to_owned);
            let arrivals = ServerProcess::start(arguments).context("nobody arrives")?;
            rates[1].push(ours::rate(&client, 64, IN_FLIGHT, duration).await?);
            drop(arrivals);
        }
        let ratios: Vec<f64> = rates[0].iter().zip(&rates[1]).map(|(a, b)| b / a).collect();
        let [alone, beside] = rates.map(median);
        row(format!("{name}: alone"), format!("{:.0} k/s", alone / 1e3), "");
        row(
            format!("{name}: beside"),
            format!("{:.0} k/s", beside / 1e3),
            at_least(median(ratios), 0.8),
        );
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}
