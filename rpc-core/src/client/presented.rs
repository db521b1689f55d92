//! What a channel says of itself on each of its connections.
//!
//! Invariant: credentials leave this process only over a connection that others cannot read, or
//! where the user allows it.

use std::fmt;
use std::sync::Arc;

use rpc_transport::address::Address;
use rpc_transport::device::connection_error::ConnectError;
use rpc_transport::user_code::caught;

use crate::identity::Credentials;
use crate::wire::MAX_CREDENTIALS_BYTES;

/// The source of a channel's credentials.
#[derive(Clone)]
pub(super) struct Presented(Arc<dyn Fn() -> Credentials + Send + Sync>);

impl Presented {
    pub(super) fn new(source: impl Fn() -> Credentials + Send + Sync + 'static) -> Self {
        Self(Arc::new(source))
    }

    /// The credentials for a connection to this address. `hides`: it is encrypted, or the user
    /// allows clear ones.
    ///
    /// # Errors
    /// [`ConnectError::Config`]: they must not go there, or are too long.
    pub(super) fn at(&self, address: &Address, hides: bool) -> Result<Credentials, ConnectError> {
        if !hides && !matches!(address.scheme(), "mem" | "shm") {
            return Err(ConnectError::Config(format!(
                "the credentials would be sent unencrypted to {address}: connect over shm://, \
                 encrypt with `tls(..)`, or call `allow_clear_credentials()` if nobody else can \
                 read that network"
            )));
        }
        let panicked = || ConnectError::Config("the source of the credentials has panicked".into());
        let credentials = caught(|| (self.0)()).ok_or_else(panicked)?;
        match credentials.as_bytes().len() {
            ..=MAX_CREDENTIALS_BYTES => Ok(credentials),
            len => Err(ConnectError::Config(format!(
                "credentials of {len} bytes, where {MAX_CREDENTIALS_BYTES} are the most"
            ))),
        }
    }
}

impl fmt::Debug for Presented {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Presented(..)")
    }
}
