//! Two connections and one pool: one process has an end of both, and posts their RECVs to one queue. In
//! every state that they can reach, whenever they grow, fall, end and begin again, the RECVs posted are
//! enough for all messages that may come, and no more are granted than there may be.
//!
//! Where the device may lose a RECV that it was filling as a connection failed, they do so, too.
//!
//! The connections are those of [`world`](crate::world), whose end 0 is the process's; the pool is the
//! production [`RecvPool`].

use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasherDefault;

use rpc_transport::protocol::credit::RecvPool;

use crate::fifo::Fifo;
use crate::search::{FxHasher, Key};
use crate::world::{Config, Failure, Small, Step, World};
use crate::{is_deep, window};

/// What the process gets wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Breach {
    Nothing,
    /// A window grows on RECVs of the pool that others do not use just now.
    GrowsUngranted,
    /// A connection begins without RECVs of its own.
    BeginsUngranted,
    /// A connection gives its RECVs back as it ends, though messages have taken some.
    GivesBackEarly,
    /// What a window falls by is given back, and its RECV not posted again either.
    GivesBackTwice,
    /// What was given back is posted again, too.
    RepostsSurplus,
    /// What a connection had is not given back when it ends.
    KeepsShare,
    /// What the device may have lost of a connection that failed is given back with the rest.
    ForgetsLost,
    /// The queue is made anew though a connection still has RECVs of it.
    RenewsEarly,
}

/// Why a state is bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bad {
    Connection(Failure),
    /// P1: RECVs were lost or made.
    Lost,
    /// P2: fewer are posted than messages may come.
    Oversubscribed,
    /// More are there than there may be.
    BeyondMost,
    /// Nobody has any, and some are granted.
    Leaked,
}

#[derive(Debug, Clone)]
enum Connection {
    Up(Box<World<Small>>),
    /// Messages have taken `left` RECVs, and nobody has polled it yet.
    Ending {
        left: u32,
        share: u32,
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
    fn share(&self) -> u32 {
        match self {
            Self::Up(world) => share(world),
            Self::Ending { share, .. } => *share,
            Self::Gone => 0,
        }
    }

    /// RECVs that messages have taken.
    fn taken(&self) -> u32 {
        match self {
            Self::Up(world) => u32::try_from(world.ends[0].inbox.len()).expect("few"),
            Self::Ending { left, .. } => *left,
            Self::Gone => 0,
        }
    }

    /// RECVs that it needs to be posted.
    fn needed(&self) -> u32 {
        let lost = matches!(self, Self::Ending { loss: Loss::Real, .. });
        self.share().saturating_sub(self.taken() + u32::from(lost))
    }

    fn key(&self) -> (u32, u32, Loss, Option<Key>) {
        match self {
            Self::Up(world) => (0, 0, Loss::Impossible, Some(Key::new(world, false))),
            Self::Ending { left, share, loss } => (*left, *share, *loss, None),
            Self::Gone => (0, 0, Loss::Impossible, None),
        }
    }
}

fn share(world: &World<Small>) -> u32 {
    let window = world.ends[0].credits.local();
    u32::from(window.data) + u32::from(window.ack)
}

#[derive(Debug, Clone)]
struct Process {
    pool: RecvPool,
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

/// Searches with a pool of `most` RECVs; how many states there are, and in how many of them a connection
/// has no room to begin or to grow.
struct Pooled<'a> {
    config: &'a Config,
    breach: Breach,
    refused: usize,
    renewed: usize,
}

impl Pooled<'_> {
    fn take(&mut self, from: &Process, at: usize, event: Event) -> Result<Option<Process>, Bad> {
        let mut to = from.clone();
        let Process { pool, posted, lost, connections } = &mut to;
        let connection = &mut connections[at];
        match (event, &mut *connection) {
            (Event::Step(step), Connection::Up(world)) => {
                let before = share(world);
                world.ends[0].posted_recvs = u16::try_from(*posted).expect("few");
                if !world.step(self.config, step).map_err(Bad::Connection)? {
                    return Ok(None);
                }
                if let Step::Receive { end: 0, .. } = step {
                    *posted += u32::from(self.reposts(pool));
                } else {
                    *posted = world.ends[0].posted_recvs.into();
                    if matches!(step, Step::Grow { end: 0, .. }) {
                        *posted = from.posted;
                    }
                }
                for end in &mut world.ends {
                    end.credits.rebase_marks();
                }
                let after = share(world);
                if after > before {
                    let Some(more) = self.grants(pool, after - before, Breach::GrowsUngranted)
                    else {
                        return Ok(None);
                    };
                    *posted += more;
                } else if before > after {
                    pool.give_back(before - after);
                    if self.breach == Breach::GivesBackTwice {
                        *posted -= before - after;
                    }
                }
                world.ends[0].posted_recvs = 0;
            }
            (Event::End(loss), Connection::Up(world)) => {
                let (mut left, mut share) = (connection_taken(world), share(world));
                if loss == Loss::Real {
                    let Some(rest) = left.checked_sub(1) else { return Ok(None) };
                    left = rest;
                    *lost += 1;
                }
                if self.breach == Breach::GivesBackEarly {
                    pool.give_back(share);
                    share = 0;
                }
                *connection = Connection::Ending { left, share, loss };
                self.done(pool, connection);
            }
            (Event::Poll, Connection::Ending { left, .. }) => {
                *left -= 1;
                *posted += u32::from(self.reposts(pool));
                self.done(pool, connection);
            }
            (Event::Begin, Connection::Gone) => {
                let world = World::new(self.config);
                let first = share(&world);
                let Some(more) = self.grants(pool, first, Breach::BeginsUngranted) else {
                    return Ok(None);
                };
                *posted += more;
                *connection = begun(world);
            }
            _ => return Ok(None),
        }
        self.renew(&mut to);
        self.check(&to)?;
        Ok(Some(to))
    }

