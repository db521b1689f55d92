//! The way from a connection back to its peer: a handle of the connection, and a channel that ends with
//! it.
//!
//! Neither keeps the connection alive. A channel holds its place in the shard until the connection has
//! ended, and a call until it has its outcome, so that what had arrived can be taken.
//!
//! Invariant: there is one channel to the peer of a connection at a time; clones share it. So what a
//! connection knows of its channels does not grow with them.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use rpc_transport::connect::error::CloseCause;
use rpc_transport::device::PeerIdentity;
use rpc_transport::engine::clock;
use rpc_transport::protocol::config::WhenFull;

use super::Channel;
use super::connection::{Connection, LeadsTo};
use super::counts::ChannelCounts;
use super::peer::Peer;
use super::shared::{Hedges, Shared, Targets};
use super::subchannel::Demand;
use crate::codec::Codec;
use crate::context::Context;
use crate::endpoint::OnEvent;
use crate::endpoint::connection_context::ConnectionContext;
use crate::runtime::phase::Phase;

impl Context {
    /// The connection that the call came over; `None` outside of a handler.
    #[must_use]
    pub fn connection(&self) -> Option<ConnectionHandle> {
        self.connected().map(|context| ConnectionHandle(Arc::clone(context)))
    }
}

/// A connection, as a handler sees it: [`Context::connection`]. Cheap to clone; two handles are equal
/// if they are of the same connection. It may be kept when the handler has ended, to call the peer
/// later; it does not keep the connection alive.
///
/// ```
/// use rpc_core::{ConnectionHandle, Context};
/// use std::sync::Mutex;
///
/// #[rpc_core::service]
/// pub trait News { async fn subscribe(&self); }
/// #[rpc_core::service]
/// pub trait Reader { async fn article(&self, text: &str); }
///
/// #[derive(Default)]
/// struct Paper(Mutex<Vec<ConnectionHandle>>);
///
/// impl News for Paper {
///     async fn subscribe(&self) {
///         let reader = Context::current().connection().expect("in a handler");
///         let mut readers = self.0.lock().unwrap();
///         readers.retain(|other| other.close_cause().is_none() && *other != reader);
///         readers.push(reader);
///     }
/// }
///
/// impl Paper {
///     async fn publish(&self, text: &str) {
///         let readers = self.0.lock().unwrap().clone();
///         for reader in readers {
///             // Fails if that reader has gone, or serves nothing.
///             let _ = ReaderClient::new(reader.channel()).article(text).await;
///         }
///     }
/// }
/// ```
#[derive(Clone)]
pub struct ConnectionHandle(Arc<ConnectionContext>);

impl ConnectionHandle {
    /// Who is at the other end, as far as the transport knows; over a network, with the address.
    #[must_use]
    pub fn peer(&self) -> &Arc<PeerIdentity> {
        &self.0.identity
    }

    /// Time since it was set up.
    #[must_use]
    pub fn age(&self) -> Duration {
        let since = self.0.place.map(|(_, since)| since);
        since.map_or(Duration::ZERO, |since| clock::now().saturating_duration_since(since))
    }

