//! Fault injection: wraps any device to expose bugs in the code above it.
//!
//! Owns a wrapper around device, connector and listener that reproduces, from a seed, legal
//! behaviour that real hardware shows only rarely: completions come late, completions of the two
//! queues change places, memory is read after the post returned, QPs fail, the peer disappears.
//! Everything it does is legal by the contract of [`crate::device`], but for
//! [`FaultPlan::open_windows`]. Never loses a completion that the contract promises, never reorders
//! one queue.
//!
//! Part of the product, so that users can test their whole stack on a bad device. The same plan and
//! the same calls give the same faults; print the plan when a test fails.

mod locked;
mod open;
mod profile;
mod queue;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;

use crate::address::Address;
use crate::device::connection_error::{ConnectError, ListenError};
use crate::device::{
    Attach, Capabilities, CompletionQueue, Connector, CqRef, Device, DeviceAttributes, Established,
    Exchange, Incoming, Listener, Outgoing, PeerIdentity, ProviderError, QpCapacity, QpHandle,
};
use crate::memory::budget::MemoryBudget;
use crate::memory::region::ProtectionDomain;

use locked::{LimitedDomain, LockLimit};
use open::OpenDomain;
pub use profile::{BNXT_RE, DeviceProfile, EFA, IRDMA, MANA, MLX5, PROFILES};
use queue::FaultyCompletionQueue;

/// The faults to inject, and their rates. [`FaultPlan::new`] switches everything off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultPlan {
    seed: u64,
    delay_polls: u32,
    interleave: bool,
    poison: bool,
    late_polls: u32,
    kill_one_in: Option<u32>,
    lose_peer_one_in: Option<u32>,
    loses_recvs: bool,
    drain_polls: u32,
    opens_windows: bool,
    profile: Option<&'static DeviceProfile>,
    lock_limit: Option<LockLimit>,
}

impl FaultPlan {
    /// A plan without faults. `seed` determines all random choices.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            delay_polls: 0,
            interleave: false,
            poison: false,
            late_polls: 0,
            kill_one_in: None,
            lose_peer_one_in: None,
            loses_recvs: false,
            drain_polls: 0,
            opens_windows: false,
            profile: None,
            lock_limit: None,
        }
    }

    /// Holds each completion back for up to this many polls; default 0.
    #[must_use]
    pub fn delay_completions(mut self, polls: u32) -> Self {
        self.delay_polls = polls;
        self
    }

    /// Lets completions of a QP's SQ and RQ overtake each other; default off.
    #[must_use]
    pub fn interleave_queues(mut self, on: bool) -> Self {
        self.interleave = on;
        self
    }

    /// Fills RECV buffers with [`POISON`] when they are posted, and the part that the message did
    /// not fill when they are released; default off.
    #[must_use]
    pub fn poison_receives(mut self, on: bool) -> Self {
        self.poison = on;
        self
    }

    /// Starts send WRs up to this many polls after the post, so that their memory is read (for
    /// READ: written) late; default 0. [`CompletionQueue::arm`] starts all of them.
    #[must_use]
    pub fn touch_memory_late(mut self, polls: u32) -> Self {
        self.late_polls = polls;
        self
    }

    /// Moves the QP to ERR once per this many posted send WRs, on average; default never.
    #[must_use]
    pub fn kill_queue_pairs(mut self, one_in: u32) -> Self {
        self.kill_one_in = Some(one_in);
        self
    }

    /// Makes the peer disappear once per this many posted send WRs, on average, as seen from this
    /// side: outstanding WRs fail with
    /// [`Status::RetryExceeded`](crate::device::Status::RetryExceeded), and a disconnect is
    /// reported; default never.
    #[must_use]
    pub fn lose_peer(mut self, one_in: u32) -> Self {
        self.lose_peer_one_in = Some(one_in);
        self
    }

    /// Loses the last RECV of a shared receive queue that was filled as a QP is moved to ERR, as if
    /// its message had been cut off ([`Capabilities::KEEPS_CUT_OFF_RECVS`]); default off.
    #[must_use]
    pub fn lose_cut_off_receives(mut self, on: bool) -> Self {
        self.loses_recvs = on;
        self
    }

    /// A QP of a shared receive queue drains only so many polls after it went to ERR, and nothing
    /// wakes the owner of its CQ then (contract rule 22); default 0.
    #[must_use]
    pub fn drain_late(mut self, polls: u32) -> Self {
        self.drain_polls = polls;
        self
    }

    /// Gives windows the key of their region, which every queue pair of the domain accepts, bound
    /// or not; default off. This breaks contract rule 23, so that tests of windows can be seen to
    /// fail.
    #[must_use]
    pub fn open_windows(mut self, on: bool) -> Self {
        self.opens_windows = on;
        self
    }

    /// Limits the device to what this kind of NIC supports and grants; default: no limits of its
    /// own.
    #[must_use]
    pub fn profile(mut self, profile: &'static DeviceProfile) -> Self {
        self.profile = Some(profile);
        self
    }

    /// Charges registered memory, CQs and QPs against this budget, by the sizes of
    /// [`locked`](crate::device::locked), and refuses more as a process does at its limit on locked
    /// memory; default: no limit. Devices with the same budget share the limit.
    #[must_use]
    pub fn lock_limit(mut self, limit: &MemoryBudget) -> Self {
        self.lock_limit = Some(LockLimit(limit.clone()));
        self
    }

    /// This plan with the random choices of another seed, for the next connection for example.
    #[must_use]
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }
}