    fn grants(&mut self, pool: &mut RecvPool, more: u32, unless: Breach) -> Option<u32> {
        if self.breach == unless {
            return Some(0);
        }
        let granted = pool.grant(more);
        self.refused += usize::from(granted.is_none());
        granted
    }

    fn reposts(&self, pool: &mut RecvPool) -> bool {
        pool.is_to_repost() || self.breach == Breach::RepostsSurplus
    }

    /// All that messages of a connection that has ended had taken is back: so is its share.
    fn done(&self, pool: &mut RecvPool, connection: &mut Connection) {
        if let Connection::Ending { left: 0, share, loss } = connection {
            let may_be_lost = *loss != Loss::Impossible && self.breach != Breach::ForgetsLost;
            if self.breach != Breach::KeepsShare {
                pool.end(*share, u32::from(may_be_lost));
            }
            *connection = Connection::Gone;
        }
    }

    /// Makes the queue anew once nobody uses it, if something may be missing.
    fn renew(&mut self, process: &mut Process) {
        let Process { pool, posted, lost, .. } = process;
        let early = self.breach == Breach::RenewsEarly;
        if pool.lost() > 0 && (pool.granted() == 0 || early) {
            pool.renew();
            (*posted, *lost) = (0, 0);
            self.renewed += 1;
        }
    }

