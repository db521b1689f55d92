//! What a world is: drawn from its seed, and made smaller by cuts.
//!
//! Owns the distribution of worlds. There is one for all faults. Each feature draws from a stream
//! of its own ([`chance::stream`]), so that a cut changes nothing but what it names.

use std::fmt;
use std::str::FromStr;

use test_kit::Rng;

use crate::chance;
use crate::clock::Pace;

/// The newest version of the service.
const NEWEST: u8 = 3;

/// The most calls that begin at once.
const MAX_CROWD: u64 = 500;

/// One server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerPlan {
    /// Of the service's types.
    pub(crate) version: u8,
    pub(crate) priority: u8,
}

/// A server is killed, and comes back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outage {
    /// Its number in the seed's world, which cuts do not change.
    number: u64,
    pub(crate) server: usize,
    pub(crate) at_ms: u64,
    pub(crate) down_ms: u64,
    /// The version that comes back.
    pub(crate) version: u8,
}

/// A world.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) pace: Pace,
    /// Of tokio: how often it looks at I/O, and at tasks from elsewhere.
    pub(crate) intervals: [u32; 2],
    pub(crate) servers: Vec<ServerPlan>,
    pub(crate) outages: Vec<Outage>,
    /// The version of most clients.
    pub(crate) client: u8,
    /// Clients of all versions, and of two copies of one, share the channel.
    pub(crate) copies: bool,
    /// Every call has a key.
    pub(crate) keyed: bool,
    pub(crate) hedged: bool,
    /// Calls that begin at once, now and then.
    pub(crate) crowd: u64,
    /// Some calls have deadlines.
    pub(crate) deadlines: bool,
    pub(crate) streams: bool,
    /// Calls begin together on new connections.
    pub(crate) fresh: bool,
    /// `no_cancel` calls whose futures are dropped.
    pub(crate) notes: bool,
}

/// Something that is taken out of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    Copies,
    Keyed,
    Hedged,
    Crowds,
    Deadlines,
    Streams,
    Fresh,
    Notes,
    Priorities,
    /// Differences between the types of servers and clients.
    Types,
    /// All that makes time pass unevenly.
    Stalls,
    /// The last server.
    Server,
    /// An outage, by its number.
    Outage(u64),
}

/// The cuts that have no number, as a user writes them.
const NAMES: [(&str, Cut); 12] = [
    ("copies", Cut::Copies),
    ("keyed", Cut::Keyed),
    ("hedged", Cut::Hedged),
    ("crowds", Cut::Crowds),
    ("deadlines", Cut::Deadlines),
    ("streams", Cut::Streams),
    ("fresh", Cut::Fresh),
    ("notes", Cut::Notes),
    ("priorities", Cut::Priorities),
    ("types", Cut::Types),
    ("stalls", Cut::Stalls),
    ("server", Cut::Server),
];

impl Plan {
    /// The world of a seed.
    pub(crate) fn draw(seed: u64) -> Self {
        let of = |name: &str| chance::stream(seed, name);
        let has = |name: &str, percent: u64| of(name).chance(percent);
        let servers = draw_servers(&mut of("servers"));
        Self {
            seed,
            pace: draw_pace(&mut of("pace")),
            intervals: draw_intervals(&mut of("intervals")),
            outages: draw_outages(&mut of("outages"), servers.len()),
            servers,
            client: version(&mut of("client")),
            copies: has("copies", 15),
            keyed: has("keyed", 25),
            hedged: has("hedged", 25),
            crowd: draw_crowd(&mut of("crowd")),
            deadlines: has("deadlines", 30),
            streams: has("streams", 40),
            fresh: has("fresh", 30),
            notes: has("notes", 25),
        }
    }

    /// The plan without something. `None`: it has no such thing.
    pub(crate) fn without(&self, cut: Cut) -> Option<Self> {
        let mut plan = self.clone();
        let flag = |flag: &mut bool| std::mem::take(flag);
        let was_there = match cut {
            Cut::Copies => flag(&mut plan.copies),
            Cut::Keyed => flag(&mut plan.keyed),
            Cut::Hedged => flag(&mut plan.hedged),
            Cut::Deadlines => flag(&mut plan.deadlines),
            Cut::Streams => flag(&mut plan.streams),
            Cut::Fresh => flag(&mut plan.fresh),
            Cut::Notes => flag(&mut plan.notes),
            Cut::Crowds => std::mem::replace(&mut plan.crowd, 1) > 1,
            Cut::Stalls => std::mem::take(&mut plan.pace.stall_every) > 0,
            Cut::Priorities => {
                let has = plan.has_priorities();
                plan.servers.iter_mut().for_each(|server| server.priority = 0);
                has
            }
            Cut::Types => {
                let has = plan.has_types() || plan.copies;
                plan.servers.iter_mut().for_each(|server| server.version = plan.client);
                plan.outages.iter_mut().for_each(|outage| outage.version = plan.client);
                has
            }
            Cut::Server => {
                let last = plan.servers.len() - 1;
                plan.servers.truncate(last);
                plan.outages.retain(|outage| outage.server < last);
                last > 0
            }
            Cut::Outage(number) => {
                plan.outages.retain(|outage| outage.number != number);
                plan.outages.len() < self.outages.len()
            }
        };
        was_there.then_some(plan)
    }

