//! What happens to the fleet, in order.
//!
//! Each phase does something, waits until its effect is seen, and lasts for its part of the time.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use examples::units::bytes;
use rpc_core::client::resolve::Resolve;
use tokio::time::sleep;

use super::load::Load;
use super::member::{Member, PATIENCE, State};
use super::options::Options;
use super::picture::Picture;
use super::registry::Registry;
use super::verdict::Verdict;
use super::watch::Course;
use super::{Outcome, plot};

/// Number of phases: the time is divided by it.
const PHASES: u32 = 8;
/// How many servers a fleet grows by.
const MORE: u32 = 2;
/// Time between two looks at the servers, and two samples.
const LOOK: Duration = Duration::from_millis(20);
const SAMPLE: Duration = Duration::from_millis(250);
/// Calls by which a server shows that it gets some.
const SOME_CALLS: u64 = 10;

/// Seconds between two kills of a server, and of etcd, in a soak. The latter is a multiple.
const KILL_EVERY: u32 = 2;
const REGISTRY_EVERY: u32 = 30;
/// What a soak may need more in the end: connections differ in their number of files, and what was
/// seen of the run is kept.
const MORE_FILES: usize = 8;
const MORE_MEMORY: u64 = 32 << 20;

/// What this process has, with its clients.
#[derive(Debug, Clone, Copy)]
struct Resources {
    files: usize,
    memory: u64,
}

impl Resources {
    fn now() -> Outcome<Self> {
        let files = std::fs::read_dir("/proc/self/fd")?.count();
        let status = std::fs::read_to_string("/proc/self/status")?;
        let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = kib.and_then(|it| it.trim().strip_suffix(" kB")).ok_or("no VmRSS")?;
        Ok(Self { files, memory: kib.parse::<u64>()? << 10 })
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of memory, {} open files", bytes(self.memory), self.files)
    }
}

/// A directory that is removed at the end.
struct Directory(std::path::PathBuf);

