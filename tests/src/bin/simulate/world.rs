//! One world, from its first server to its last rule.
//!
//! Owns the course of a world: servers, then load, then outages, a minute of calm, and a time in
//! which every rule holds.

use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rpc_transport::simulation::GIVES_WAY;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, sleep_until};

use crate::ends::Ends;
use crate::fleet::{Book, Fleet};
use crate::ledger::ledger;
use crate::load::Load;
use crate::plan::{Feature, Plan};
use crate::rules::Rule;
use crate::trace::say;
use crate::{chance, clock, desk};

/// How long a world has to recover after its last fault.
const RECOVERY: Duration = Duration::from_secs(60);

/// How long it is watched afterwards.
const WATCHED: Duration = Duration::from_secs(30);

/// How long it may take until the last counter is back.
const SETTLES: Duration = Duration::from_secs(20);

/// The least calls for each server from which shares are compared.
const LEAST_CALLS: u64 = 60;

/// The exit code of a world in which nobody can go on.
pub(crate) const STUCK: i32 = 70;

/// All tasks wait, and no timer runs: the world cannot go on.
pub(crate) fn stuck() -> ! {
    eprintln!("all tasks wait, and no timer runs");
    std::process::exit(STUCK);
}

/// Runs the world of the plan on this thread.
pub(crate) fn run(plan: &Plan) {
    chance::begin(plan.seed);
    clock::begin(plan.pace, plan.seed);
    let gives_way = plan.has(Feature::GivesWay);
    let _ = GIVES_WAY.set(if gives_way { often } else { never });
    // A handler that panics is part of the world.
    std::panic::set_hook(Box::new(|info| {
        say(format_args!("{info}"));
        if !info.to_string().contains(desk::PANIC) {
            eprintln!("{info}");
        }
    }));
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let [events, others] = plan.intervals;
    builder.enable_all().event_interval(events).global_queue_interval(others);
    let runtime = builder.build().expect("a runtime can be built");
    let local = LocalSet::new();
    local.block_on(&runtime, live(plan));
}

/// Handlers become slower, for good: when, in ms.
fn slower(plan: &Plan) -> Option<u64> {
    if !plan.has(Feature::Limit) {
        return None;
    }
    ledger().has_limit = true;
    let mut rng = chance::stream(plan.seed, "slower");
    let (first, then, at_ms) = (1 + rng.below(20), 20 + rng.below(150), 8_000 + rng.below(10_000));
    desk::SLOWNESS_MS.store(first, Ordering::Relaxed);
    tokio::task::spawn_local(async move {
        sleep(Duration::from_millis(at_ms)).await;
        say(format_args!("handlers take {then} ms instead of {first} ms"));
        desk::SLOWNESS_MS.store(then, Ordering::Relaxed);
    });
    Some(at_ms)
}

/// How often code gives way at a place.
fn often() -> u32 {
    u32::from(chance::system_byte() & 3)
}

fn never() -> u32 {
    0
}

async fn live(plan: &Plan) {
    let began = Instant::now();
    say(format_args!("seed {}: {plan}", plan.seed));
    let ends = Rc::new(Ends::new(plan));
    let mut fleet = Fleet::start(plan, Rc::clone(&ends)).await;
    let channel = ends.balanced(Book::new(plan));
    let load = Load::new(plan, &ends, &channel);
    let loads = load.begin();

    let slower_at = slower(plan);
    let kills = plan.outages.iter().map(|it| (it.at_ms, None, it.server));
    let returns =
        plan.outages.iter().map(|it| (it.at_ms + it.down_ms, Some(it.version), it.server));
    let mut events: Vec<_> = kills.chain(returns).collect();
    events.sort_unstable();
    let mut last_ms = slower_at.unwrap_or(3_000);
    for (at_ms, version, server) in events {
        sleep_until(began + Duration::from_millis(at_ms)).await;
        last_ms = at_ms.max(last_ms);
        match version {
            Some(version) => fleet.serve(server, version).await,
            None => fleet.end(server).await,
        }
    }

    sleep_until(began + Duration::from_millis(last_ms) + RECOVERY).await;
    ledger().is_calm();
    sleep(WATCHED).await;
    look_at_shares(plan);
    load.end(loads).await;
    sleep(SETTLES).await;
    let stats = channel.stats();
    let in_flight: u64 = stats.methods.iter().map(|method| method.in_flight()).sum();
    if in_flight + stats.waiting_calls > 0 {
        let waiting = stats.waiting_calls;
        let text = format!("the channel has {in_flight} calls in flight, and {waiting} that wait");
        ledger().broken(Rule::Counters, 0, text);
    }
    fleet.is_quiet();
    ledger().end();
}

/// Each server of the first priority has a share of the calls.
fn look_at_shares(plan: &Plan) {
    let shares = ledger().shares(plan.servers.len());
    say(format_args!("calls of each server since it is calm: {shares:?}"));
    let is_first = |server: &usize| plan.servers[*server].priority == 0;
    let first: Vec<usize> = (0..shares.len()).filter(is_first).collect();
    let (sum, count) = (shares.iter().sum::<u64>(), first.len() as u64);
    if sum < LEAST_CALLS * count {
        return;
    }
    let of_first: u64 = first.iter().map(|server| shares[*server]).sum();
    let text = format!("{shares:?}, of which the servers {first:?} are the first priority");
    // The second one only helps where the first one is too small.
    if of_first * 2 < sum {
        return ledger().broken(Rule::FirstPriority, 0, text);
    }
    if first.iter().any(|server| shares[*server] * 8 * count < of_first) {
        let rule = if plan.has(Feature::Keyed) { Rule::SharedByKey } else { Rule::Shared };
        ledger().broken(rule, 0, text);
    }
}