    /// All that can be cut, the largest first.
    pub(crate) fn cuts(&self) -> Vec<Cut> {
        let outages = self.outages.iter().map(|outage| Cut::Outage(outage.number));
        NAMES.iter().map(|(_, cut)| *cut).chain(outages).collect()
    }

    fn has_priorities(&self) -> bool {
        self.servers.iter().any(|server| server.priority > 0)
    }

    /// Whether a server has, or will have, other types than the clients.
    fn has_types(&self) -> bool {
        let later = self.outages.iter().map(|outage| outage.version);
        self.servers.iter().map(|it| it.version).chain(later).any(|it| it != self.client)
    }

    /// What it has, for fingerprints.
    pub(crate) fn features(&self) -> String {
        let has = [
            ("types", self.has_types()),
            ("copies", self.copies),
            ("keyed", self.keyed),
            ("hedged", self.hedged),
            ("priorities", self.has_priorities()),
            ("crowds", self.crowd > 1),
            ("deadlines", self.deadlines),
            ("streams", self.streams),
            ("fresh", self.fresh),
            ("notes", self.notes),
            ("outages", !self.outages.is_empty()),
        ];
        let has: Vec<_> = has.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
        if has.is_empty() { "plain".to_owned() } else { has.join("+") }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Pace { look_ns, stall_every } = self.pace;
        write!(f, "clients v{}; servers", self.client)?;
        for (number, server) in self.servers.iter().enumerate() {
            write!(f, " {number}:v{}", server.version)?;
            if self.has_priorities() {
                write!(f, " of priority {}", server.priority)?;
            }
        }
        for Outage { number, server, at_ms, down_ms, version } in &self.outages {
            write!(
                f,
                "; outage {number}: server {server} ends at {:.1} s, back as v{version} after {:.1} s",
                *at_ms as f64 / 1e3,
                *down_ms as f64 / 1e3
            )?;
        }
        write!(f, "; crowds of {}; a look takes {look_ns} ns", self.crowd)?;
        if stall_every > 0 {
            write!(f, ", one of {stall_every} 2 ms")?;
        }
        write!(f, "; {}", self.features())
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Cut::Outage(number) = self {
            return write!(f, "outage:{number}");
        }
        let name = NAMES.iter().find(|(_, cut)| cut == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

impl FromStr for Cut {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(number) = text.strip_prefix("outage:") {
            return number.parse().map(Cut::Outage).map_err(|error| format!("{number}: {error}"));
        }
        let found = NAMES.iter().find(|(name, _)| *name == text);
        let names: Vec<_> = NAMES.iter().map(|(name, _)| *name).collect();
        let unknown = || format!("one of {}, outage:NUMBER", names.join(", "));
        found.map(|(_, cut)| *cut).ok_or_else(unknown)
    }
}

fn version(rng: &mut Rng) -> u8 {
    rng.pick(&[1, 1, 2, 2, NEWEST])
}

fn draw_servers(rng: &mut Rng) -> Vec<ServerPlan> {
    let count = if rng.chance(10) { 1 } else { 2 + rng.below(4) };
    let has_priorities = count > 1 && rng.chance(30);
    let (is_mixed, common) = (rng.chance(40), version(rng));
    let server = |at: u64| ServerPlan {
        version: if is_mixed { version(rng) } else { common },
        priority: u8::from(has_priorities && at * 2 >= count),
    };
    (0..count).map(server).collect()
}

/// Half of all outages outlast every backoff. Often, several servers are away together.
fn draw_outages(rng: &mut Rng, servers: usize) -> Vec<Outage> {
    let has_together = rng.chance(40);
    let (first, down) = (1000 + rng.below(15_000), 60_000 + rng.below(30_000));
    let count = if has_together { 1 + servers as u64 / 2 } else { rng.below(4) };
    let mut outage = |number: u64| {
        let is_long = rng.chance(40);
        let own = if is_long { 60_000 + rng.below(40_000) } else { 10 + rng.below(3000) };
        let at = 1000 + rng.below(20_000);
        let (at_ms, down_ms) = if has_together { (first + at / 100, down) } else { (at, own) };
        let server = if has_together { number as usize % servers } else { rng.index(servers) };
        Outage { number, server, at_ms, down_ms, version: version(rng) }
    };
    let mut outages: Vec<_> = (0..count).map(&mut outage).collect();
    outages.sort_by_key(|outage| outage.at_ms);
    let mut free_at = vec![0; servers];
    // A server is not killed while it is away.
    for outage in &mut outages {
        outage.at_ms = outage.at_ms.max(free_at[outage.server]);
        free_at[outage.server] = outage.at_ms + outage.down_ms + 1;
    }
    outages
}

fn draw_crowd(rng: &mut Rng) -> u64 {
    if rng.chance(40) { 2 + rng.below(MAX_CROWD) } else { 1 }
}

fn draw_pace(rng: &mut Rng) -> Pace {
    // 0.1 to 20 us, each order of size as likely as the others.
    let look_ns = (100 << rng.below(8)) * (100 + rng.below(57)) / 100;
    let stall_every = if rng.chance(30) { 1 << (8 + rng.below(8)) } else { 0 };
    Pace { look_ns, stall_every }
}

fn draw_intervals(rng: &mut Rng) -> [u32; 2] {
    let mut one = || if rng.chance(50) { 61 } else { 1 + u32::from(rng.byte() % 64) };
    [one(), one()]
}
