//! One connection of a channel, and how it is made.
//!
//! Owns the steps from an address to a connection whose driver runs, and what calls need to know of
//! it. Does not decide when to connect: that is up to [`subchannel`](super::subchannel).
//!
//! Invariant: a connection is released when the channel and the last call on it have let go of it;
//! its driver ends after that.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use rpc_transport::address::Address;
use rpc_transport::connect::schemes::{self, Resolved};
use rpc_transport::device::PeerIdentity;
use rpc_transport::device::connection_error::{CloseCause, ConnectError, SetUpPhase};
use rpc_transport::device::fault::{self, FaultPlan};
use rpc_transport::engine::connection_key::ConnectionKey;
use rpc_transport::engine::driver::Driver;
use rpc_transport::engine::establish::completions_per_connection;
use rpc_transport::engine::locked_need::{channel_bytes, registered_bytes};
use rpc_transport::engine::spin::PollMode;
use rpc_transport::memory::budget::MemoryBudget;
use rpc_transport::protocol::config::LinkConfig;
use rpc_transport::protocol::handshake::{Reject, RejectCode};

use crate::bulk::BulkPool;
use crate::channel::standing::Standing;
use crate::client::counts::ChannelCounts;
use crate::client::load::{Load, Rules};
use crate::client::presented::Presented;
use crate::codec::{Codec, Placement, Pool};
use crate::endpoint::connection_context::ConnectionContext;
use crate::endpoint::ended::{ConnectionEvent, OnEvent};
use crate::endpoint::{RpcEndpoint, RpcShard};
use crate::identity::{Credentials, Identity, Proof};
use crate::secured::Secured;
use crate::server::executor::Handlers;
use crate::server::peer_services::PeerServices;
use crate::session::{Role, SessionLimits};
use crate::status::{Code, Status};

/// The options of connecting.
#[derive(Debug, Clone)]
pub(super) struct ConnectOptions {
    pub(super) codec: Codec,
    pub(super) link: LinkConfig,
    pub(super) limits: SessionLimits,
    pub(super) poll_mode: PollMode,
    pub(super) connect_timeout: Duration,
    pub(super) max_connection_idle: Option<Duration>,
    pub(super) min_part_bytes: usize,
    pub(super) faults: Option<FaultPlan>,
    /// For the choice between end points, if there are several.
    pub(super) rules: Option<Arc<Rules>>,
    /// Watches the health of its server, if that is asked for.
    pub(super) health: Option<Arc<dyn WatchHealth>>,
    /// Of the channel.
    pub(super) counts: Arc<ChannelCounts>,
    /// What the peers of its connections may call.
    pub(super) served: Option<Arc<PeerServices>>,
    pub(super) presented: Option<Presented>,
    pub(super) allows_clear_credentials: bool,
    pub(super) secured: Option<Secured>,
}

/// One connection, as calls see it.
pub(crate) struct Connection {
    pub(crate) shard: Arc<RpcShard>,
    pub(crate) key: ConnectionKey,
    pub(crate) codec: Codec,
    pub(crate) bulk: BulkPool,
    pub(super) min_part_bytes: usize,
    pub(super) leads_to: LeadsTo,
    /// Both ends may call on it.
    pub(crate) is_two_way: bool,
    /// Which of its end point's attempts it comes from.
    pub(super) epoch: u64,
    /// Of a connection that a peer has made there is none.
    pub(super) owner: Option<Weak<dyn Owner>>,
    /// Where its driver runs, if this end has connected.
    pub(super) runtime: Option<Id>,
    /// If there are other end points to choose from.
    pub(crate) load: Option<Arc<Load>>,
}

/// The maker of a connection, which also makes the next one.
pub(super) trait Owner: Send + Sync {
    /// The connection of that epoch takes no calls any more; `cause`: it has ended, too. `None`:
    /// its server is going away.
    fn on_lost(&self, epoch: u64, cause: Option<CloseCause>);

    /// A runtime has ended that drove one of its connections.
    fn on_runtime_ended(&self, runtime: Id);
}

/// Who watches the health of an end point.
pub(super) trait WatchHealth: fmt::Debug + Send + Sync {
    /// Starts a task that passes the health on to `load`, on this connection.
    fn start(&self, connection: Arc<Connection>, load: Arc<Load>, home: &Handle) -> AbortHandle;
}

/// The other end of a connection.
pub(super) enum LeadsTo {
    /// This end has connected, and closes the connection.
    Server(Path),
    /// The peer of a handler, whichever end has connected. The connection has another owner.
    Peer(Arc<ConnectionContext>),
}

