//! Names that stand for several servers.
//!
//! Owns the trait of whatever knows the servers behind a name, and three that do: a list, DNS, and
//! a file ([`File`]).

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use rpc_transport::address::{Address, AddressError, HostPort};

pub use super::resolve_file::File;
pub use crate::channel::endpoint::Endpoint;

/// Why a name leads nowhere.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot resolve {name}: {reason}")]
pub struct ResolveError {
    name: String,
    reason: String,
}

impl ResolveError {
    /// The name, and what is wrong with it or with asking for it.
    #[must_use]
    pub fn new(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { name: name.into(), reason: reason.into() }
    }
}

/// A future of [`Resolve::resolve`].
pub type Resolving<'a> =
    Pin<Box<dyn Future<Output = Result<Vec<Endpoint>, ResolveError>> + Send + 'a>>;

/// A stream of [`Resolve::watch`].
pub type Watching<'a> =
    Pin<Box<dyn Stream<Item = Result<Vec<Endpoint>, ResolveError>> + Send + 'a>>;

/// Finds the servers behind a name, each of which can serve every call.
///
/// It is asked when the first call needs a connection, again when connections are lost or cannot
/// be made, and each
/// [`resolve_every`](crate::client::BalancingPolicy::resolve_every) while the channel is connected;
/// at most once a second. Servers that are new are connected to, and servers that are named no
/// longer get no new calls.
///
/// What it says is not followed blindly, since registries fail, too:
/// - An error changes nothing.
/// - Nobody: calls go on as before for 30 s, unless somebody is named meanwhile.
/// - More than half of the servers are gone at once: those that still answer leave in steps, half
///   of them each 10 s.
/// - Changes are collected for 100 ms.
///
/// One that fails, names nobody, panics, or does not answer within
/// [`connect_timeout`](crate::ChannelBuilder::connect_timeout) is asked again after the backoff of
/// [`reconnect`](crate::ChannelBuilder::reconnect), while a call waits; calls that do not wait
/// fail. Its answers are awaited in the runtime of the channel, and dropped when the channel is.
///
/// ```
/// use rpc_core::client::resolve::{Resolve, ResolveError, Resolving};
///
/// /// Reads a file with one address a line.
/// struct Listed(std::path::PathBuf);
///
/// impl Resolve for Listed {
///     fn name(&self) -> String {
///         self.0.display().to_string()
///     }
///
///     fn resolve(&self) -> Resolving<'_> {
///         Box::pin(async move {
///             let failed = |error: &dyn std::fmt::Display| {
///                 ResolveError::new(self.name(), error.to_string())
///             };
///             let text = std::fs::read_to_string(&self.0).map_err(|error| failed(&error))?;
///             text.lines().map(|line| line.parse().map_err(|error| failed(&error))).collect()
///         })
///     }
/// }
/// ```
pub trait Resolve: Send + Sync + 'static {
    /// The name, for errors and logs. Asked once, when the channel is made.
    fn name(&self) -> String;

    /// The servers now, in any order.
    fn resolve(&self) -> Resolving<'_>;

    /// The servers whenever they change: the whole set each time, the first one at once. A resolver
    /// that can say so is not asked at intervals. When the stream ends, a new one is made after a
    /// while; an error does not end it. Default `None`.
    fn watch(&self) -> Option<Watching<'_>> {
        None
    }
}

impl<R: Resolve + ?Sized> Resolve for Arc<R> {
    fn name(&self) -> String {
        (**self).name()
    }

    fn resolve(&self) -> Resolving<'_> {
        (**self).resolve()
    }

    fn watch(&self) -> Option<Watching<'_>> {
        (**self).watch()
    }
}

/// A list of servers that does not change.
///
/// ```
/// use rpc_core::client::resolve::{Endpoint, StaticList};
///
/// # fn main() -> Result<(), rpc_core::transport::AddressError> {
/// let near: Endpoint = "tcp://10.0.0.7:7471".parse()?;
/// let far: Endpoint = "tcp://10.1.0.7:7471".parse()?;
/// let servers = StaticList::from(vec![near, far.with_priority(1)]);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct StaticList(Vec<Endpoint>);

impl From<Vec<Endpoint>> for StaticList {
    fn from(servers: Vec<Endpoint>) -> Self {
        Self(servers)
    }
}

impl StaticList {
    /// Parses the addresses.
    ///
    /// # Errors
    /// [`AddressError`]: one of them is none.
    pub fn new<A: AsRef<str>>(
        addresses: impl IntoIterator<Item = A>,
    ) -> Result<Self, AddressError> {
        let addresses = addresses.into_iter().map(|address| address.as_ref().parse());
        Ok(Self(addresses.collect::<Result<_, _>>()?))
    }
}

impl Resolve for StaticList {
    fn name(&self) -> String {
        let names: Vec<_> = self.0.iter().map(|it| it.address().to_string()).collect();
        format!("[{}]", names.join(", "))
    }

    fn resolve(&self) -> Resolving<'_> {
        let addresses = self.0.clone();
        Box::pin(async move { Ok(addresses) })
    }
}

/// A host name that DNS, or the hosts file, has several addresses of: one server at each, all at
/// one port.
///
/// A server with an IPv4 and an IPv6 address under the name counts as two, since DNS does not say
/// which addresses belong together: use a name with addresses of one family.
#[derive(Debug, Clone)]
pub struct Dns(Address);

impl Dns {
    /// `auto://name:port`, `tcp://name:port` or `rdma://name:port`.
    ///
    /// # Errors
    /// [`ResolveError`]: not an address, or of a scheme that has no host names.
    pub fn new(address: impl AsRef<str>) -> Result<Self, ResolveError> {
        let text = address.as_ref();
        let address = text
            .parse()
            .map_err(|error: AddressError| ResolveError::new(text, error.to_string()))?;
        match address {
            Address::Auto(..) | Address::Tcp(_) | Address::Rdma(..) => Ok(Self(address)),
            _ => Err(ResolveError::new(
                text,
                "only host names can be looked up in DNS: write auto://name:port, tcp://name:port \
                 or rdma://name:port",
            )),
        }
    }

    pub(super) fn host(&self) -> &HostPort {
        match &self.0 {
            Address::Tcp(at) | Address::Rdma(at, _) | Address::Auto(at, _) => at,
            _ => unreachable!("`new` has looked"),
        }
    }

    /// The address with one of the host's IP addresses instead of its name.
    fn at(&self, at: HostPort) -> Address {
        match &self.0 {
            Address::Rdma(_, local) => Address::Rdma(at, local.clone()),
            Address::Auto(_, local) => Address::Auto(at, local.clone()),
            _ => Address::Tcp(at),
        }
    }
}

impl Resolve for Dns {
    fn name(&self) -> String {
        self.0.to_string()
    }

    fn resolve(&self) -> Resolving<'_> {
        Box::pin(async move {
            let at = self.host();
            let found = tokio::net::lookup_host((at.host.as_str(), at.port)).await;
            let found = found.map_err(|error| {
                let advice = "check its spelling, and that this host can resolve it";
                ResolveError::new(self.name(), format!("{error}; {advice}"))
            })?;
            let mut addresses: Vec<Address> = found.map(|at| self.at(at.into())).collect();
            addresses.sort_by_key(ToString::to_string);
            addresses.dedup();
            Ok(addresses.into_iter().map(Endpoint::from).collect())
        })
    }
}

impl fmt::Debug for dyn Resolve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}