/// Value of poisoned bytes.
pub const POISON: u8 = 0xdb;

/// A small random number generator (splitmix64), whose output will never change.
#[derive(Debug)]
struct Random(u64);

impl Random {
    /// A number from 0 to `most`.
    fn up_to(&mut self, most: u32) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % (u64::from(most) + 1)
    }

    /// True once per `one_in` calls, on average.
    fn strikes(&mut self, one_in: Option<u32>) -> bool {
        one_in.is_some_and(|one_in| one_in > 0 && self.up_to(one_in - 1) == 0)
    }
}

/// A device with faults.
struct FaultyDevice {
    inner: Arc<dyn Device>,
    attributes: DeviceAttributes,
    plan: FaultPlan,
    /// CQs created so far: each has its own random sequence.
    queues: AtomicU64,
}

impl FaultyDevice {
    fn wrap(inner: &Arc<dyn Device>, plan: &FaultPlan) -> Arc<dyn Device> {
        let mut attributes = inner.attributes().clone();
        attributes.name = format!("faulty {}", attributes.name);
        if let Some(profile) = plan.profile {
            profile.limit(&mut attributes);
        }
        if plan.loses_recvs {
            let kept = attributes.capabilities.without(Capabilities::KEEPS_CUT_OFF_RECVS);
            attributes.capabilities = kept;
        }
        let (inner, plan) = (Arc::clone(inner), plan.clone());
        Arc::new(Self { inner, attributes, plan, queues: AtomicU64::new(0) })
    }
}

impl fmt::Debug for FaultyDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultyDevice({:?}, {:?})", self.inner, self.plan)
    }
}

impl Device for FaultyDevice {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn allocate_pd(&self) -> Result<ProtectionDomain, ProviderError> {
        let mut inner = self.inner.allocate_pd()?;
        if self.plan.opens_windows {
            inner = ProtectionDomain::new(Arc::new(OpenDomain { inner }));
        }
        Ok(match self.plan.lock_limit.clone() {
            Some(limit) => ProtectionDomain::new(Arc::new(LimitedDomain { inner, limit })),
            None => inner,
        })
    }

    fn create_cq(&self, min_entries: u32) -> Result<Box<dyn CompletionQueue>, ProviderError> {
        if min_entries > self.attributes.max_cqe {
            let (asked, limit) = (u64::from(min_entries), u64::from(self.attributes.max_cqe));
            return Err(ProviderError::Limit { what: "completion queue entries", asked, limit });
        }
        let bytes = crate::device::locked::completion_queue(min_entries);
        let limit = self.plan.lock_limit.as_ref();
        let locked = limit.map(|limit| limit.lock("create completion queue", bytes)).transpose()?;
        let inner = self.inner.create_cq(min_entries)?;
        let number = self.queues.fetch_add(1, Ordering::Relaxed);
        let random = Random(self.plan.seed.wrapping_add(number));
        let (plan, attributes) = (self.plan.clone(), &self.attributes);
        Ok(Box::new(FaultyCompletionQueue::new(inner, plan, random, attributes, locked)?))
    }
}