impl Connection {
    /// Where the large byte strings of a message go.
    #[inline]
    pub(crate) fn placement(&self) -> Placement<'_> {
        Placement { min_part_bytes: self.min_part_bytes, pool: Pool::Of(&self.bulk) }
    }

    /// Why it ended, once it has.
    pub(crate) fn close_cause(&self) -> Option<CloseCause> {
        match &self.leads_to {
            LeadsTo::Server(_) => self.shard.close_cause(self.key),
            LeadsTo::Peer(context) => context.close_cause(),
        }
    }

    /// Whether its peer has answered a call, or made one.
    pub(super) fn has_served(&self) -> bool {
        self.shard.look(self.key, |peer| peer.has_served()).unwrap_or_default()
    }

    pub(super) fn path(&self) -> Option<&Path> {
        match &self.leads_to {
            LeadsTo::Server(path) => Some(path),
            LeadsTo::Peer(_) => None,
        }
    }

    /// Who takes the calls, for texts.
    pub(crate) fn callee(&self) -> &'static str {
        match &self.leads_to {
            LeadsTo::Server(_) => "server",
            LeadsTo::Peer(_) => "peer",
        }
    }

    /// Which end point it leads to: a number that no other one has while this one is used.
    pub(crate) fn end_point(&self) -> usize {
        self.owner.as_ref().map_or(0, |owner| owner.as_ptr().addr())
    }

    /// Which of the connections to that end point it is.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// It takes no calls any more: the channel is to have another one.
    #[cold]
    pub(crate) fn is_lost(&self) {
        if let Some(load) = &self.load {
            load.change(Standing::on_lost);
        }
        if let Some(owner) = self.owner.as_ref().and_then(Weak::upgrade) {
            notify_lost(&*owner, self.epoch, self.close_cause(), self.runtime);
        }
    }

    /// The status of calls on a connection that has ended.
    #[cold]
    pub(crate) fn unavailable(&self) -> Status {
        let cause = self.close_cause().unwrap_or(CloseCause::DriverGone);
        match &self.leads_to {
            LeadsTo::Server(path) => unavailable(&path.target, cause),
            LeadsTo::Peer(context) => {
                unavailable(&format_args!("the peer {}", context.identity), cause)
            }
        }
    }
}

/// Notifies the owner of a connection that it takes no more calls.
fn notify_lost(owner: &dyn Owner, epoch: u64, cause: Option<CloseCause>, runtime: Option<Id>) {
    if let (Some(CloseCause::DriverGone), Some(runtime)) = (&cause, runtime) {
        owner.on_runtime_ended(runtime);
    }
    owner.on_lost(epoch, cause);
}

/// The status of calls whose connection has ended.
#[cold]
pub(super) fn unavailable(target: &dyn fmt::Display, cause: CloseCause) -> Status {
    let code = match cause {
        CloseCause::Forked => Code::FailedPrecondition,
        _ => Code::Unavailable,
    };
    Status::new(code, format!("connection to {target}: {cause}"))
        .with_source(Arc::new(cause) as Arc<dyn std::error::Error + Send + Sync>)
}

impl Drop for Connection {
    fn drop(&mut self) {
        match self.leads_to {
            LeadsTo::Server(_) => {
                self.shard.release(self.key);
                self.shard.shutdown();
            }
            LeadsTo::Peer(_) => self.shard.let_go(self.key),
        }
    }
}

/// The transport that a channel uses to reach its peer, and why it was chosen.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Path {
    /// The address that was asked for.
    pub target: Address,
    /// The address that was connected; for `auto://` the one that was chosen.
    pub address: Address,
    /// The device, for instance `soft-shm`.
    pub device: String,
    /// Why this transport was chosen.
    pub reason: String,
    /// The peer that answered.
    pub peer: PeerIdentity,
    /// The peer, and what it has proven where the channel has TLS.
    pub identity: Arc<Identity>,
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {} ({})", self.address, self.device, self.reason)?;
        let identity = &self.identity;
        match (identity.protection(), identity.certificate(), identity.cipher_suite()) {
            (Some(protection), Some(certificate), Some(suite)) => {
                write!(f, ", {certificate} by TLS ({protection:?}, {suite})")
            }
            _ => Ok(()),
        }
    }
}

