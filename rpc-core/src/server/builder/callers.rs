//! Which peers may connect, who they are, and what they may call.

use std::future::Future;
use std::sync::Arc;

use futures::FutureExt;
use rpc_transport::device::PeerIdentity;
#[cfg(feature = "tls")]
use rpc_transport::protocol::lock::Role;

use super::ServerBuilder;
use crate::identity::{Credentials, Verified};
#[cfg(feature = "tls")]
use crate::secured::{ExpectedName, Secured};
#[cfg(feature = "tls")]
use crate::security::{Keeper, Tls};
use crate::server::allow::Allow;

impl ServerBuilder {
    /// Adds a check of who may connect, by what the transport knows of the peer: its address, or
    /// over `shm://` the process and its user, as the kernel reports them. It is asked once a
    /// connection, before the connection costs more than the request for it; a peer has to pass all
    /// checks. It must not block. One that panics refuses the peer.
    ///
    /// The peer of a refused connection gets the text of the error, of which 100 bytes are sent, in
    /// a [`ConnectError::Rejected`](crate::ConnectError::Rejected). The server counts it as
    /// [`denied`](crate::stats::ServerStats::denied).
    ///
    /// An address does not prove who calls: everybody who can send from it may connect. Peers of
    /// other users never reach a server over `shm://`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), rpc_core::ListenError> {
    /// use rpc_core::transport::PeerIdentity;
    ///
    /// let server = rpc_core::Server::builder()
    ///     .admit(|peer| match peer {
    ///         PeerIdentity::Network(address) if !address.ip().is_loopback() => {
    ///             Err("this server serves its own machine only")
    ///         }
    ///         _ => Ok(()),
    ///     })
    ///     .bind("tcp://127.0.0.1:0")
    ///     .await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn admit<E: Into<String>>(
        mut self,
        check: impl Fn(&PeerIdentity) -> Result<(), E> + Send + Sync + 'static,
    ) -> Self {
        self.config.door.checks.push(Arc::new(move |peer| check(peer).map_err(Into::into)));
        self
    }

    /// Requires that clients say who they are, by
    /// [`ChannelBuilder::credentials`](crate::ChannelBuilder::credentials), and asks `verify` what
    /// the credentials are worth: once a connection, before any call is taken in and before the
    /// connection gets memory for payloads. Handlers, interceptors and logs then know the caller by
    /// the [name](crate::identity::Identity::name) that it returns. A second one replaces the
    /// first.
    ///
    /// A client that is refused, or says nothing, gets the text of the error, in the error of
    /// `connect`; the server counts it as [`denied`](crate::stats::ServerStats::denied). One whose
    /// credentials have not been verified 15 s after it came is closed. The future runs on the
    /// server's runtime; one that panics refuses the client.
    ///
    /// The transport does not encrypt: over a network the credentials can be read and used by
    /// everybody on the path.
    ///
    /// ```
    /// # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
    /// use rpc_core::identity::Verified;
    /// use rpc_core::{Channel, Context, Server};
    ///
    /// struct Polite;
    ///
    /// impl Greeter for Polite {
    ///     async fn greet(&self) -> String {
    ///         let context = Context::current();
    ///         let caller = context.identity().and_then(|caller| caller.name());
    ///         format!("Good day, {}", caller.unwrap_or("stranger"))
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let server = Server::builder()
    ///     .authenticate(|credentials, _peer| async move {
    ///         match credentials.matches(b"s3cret") {
    ///             true => Ok(Verified::named("Ada")),
    ///             false => Err("this token is not known here"),
    ///         }
    ///     })
    ///     .add_service(GreeterServer::new(Polite))
    ///     .bind("mem://authenticate")
    ///     .await?;
    /// # tokio::spawn(server.serve());
    /// let channel = Channel::builder().credentials("s3cret").connect("mem://authenticate").await?;
    /// assert_eq!(GreeterClient::new(channel).greet().await?, "Good day, Ada");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn authenticate<F, E>(
        mut self,
        verify: impl Fn(Credentials, PeerIdentity) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Verified, E>> + Send + 'static,
        E: Into<String>,
    {
        self.config.door.verify = Some(Arc::new(move |credentials, peer| {
            verify(credentials, peer).map(|verified| verified.map_err(Into::into)).boxed()
        }));
        self
    }

    /// Lets callers call what these rules allow, and nothing else. Everything else ends with
    /// [`PermissionDenied`](crate::Code::PermissionDenied), before its arguments, types and
    /// metadata are looked at, and whether or not there is such a method: who may call nothing
    /// learns nothing. Without this, everybody who can connect may call everything.
    ///
    /// ```
    /// # #[rpc_core::service] pub trait Kv { async fn get(&self) -> u64; async fn clear(&self); }
    /// # struct Store;
    /// # impl Kv for Store { async fn get(&self) -> u64 { 7 } async fn clear(&self) {} }
    /// use rpc_core::server::Allow;
    /// use rpc_core::{Code, Server};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let allow = Allow::nobody()
    ///     .rule(&["anyone"], &["Kv.get"])?
    ///     .rule(&["name:operator", "uid:0"], &["*", "rpc.Reflect.*", "rpc.Stats.*"])?;
    /// let server = Server::builder().allow(allow).add_service(KvServer::new(Store));
    /// # let server = server.bind("mem://allow").await?;
    /// # tokio::spawn(server.serve());
    /// # let kv = KvClient::connect("mem://allow").await?;
    /// assert_eq!(kv.get().await?, 7);
    /// assert_eq!(kv.clear().await.unwrap_err().code(), Code::PermissionDenied);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn allow(mut self, rules: Allow) -> Self {
        self.config.allow = Some(rules);
        self
    }

    /// Accepts connections with TLS alone: client and server prove who they are before the first
    /// call. Handlers find the client's certificate in [`Identity::certificate`], and rules
    /// ([`allow`](Self::allow)) say by SPIFFE ids what each may call. Without rules, all clients
    /// whose certificates are of a trusted authority may call everything.
    ///
    /// A client that is refused gets a text in the error of `connect`; the server counts it as
    /// [`denied`](crate::stats::ServerStats::denied).
    ///
    /// [`Identity::certificate`]: crate::identity::Identity::certificate
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        let secured = |keeper| Secured {
            keeper,
            expected: ExpectedName::OfOptions,
            is_optional: tls.is_optional,
            trusts_kernel: tls.trusts_kernel(),
        };
        let keeper = Keeper::new(&tls, Role::Client).map_err(|error| error.to_string());
        self.config.secured = Some(keeper.map(|keeper| secured(keeper)));
        self
    }
}

#[cfg(all(test, feature = "tls"))]
mod tests {
    use rpc_transport::protocol::config::{Isolation, LinkConfig};
    use test_kit::certificates::Authority;

    use crate::Server;
    use crate::security::Tls;

    const ID: &str = "spiffe://prod.example/kv";

    #[test]
    fn tls_isolates_connections_by_default() {
        let ca = Authority::new("ca");
        let leaf = ca.issue(&[ID]);
        let tls = Tls::from_pem_bytes(&leaf.cert, &leaf.key, ca.pem()).unwrap();
        let isolation = |builder: crate::ServerBuilder| {
            let mut config = builder.config;
            config.check_secured(&[]).unwrap();
            format!("{:?}", config.link).split("isolation: ").nth(1).unwrap()[..12].to_owned()
        };
        let shared = LinkConfig::default().isolation(Isolation::Shared);
        assert_eq!(isolation(Server::builder()), "None, keep_a");
        assert_eq!(isolation(Server::builder().tls(tls.clone())), "Some(PerConn");
        assert_eq!(isolation(Server::builder().tls(tls).link(shared)), "Some(Shared)");
    }
}
