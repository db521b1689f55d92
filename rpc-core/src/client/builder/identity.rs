//! Who this end is, and who its servers must be.

use std::any::Any;

use rpc_transport::device::connection_error::ConnectError;
#[cfg(feature = "tls")]
use rpc_transport::protocol::lock::Role;

use super::ChannelBuilder;
use crate::client::presented::Presented;
use crate::client::resolve::{Dns, StaticList};
use crate::identity::Credentials;
use crate::secured::ExpectedName;
#[cfg(feature = "tls")]
use crate::secured::Secured;
#[cfg(feature = "tls")]
use crate::security::{Keeper, Tls};

impl ChannelBuilder {
    /// Says who this client is, to servers that
    /// [`authenticate`](crate::ServerBuilder::authenticate) their clients, on each connection
    /// before the first call. At most 8,192 bytes; other servers ignore them. They are in no log
    /// and no `Debug`.
    ///
    /// [`connect`](Self::connect) then waits until the server has let the client in, and fails with
    /// the server's reason ([`ConnectError::Rejected`]) if it does not. Over `tcp://` and `rdma://`
    /// it fails unless TLS encrypts, or
    /// [`allow_clear_credentials`](Self::allow_clear_credentials) was called.
    #[must_use]
    pub fn credentials(self, credentials: impl Into<Credentials>) -> Self {
        let credentials = credentials.into();
        self.credentials_from(move || credentials.clone())
    }

    /// As [`credentials`](Self::credentials), asked for each connection: for tokens that expire.
    /// `source` must not block.
    #[must_use]
    pub fn credentials_from(
        mut self,
        source: impl Fn() -> Credentials + Send + Sync + 'static,
    ) -> Self {
        self.presented = Some(Presented::new(source));
        self
    }

    /// Sends credentials also over `tcp://` and `rdma://` without encryption, where everybody on
    /// the path can read them and use them as their own.
    #[must_use]
    pub fn allow_clear_credentials(mut self) -> Self {
        self.allows_clear_credentials = true;
        self
    }

    /// Connects with TLS: the server proves who it is, and this end, too. The name that the server
    /// must prove is that of [`Tls::expect_peer`] or [`Tls::server_name`], or else the host in the
    /// address: as it is written here, in a [`StaticList`](crate::client::resolve::StaticList) or
    /// in a [`Dns`](crate::client::resolve::Dns). Addresses without a host, and other resolvers,
    /// need one of the two.
    ///
    /// A server without TLS, or one that proves another name, is an error of
    /// [`connect`](Self::connect): [`ConnectError::Handshake`].
    ///
    /// ```no_run
    /// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
    /// use rpc_core::Channel;
    /// use rpc_core::security::Tls;
    ///
    /// let tls = Tls::from_pem("tls/client.pem", "tls/client-key.pem", "tls/ca.pem")?;
    /// let channel = Channel::builder()
    ///     .tls(tls.expect_peer("spiffe://dev.local/server"))
    ///     .connect("shm://kv")
    ///     .await?;
    /// # drop(channel); Ok(()) }
    /// ```
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        let secured = |keeper| Secured {
            keeper,
            expected: match tls.names_its_peer() {
                true => ExpectedName::OfOptions,
                false => ExpectedName::OfAddress,
            },
            is_optional: false,
            trusts_kernel: tls.trusts_kernel(),
        };
        let keeper = Keeper::new(&tls, Role::Server).map_err(|error| error.to_string());
        self.secured = Some(keeper.map(|keeper| secured(keeper)));
        self
    }

    /// The servers that a resolver names have to prove a name that the user wrote, not one of the
    /// resolver.
    pub(super) fn expect_names_of(&mut self, resolver: &dyn Any) -> Result<(), ConnectError> {
        let Some(Ok(secured)) = &mut self.secured else { return Ok(()) };
        if secured.expected == ExpectedName::OfOptions || resolver.is::<StaticList>() {
            return Ok(());
        }
        secured.expected = match resolver.downcast_ref::<Dns>() {
            Some(dns) => ExpectedName::Host(dns.host().host.clone()),
            None => {
                let text = "TLS needs the name of the servers, and it must not be one that a \
                            resolver says: say `Tls::expect_peer` or `Tls::server_name`";
                return Err(ConnectError::Config(text.to_owned()));
            }
        };
        Ok(())
    }
}