    fn check(&self, process: &Process) -> Result<(), Bad> {
        let Process { pool, posted, lost, connections } = process;
        let taken: u32 = connections.iter().map(Connection::taken).sum();
        let needed: u32 = connections.iter().map(Connection::needed).sum();
        if *posted < needed {
            return Err(Bad::Oversubscribed);
        }
        if posted + taken + lost > pool.most() {
            return Err(Bad::BeyondMost);
        }
        if connections.iter().all(|each| matches!(each, Connection::Gone)) && pool.granted() != 0 {
            return Err(Bad::Leaked);
        }
        // With something wrong, it is its harm that is looked for.
        let counted = pool.granted() + pool.surplus() + pool.lost();
        let adds_up = posted + taken + lost == counted;
        if self.breach == Breach::Nothing && !adds_up {
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

fn connection_taken(world: &World<Small>) -> u32 {
    u32::try_from(world.ends[0].inbox.len()).expect("few")
}

fn begun(mut world: World<Small>) -> Connection {
    // Those of the pool are counted there.
    world.ends[0].posted_recvs = 0;
    Connection::Up(Box::new(world))
}

/// What a search has met.
#[derive(Debug)]
struct Met {
    states: usize,
    /// How often somebody was refused.
    refused: usize,
    /// How often the queue was made anew.
    renewed: usize,
}

/// Searches every state, where connections end so.
fn search(config: &Config, most: u32, ends: &[Loss], breach: Breach) -> Result<Met, Bad> {
    let start = Process {
        pool: RecvPool::new(most),
        posted: 0,
        lost: 0,
        connections: [Connection::Gone, Connection::Gone],
    };
    let mut pooled = Pooled { config, breach, refused: 0, renewed: 0 };
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
            Event::Step(Step::Receive { end, first: 0, grows: true }),
            Event::Step(Step::Receive { end, first: 1, grows: false }),
            Event::Step(Step::Receive { end, first: 1, grows: true }),
            Event::Step(Step::Grow { end, first: 0 }),
            Event::Step(Step::Fall { end }),
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

/// Connections whose windows start with `first` of `data` credits at the process's end, and have one at
/// the other.
fn config(first: u16, data: u16, idle_acks: bool) -> Config {
    let config = Config::credits_only([window(data, 2), window(1, 2)]);
    Config { firsts: [first, 1], falls: true, pooled: true, idle_acks, ..config }
}

/// RECVs of so many data credits in all, and the acks of both.
fn recvs(data: u32) -> u32 {
    data + 2 * 2
}

/// How connections end on a device that loses nothing, and on one that may.
const ORDERLY: [Loss; 1] = [Loss::Impossible];
const LOSSY: [Loss; 3] = [Loss::Impossible, Loss::Possible, Loss::Real];

fn holds(config: &Config, most: u32, ends: &[Loss]) {
    let met = search(config, most, ends, Breach::Nothing).expect("no state is bad");
    println!("{:?} of {most}: {met:?}", config.windows);
    assert!(met.states > 1000 && met.refused > 0, "{met:?}");
    assert_eq!(met.renewed > 0, ends.len() > 1, "{met:?}");
}

#[test]
fn two_connections_and_one_pool() {
    // Room for both as they begin, for one to grow, and for less than that.
    holds(&config(1, 2, true), recvs(2), &ORDERLY);
    holds(&config(1, 2, true), recvs(3), &ORDERLY);
    holds(&config(2, 3, false), recvs(5), &ORDERLY);
    if is_deep() {
        holds(&config(2, 4, false), recvs(6), &ORDERLY);
        holds(&config(2, 4, false), recvs(7), &ORDERLY);
        holds(&config(2, 4, true), recvs(6), &ORDERLY);
    }
}

#[test]
fn two_connections_and_one_pool_of_a_device_that_loses_what_it_was_filling() {
    holds(&config(1, 2, false), recvs(2), &LOSSY);
    holds(&config(1, 2, false), recvs(4), &LOSSY);
    if is_deep() {
        holds(&config(1, 2, true), recvs(3), &LOSSY);
        holds(&config(2, 3, false), recvs(6), &LOSSY);
        holds(&config(2, 4, false), recvs(6), &LOSSY);
    }
}

#[test]
fn without_any_of_its_rules_a_pool_has_too_few_recvs_or_too_many() {
    for (breach, wanted) in [
        (Breach::GrowsUngranted, Bad::Oversubscribed),
        (Breach::BeginsUngranted, Bad::Oversubscribed),
        (Breach::GivesBackEarly, Bad::Oversubscribed),
        (Breach::GivesBackTwice, Bad::Oversubscribed),
        (Breach::RepostsSurplus, Bad::BeyondMost),
        (Breach::KeepsShare, Bad::Leaked),
        (Breach::ForgetsLost, Bad::Oversubscribed),
        (Breach::RenewsEarly, Bad::Oversubscribed),
    ] {
        let is_of_losses = matches!(breach, Breach::ForgetsLost | Breach::RenewsEarly);
        let ends = if is_of_losses { &LOSSY[..] } else { &ORDERLY };
        let bad = search(&config(1, 2, false), recvs(3), ends, breach);
        let bad = bad.expect_err("some state is bad");
        assert_eq!(bad, wanted, "{breach:?}");
    }
}