/// A connector whose connections have faults.
#[derive(Debug, Clone)]
pub struct FaultyConnector {
    inner: Arc<dyn Connector>,
    plan: FaultPlan,
}

impl FaultyConnector {
    /// Wraps a connector.
    #[must_use]
    pub fn new(inner: Arc<dyn Connector>, plan: FaultPlan) -> Self {
        Self { inner, plan }
    }
}

#[async_trait]
impl Connector for FaultyConnector {
    async fn resolve(&self, address: &Address) -> Result<Box<dyn Outgoing>, ConnectError> {
        let inner = self.inner.resolve(address).await?;
        Ok(outgoing(inner, &self.plan))
    }
}

/// Adds faults to one outgoing connection. All connections that share a CQ must come from here with
/// the same plan, since the plan belongs to the CQ.
#[must_use]
pub fn outgoing(inner: Box<dyn Outgoing>, plan: &FaultPlan) -> Box<dyn Outgoing> {
    let device = FaultyDevice::wrap(inner.device(), plan);
    Box::new(FaultyOutgoing { inner, device, commands: Commands::new(plan.profile) })
}

/// Adds faults to all connections that a listener accepts.
#[must_use]
pub fn listener(inner: Box<dyn Listener>, plan: FaultPlan) -> Box<dyn Listener> {
    Box::new(FaultyListener { inner, plan, devices: Vec::new() })
}

#[derive(Debug)]
struct FaultyOutgoing {
    inner: Box<dyn Outgoing>,
    device: Arc<dyn Device>,
    commands: Commands,
}

/// How a kind of NIC carries out commands.
#[derive(Debug)]
struct Commands {
    profile: Option<&'static DeviceProfile>,
    is_prepared: bool,
}

impl Commands {
    /// The transitions INIT to INIT, INIT to RTR and RTR to RTS.
    const OF_CONNECTING: u32 = 3;

    fn new(profile: Option<&'static DeviceProfile>) -> Self {
        Self { profile, is_prepared: false }
    }

    /// How long one command takes, if it takes any time.
    fn time(&self) -> Option<Duration> {
        self.profile.map(|profile| profile.command_time).filter(|time| !time.is_zero())
    }

    /// Waits, as set-up does, for this many commands.
    async fn carry_out(&self, count: u32) {
        if let Some(time) = self.time() {
            tokio::time::sleep(time.saturating_mul(count)).await;
        }
    }

    /// Waits, as a caller does that creates a QP that was not prepared.
    fn create_here(&self) {
        if let Some(time) = self.time().filter(|_| !self.is_prepared) {
            std::thread::sleep(time);
        }
    }
}

/// The capacity that a QP gets under a profile.
fn granted(
    attributes: &DeviceAttributes,
    profile: Option<&'static DeviceProfile>,
    mut capacity: QpCapacity,
) -> Result<QpCapacity, ProviderError> {
    let Some(profile) = profile else { return Ok(capacity) };
    if !profile.has_rc {
        return Err(ProviderError::Unsupported("an RC queue pair"));
    }
    for (what, asked) in [
        ("send queue entries", capacity.max_send_wr),
        ("receive queue entries", capacity.max_recv_wr),
    ] {
        if asked > attributes.max_qp_wr {
            let (asked, limit) = (u64::from(asked), u64::from(attributes.max_qp_wr));
            return Err(ProviderError::Limit { what, asked, limit });
        }
    }
    capacity.max_inline_bytes = capacity.max_inline_bytes.min(attributes.max_inline_bytes);
    Ok(capacity)
}

/// Runs the inner attach step on the inner CQ.
fn wrap_attach(established: Established) -> Established {
    let inner = established.attach;
    let attach = Attach::new(move |cq| inner.run(FaultyCompletionQueue::of(cq)?.inner()));
    Established { attach, ..established }
}

