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

/// Something that a world has or has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feature {
    /// Clients of all versions, and of two copies of one, share the channel.
    Copies,
    /// Every call has a key.
    Keyed,
    Hedged,
    /// Some calls have deadlines.
    Deadlines,
    Streams,
    /// Payloads of up to some hundred KiB.
    Bulk,
    /// Calls begin together on new connections.
    Fresh,
    /// `no_cancel` calls whose futures are dropped.
    Notes,
    /// Futures of calls are dropped after some polls.
    Drops,
    /// Futures of calls and of connects are polled some times and then left.
    Left,
    /// Handlers panic.
    Panics,
    Tls,
    /// Code gives way where it holds a turn.
    GivesWay,
    /// Small settings of the link.
    Tight,
    /// Connections end by age.
    Age,
    /// Servers end with a farewell instead of being killed.
    Farewell,
    /// The device delays completions, and orders those of different queues anew.
    Device,
    /// Servers limit their calls by themselves, and handlers become slower.
    Limit,
}

/// All features: what a user calls them, and in how many of a hundred worlds they are.
const FEATURES: [(Feature, &str, u64); 18] = [
    (Feature::Copies, "copies", 15),
    (Feature::Keyed, "keyed", 25),
    (Feature::Hedged, "hedged", 25),
    (Feature::Deadlines, "deadlines", 30),
    (Feature::Streams, "streams", 40),
    (Feature::Bulk, "bulk", 25),
    (Feature::Fresh, "fresh", 30),
    (Feature::Notes, "notes", 25),
    (Feature::Drops, "drops", 30),
    (Feature::Left, "left", 20),
    (Feature::Panics, "panics", 15),
    (Feature::Tls, "tls", 12),
    (Feature::GivesWay, "gives-way", 50),
    (Feature::Tight, "tight", 25),
    (Feature::Age, "age", 12),
    (Feature::Farewell, "farewell", 30),
    (Feature::Device, "device", 15),
    (Feature::Limit, "limit", 8),
];

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
    /// Of each server.
    pub(crate) shards: usize,
    pub(crate) outages: Vec<Outage>,
    /// The version of most clients.
    pub(crate) client: u8,
    /// Calls that begin at once, now and then.
    pub(crate) crowd: u64,
    features: Vec<Feature>,
}

/// Something that is taken out of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    Feature(Feature),
    Crowds,
    Priorities,
    /// Differences between the types of servers and clients.
    Types,
    /// All that makes time pass unevenly.
    Stalls,
    /// The shards of a server but one.
    Shards,
    /// The last server.
    Server,
    /// An outage, by its number.
    Outage(u64),
}

/// The cuts of no feature and without a number, as a user writes them.
const OTHERS: [(&str, Cut); 6] = [
    ("crowds", Cut::Crowds),
    ("priorities", Cut::Priorities),
    ("types", Cut::Types),
    ("stalls", Cut::Stalls),
    ("shards", Cut::Shards),
    ("server", Cut::Server),
];

impl Plan {
    /// The world of a seed.
    pub(crate) fn draw(seed: u64) -> Self {
        let of = |name: &str| chance::stream(seed, name);
        let servers = draw_servers(&mut of("servers"));
        let has = |(_, name, percent): &&(Feature, &str, u64)| of(name).chance(*percent);
        Self {
            seed,
            pace: draw_pace(&mut of("pace")),
            intervals: draw_intervals(&mut of("intervals")),
            shards: of("shards").pick(&[1, 1, 1, 2, 3]),
            outages: draw_outages(&mut of("outages"), servers.len()),
            servers,
            client: version(&mut of("client")),
            crowd: draw_crowd(&mut of("crowd")),
            features: FEATURES.iter().filter(has).map(|(feature, ..)| *feature).collect(),
        }
    }

    /// Whether the world has this.
    pub(crate) fn has(&self, feature: Feature) -> bool {
        self.features.contains(&feature)
    }

    /// The plan without something. `None`: it has no such thing.
    pub(crate) fn without(&self, cut: Cut) -> Option<Self> {
        let mut plan = self.clone();
        let was_there = match cut {
            Cut::Feature(feature) => {
                plan.features.retain(|it| *it != feature);
                self.has(feature)
            }
            Cut::Crowds => std::mem::replace(&mut plan.crowd, 1) > 1,
            Cut::Stalls => std::mem::take(&mut plan.pace.stall_every) > 0,
            Cut::Shards => std::mem::replace(&mut plan.shards, 1) > 1,
            Cut::Priorities => {
                plan.servers.iter_mut().for_each(|server| server.priority = 0);
                self.has_priorities()
            }
            Cut::Types => {
                plan.servers.iter_mut().for_each(|server| server.version = plan.client);
                plan.outages.iter_mut().for_each(|outage| outage.version = plan.client);
                self.has_types()
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

    /// The plan without all of this, as far as it is there.
    pub(crate) fn without_all(self, cuts: &[Cut]) -> Self {
        cuts.iter().fold(self, |plan, cut| plan.without(*cut).unwrap_or(plan))
    }

    /// All that can be cut.
    pub(crate) fn cuts(&self) -> Vec<Cut> {
        let features = self.features.iter().map(|feature| Cut::Feature(*feature));
        let others = OTHERS.iter().map(|(_, cut)| *cut);
        let outages = self.outages.iter().map(|outage| Cut::Outage(outage.number));
        let all = features.chain(others).chain(outages);
        all.filter(|cut| self.without(*cut).is_some()).collect()
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
        let others = [
            ("types", self.has_types()),
            ("priorities", self.has_priorities()),
            ("crowds", self.crowd > 1),
            ("shards", self.shards > 1),
            ("stalls", self.pace.stall_every > 0),
            ("outages", !self.outages.is_empty()),
        ];
        let others = others.iter().filter(|(_, has)| *has).map(|(name, _)| *name);
        let features = FEATURES.iter().filter(|(feature, ..)| self.has(*feature));
        let has: Vec<_> = others.chain(features.map(|(_, name, _)| *name)).collect();
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
            let (at, down) = (*at_ms as f64 / 1e3, *down_ms as f64 / 1e3);
            write!(f, "; outage {number}: server {server} ends at {at:.1} s")?;
            write!(f, " and is back as v{version} after {down:.1} s")?;
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
        let name = match self {
            Cut::Outage(number) => return write!(f, "outage:{number}"),
            Cut::Feature(feature) => {
                FEATURES.iter().find(|(it, ..)| it == feature).map(|(_, name, _)| *name)
            }
            other => OTHERS.iter().find(|(_, it)| it == other).map(|(name, _)| *name),
        };
        f.write_str(name.unwrap_or_default())
    }
}

impl FromStr for Cut {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(number) = text.strip_prefix("outage:") {
            return number.parse().map(Cut::Outage).map_err(|error| format!("{number}: {error}"));
        }
        let features = FEATURES.iter().map(|(feature, name, _)| (*name, Cut::Feature(*feature)));
        let all: Vec<(&str, Cut)> = features.chain(OTHERS).collect();
        let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        let unknown = || format!("one of {}, outage:NUMBER", names.join(", "));
        let found = all.iter().find(|(name, _)| *name == text);
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
    // A server is not ended while it is away, or leaves.
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
