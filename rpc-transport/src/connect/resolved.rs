//! What an address leads to.

use crate::connect::address::Address;
use crate::device::Outgoing;

/// A connection on its way out, and how it came to be this one.
#[derive(Debug)]
pub struct Resolved {
    /// The connection to be.
    pub outgoing: Box<dyn Outgoing>,
    /// The address that is being connected; for `auto://` the one that was chosen.
    pub address: Address,
    /// Why this way, for people.
    pub reason: String,
}
