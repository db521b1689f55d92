//! The way from a connection back to its peer: a handle of the connection, and a channel that ends
//! with it.
//!
//! Neither keeps the connection alive. A channel holds its place in the shard until the connection
//! has ended, and a call until it has its outcome, so that what had arrived can be taken.
//!
//! Invariant: there is one channel to the peer of a connection at a time; clones share it. So what
//! a connection knows of its channels does not grow with them.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use rpc_transport::device::PeerIdentity;
use rpc_transport::device::connection_error::CloseCause;
use rpc_transport::engine::clock;
use rpc_transport::protocol::config::WhenFull;

use super::Channel;
use super::connection::{Connection, LeadsTo};
use super::peer::{Peer, Whom};
use super::shared::{Shared, Targets};
use super::subchannel::Demand;
use crate::codec::Codec;
use crate::context::Context;
use crate::endpoint::connection_context::ConnectionContext;
use crate::endpoint::ended::OnEvent;
use crate::runtime::phase::Phase;

impl Context {
    /// The connection that the call came over; `None` outside of a handler.
    #[must_use]
    pub fn connection(&self) -> Option<ConnectionHandle> {
        self.connected().map(|context| ConnectionHandle(Arc::clone(context)))
    }
}

/// The connection that a call came over, from [`Context::connection`]. Cheap to clone; handles of
/// the same connection are equal. Keep it after the handler has ended to call the peer later; it
/// does not keep the connection alive.
///
/// ```
/// use rpc_core::Context;
/// use rpc_core::client::ConnectionHandle;
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
    /// The peer's identity, as far as the transport knows it; over a network, its address.
    #[must_use]
    pub fn peer(&self) -> &PeerIdentity {
        self.0.identity.peer()
    }

    /// Time since the connection was set up.
    #[must_use]
    pub fn age(&self) -> Duration {
        let since = self.0.place.map(|(_, since)| since);
        since.map_or(Duration::ZERO, |since| clock::now().saturating_duration_since(since))
    }

    /// Whether one of the ends has begun to shut down. If the peer has, calls to it fail. If this
    /// server has, it may still make calls while its handlers end.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.0.phase.as_ref().is_some_and(|phase| phase.has_reached(Phase::Draining))
            || is_going_away(&self.0)
    }

    /// Why the connection ended; `None` while it is open. [`Channel::closed`] waits for the end.
    #[must_use]
    pub fn close_cause(&self) -> Option<CloseCause> {
        self.0.close_cause()
    }

    /// A channel to the peer over this connection alone. It has the defaults of a channel, but does
    /// not [`retry`](crate::ChannelBuilder::retry). All channels of one connection are clones. When
    /// the connection has ended, calls fail with [`Unavailable`](crate::Code::Unavailable). If the
    /// peer serves nothing, they fail with [`Unimplemented`](crate::Code::Unimplemented).
    ///
    /// The peer limits the calls that it runs at once
    /// ([`max_calls_per_connection`](crate::ServerBuilder::max_calls_per_connection)); further
    /// calls wait. Calls that handlers make to their own callers wait only if that cannot deadlock
    /// the two ends; otherwise they fail with a retryable
    /// [`ResourceExhausted`](crate::Code::ResourceExhausted). If calls back and forth nest more
    /// than one level deep, give the first one a deadline, which nested calls inherit. Each level
    /// occupies one of the calls that its callee runs at once, and if all of these wait for deeper
    /// calls, none ends.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    #[must_use]
    pub fn channel(&self) -> Channel {
        if !self.0.process.is_current() {
            return Channel { shared: Arc::new(shared_of(&self.0)) };
        }
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
            // The channel lets go of the connection when that ends.
            let channel = Arc::downgrade(&shared);
            let on_end: OnEvent = Arc::new(move |_| {
                if let Some(shared) = channel.upgrade() {
                    ended(&shared);
                }
            });
            let place = self.0.place.zip(self.0.shard.upgrade());
            let is_up = place.and_then(|((key, _), shard)| {
                shard.look(key, |peer| peer.report_end_to(on_end, &shared.counts.methods))
            });
            if is_up != Some(true) {
                ended(&shared);
            }
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
            runtime: None,
            load: None,
        })
    });
    let whom = Whom::Peer(Arc::clone(context));
    let peer = Peer { connection: ArcSwapOption::new(connection), whom };
    Shared {
        when_full,
        min_part_bytes: context.min_part_bytes,
        max_metadata_bytes: context.max_metadata_bytes,
        process: context.process,
        ..Shared::to_peer(peer, Demand::new(), Codec::default())
    }
}

fn ended(shared: &Shared) {
    if let Targets::Peer(peer) = &shared.targets {
        drop(peer.connection.swap(None));
    }
    shared.demand.tell();
}
