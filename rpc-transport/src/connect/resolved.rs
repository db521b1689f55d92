//! The outcome of resolving an address.

use std::sync::Arc;

use crate::address::Address;
use crate::device::{Exchange, Outgoing};

/// A connection to be made, and why this transport was chosen.
#[derive(Debug)]
pub struct Resolved {
    /// The connection to be.
    pub outgoing: Box<dyn Outgoing>,
    /// The address to connect to; for `auto://` the chosen one.
    pub address: Address,
    /// Why this transport was chosen, for people to read.
    pub reason: String,
    /// The alternative to connect to when this fails, and the reason for it: the TCP port of
    /// `auto://`. It needs a connection of its own, since the server waits at most 5 s for the next
    /// message on the first one.
    pub otherwise: Option<(Address, String)>,
    /// The exchange of `auto://` that led to the address, for a handshake of identities to confirm.
    pub exchange: Option<Arc<Exchange>>,
}

impl Resolved {
    /// A connection without an alternative.
    pub(crate) fn new(outgoing: Box<dyn Outgoing>, address: Address, reason: String) -> Self {
        Self { outgoing, address, reason, otherwise: None, exchange: None }
    }
}