#[async_trait]
impl Outgoing for FaultyOutgoing {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    async fn prepare_qp(
        &mut self,
        cq: &CqRef,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<(), ProviderError> {
        let capacity = granted(self.device.attributes(), self.commands.profile, capacity)?;
        self.inner.prepare_qp(cq, pd, capacity).await?;
        self.commands.carry_out(1).await;
        self.commands.is_prepared = true;
        Ok(())
    }

    fn create_qp(
        &mut self,
        cq: &mut dyn CompletionQueue,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<QpHandle, ProviderError> {
        let cq = FaultyCompletionQueue::of(cq)?;
        let capacity = granted(self.device.attributes(), self.commands.profile, capacity)?;
        self.commands.create_here();
        cq.adopt_new(capacity, |cq| self.inner.create_qp(cq, pd, capacity))
    }

    async fn connect(self: Box<Self>, private_data: &[u8]) -> Result<Established, ConnectError> {
        self.commands.carry_out(Commands::OF_CONNECTING).await;
        self.inner.connect(private_data).await.map(wrap_attach)
    }
}

#[derive(Debug)]
struct FaultyListener {
    inner: Box<dyn Listener>,
    plan: FaultPlan,
    /// Devices of earlier requests, each with its wrapper.
    devices: Vec<(Arc<dyn Device>, Arc<dyn Device>)>,
}

impl FaultyListener {
    /// One wrapper for each device object, so that connections share it as they do without faults.
    fn wrapped(&mut self, inner: &Arc<dyn Device>) -> Arc<dyn Device> {
        if let Some((_, known)) = self.devices.iter().find(|(it, _)| Arc::ptr_eq(it, inner)) {
            return Arc::clone(known);
        }
        let device = FaultyDevice::wrap(inner, &self.plan);
        // Devices may have been replaced.
        self.devices.retain(|(_, wrapped)| Arc::strong_count(wrapped) > 1);
        self.devices.push((Arc::clone(inner), Arc::clone(&device)));
        device
    }
}

#[async_trait]
impl Listener for FaultyListener {
    fn local_address(&self) -> Address {
        self.inner.local_address()
    }

    fn exchange(&self) -> Option<Arc<Exchange>> {
        self.inner.exchange()
    }

    async fn incoming(&mut self) -> Result<Box<dyn Incoming>, ListenError> {
        let inner = self.inner.incoming().await?;
        let device = self.wrapped(inner.device());
        let profile = self.plan.profile;
        Ok(Box::new(FaultyIncoming { inner, device, commands: Commands::new(profile) }))
    }
}

#[derive(Debug)]
struct FaultyIncoming {
    inner: Box<dyn Incoming>,
    device: Arc<dyn Device>,
    commands: Commands,
}

#[async_trait]
impl Incoming for FaultyIncoming {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn private_data(&self) -> &[u8] {
        self.inner.private_data()
    }

    fn peer(&self) -> PeerIdentity {
        self.inner.peer()
    }

    async fn prepare_qp(
        &mut self,
        cq: &CqRef,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<(), ProviderError> {
        let capacity = granted(self.device.attributes(), self.commands.profile, capacity)?;
        self.inner.prepare_qp(cq, pd, capacity).await?;
        self.commands.carry_out(1).await;
        self.commands.is_prepared = true;
        Ok(())
    }

    fn create_qp(
        &mut self,
        cq: &mut dyn CompletionQueue,
        pd: &ProtectionDomain,
        capacity: QpCapacity,
    ) -> Result<QpHandle, ProviderError> {
        let cq = FaultyCompletionQueue::of(cq)?;
        let capacity = granted(self.device.attributes(), self.commands.profile, capacity)?;
        self.commands.create_here();
        cq.adopt_new(capacity, |cq| self.inner.create_qp(cq, pd, capacity))
    }

    async fn accept(self: Box<Self>, private_data: &[u8]) -> Result<Established, ConnectError> {
        self.commands.carry_out(Commands::OF_CONNECTING).await;
        self.inner.accept(private_data).await.map(wrap_attach)
    }

    async fn reject(self: Box<Self>, private_data: &[u8]) {
        self.inner.reject(private_data).await;
    }
}