/// Connects within the time that the options give. Later changes of the connection are reported to
/// the end point.
pub(super) async fn connect(
    options: &ConnectOptions,
    target: &Address,
    epoch: u64,
    owner: Weak<dyn Owner>,
) -> Result<Connection, ConnectError> {
    let timeout = options.connect_timeout;
    let in_handshake = Arc::default();
    let connecting = connect_to(options, target, epoch, &owner, &in_handshake);
    match tokio::time::timeout(timeout, connecting).await {
        Ok(outcome) => outcome.map_err(|error| as_asked(error, target)),
        Err(_) => Err(late(target, timeout, &in_handshake)),
    }
}

/// One of several ways to the peer.
struct Way {
    address: Address,
    /// Why this one, where another transport to the same server has failed.
    instead: Option<String>,
}

/// Tries the target's ways one after another. Each has an equal share of the time that is left.
async fn connect_to(
    options: &ConnectOptions,
    target: &Address,
    epoch: u64,
    owner: &Weak<dyn Owner>,
    in_handshake: &Arc<AtomicBool>,
) -> Result<Connection, ConnectError> {
    let began = Instant::now();
    let share = |others: usize| {
        let ways = u32::try_from(others + 1).unwrap_or(u32::MAX);
        (others > 0).then(|| options.connect_timeout.saturating_sub(began.elapsed()) / ways)
    };
    let candidates = schemes::candidates(target).await?;
    let way = |address| Way { address, instead: None };
    let mut ways: VecDeque<Way> = candidates.into_iter().map(way).collect();
    loop {
        let Some(way) = ways.pop_front() else {
            let reason = "the name has no address".to_owned();
            return Err(ConnectError::Unreachable { address: target.clone(), reason });
        };
        let attempt = async {
            let Way { address, instead } = way;
            in_handshake.store(false, Ordering::Relaxed);
            let resolving = schemes::resolve(&address);
            let mut resolved = within(share(ways.len()), &address, in_handshake, resolving).await?;
            if let Some(reason) = instead {
                resolved.reason = reason;
            }
            if let Some((address, reason)) = resolved.otherwise.take() {
                ways.push_front(Way { address, instead: Some(reason) });
            }
            let (after, address) = (share(ways.len()), resolved.address.clone());
            let connecting =
                bring_up(options, target, resolved, epoch, Weak::clone(owner), in_handshake);
            within(after, &address, in_handshake, connecting).await
        };
        let error = match attempt.await {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        let Some(next) = ways.front_mut() else { return Err(error) };
        if !leads_elsewhere(&error, next.instead.is_some()) {
            return Err(error);
        }
        tracing::debug!(%error, "trying the next address");
        match &mut next.instead {
            Some(reason) if reason.is_empty() => *reason = error.to_string(),
            Some(reason) => *reason = format!("{reason}; {error}"),
            None => {}
        }
    }
}

/// Gives an attempt its share of the time; the last one has what is left of the whole.
async fn within<T>(
    after: Option<Duration>,
    address: &Address,
    in_handshake: &AtomicBool,
    attempt: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    let Some(after) = after else { return attempt.await };
    let attempt = tokio::time::timeout(after, attempt).await;
    attempt.map_err(|_| late(address, after, in_handshake))?
}

fn late(address: &Address, after: Duration, in_handshake: &AtomicBool) -> ConnectError {
    let phase = match in_handshake.load(Ordering::Relaxed) {
        true => SetUpPhase::Handshake,
        false => SetUpPhase::Connecting,
    };
    ConnectError::TimedOut { address: address.clone(), after, phase }
}

/// Whether the next way to the peer may do better. Not if the peer itself has answered, or if this
/// side cannot do what it is asked to, or if the peer has no room, unless the next way is by
/// `another_transport`: what one end or the other lacks may be what that device needs.
fn leads_elsewhere(error: &ConnectError, another_transport: bool) -> bool {
    match error {
        ConnectError::Provider(_) | ConnectError::Unavailable { .. } => another_transport,
        ConnectError::Refused { .. }
        | ConnectError::Unreachable { .. }
        | ConnectError::TimedOut { .. } => true,
        // What this end has found out about the peer holds for every way to it.
        ConnectError::Handshake { failure, .. } => !failure.reason.is_final(),
        // By the device or the kernel of the peer, which say no more than that. The peer itself
        // gives a reason.
        ConnectError::Rejected { private_data, .. } => {
            let is_busy = |it: Reject| it.code == RejectCode::Busy;
            private_data.iter().all(|byte| *byte == 0)
                || another_transport && Reject::from_bytes(private_data).is_ok_and(is_busy)
        }
        _ => false,
    }
}

/// The error with the address that the user gave: the address that `auto://` chose means nothing to
/// its reader.
fn as_asked(mut error: ConnectError, target: &Address) -> ConnectError {
    let (address, reason) = match &mut error {
        ConnectError::TimedOut { address, .. } | ConnectError::Handshake { address, .. } => {
            *address = target.clone();
            return error;
        }
        ConnectError::Refused { address, reason }
        | ConnectError::Unreachable { address, reason }
        | ConnectError::Protocol { address, reason }
        | ConnectError::Rejected { address, reason, .. } => (address, reason),
        _ => return error,
    };
    if address != target {
        *reason = format!("{reason} (at {address})");
        *address = target.clone();
    }
    error
}

async fn bring_up(
    options: &ConnectOptions,
    target: &Address,
    resolved: Resolved,
    epoch: u64,
    owner: Weak<dyn Owner>,
    in_handshake: &Arc<AtomicBool>,
) -> Result<Connection, ConnectError> {
    let ConnectOptions { codec, link, limits, poll_mode, connect_timeout, min_part_bytes, .. } =
        options;
    let Resolved { mut outgoing, address, reason, exchange, .. } = resolved;
    let secure = |secured: &Secured| {
        secured.check(target).map_err(ConnectError::Config)?;
        Arc::clone(&secured.keeper).begin();
        let mut security = secured.security(target).with_exchange(exchange);
        security.has_begun = Arc::clone(in_handshake);
        Ok::<_, ConnectError>(security)
    };
    let secured = options.secured.as_ref().filter(|secured| !secured.is_plain(target));
    let security = secured.map(secure).transpose()?;
    let in_all = |_| channel_bytes(link);
    if let Some(reason) = schemes::lacks_locked_memory(&address, registered_bytes(link), &in_all) {
        return Err(ConnectError::Unavailable { scheme: "rdma", reason });
    }
    if let Some(plan) = &options.faults {
        let seed = plan.seed().wrapping_add(epoch << 32);
        outgoing = fault::outgoing(outgoing, &plan.clone().with_seed(seed));
    }
    let encrypts = |secured: &Secured| secured.encrypts(&address);
    let hides = options.allows_clear_credentials || options.secured.as_ref().is_some_and(encrypts);
    let credentials =
        options.presented.as_ref().map(|presented| presented.at(&address, hides)).transpose()?;
    let device = Arc::clone(outgoing.device());
    let domain = device.allocate_pd()?;
    let entries = completions_per_connection(link);
    let shard = RpcShard::new(Arc::clone(&device), domain, entries)?;
    let handlers = match &options.served {
        Some(served) => served.handlers(&shard),
        None => Handlers::without_services(Arc::clone(&shard)),
    };
    let driver = Driver::new(Arc::clone(&shard), handlers, *poll_mode)?;
    let runtime = Some(Handle::current().id());
    tokio::spawn(driver);
    let mut guard = ShutdownOnDrop(Some(Arc::clone(&shard)));
    let bulk = BulkPool::new(shard.domain().clone());
    let queue = link.queue_limit();
    let memory = options.served.as_ref().map_or_else(MemoryBudget::unlimited, |it| it.memory());
    let (on_end, asked) = (Weak::clone(&owner), target.clone());
    // From the driver's task, with no lock held.
    let on_event: OnEvent = Arc::new(move |event| {
        if let Some(owner) = on_end.upgrade() {
            let cause = match event {
                ConnectionEvent::PeerGoingAway => None,
                ConnectionEvent::Ended(cause) => Some(cause),
            };
            tracing::debug!(target = %asked, ?cause, "the connection accepts no more calls");
            notify_lost(&*owner, epoch, cause, runtime);
        }
    });
    let mut peer = RpcEndpoint::new(Role::Client, *limits, bulk, *min_part_bytes, queue, memory)
        .reporting_to(Arc::clone(&on_event))
        .placed_on(&shard)
        .closing_when_idle(options.max_connection_idle)
        .counting(Arc::clone(&options.counts.methods));
    let mut hello = None;
    if let Some(credentials) = &credentials {
        let (door, told) = oneshot::channel();
        peer = peer.presenting(credentials, door);
        hello = Some(told);
    }
    let is_stopped = options.served.as_ref().is_some_and(|served| served.is_stopped());
    if let Some(served) = &options.served {
        peer = served.bound(peer);
        if is_stopped && hello.is_none() {
            // Behind the hello, before all calls.
            peer.session.go_away();
        }
    }
    let timeout = *connect_timeout;
    let connecting = shard.connect_with(outgoing, &address, link, timeout, peer, security.as_ref());
    let connected = connecting.await?;
    guard.0 = None;
    let domain = shard.domain_of(connected.key).unwrap_or_else(|| shard.domain().clone());
    let device = device.attributes().name.clone();
    let peer = connected.peer;
    let proof = connected.secured.as_ref().and_then(Proof::of);
    let identity = Arc::new(Identity::from(peer.clone()).proven(proof));
    let path = Path { target: target.clone(), address, device, reason, peer, identity };
    let end_point = owner.as_ptr().addr();
    let connection = Connection {
        shard,
        key: connected.key,
        codec: *codec,
        bulk: BulkPool::new(domain),
        min_part_bytes: *min_part_bytes,
        leads_to: LeadsTo::Server(path),
        is_two_way: options.served.is_some(),
        epoch,
        owner: Some(owner),
        runtime,
        load: options.rules.as_ref().map(|rules| Load::new(rules, end_point)),
    };
    if let Some(secured) = secured {
        let keep = |connection: &Connection, path: &Path| {
            secured.keeper.ask(&path.identity)?;
            let context = connection.shard.look(connection.key, |peer| Arc::clone(peer.context()));
            context.iter().for_each(|context| {
                secured.keeper.keep(context, Some(Arc::clone(&on_event)));
            });
            Ok(())
        };
        let kept = connection.path().map_or(Ok(()), |path| keep(&connection, path));
        kept.map_err(|failure| ConnectError::Handshake { address: target.clone(), failure })?;
    }
    if let Some(hello) = hello {
        admitted(&connection, target, hello).await?;
        if is_stopped {
            connection.shard.with(connection.key, |peer| peer.session.go_away());
        }
    }
    if let Some(path) = connection.path() {
        tracing::info!(address = %path.target, %path, "connected");
    }
    Ok(connection)
}

/// Waits until the server has let the connection in, by its hello.
///
/// # Errors
/// [`ConnectError::Rejected`], with the server's reason.
async fn admitted(
    connection: &Connection,
    address: &Address,
    hello: oneshot::Receiver<Option<Credentials>>,
) -> Result<(), ConnectError> {
    if hello.await.is_ok() {
        return Ok(());
    }
    let cause = connection.close_cause().unwrap_or(CloseCause::Disconnected);
    let (address, reason) = (address.clone(), cause.to_string());
    // The server itself has answered, so no other way to it is tried.
    let private_data = Reject::new(RejectCode::Application, &*reason).to_bytes();
    Err(ConnectError::Rejected { address, reason, private_data })
}

/// Ends the driver of a shard whose connection never came up.
struct ShutdownOnDrop(Option<Arc<RpcShard>>);

impl Drop for ShutdownOnDrop {
    fn drop(&mut self) {
        if let Some(shard) = &self.0 {
            shard.shutdown();
        }
    }
}

#[cfg(test)]
mod tests {
    use rpc_transport::device::ProviderError;

    use super::*;

    #[test]
    fn the_next_address_is_tried_unless_one_answered() {
        let address = || "rdma://kv:1".parse::<Address>().expect("an address");
        let rejected = |private_data: &[u8]| ConnectError::Rejected {
            address: address(),
            reason: String::new(),
            private_data: private_data.to_vec(),
        };
        let reason = String::new;
        for (error, goes_on) in [
            (ConnectError::Refused { address: address(), reason: reason() }, true),
            (ConnectError::Unreachable { address: address(), reason: reason() }, true),
            (late(&address(), Duration::ZERO, &AtomicBool::new(true)), true),
            (rejected(b""), true),
            (rejected(&[0; 148]), true),
            (rejected(b"busy"), false),
            (rejected(&Reject::new(RejectCode::ShuttingDown, "it ends").to_bytes()), false),
            (ConnectError::Protocol { address: address(), reason: reason() }, false),
            (ConnectError::Config(reason()), false),
        ] {
            assert_eq!(leads_elsewhere(&error, false), goes_on, "{error:?}");
            assert_eq!(leads_elsewhere(&error, true), goes_on, "{error:?}");
        }
        let pinned = ProviderError::Resources { what: "pinning", message: "no room".into() };
        let limit = ConnectError::Unavailable { scheme: "rdma", reason: reason() };
        let busy = Reject::new(RejectCode::Busy, "no room").to_bytes();
        for lacks in [ConnectError::Provider(pinned), limit, rejected(&busy)] {
            assert!(!leads_elsewhere(&lacks, false), "an end lacks it for every address");
            assert!(leads_elsewhere(&lacks, true), "tcp needs no pinned memory");
        }
    }
}
