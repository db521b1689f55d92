//! `rpc-perf all` and `rpc-perf client`: servers, the machine, and the report.

use std::ffi::OsStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use rpc_perf::cores::{self, CpuPair};
use rpc_perf::floor;
use rpc_perf::server_process::ServerProcess;

use crate::measure::{Target, scheme_of};
use crate::options::{AllOptions, ClientOptions, MeasureOptions, Scheme, word};
use crate::output::Output;
use crate::progress::Progress;
use crate::report::{Machine, Report, Run, Settings, VERSION};
use crate::server::{LocalServer, pin_remedy};
use crate::usage::Scope;

/// Maximum time for measuring the machine itself.
const FLOOR_TIME: Duration = Duration::from_millis(200);

/// Measures every requested transport, or every one that works on this machine.
pub(crate) async fn all(options: &AllOptions, output: &mut Output) -> Result<Report> {
    let cpus = CpuPair::allowed()?;
    let pinned = cpus.filter(|_| !options.no_pin);
    let mut schemes = options.schemes.clone();
    schemes.dedup();
    let mut left_out = None;
    if schemes.is_empty() {
        schemes = vec![Scheme::Mem, Scheme::Shm, Scheme::Tcp];
        match crate::rdma::listen_address() {
            Ok(_) => schemes.push(Scheme::Rdma),
            Err(reason) => left_out = Some(format!("skipping rdma: {reason}")),
        }
    }
    let measure = Arc::new(options.measure.clone());
    let mut report = report(&measure, machine(cpus, pinned.is_some(), measure.duration).await?);
    output.heading(&report)?;
    if let Some(left_out) = left_out {
        output.remark(&left_out)?;
    }
    if cpus.is_none() {
        output.remark("only one CPU: both ends share it, and nothing is pinned")?;
    }
    let steps = Target::steps(&measure);
    let progress = Progress::new(steps * schemes.len() as u64);
    for scheme in schemes {
        let run = one(scheme, cpus, pinned, Arc::clone(&measure), &progress).await;
        let run = run.with_context(|| format!("measuring {}", word(scheme)))?;
        progress.suspend(|| output.run(&run, &report.settings))?;
        report.runs.push(run);
    }
    Ok(report)
}

/// Measures one transport, with its own server.
async fn one(
    scheme: Scheme,
    cpus: Option<CpuPair>,
    pinned: Option<CpuPair>,
    options: Arc<MeasureOptions>,
    progress: &Progress,
) -> Result<Run> {
    if let Some(cpus) = pinned {
        cores::pin(cpus.client);
    }
    let target = |address: &str, scope| -> Result<Target> {
        Ok(Target {
            scheme: word(scheme),
            address: address.parse()?,
            scope,
            cpus,
            options: Arc::clone(&options),
        })
    };
    let server_cpu = pinned.map(|cpus| cpus.server);
    let listen = match scheme {
        Scheme::Mem => {
            let server = LocalServer::start(&options, server_cpu).await?;
            return target(server.address(), Scope::Thread)?.run(progress).await;
        }
        Scheme::Shm => format!("shm://rpc-perf-{}", std::process::id()),
        Scheme::Tcp => "tcp://127.0.0.1:0".to_owned(),
        Scheme::Rdma => match crate::rdma::listen_address() {
            Ok(address) => address,
            Err(reason) => bail!("{reason}"),
        },
    };
    let poll = word(options.poll);
    let mut arguments = vec!["server", &listen, "--poll", &poll, "--until-stdin-closes"];
    let cpu = server_cpu.map(|cpu| cpu.to_string());
    if let Some(cpu) = &cpu {
        arguments.extend(["--cpu", cpu]);
    }
    let mut arguments: Vec<&OsStr> = arguments.into_iter().map(OsStr::new).collect();
    if let Some(directory) = &options.tls {
        arguments.extend([OsStr::new("--tls"), directory.as_os_str()]);
    }
    let mut server = ServerProcess::start(arguments)?;
    let measured = target(server.address(), Scope::Process)?.run(progress).await;
    // When the server dies, calls fail first; its exit may be seen a moment later.
    if measured.is_err() {
        for _ in 0..1000 {
            if let Some(status) = server.ended()? {
                bail!("the server process ended during the run ({status})");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    measured
}

/// Measures a running server.
pub(crate) async fn client(options: &ClientOptions, output: &mut Output) -> Result<Report> {
    let cpus = CpuPair::allowed()?;
    if let Some(cpu) = options.cpu {
        cores::try_pin(cpu).with_context(|| pin_remedy(cpu))?;
    }
    let measure = Arc::new(options.measure.clone());
    let target = Target {
        scheme: scheme_of(&options.address),
        address: options.address.clone(),
        scope: Scope::Process,
        cpus,
        options: Arc::clone(&measure),
    };
    // Before anything is measured or shown, as there may be no server.
    drop(target.connect().await?);
    let mut report = report(&measure, machine(cpus, false, measure.duration).await?);
    output.heading(&report)?;
    let progress = Progress::new(Target::steps(&measure));
    let run = target.run(&progress).await?;
    progress.suspend(|| output.run(&run, &report.settings))?;
    report.runs.push(run);
    Ok(report)
}

fn report(options: &MeasureOptions, machine: Machine) -> Report {
    Report {
        version: VERSION,
        program: concat!("rpc-perf ", env!("CARGO_PKG_VERSION")).to_owned(),
        unix_seconds: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        machine,
        settings: Settings {
            seconds: options.duration.as_secs_f64(),
            call_bytes: options.call_size as u64,
            poll: word(options.poll),
            rate: options.rate,
        },
        runs: Vec::new(),
    }
}

/// Describes the machine and the distance of its CPUs.
async fn machine(cpus: Option<CpuPair>, pinned: bool, duration: Duration) -> Result<Machine> {
    let uname = rustix::system::uname();
    let kernel = [uname.sysname(), uname.release()].map(|part| part.to_string_lossy()).join(" ");
    let time = (duration / 4).min(FLOOR_TIME);
    let (mut line_ns, mut message_ns) = (None, None);
    if let Some(cpus) = cpus {
        let floors = move || {
            let line = floor::line_round_trip(cpus, time)?;
            anyhow::Ok((line, floor::message_round_trip(cpus, time)?))
        };
        let (line, message) = tokio::task::spawn_blocking(floors).await??;
        (line_ns, message_ns) = (Some(line), Some(message));
    }
    Ok(Machine {
        kernel,
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        pinned: cpus.filter(|_| pinned).map(|cpus| [cpus.client, cpus.server]),
        line_ns,
        message_ns,
        optimized: !cfg!(debug_assertions),
    })
}
