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
    /// What to connect to instead when this fails, and why: the TCP port of `auto://`. By a connection
    /// of its own, as the server waits 5 s at most for what is to follow on one.
    pub otherwise: Option<(Address, String)>,
}

impl Resolved {
    /// A connection without an alternative.
    pub(crate) fn new(outgoing: Box<dyn Outgoing>, address: Address, reason: String) -> Self {
        Self { outgoing, address, reason, otherwise: None }
    }
}