    /// Whether one of its ends has begun to shut down. Calls to a peer that does fail; a server that does
    /// may still make calls while its handlers end.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.0.phase.as_ref().is_some_and(|phase| phase.has_reached(Phase::Draining))
            || is_going_away(&self.0)
    }

    /// Why it has ended; `None` before that. [`Channel::closed`] waits for it.
    #[must_use]
    pub fn close_cause(&self) -> Option<CloseCause> {
        self.0.close_cause()
    }

    /// A channel to the peer over this connection alone, with the defaults of a channel but for
    /// [`retry`](crate::ChannelBuilder::retry), which it does not. All channels of one connection are
    /// clones. When the connection has ended, calls fail with
    /// [`Unavailable`](crate::Code::Unavailable); if the peer serves nothing, with
    /// [`Unimplemented`](crate::Code::Unimplemented).
    ///
    /// The peer says how many calls it takes at once
    /// ([`max_calls_per_connection`](crate::ServerBuilder::max_calls_per_connection)); more wait in line.
    /// Calls that handlers make to their own callers wait only as long as that cannot keep both ends
    /// waiting for each other: else they fail with a retryable
    /// [`ResourceExhausted`](crate::Code::ResourceExhausted). Calls back and forth that go deeper than to
    /// the caller and end there should have a deadline, which nested calls inherit: each step takes one of
    /// the calls that its callee takes at once, and while all wait for deeper ones none ends.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn channel(&self) -> Channel {
        let (shared, is_new) = {
            let mut known = self.0.channel.lock();
            let shared = known.upgrade().and_then(|known| known.downcast::<Shared>().ok());
            match shared {
                Some(shared) => (shared, false),
                None => {
                    let shared = Arc::new(shared_of(&self.0));
                    let weak: Weak<Shared> = Arc::downgrade(&shared);
                    *known = weak;
                    (shared, true)
                }
            }
        };
        if is_new {
            tell_of_end(&self.0, &shared);
        }
        Channel { shared }
    }
}

impl PartialEq for ConnectionHandle {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ConnectionHandle {}

impl Hash for ConnectionHandle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl fmt::Debug for ConnectionHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionHandle")
            .field("peer", self.peer())
            .field("close_cause", &self.close_cause())
            .finish()
    }
}

fn is_going_away(context: &ConnectionContext) -> bool {
    let (Some((key, _)), Some(shard)) = (context.place, context.shard.upgrade()) else {
        return false;
    };
    shard.look(key, |peer| peer.session.is_peer_going_away()).unwrap_or_default()
}

/// What clones of the channel share.
fn shared_of(context: &Arc<ConnectionContext>) -> Shared {
    let place =
        context.place.zip(context.shard.upgrade()).filter(|((key, _), shard)| shard.hold(*key));
    let mut when_full = WhenFull::default();
    let connection = place.map(|((key, _), shard)| {
        when_full = shard.look(key, |peer| peer.when_full()).unwrap_or_default();
        Arc::new(Connection {
            shard,
            key,
            codec: Codec::default(),
            bulk: context.bulk.clone(),
            min_part_bytes: context.min_part_bytes,
            leads_to: LeadsTo::Peer(Arc::clone(context)),
            is_two_way: true,
            epoch: 0,
            owner: None,
            load: None,
        })
    });
    let peer = Peer { connection: ArcSwapOption::new(connection), context: Arc::clone(context) };
    Shared {
        targets: Targets::Peer(peer),
        demand: Demand::new(),
        codec: Codec::default(),
        default_timeout: None,
        wait_for_ready: false,
        min_part_bytes: context.min_part_bytes,
        when_full,
        max_waiting: u32::MAX,
        retry: None,
        max_metadata_bytes: context.max_metadata_bytes,
        around: None,
        hedging: Hedges::new(None),
        server: None,
        counts: Arc::new(ChannelCounts::default()),
        spare_pool: OnceLock::new(),
    }
}

/// Has the channel let go of the connection when that ends.
fn tell_of_end(context: &ConnectionContext, shared: &Arc<Shared>) {
    let channel = Arc::downgrade(shared);
    let on_end: OnEvent = Arc::new(move |_| {
        if let Some(shared) = channel.upgrade() {
            ended(&shared);
        }
    });
    let is_up = context.place.zip(context.shard.upgrade()).and_then(|((key, _), shard)| {
        shard.look(key, |peer| peer.tell_channel(on_end, &shared.counts.methods))
    });
    if is_up != Some(true) {
        ended(shared);
    }
}

fn ended(shared: &Shared) {
    if let Targets::Peer(peer) = &shared.targets {
        drop(peer.connection.swap(None));
    }
    shared.demand.tell();
}
