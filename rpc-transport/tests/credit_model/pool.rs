//! Two connections and one queue: one process has an end of both, and posts their RECVs to one
//! queue. In every state that they can reach, whenever they end and begin again, the RECVs posted
//! are enough for all messages that may come.
//!
//! Where the device may lose a RECV that it was filling as a connection failed, they do so, too.
//!
//! The connections are those of [`world`](crate::world), whose end 0 is the process's; the pool is
//! the production [`SharePool`].

use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasherDefault;

use rpc_transport::protocol::credit::SharePool;

use crate::fifo::Fifo;
use crate::search::{FxHasher, Key};
use crate::world::{Config, Failure, Small, Step, World};
use crate::{is_deep, window};

/// What the process gets wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Breach {
    Nothing,
    /// A connection begins without a share.
    BeginsUngranted,
    /// A connection gives its share back as it ends, though messages have taken some of its RECVs.
    GivesBackEarly,
    /// The share of a connection is not given back when it ends.
    KeepsShare,
    /// A share of which the device may have lost a RECV is given back like others.
    ForgetsLost,
    /// The queue is made anew though a connection still uses it.
    RenewsEarly,
}

/// Why a state is bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bad {
    Connection(Failure),
    /// RECVs were lost or made.
    Lost,
    /// P1: fewer are posted than messages may come.
    Oversubscribed,
    /// More are posted than there are slots.
    BeyondMost,
    /// Nobody has a share, and some are used.
    Leaked,
}

#[derive(Debug, Clone)]
enum Connection {
    Up(Box<World<Small>>),
    /// Its messages have taken `left` RECVs, and nobody has polled that yet.
    Ending {
        left: u32,
        loss: Loss,
    },
    Gone,
}

/// What a connection that has ended may have cost the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Loss {
    /// It ended in order.
    Impossible,
    /// It failed, and the device has lost nothing.
    Possible,
    /// It failed, and the device has lost the RECV that it was filling.
    Real,
}

impl Connection {
    /// RECVs that messages have taken.
    fn taken(&self) -> u32 {
        match self {
            Self::Up(world) => taken(world),
            Self::Ending { left, .. } => *left,
            Self::Gone => 0,
        }
    }

    /// RECVs that its peer may take.
    fn needed(&self, share: u32) -> u32 {
        match self {
            Self::Up(world) => share - taken(world),
            Self::Ending { .. } | Self::Gone => 0,
        }
    }

    fn key(&self) -> (u32, Loss, Option<Key>) {
        match self {
            Self::Up(world) => (0, Loss::Impossible, Some(Key::new(world, false))),
            Self::Ending { left, loss } => (*left, *loss, None),
            Self::Gone => (0, Loss::Impossible, None),
        }
    }
}

fn taken(world: &World<Small>) -> u32 {
    u32::try_from(world.ends[0].inbox.len()).expect("few")
}

#[derive(Debug, Clone)]
struct Process {
    pool: SharePool,
    posted: u32,
    /// RECVs that the device has lost.
    lost: u32,
    connections: [Connection; 2],
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Step(Step),
    End(Loss),
    /// A message of a connection that has ended is polled.
    Poll,
    Begin,
}

/// Two connections and a queue for so many; how often one had no share, and the queue was made
/// anew.
struct Pooled<'a> {
    config: &'a Config,
    places: u32,
    breach: Breach,
    refused: usize,
    renewed: usize,
}

impl Pooled<'_> {
    /// RECVs of a share.
    fn share(&self) -> u32 {
        let window = self.config.windows[0];
        u32::from(window.data) + u32::from(window.ack)
    }

    fn most(&self) -> u32 {
        self.places * self.share()
    }

    fn take(&mut self, from: &Process, at: usize, event: Event) -> Result<Option<Process>, Bad> {
        let mut to = from.clone();
        let Process { pool, posted, lost, connections } = &mut to;
        let connection = &mut connections[at];
        match (event, &mut *connection) {
            (Event::Step(step), Connection::Up(world)) => {
                world.ends[0].posted_recvs = u16::try_from(*posted).expect("few");
                if !world.step(self.config, step).map_err(Bad::Connection)? {
                    return Ok(None);
                }
                *posted = world.ends[0].posted_recvs.into();
                world.ends[0].posted_recvs = 0;
                for end in &mut world.ends {
                    end.credits.rebase_marks();
                }
            }
            (Event::End(loss), Connection::Up(world)) => {
                let mut left = taken(world);
                if loss == Loss::Real {
                    let Some(rest) = left.checked_sub(1) else { return Ok(None) };
                    left = rest;
                    *lost += 1;
                }
                if self.breach == Breach::GivesBackEarly {
                    pool.end(true);
                }
                *connection = Connection::Ending { left, loss };
                self.done(pool, connection);
            }
            (Event::Poll, Connection::Ending { left, .. }) => {
                *left -= 1;
                *posted += 1;
                self.done(pool, connection);
            }
            (Event::Begin, Connection::Gone) => {
                if !pool.begin() && self.breach != Breach::BeginsUngranted {
                    self.refused += 1;
                    return Ok(None);
                }
                let mut world = World::new(self.config);
                // Those of the queue are counted there.
                world.ends[0].posted_recvs = 0;
                *connection = Connection::Up(Box::new(world));
            }
            _ => return Ok(None),
        }
        self.renew(&mut to);
        self.check(&to)?;
        Ok(Some(to))
    }

    /// All that messages of a connection that has ended had taken is posted again: so its share is
    /// back.
    fn done(&self, pool: &mut SharePool, connection: &mut Connection) {
        if let Connection::Ending { left: 0, loss } = connection {
            let is_whole = *loss == Loss::Impossible || self.breach == Breach::ForgetsLost;
            let keeps = matches!(self.breach, Breach::KeepsShare | Breach::GivesBackEarly);
            if !keeps && pool.used() > 0 {
                pool.end(is_whole);
            }
            *connection = Connection::Gone;
        }
    }

    /// Makes the queue anew once nobody uses it, if something may be missing.
    fn renew(&mut self, process: &mut Process) {
        let is_early = self.breach == Breach::RenewsEarly && process.pool.spent() > 0;
        if process.pool.is_to_renew() || is_early {
            process.pool = SharePool::new(self.places);
            (process.posted, process.lost) = (self.most(), 0);
            self.renewed += 1;
        }
    }

    fn check(&self, process: &Process) -> Result<(), Bad> {
        let Process { pool, posted, lost, connections } = process;
        let taken: u32 = connections.iter().map(Connection::taken).sum();
        let needed: u32 = connections.iter().map(|each| each.needed(self.share())).sum();
        if *posted < needed {
            return Err(Bad::Oversubscribed);
        }
        let counted = posted + taken + lost;
        if counted > self.most() {
            return Err(Bad::BeyondMost);
        }
        if connections.iter().all(|each| matches!(each, Connection::Gone)) && pool.used() != 0 {
            return Err(Bad::Leaked);
        }
        // With something wrong, it is its harm that is looked for.
        if self.breach == Breach::Nothing && counted != self.most() {
            return Err(Bad::Lost);
        }
        for connection in connections {
            if let Connection::Up(world) = connection {
                world.check(self.config).map_err(Bad::Connection)?;
            }
        }
        Ok(())
    }
}

