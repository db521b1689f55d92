//! The measurements of one server, part by part.
//!
//! Every part gets a connected client and returns its part of the report. All calls are made by
//! spawned tasks, as in most programs.

pub(crate) mod bandwidth;
pub(crate) mod connections;
pub(crate) mod small;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rpc_core::Channel;
use rpc_discovery::Destination;
use rpc_perf::cores::CpuPair;

use crate::options::{MeasureOptions, What};
use crate::progress::Progress;
use crate::report::Run;
use crate::service::{PerfClient, ServerUsage, link};
use crate::tls;
use crate::usage::{Scope, Usage};

/// Numbers of calls in flight for the measurement of rates.
const IN_FLIGHT: [u32; 3] = [1, 32, 256];

/// A server and the settings of its measurement.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) scheme: String,
    pub(crate) address: Destination,
    /// Whether the client has a process of its own.
    pub(crate) scope: Scope,
    /// The CPUs for the raw limits.
    pub(crate) cpus: Option<CpuPair>,
    pub(crate) options: Arc<MeasureOptions>,
}

/// The usage of both ends at one moment.
#[derive(Debug)]
struct BothUsages {
    client: Usage,
    server: ServerUsage,
}

impl Target {
    pub(crate) async fn connect(&self) -> Result<PerfClient> {
        let builder = Channel::builder().poll_mode(self.options.poll.mode()).link(link());
        let builder = tls::connect(builder, &self.options)?;
        let client = PerfClient::new(self.address.connect(builder).await?);
        if matches!(self.address, Destination::Name(_)) {
            // Connects.
            client.usage().await?;
        }
        Ok(client)
    }

    fn data(&self) -> Arc<[u8]> {
        vec![crate::service::FILL; self.options.call_size].into()
    }

    async fn usages(&self, client: &PerfClient) -> Result<BothUsages> {
        let server = client.usage().await?;
        Ok(BothUsages { client: Usage::now(self.scope), server })
    }

    /// Steps of a run, for the progress bar.
    pub(crate) fn steps(options: &MeasureOptions) -> u64 {
        let of = |what, steps: usize| if options.wants(what) { steps as u64 } else { 0 };
        of(What::Latency, 1 + usize::from(options.rate.is_some()))
            + of(What::Rate, IN_FLIGHT.len())
            + of(What::Bandwidth, bandwidth::sizes(options.max_size).count())
            + of(What::Beside, 1)
            + of(What::Idle, 1)
            + of(What::Connect, 1)
    }

    /// Measures the parts selected by the options.
    pub(crate) async fn run(&self, progress: &Progress) -> Result<Run> {
        let options = &*self.options;
        let client = self.connect().await?;
        let path = client.channel().path();
        let mut run = Run { scheme: self.scheme.clone(), ..Run::default() };
        run.path = path.as_ref().map(ToString::to_string).unwrap_or_default();
        let raw = path.and_then(|path| bandwidth::raw_kind(&path.address));
        if options.wants(What::Latency) {
            progress.step(&self.scheme, "latency");
            run.latency = Some(small::closed_loop(self, &client).await?);
            if let Some(rate) = options.rate {
                progress.step(&self.scheme, "open loop");
                run.open_loop = Some(small::open_loop(self, &client, rate).await?);
            }
        }
        if options.wants(What::Rate) {
            for in_flight in IN_FLIGHT {
                progress.step(&self.scheme, &format!("{in_flight} in flight"));
                run.rates.push(small::rate(self, &client, in_flight).await?);
            }
        }
        if options.wants(What::Bandwidth) {
            for size in bandwidth::sizes(options.max_size) {
                let what = format!("payloads of {}", crate::units::bytes(size as u64));
                progress.step(&self.scheme, &what);
                let measured = bandwidth::measure(self, &client, size, raw).await;
                run.bandwidth.push(measured.context(what)?);
            }
        }
        if options.wants(What::Beside) {
            progress.step(&self.scheme, "calls beside payloads");
            run.beside = Some(bandwidth::beside(self, &client).await?);
        }
        if options.wants(What::Idle) {
            progress.step(&self.scheme, "idle connections");
            run.idle = Some(connections::idle(self, &client).await?);
        }
        if options.wants(What::Connect) {
            progress.step(&self.scheme, "connecting");
            run.connect = Some(connections::connect(self).await?);
        }
        Ok(run)
    }
}

/// The scheme of an address.
pub(crate) fn scheme_of(address: &Destination) -> String {
    let text = address.to_string();
    text.split_once("://").map(|(scheme, _)| scheme.to_owned()).unwrap_or(text)
}

/// A quarter, for measurements with four or more parts.
fn quarter(duration: Duration) -> Duration {
    duration / 4
}
