//! The outcome of resolving an address.

use crate::connect::address::Address;
use crate::device::Outgoing;

/// A connection to be made, and why this transport was chosen.
#[derive(Debug)]
pub struct Resolved {
    /// The connection to be.
    pub outgoing: Box<dyn Outgoing>,
    /// The address to connect to; for `auto://` the chosen one.
    pub address: Address,
    /// Why this transport was chosen, for people to read.
    pub reason: String,
    /// What to connect instead when this fails: the TCP connection of `auto://`.
    pub otherwise: Option<Box<Resolved>>,
}

impl Resolved {
    /// A connection without an alternative.
    pub(crate) fn new(outgoing: Box<dyn Outgoing>, address: Address, reason: String) -> Self {
        Self { outgoing, address, reason, otherwise: None }
    }
}
