//! Names that stand for several servers.
//!
//! Owns the trait of whatever knows the addresses behind a name, and two that do: a list, and DNS.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use rpc_transport::connect::address::{Address, AddressError, HostPort};

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
    Pin<Box<dyn Future<Output = Result<Vec<Address>, ResolveError>> + Send + 'a>>;

/// Finds the servers behind a name, each of which can serve every call.
///
/// It is asked when the first call needs a connection, and again when connections are lost or
/// cannot be made, at most once a second.
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
    /// The name, for errors and logs.
    fn name(&self) -> String;

    /// The addresses now, in any order. None of them is an error of the caller's, which then keeps
    /// to those that it had.
    fn resolve(&self) -> Resolving<'_>;
}

/// A list of addresses that does not change.
#[derive(Debug, Clone)]
pub struct StaticList(Vec<Address>);

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
        let names: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        format!("[{}]", names.join(", "))
    }

    fn resolve(&self) -> Resolving<'_> {
        let addresses = self.0.clone();
        Box::pin(async move { Ok(addresses) })
    }
}

/// A host name that DNS, or the hosts file, has several addresses of: one server at each, all at
/// one port.
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
                "DNS knows hosts: write auto://name:port, tcp://name:port or rdma://name:port",
            )),
        }
    }

    fn host(&self) -> &HostPort {
        match &self.0 {
            Address::Tcp(at) | Address::Rdma(at, _) | Address::Auto(at, _) => at,
            _ => unreachable!("`new` has looked"),
        }
    }

    /// The same address with one of the host's in place of its name.
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
                let advice = "is the name spelled right, and does this host know it?";
                ResolveError::new(self.name(), format!("{error}; {advice}"))
            })?;
            let mut addresses: Vec<Address> = found.map(|at| self.at(at.into())).collect();
            addresses.sort_by_key(ToString::to_string);
            addresses.dedup();
            Ok(addresses)
        })
    }
}

impl fmt::Debug for dyn Resolve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}
