//! The run: starts the processes, buys, kills one after the other, and counts.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use examples::tls::ClientTls;
use hyper::{Method, StatusCode};
use rpc_core::Channel;
use tokio::task::JoinSet;

use crate::buyer::Http;
use crate::cli::{Over, RunOptions};
use crate::process::Process;
use crate::service::InventoryClient;

/// Longest wait for something that must happen.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause before a request is sent again.
const PAUSE: Duration = Duration::from_millis(5);
/// Requests that hang up while they run.
const HANG_UPS: u64 = 8;

/// The buyers' results.
#[derive(Default)]
struct Counts {
    placed: AtomicU64,
    /// Requests that were not answered with a number, and were sent again.
    again: AtomicU64,
    /// Orders that were sent again although they had been answered.
    twice: AtomicU64,
    longest_us: AtomicU64,
    is_over: AtomicBool,
}

impl Counts {
    fn placed(&self) -> u64 {
        self.placed.load(Ordering::Relaxed)
    }
}

/// The processes, and the place of their journals.
struct Shop {
    inventory: Process,
    orders: Process,
    gateway: Process,
    folder: PathBuf,
    tls: ClientTls,
}

impl Drop for Shop {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

pub(crate) async fn run(options: &RunOptions) -> Result<()> {
    let signals = rpc_core::signal::shutdown();
    tokio::select! {
        outcome = sell(options) => outcome,
        () = signals => Ok(()),
    }
}

async fn sell(options: &RunOptions) -> Result<()> {
    let mut shop = open(options).await?;
    line("gateway", &format!("http://{}/orders", shop.gateway.address));
    line("orders", &format!("{}   page http://{}/", shop.orders.address, shop.orders.admin));
    line(
        "inventory",
        &format!("{}   page http://{}/", shop.inventory.address, shop.inventory.admin),
    );
    for (role, process) in [("orders", &shop.orders), ("inventory", &shop.inventory)] {
        if let Some(address) = &process.metrics {
            line("metrics", &format!("http://{address}/metrics   of {role}"));
        }
    }
    let health = Http::new(&shop.gateway.address).ask(Method::GET, "/health").await?;
    line("health", &health.1);
    println!();

    let counts = Arc::new(Counts::default());
    let mut buyers = JoinSet::new();
    for buyer in 0..options.buyers {
        buyers.spawn(buy(shop.gateway.address.clone(), buyer, Arc::clone(&counts)));
    }
    let began = Instant::now();
    trouble(&mut shop, options, &counts, began).await?;
    counts.is_over.store(true, Ordering::Relaxed);
    let mut answers = HashMap::new();
    while let Some(answered) = buyers.join_next().await {
        answers.extend(answered??);
    }
    let took = began.elapsed();
    let cancelled = hang_up(&shop).await?;
    let late = deadline(&shop).await?;
    report(&shop, &counts, &answers, took, cancelled, late).await?;
    if options.stay {
        println!("\nThe shop stays open until Ctrl-C.");
        std::future::pending::<()>().await;
    }
    Ok(())
}

async fn open(options: &RunOptions) -> Result<Shop> {
    let of_orders = options.metrics;
    let of_inventory = match of_orders {
        // A free port.
        Some(address) if address.port() != 0 => {
            let next = address.port().checked_add(1).context("--metrics: there is no next port")?;
            Some(SocketAddr::new(address.ip(), next))
        }
        other => other,
    };
    let id = std::process::id();
    let folder = std::env::temp_dir().join(format!("shop-{id}"));
    std::fs::create_dir_all(&folder)?;
    let listen = |role: &str| match options.over {
        Over::Shm => format!("shm://shop-{id}-{role}"),
        Over::Tcp => "tcp://127.0.0.1:0".to_owned(),
    };
    let journal = |role: &str| folder.join(role).display().to_string();
    let tls = &options.tls;
    let more = ["--journal", &journal("inventory")];
    let inventory =
        Process::start("inventory", &listen("inventory"), of_inventory, tls, &more).await?;
    let more = ["--journal", &journal("orders"), "--upstream", &inventory.address];
    let orders = Process::start("orders", &listen("orders"), of_orders, tls, &more).await?;
    let more = ["--upstream", &orders.address];
    let gateway = Process::start("gateway", "127.0.0.1:0", None, tls, &more).await?;
    Ok(Shop { inventory, orders, gateway, folder, tls: tls.clone() })
}

/// Stops the servers, one after the other, while all buyers buy.
async fn trouble(
    shop: &mut Shop,
    options: &RunOptions,
    counts: &Counts,
    began: Instant,
) -> Result<()> {
    let quarter = async |at: u64| {
        loop {
            let (done, all) = match options.orders {
                Some(orders) => (u128::from(counts.placed()), u128::from(orders)),
                None => (began.elapsed().as_millis(), u128::from(options.seconds) * 1000),
            };
            if done * 4 >= all * u128::from(at) {
                return counts.placed();
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    let placed = quarter(1).await;
    event(began, placed, "inventory is killed (SIGKILL) and restarted");
    shop.inventory.kill_and_restart().await?;
    let placed = quarter(2).await;
    event(began, placed, "orders is killed (SIGKILL) and restarted");
    shop.orders.kill_and_restart().await?;
    let placed = quarter(3).await;
    event(began, placed, "orders is drained (SIGTERM) and restarted");
    shop.orders.drain_and_restart().await?;
    let placed = quarter(4).await;
    event(began, placed, "the buyers stop after their last replies");
    Ok(())
}

/// Buys until the end. Returns the number of each order.
async fn buy(gateway: String, buyer: u64, counts: Arc<Counts>) -> Result<HashMap<String, u64>> {
    let mut http = Http::new(&gateway);
    let mut answers = HashMap::new();
    while !counts.is_over.load(Ordering::Relaxed) {
        let key = format!("{buyer}-{}", answers.len());
        let began = Instant::now();
        let number = place(&mut http, &key, &counts).await?;
        let micros = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        counts.longest_us.fetch_max(micros, Ordering::Relaxed);
        counts.placed.fetch_add(1, Ordering::Relaxed);
        if answers.len() % 8 == 0 {
            counts.twice.fetch_add(1, Ordering::Relaxed);
            let again = place(&mut http, &key, &counts).await?;
            ensure!(again == number, "{key} is order {number}, but then {again}");
        }
        answers.insert(key, number);
    }
    Ok(answers)
}

/// Sends an order until it is answered.
async fn place(http: &mut Http, key: &str, counts: &Counts) -> Result<u64> {
    let began = Instant::now();
    loop {
        let failed = match http.ask(Method::POST, &format!("/orders?key={key}&count=2")).await {
            Ok((StatusCode::OK, number)) => return Ok(number.parse()?),
            Ok((status, text)) if status.is_client_error() => bail!("{key}: {status}: {text}"),
            Ok((status, text)) => format!("{status}: {text}"),
            Err(error) => format!("{error:#}"),
        };
        ensure!(began.elapsed() < PATIENCE, "no reply for {key}: {failed}");
        counts.again.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Buyers that hang up: the work for them ends, two servers further.
async fn hang_up(shop: &Shop) -> Result<u64> {
    let inventory = inventory(shop)?;
    let until = async |enough: fn((u64, u64)) -> bool| loop {
        let counts = inventory.shelf_counts().timeout(PATIENCE).await?;
        if enough(counts) {
            return anyhow::Ok(counts);
        }
        tokio::time::sleep(PAUSE).await;
    };
    let mut waiting = JoinSet::new();
    for _ in 0..HANG_UPS {
        let mut http = Http::new(&shop.gateway.address);
        waiting.spawn(
            async move { http.ask(Method::POST, "/audit?within_ms=600000").await.map(drop) },
        );
    }
    let all = async {
        until(|(begun, _)| begun >= HANG_UPS).await?;
        waiting.abort_all();
        until(|(_, cancelled)| cancelled >= HANG_UPS).await
    };
    let counts = tokio::time::timeout(PATIENCE, all).await;
    Ok(counts.context("buyers that hung up are still served")??.1)
}

/// A request that may take 50 ms, and would never end.
async fn deadline(shop: &Shop) -> Result<StatusCode> {
    let asked = Http::new(&shop.gateway.address).ask(Method::POST, "/audit?within_ms=50").await?;
    ensure!(asked.0 == StatusCode::GATEWAY_TIMEOUT, "expected a deadline, got: {}", asked.1);
    Ok(asked.0)
}

fn inventory(shop: &Shop) -> Result<InventoryClient> {
    let builder = shop.tls.secure(Channel::builder())?.wait_for_ready(true);
    Ok(InventoryClient::new(builder.connect_lazy(&shop.inventory.address)?))
}

async fn report(
    shop: &Shop,
    counts: &Counts,
    answers: &HashMap<String, u64>,
    took: Duration,
    cancelled: u64,
    late: StatusCode,
) -> Result<()> {
    let (status, text) = Http::new(&shop.gateway.address).ask(Method::GET, "/orders").await?;
    ensure!(status == StatusCode::OK, "cannot read the orders: {text}");
    let mut kept = HashMap::new();
    let mut ordered = 0;
    for line in text.lines() {
        let mut words = line.split(' ');
        let (key, number) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        ordered += words.next().unwrap_or_default().parse::<u64>()?;
        let before = kept.insert(key.to_owned(), number.parse::<u64>()?);
        ensure!(before.is_none(), "{key} was placed twice");
    }
    let lost = answers.iter().filter(|(key, number)| kept.get(*key) != Some(number)).count();
    let numbers: std::collections::HashSet<_> = kept.values().collect();
    let twice = kept.len() - numbers.len();
    let unknown = kept.keys().filter(|key| !answers.contains_key(*key)).count();
    let taken = inventory(shop)?.taken().timeout(PATIENCE).await?;

    let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let longest = Duration::from_micros(get(&counts.longest_us));
    println!();
    row("orders answered", counts.placed(), &format!("in {:.1} s", took.as_secs_f64()));
    row("requests retried", get(&counts.again), "the reply was lost or late");
    row("orders sent twice on purpose", get(&counts.twice), "the same number both times");
    row("orders in the journal", kept.len() as u64, "");
    row("  lost", lost as u64, "confirmed but missing");
    row("  not ordered", unknown as u64, "present but never confirmed");
    row("  number used twice", twice as u64, "");
    row("pieces ordered", ordered, "");
    row("pieces taken", taken, "taken from the inventory");
    row("buyers that hung up", cancelled, "their handlers two servers away ended");
    row("deadlines that passed", 1, &format!("reported as {late}"));
    row(
        "longest order",
        u64::try_from(longest.as_millis()).unwrap_or(u64::MAX),
        "ms, including outages",
    );
    let is_whole = lost + twice + unknown == 0 && ordered == taken && kept.len() == answers.len();
    ensure!(is_whole, "the shop lost something or did it twice, see above");
    println!("\nNothing was lost, and nothing was done twice.");
    Ok(())
}

fn line(what: &str, text: &str) {
    println!("{what:<10} {text}");
}

fn event(began: Instant, placed: u64, what: &str) {
    println!("{:>5.1} s {:>9} orders  {what}", began.elapsed().as_secs_f64(), grouped(placed));
}

fn row(what: &str, count: u64, more: &str) {
    println!("{}", format!("{what:<29} {:>11}  {more}", grouped(count)).trim_end());
}

/// With a comma between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(["0", "999", "1,000", "1,234,567"], [0, 999, 1000, 1_234_567].map(grouped)[..]);
    }
}