/// What a search has met.
#[derive(Debug)]
struct Met {
    states: usize,
    /// How often a connection had no share.
    refused: usize,
    /// How often the queue was made anew.
    renewed: usize,
}

/// Searches every state of a queue for so many connections, where connections end so.
fn search(config: &Config, places: u32, ends: &[Loss], breach: Breach) -> Result<Met, Bad> {
    let mut pooled = Pooled { config, places, breach, refused: 0, renewed: 0 };
    let start = Process {
        pool: SharePool::new(places),
        posted: pooled.most(),
        lost: 0,
        connections: [Connection::Gone, Connection::Gone],
    };
    let key = |process: &Process| {
        let [a, b] = process.connections.each_ref().map(Connection::key);
        (process.pool, [process.posted, process.lost], if b < a { [b, a] } else { [a, b] })
    };
    let mut seen: HashSet<_, BuildHasherDefault<FxHasher>> = HashSet::from_iter([key(&start)]);
    let mut frontier = VecDeque::from([start]);
    let mut events = vec![Event::Poll, Event::Begin];
    events.extend(ends.iter().map(|loss| Event::End(*loss)));
    for end in 0..2 {
        events.extend([
            Event::Step(Step::Send { end, slots: 1 }),
            Event::Step(Step::Receive { end, first: 0, grows: false }),
            Event::Step(Step::Receive { end, first: 1, grows: false }),
        ]);
        if config.idle_acks {
            events.push(Event::Step(Step::IdleAck { end }));
        }
    }
    while let Some(process) = frontier.pop_front() {
        for at in 0..2 {
            for event in &events {
                if let Some(next) = pooled.take(&process, at, *event)?
                    && seen.insert(key(&next))
                {
                    frontier.push_back(next);
                }
            }
        }
    }
    Ok(Met { states: seen.len(), refused: pooled.refused, renewed: pooled.renewed })
}

/// Connections whose windows have `data` credits at the process's end, and one at the other.
fn config(data: u16, idle_acks: bool) -> Config {
    let config = Config::credits_only([window(data, 2), window(1, 2)]);
    Config { pooled: true, idle_acks, ..config }
}

/// How connections end on a device that loses nothing, and on one that may.
const ORDERLY: [Loss; 1] = [Loss::Impossible];
const LOSSY: [Loss; 3] = [Loss::Impossible, Loss::Possible, Loss::Real];

fn holds(config: &Config, places: u32, ends: &[Loss]) {
    let met = search(config, places, ends, Breach::Nothing).expect("no state is bad");
    println!("{:?} of {places}: {met:?}", config.windows);
    let is_lossy = ends.len() > 1;
    assert!(met.states > 30, "{met:?}");
    assert_eq!((met.refused > 0, met.renewed > 0), (places < 2 || is_lossy, is_lossy), "{met:?}");
}

#[test]
fn two_connections_and_one_pool() {
    for places in [1, 2] {
        holds(&config(1, true), places, &ORDERLY);
        holds(&config(2, true), places, &ORDERLY);
        if is_deep() {
            holds(&config(3, true), places, &ORDERLY);
        }
    }
}

#[test]
fn two_connections_and_one_lossy_pool() {
    for places in [1, 2] {
        holds(&config(1, true), places, &LOSSY);
        holds(&config(2, false), places, &LOSSY);
        if is_deep() {
            holds(&config(3, false), places, &LOSSY);
        }
    }
}

#[test]
fn each_rule_of_a_pool_is_needed() {
    for (breach, places, wanted) in [
        (Breach::BeginsUngranted, 1, Bad::Oversubscribed),
        (Breach::GivesBackEarly, 1, Bad::Oversubscribed),
        (Breach::KeepsShare, 2, Bad::Leaked),
        (Breach::ForgetsLost, 2, Bad::Oversubscribed),
        (Breach::RenewsEarly, 2, Bad::BeyondMost),
    ] {
        let is_of_losses = matches!(breach, Breach::ForgetsLost | Breach::RenewsEarly);
        let ends = if is_of_losses { &LOSSY[..] } else { &ORDERLY };
        let bad = search(&config(1, false), places, ends, breach).expect_err("some state is bad");
        assert_eq!(bad, wanted, "{breach:?}");
    }
}
