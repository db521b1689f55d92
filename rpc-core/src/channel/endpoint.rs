//! An end point as a resolver names it.

use std::str::FromStr;
use std::sync::Arc;

use rpc_transport::address::{Address, AddressError};

/// The largest weight.
const MAX_WEIGHT: u32 = 1000;

/// A server behind a name. One that is only an address, which is what `parse` and `From` make, has
/// the defaults of all else.
///
/// ```
/// use rpc_core::client::resolve::Endpoint;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = "auto://10.0.0.7:7471".parse::<Endpoint>()?.with_weight(200).with_zone("a");
/// assert_eq!((server.weight(), server.priority()), (200, 0));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    address: Address,
    weight: u32,
    priority: u8,
    zone: Option<Arc<str>>,
    is_draining: bool,
}

impl Endpoint {
    /// How many calls it gets, compared with the others: from 1 to 1,000, values beyond are
    /// brought there. Default 100.
    #[must_use]
    pub fn with_weight(mut self, weight: u32) -> Self {
        self.weight = weight.clamp(1, MAX_WEIGHT);
        self
    }

    /// Lower ones get the calls, as in SRV records. Those of the next priority get calls where
    /// less than half of the servers of this one can take any. Default 0.
    #[must_use]
    pub fn with_priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Where it runs. Channels prefer servers of their own zone
    /// ([`BalancingPolicy::zone`](crate::client::BalancingPolicy::zone)).
    #[must_use]
    pub fn with_zone(mut self, zone: impl Into<Arc<str>>) -> Self {
        self.zone = Some(zone.into());
        self
    }

    /// It is about to shut down: it gets calls only if there is no other.
    #[must_use]
    pub fn draining(mut self) -> Self {
        self.is_draining = true;
        self
    }

    /// The address.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// See [`Endpoint::with_weight`].
    #[must_use]
    pub fn weight(&self) -> u32 {
        self.weight
    }

    /// See [`Endpoint::with_priority`].
    #[must_use]
    pub fn priority(&self) -> u8 {
        self.priority
    }

    /// See [`Endpoint::with_zone`].
    #[must_use]
    pub fn zone(&self) -> Option<&str> {
        self.zone.as_deref()
    }

    /// See [`Endpoint::draining`].
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.is_draining
    }
}

impl From<Address> for Endpoint {
    fn from(address: Address) -> Self {
        Self { address, weight: 100, priority: 0, zone: None, is_draining: false }
    }
}

impl FromStr for Endpoint {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        text.parse::<Address>().map(Self::from)
    }
}