impl Directory {
    fn new() -> Outcome<Self> {
        let path = std::env::temp_dir().join(format!("fleet-{}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Scenario<'a> {
    options: &'a Options,
    registry: Registry,
    members: Vec<Member>,
    load: Load,
    course: Course,
    picture: Picture,
    ends: Instant,
    sampled: Instant,
    next_number: usize,
    directory: Directory,
}

/// Runs it, or until Ctrl-C. Gives whether nothing was lost.
pub(crate) async fn run(options: &Options) -> Outcome<bool> {
    let mut interrupted = rpc_core::signal::shutdown();
    tokio::select! {
        outcome = whole(options) => outcome,
        () = &mut interrupted => Err("interrupted".into()),
    }
}

async fn whole(options: &Options) -> Outcome<bool> {
    let directory = Directory::new()?;
    let registry = Registry::start(&directory.0).await?;
    let servers: Arc<dyn Resolve> = rpc_discovery::resolver(&registry.name())?;
    let (number, name) = (options.servers as usize, registry.name());
    let mut members = Vec::new();
    for number in 1..=number {
        members.push(Member::start(number, &options.listen, &name, &directory.0).await?);
    }
    let begin = Instant::now();
    while registry.registered().await? < number {
        if begin.elapsed() > PATIENCE {
            return Err("the servers do not register".into());
        }
        sleep(LOOK).await;
    }
    let load = Load::start(options.clients, &servers)?;
    let mut scenario = Scenario {
        options,
        registry,
        members,
        load,
        course: Course::new(),
        picture: Picture::new(),
        ends: Instant::now(),
        sampled: Instant::now(),
        next_number: number + 1,
        directory,
    };
    let is_flat = match options.soak {
        true => scenario.soak().await?,
        false => scenario.all().await.map(|()| true)?,
    };
    scenario.load.end().await?;
    let verdict = Verdict::new(&scenario.load.tally, &scenario.directory.0)?;
    print!("\n{verdict}");
    if let Some(path) = &options.plot {
        std::fs::write(path, plot::svg(&scenario.course)?)?;
        println!("plot     {}", path.display());
    }
    Ok(verdict.is_good() && is_flat)
}

impl Scenario<'_> {
    async fn all(&mut self) -> Outcome<()> {
        self.course.on_event("the servers are registered, and the clients begin");
        self.everyone_works().await?;

        self.begin("scale up");
        for _ in 0..MORE {
            let new = self.start().await?;
            self.works(new).await?;
        }
        self.rest().await?;

        self.begin("replace all servers");
        for old in self.living() {
            let new = self.start().await?;
            self.works(new).await?;
            self.leave(old).await?;
        }
        self.rest().await?;

        self.begin("SIGKILL");
        let victim = self.first();
        self.member(victim).kill().await?;
        self.tell(victim, "is killed")?;
        let new = self.start().await?;
        self.works(new).await?;
        self.rest().await?;

        self.begin("SIGSTOP");
        let victim = self.first();
        self.member(victim).stop()?;
        self.tell(victim, "is stopped")?;
        self.until("a stopped server is given up", |it| it.connected(victim) == 0).await?;
        self.tell(victim, "is given up by all clients")?;
        self.rest().await?;
        self.member(victim).resume()?;
        self.tell(victim, "continues")?;
        self.works(victim).await?;

        self.begin("errors");
        let victim = self.first();
        let before = self.ejections();
        self.member(victim).poison().await?;
        self.tell(victim, "answers with errors")?;
        self.until("an ill server is ejected", |it| {
            it.ejections().iter().zip(&before).all(|(now, before)| now > before)
        })
        .await?;
        self.tell(victim, "is ejected by all clients")?;
        self.rest().await?;
        self.member(victim).heal().await?;
        self.tell(victim, "is well")?;
        self.works(victim).await?;

        self.begin("without etcd");
        self.registry.kill().await?;
        self.course.on_event("etcd is killed");
        self.everyone_works().await?;
        self.rest().await?;
        self.registry.restart().await?;
        self.course.on_event("etcd is back");

        self.begin("etcd is wiped");
        self.registry.kill().await?;
        self.registry.wipe()?;
        self.registry.restart().await?;
        self.course.on_event("etcd has forgotten all servers");
        let begin = Instant::now();
        while self.registry.registered().await? < self.living().len() {
            if begin.elapsed() > PATIENCE {
                return Err("the servers do not register again".into());
            }
            self.look().await?;
        }
        self.course.on_event("all servers are registered again");
        self.everyone_works().await?;
        self.rest().await?;

        self.begin("scale down");
        for _ in 0..MORE {
            let old = self.first();
            self.leave(old).await?;
        }
        self.everyone_works().await?;
        self.rest().await?;
        self.look().await
    }

    /// Kills servers all the time, and etcd now and then. Gives whether memory and open files are
    /// as they were.
    async fn soak(&mut self) -> Outcome<bool> {
        self.begin("soak");
        self.everyone_works().await?;
        let (before, begin) = (Resources::now()?, Instant::now());
        for turn in 1..=self.options.seconds / KILL_EVERY {
            self.ends = begin + Duration::from_secs((turn * KILL_EVERY).into());
            self.rest().await?;
            let victim = self.first();
            self.member(victim).kill().await?;
            self.tell(victim, "is killed")?;
            self.start().await?;
            if (turn * KILL_EVERY).is_multiple_of(REGISTRY_EVERY) {
                self.registry.kill().await?;
                self.registry.restart().await?;
                self.course.on_event("etcd was killed, and is back");
            }
        }
        self.everyone_works().await?;
        // Connections of the last servers that were killed are about to be closed.
        let settled =
            |_: &Self| Resources::now().is_ok_and(|now| now.files <= before.files + MORE_FILES);
        let _ = self.until("files are closed", settled).await;
        let after = Resources::now()?;
        self.look().await?;
        println!("\nbefore   {before}\nafter    {after}");
        Ok(after.files <= before.files + MORE_FILES && after.memory <= before.memory + MORE_MEMORY)
    }

    fn begin(&mut self, phase: &'static str) {
        self.course.on_phase(phase);
        self.ends = Instant::now() + Duration::from_secs(self.options.seconds.into()) / PHASES;
    }

    /// Waits for the end of the phase.
    async fn rest(&mut self) -> Outcome<()> {
        while Instant::now() < self.ends {
            self.look().await?;
        }
        Ok(())
    }

    async fn look(&mut self) -> Outcome<()> {
        if self.sampled.elapsed() >= SAMPLE {
            self.sampled = Instant::now();
            self.course.sample(&self.members, &self.load);
            // Shown once as gone.
            self.members.retain(|member| member.state != State::Gone);
        }
        let registry = if self.registry.is_up { "up" } else { "down" };
        self.picture.show(&self.course, registry)?;
        sleep(LOOK).await;
        Ok(())
    }

    async fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> Outcome<()> {
        let begin = Instant::now();
        while !is_so(self) {
            if begin.elapsed() > PATIENCE {
                return Err(format!("{what}: not within {PATIENCE:?}").into());
            }
            self.look().await?;
        }
        Ok(())
    }

    async fn start(&mut self) -> Outcome<usize> {
        let (number, name) = (self.next_number, self.registry.name());
        self.next_number += 1;
        let member = Member::start(number, &self.options.listen, &name, &self.directory.0).await?;
        self.members.push(member);
        self.tell(number, "starts")?;
        Ok(number)
    }

    /// Waits until a server gets calls.
    async fn works(&mut self, number: usize) -> Outcome<()> {
        let done = |it: &Self| it.members.iter().find(|it| it.number == number).map(Member::done);
        let before = done(self).unwrap_or_default();
        let what = format!("server {number} gets calls");
        self.until(&what, |it| done(it).is_none_or(|now| now > before + SOME_CALLS)).await
    }

    async fn everyone_works(&mut self) -> Outcome<()> {
        for number in self.living() {
            self.works(number).await?;
        }
        Ok(())
    }

    /// A server drains and ends.
    async fn leave(&mut self, number: usize) -> Outcome<()> {
        self.member(number).drain()?;
        self.tell(number, "drains")?;
        self.look().await?;
        self.member(number).ended().await?;
        self.tell(number, "has ended")
    }

    fn tell(&mut self, number: usize, what: &str) -> Outcome<()> {
        self.course.on_event(format!("server {number} {what}"));
        let registry = if self.registry.is_up { "up" } else { "down" };
        Ok(self.picture.show(&self.course, registry)?)
    }

    /// The numbers of the servers that have not ended.
    fn living(&self) -> Vec<usize> {
        let living = self.members.iter().filter(|it| it.state != State::Gone);
        living.map(|it| it.number).collect()
    }

    fn first(&self) -> usize {
        self.living().first().copied().unwrap_or_default()
    }

    fn member(&mut self, number: usize) -> &mut Member {
        let found = self.members.iter_mut().find(|it| it.number == number);
        found.expect("it has not ended")
    }

    /// How many clients are connected to a server.
    fn connected(&self, number: usize) -> usize {
        let address = self.members.iter().find(|it| it.number == number).map(|it| &it.address);
        let seen = self.load.channels.iter().flat_map(|it| it.stats().members);
        seen.filter(|it| Some(&it.address) == address && it.is_connected).count()
    }

    /// How often each client has ejected a server.
    fn ejections(&self) -> Vec<u64> {
        self.load.channels.iter().map(|it| it.stats().ejections).collect()
    }
}
