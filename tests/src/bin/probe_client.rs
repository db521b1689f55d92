//! A client process of the end-to-end tests. Prints `READY`, then the output of its role, then
//! waits for its stdin to end.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::{Parser, Subcommand};
use rpc_core::client::resolve::StaticList;
use rpc_core::transport::CloseCause;
use rpc_core::{PollMode, stream};
use tests::flow::FlowClient;
use tests::ledger::LedgerClient;
use tests::limit::patient_channel;
use tests::load::{Tally, load};
use tests::probe::{ProbeClient, Resources};
use tests::process::{self, ADVANCE, ADVANCED, BOOKED, CALL, READY, STOP};
use tests::resources;
use tests::service::pattern;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;

#[derive(Debug, Parser)]
struct Options {
    #[arg(long)]
    address: String,
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Starts calls that never complete.
    Hold { tag: u64, count: u64 },
    /// Starts calls with replies of this length when the gate is opened; prints `ENDED` when it has
    /// all outcomes.
    HoldZeros { tag: u64, count: u64, bytes: u64 },
    /// Connects and does nothing.
    Idle { count: u64, poll_mode: String },
    /// Connects, calls and closes, again and again; prints `RESOURCES fds rss mappings tasks` after
    /// the first `warm_up` times, and at the end.
    Cycle { warm_up: u64, count: u64 },
    /// Calls on many channels at once; prints `DONE calls`.
    Many { channels: u64, calls: u64 },
    /// Sends a stream that never ends; prints `READY` when the server has read some of it.
    Upload { tag: u64 },
    /// Calls the ledgers at all of the addresses until the command `stop`, with ids of its own.
    /// Prints `ADVANCED` after some calls for each command `advance`, and finally `BOOKED` with the
    /// number of failed calls and the ids of booked ones.
    Load { number: u64, others: Vec<String> },
    /// Connects and calls once for each command `call`; prints `STARTED`, then `ENDED code`, `RULE`
    /// and the rule that the server has broken, `STATUS` and the status.
    Victim,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let Options { address, role } = Options::parse();
    process::log_to_stderr();
    resources::raise_fd_limit();
    let (command, commands) = tokio::sync::mpsc::unbounded_channel();
    process::obey(move |line| {
        let known = [CALL, ADVANCE, STOP].into_iter().find(|known| *known == line);
        let known = known.unwrap_or_else(|| panic!("unknown command `{line}`"));
        // If nobody takes commands any more, the process is ending.
        let _ = command.send(known);
    });
    match role {
        Role::Hold { tag, count } => hold(&address, tag, count).await,
        Role::HoldZeros { tag, count, bytes } => hold_zeros(&address, tag, count, bytes).await,
        Role::Idle { count, poll_mode } => idle(&address, count, &poll_mode).await,
        Role::Cycle { warm_up, count } => {
            process::say(READY, "");
            cycle(&address, warm_up).await;
            say_resources().await;
            cycle(&address, count).await;
            say_resources().await;
        }
        Role::Many { channels, calls } => {
            process::say(READY, "");
            let done = many(&address, channels, calls).await;
            process::say("DONE", done);
        }
        Role::Upload { tag } => upload(&address, tag).await,
        Role::Load { number, others } => under_load(&address, number, &others, commands).await,
        Role::Victim => victim(&address, commands).await,
    }
    // The thread that reads stdin ends the process.
    std::future::pending().await
}

async fn connect(address: &str) -> ProbeClient {
    connect_with(address, PollMode::Event).await
}

async fn connect_with(address: &str, mode: PollMode) -> ProbeClient {
    // A test that loses a connection must notice.
    let builder = tests::device::channel().poll_mode(mode).reconnect(None);
    let channel = builder.connect_timeout(Duration::from_secs(60)).connect(address).await;
    ProbeClient::new(channel.unwrap_or_else(|error| panic!("{error}")))
}

async fn hold(address: &str, tag: u64, count: u64) {
    let client = connect(address).await;
    let calls: Vec<_> = (0..count).map(|_| client.hold(tag).start()).collect();
    process::say(READY, "");
    for call in calls {
        let _ = call.await;
    }
}

async fn hold_zeros(address: &str, tag: u64, count: u64, bytes: u64) {
    let client = connect(address).await;
    let calls: Vec<_> = (0..count).map(|_| client.hold_zeros(tag, bytes).start()).collect();
    process::say(READY, "");
    for call in calls {
        let _ = call.await;
    }
    process::say("ENDED", "");
}

async fn upload(address: &str, tag: u64) {
    let client = FlowClient::new(connect(address).await.channel().clone());
    let mut sent = 0;
    let rows = stream::iter(std::iter::repeat_with(move || {
        sent += 1;
        // More than fits a window that nobody reads.
        if sent == 100 {
            process::say(READY, "");
        }
        sent
    }));
    let outcome = client.observe(tag, rows).await;
    panic!("the stream never ends, and yet: {outcome:?}");
}

async fn idle(address: &str, count: u64, poll_mode: &str) {
    let mode = match poll_mode {
        "event" => PollMode::Event,
        "adaptive" => PollMode::Adaptive,
        other => panic!("no idle client polls like {other}"),
    };
    let mut clients = Vec::new();
    for number in 0..count {
        let client = connect_with(address, mode).await;
        assert_eq!(client.add(number, 1).await, Ok(number + 1));
        clients.push(client);
    }
    process::say(READY, "");
    std::future::pending().await
}

async fn cycle(address: &str, count: u64) {
    for number in 0..count {
        let client = connect(address).await;
        assert_eq!(client.add(number, 1).await, Ok(number + 1));
    }
}

/// Prints what this process holds, once its drivers have ended: they end after their channels were
/// dropped, and nothing else runs here.
async fn say_resources() {
    let mut resources = resources::of_this_process();
    for _ in 0..100_000 {
        if resources.tasks == 0 {
            break;
        }
        tokio::task::yield_now().await;
        resources = resources::of_this_process();
    }
    let Resources { fds, rss_bytes, mappings, tasks } = resources;
    process::say("RESOURCES", format_args!("{fds} {rss_bytes} {mappings} {tasks}"));
}

async fn under_load(
    address: &str,
    number: u64,
    others: &[String],
    mut commands: UnboundedReceiver<&'static str>,
) {
    let addresses = std::iter::once(address).chain(others.iter().map(String::as_str));
    let servers = StaticList::new(addresses).expect("addresses");
    let builder = patient_channel().wait_for_ready(true);
    let client = LedgerClient::new(builder.connect_balanced(servers).expect("a list"));
    let tally = Arc::new(Tally::starting_at(number << 32));
    let mut callers = JoinSet::new();
    for _ in 0..4 {
        callers.spawn(load(vec![client.clone()], Arc::clone(&tally)));
    }
    process::say(READY, "");
    while commands.recv().await == Some(ADVANCE) {
        tokio::select! {
            () = tally.advance(50) => process::say(ADVANCED, ""),
            ended = callers.join_next() => process::say("FAILED", format_args!("{ended:?}")),
        }
    }
    tally.stop();
    let booked = callers.join_all().await.concat();
    let booked: Vec<_> = booked.iter().map(ToString::to_string).collect();
    let unknown = tally.unknown.load(Ordering::SeqCst);
    process::say(BOOKED, format_args!("{unknown} {}", booked.join(",")));
}

async fn victim(address: &str, mut commands: UnboundedReceiver<&'static str>) {
    process::say(READY, "");
    while commands.recv().await.is_some() {
        let client = connect(address).await;
        let call = client.add(1, 1).start();
        process::say("STARTED", "");
        let status = call.await.expect_err("the server breaks a rule");
        let rule = match client.channel().close_cause() {
            Some(CloseCause::Protocol(rule)) => rule.to_string(),
            other => format!("none: {other:?}"),
        };
        process::say("ENDED", format_args!("{:?}", status.code()));
        process::say("RULE", rule);
        process::say("STATUS", status.message());
    }
}

async fn many(address: &str, channels: u64, calls: u64) -> u64 {
    let mut tasks = tokio::task::JoinSet::new();
    for channel in 0..channels {
        let address = address.to_owned();
        tasks.spawn(async move {
            let client = connect(&address).await;
            for call in 0..calls {
                let seed = channel * calls + call;
                assert_eq!(client.add(channel, call).await, Ok(channel + call));
                let data = pattern(usize::try_from(seed % 3000).expect("small"), seed);
                assert_eq!(client.echo(&data).await, Ok(data));
            }
        });
    }
    let mut done = 0;
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no client fails");
        done += 2 * calls;
    }
    done
}
