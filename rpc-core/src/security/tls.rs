//! The options of TLS, for both roles.

#[cfg(test)]
mod tests;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rpc_transport::protocol::lock::{FailureReason, HandshakeFailure};
use rpc_transport::user_code::caught;
use rustls::client::Resumption;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::time_provider::TimeProvider;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};

use super::live::{Files, Live, Own, OwnFiles, PeerFiles};
use super::pem::{Origin, TlsError};
use super::provider::provider;
use super::verify::{Expected, Verifier};
use crate::identity::{Identity, Protection};
use crate::status::Status;

/// The protocol of the application, as TLS names it.
pub(super) const PROTOCOL: &[u8] = b"rpc-rdma/1";

/// Who this end is, whom it trusts, and what it expects of its peers: TLS 1.3 for
/// [`ChannelBuilder::tls`](crate::ChannelBuilder::tls) and
/// [`ServerBuilder::tls`](crate::ServerBuilder::tls). Clones share keys and certificates.
///
/// Both ends show a certificate by default. A client accepts a server only under the name that its
/// user wrote: the host of the address, [`server_name`](Self::server_name) or
/// [`expect_peer`](Self::expect_peer). A server accepts every client whose certificate its
/// authorities have issued; [`Allow`](crate::server::Allow) says what each may call.
///
/// ```no_run
/// use rpc_core::security::Tls;
/// use rpc_core::{Channel, Server};
///
/// # async fn f() -> Result<(), Box<dyn std::error::Error>> {
/// let tls = Tls::from_pem("tls/server.pem", "tls/server-key.pem", "tls/ca.pem")?;
/// let server = Server::builder().tls(tls).bind("shm:///run/kv/socket").await?;
///
/// let tls = Tls::from_pem("tls/client.pem", "tls/client-key.pem", "tls/ca.pem")?
///     .expect_peer("spiffe://prod.example/ns/shop/sa/kv");
/// let channel = Channel::builder().tls(tls).connect("shm:///run/kv/socket").await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Tls {
    live: Arc<Live>,
    expected: Option<Expected>,
    /// An option that cannot be understood.
    wrong: Option<TlsError>,
    protection: Option<Protection>,
    pub(super) allows_anonymous: bool,
    pub(super) reload_every: Option<Duration>,
    pub(super) rotation_grace: Duration,
    pub(super) max_session_age: Option<Duration>,
    pub(super) authorize: Option<Authorize>,
    pub(crate) is_optional: bool,
    pub(crate) local: Local,
    clock: Clock,
}

/// How connections over `shm://` and `mem://` are secured. Both ends must say the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Local {
    /// The handshake, as over other transports, and frames in clear behind it: the kernel keeps
    /// others away from them, except for processes that may read the memory of an end.
    #[default]
    Handshake,
    /// The handshake, and encrypted frames. It is for containers that share a user id and a network
    /// namespace: a process of one may pass on the handshake of another, whose frames it would read
    /// in clear. Each frame takes about 0.3 us more at each end, and large values travel as over
    /// `tcp://`.
    Encrypt,
    /// No handshake over `shm://`, as the kernel proves who connects: the peer is a process of the
    /// same user, whose ids are in [`Identity::unix`](crate::identity::Identity::unix). There is no
    /// name that the server proves. It holds for addresses that are written as `shm://`; with
    /// `auto://` there is a handshake, as somebody on the network may have chosen the name of the
    /// memory.
    PeerCredentials,
}

/// What the user says about a peer that has proven who it is.
pub(super) type Authorize = Arc<dyn Fn(&Identity) -> Result<(), Status> + Send + Sync>;

/// The wall clock, which certificates are judged by.
#[derive(Clone)]
pub(super) struct Clock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl Clock {
    pub(super) fn now(&self) -> SystemTime {
        (self.0)()
    }

    /// For verifying.
    pub(super) fn unix(&self) -> UnixTime {
        let since = self.now().duration_since(SystemTime::UNIX_EPOCH);
        UnixTime::since_unix_epoch(since.unwrap_or_default())
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(self.unix())
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock(..)")
    }
}

/// Files are not read without end.
const SHORTEST_RELOAD: Duration = Duration::from_millis(1);
const ROTATION_GRACE: Duration = Duration::from_secs(60);
const MAX_SESSION_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// What a channel needs for its handshakes.
#[derive(Clone)]
pub(super) struct ClientSetup {
    pub(super) config: Arc<ClientConfig>,
    pub(super) name: ServerName<'static>,
}

impl Tls {
    /// The certificate of this end with its chain, its private key, and the authorities of peers,
    /// from three PEM files. The certificate needs a subject alternative name: DNS names, IP
    /// addresses or one SPIFFE id.
    ///
    /// If this end has a SPIFFE id, `ca` holds the authorities of its trust domain, and others are
    /// added by [`trust_domain`](Self::trust_domain).
    ///
    /// # Errors
    /// [`TlsError`]: a file cannot be read or understood, or the key does not belong to the
    /// certificate. It names the file.
    pub fn from_pem(
        cert: impl AsRef<Path>,
        key: impl AsRef<Path>,
        ca: impl AsRef<Path>,
    ) -> Result<Self, TlsError> {
        Self::of_certificate(Origin::file(cert), Origin::file(key), Origin::file(ca))
    }

    /// As [`from_pem`](Self::from_pem), with the contents of the files.
    ///
    /// # Errors
    /// As `from_pem`.
    pub fn from_pem_bytes(
        cert: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
        ca: impl AsRef<[u8]>,
    ) -> Result<Self, TlsError> {
        Self::of_certificate(
            Origin::bytes("the certificate", cert.as_ref()),
            Origin::bytes("the key", key.as_ref()),
            Origin::bytes("the CA", ca.as_ref()),
        )
    }

    /// As [`from_pem`](Self::from_pem), with the files that `RPC_TLS_CERT`, `RPC_TLS_KEY` and
    /// `RPC_TLS_CA` name. The environment is read by this alone.
    ///
    /// # Errors
    /// As `from_pem`; also if one of the variables is not set.
    pub fn from_env() -> Result<Self, TlsError> {
        let [cert, key, ca] = ["RPC_TLS_CERT", "RPC_TLS_KEY", "RPC_TLS_CA"].map(variable);
        Self::from_pem(cert?, key?, ca?)
    }

    /// For clients without a certificate: they trust servers of these authorities, and servers do
    /// not know them. The server has to [allow that](Self::allow_anonymous_clients).
    ///
    /// # Errors
    /// [`TlsError`]: the file cannot be read or understood.
    pub fn server_only(ca: impl AsRef<Path>) -> Result<Self, TlsError> {
        Self::new(Files { own: None, peers: authorities(Origin::file(ca)) })
    }

    /// Without certificates: the private key of this end (PEM, PKCS#8), and the public keys of the
    /// peers that it trusts (PEM or DER, `SubjectPublicKeyInfo`). The peers have raw keys, too.
    ///
    /// # Errors
    /// [`TlsError`]: a key cannot be understood, there is no key of a peer, or one of them is this
    /// end's own, with which a peer could lead this end to itself.
    pub fn raw_keys(
        key: impl AsRef<[u8]>,
        peers: impl IntoIterator<Item = impl AsRef<[u8]>>,
    ) -> Result<Self, TlsError> {
        let peers = peers.into_iter().enumerate();
        let peers =
            peers.map(|(at, peer)| Origin::bytes(&format!("peer key {}", at + 1), peer.as_ref()));
        Self::of_keys(Origin::bytes("the own key", key.as_ref()), peers.collect())
    }

    /// As [`raw_keys`](Self::raw_keys), from files: one with the key of this end, and one for each
    /// peer. [`reload`](Self::reload) reads them again.
    ///
    /// # Errors
    /// As `raw_keys`; also if a file cannot be read.
    pub fn raw_key_files(
        key: impl AsRef<Path>,
        peers: impl IntoIterator<Item = impl AsRef<Path>>,
    ) -> Result<Self, TlsError> {
        Self::of_keys(Origin::file(key), peers.into_iter().map(Origin::file).collect())
    }

    fn of_keys(key: Origin, peers: Vec<Origin>) -> Result<Self, TlsError> {
        Self::new(Files { own: Some(OwnFiles::Key(key)), peers: PeerFiles::Keys(peers) })
    }

    fn of_certificate(chain: Origin, key: Origin, ca: Origin) -> Result<Self, TlsError> {
        let own = Some(OwnFiles::Certificate { chain, key });
        Self::new(Files { own, peers: authorities(ca) })
    }

    fn new(files: Files) -> Result<Self, TlsError> {
        Ok(Self {
            live: Live::read(provider(), files, SystemTime::now())?,
            expected: None,
            wrong: None,
            protection: None,
            allows_anonymous: false,
            reload_every: None,
            rotation_grace: ROTATION_GRACE,
            max_session_age: Some(MAX_SESSION_AGE),
            authorize: None,
            is_optional: false,
            local: Local::default(),
            clock: Clock(Arc::new(SystemTime::now)),
        })
    }

    /// For a client: the DNS name or IP address that the server's certificate must have, in place
    /// of the host of the address.
    #[must_use]
    pub fn server_name(mut self, name: &str) -> Self {
        match ServerName::try_from(name) {
            Ok(name) => self.expected = Some(Expected::Host(name.to_owned())),
            Err(_) => self.wrong(format!("{name:?} is no DNS name and no IP address")),
        }
        self
    }

    /// For a client: the SPIFFE id that the server's certificate must have, in place of the host of
    /// the address.
    #[must_use]
    pub fn expect_peer(mut self, id: &str) -> Self {
        match id.parse() {
            Ok(id) => self.expected = Some(Expected::Spiffe(id)),
            Err(error) => self.wrong(format!("expect_peer: {error}")),
        }
        self
    }

    /// Trusts a further SPIFFE trust domain: these authorities, from a PEM file, may issue ids of
    /// that domain and nothing else.
    ///
    /// # Errors
    /// [`TlsError`]: the file cannot be read or understood, the name is no trust domain, or this
    /// end has raw keys.
    pub fn trust_domain(mut self, name: &str, ca: impl AsRef<Path>) -> Result<Self, TlsError> {
        let id = format!("spiffe://{name}").parse::<crate::identity::SpiffeId>();
        if id.is_err() || name.contains('/') {
            return Err(TlsError(format!("{name:?} is no trust domain: write prod.example")));
        }
        if self.live.has_raw_keys() {
            return Err(TlsError("raw keys belong to no trust domain".to_owned()));
        }
        self.live = self.live.with(self.clock.now(), |files| {
            if let PeerFiles::Authorities { domains, .. } = &mut files.peers {
                domains.insert(name.to_owned(), Origin::file(ca));
            }
        })?;
        Ok(self)
    }

    /// Refuses certificates that a list of an authority revokes, in either role: one or several
    /// lists (CRL) from a PEM file. It may be called several times. A list says nothing about
    /// certificates of other authorities. Once a list has ended, nobody is let in whom it could
    /// name; half-way to that a warning is logged. So reload the file, by
    /// [`reload_every`](Self::reload_every) for example.
    ///
    /// # Errors
    /// [`TlsError`]: the file cannot be read or understood, a list has ended or does not say when
    /// it does, or this end has raw keys.
    pub fn revocations(mut self, lists: impl AsRef<Path>) -> Result<Self, TlsError> {
        if self.live.has_raw_keys() {
            return Err(TlsError("no authority revokes raw keys".to_owned()));
        }
        self.live = self.live.with(self.clock.now(), |files| {
            if let PeerFiles::Authorities { revoked, .. } = &mut files.peers {
                revoked.push(Origin::file(lists));
            }
        })?;
        Ok(self)
    }

    /// Reads all files again, for all clones of this and for all servers and channels that have
    /// one. If something has changed, it holds for every handshake from now on, and the peers of
    /// the connections that are up are verified again, in the background: connections to peers that
    /// are no longer trusted are closed at once, with their calls. Returns whether something has
    /// changed. It blocks for as long as reading takes.
    ///
    /// Files are compared by content. The methods that add files must be called before, and make a
    /// `Tls` that is read separately.
    ///
    /// # Errors
    /// As [`from_pem`](Self::from_pem). What was read before goes on.
    pub fn reload(&self) -> Result<bool, TlsError> {
        self.live.reload(self.clock.now())
    }

    /// [Reloads](Self::reload) after each such time, while a server or channel has this, or a port
    /// of `rpc-admin` serves with it. Files that cannot be read or understood leave what was read
    /// before, and are logged as a warning. Default: never. At least 1 ms.
    #[must_use]
    pub fn reload_every(mut self, period: Duration) -> Self {
        self.reload_every = Some(period.max(SHORTEST_RELOAD));
        self
    }

    /// How long the calls of a connection may still run when it is replaced by a new one: because
    /// the peer's certificate has ended, this end has a newer one, or the connection has reached
    /// its [age](Self::max_session_age). Then it is closed. Default: 60 s.
    #[must_use]
    pub fn rotation_grace(mut self, grace: Duration) -> Self {
        self.rotation_grace = grace;
        self
    }

    /// For a server: how long a connection is used before the client has to make a new one, with
    /// another handshake. `None`: as long as the certificates are valid. Default: 24 h. Streams
    /// that run for longer are cut after the [grace](Self::rotation_grace).
    #[must_use]
    pub fn max_session_age(mut self, age: impl Into<Option<Duration>>) -> Self {
        self.max_session_age = age.into();
        self
    }

    /// Adds a check of every peer that has proven who it is: once a connection, before the first
    /// call, and again after each [`reload`](Self::reload) that has changed something. It must not
    /// block. One that panics refuses the peer. A second one replaces the first.
    ///
    /// A client that is refused gets the status's message, of which 100 bytes are sent, in
    /// [`ConnectError::Handshake`](crate::ConnectError::Handshake). The server counts it as
    /// [`denied`](crate::stats::ServerStats::denied).
    ///
    /// ```no_run
    /// # fn f() -> Result<(), Box<dyn std::error::Error>> {
    /// use rpc_core::Status;
    /// use rpc_core::security::Tls;
    ///
    /// let tls = Tls::from_pem("tls/server.pem", "tls/server-key.pem", "tls/ca.pem")?;
    /// let tls = tls.authorize(|peer| match peer.spiffe() {
    ///     Some(id) if id.path().starts_with("/ns/shop/") => Ok(()),
    ///     _ => Err(Status::permission_denied("this server serves the shop only")),
    /// });
    /// # let _ = tls; Ok(()) }
    /// ```
    #[must_use]
    pub fn authorize(
        mut self,
        check: impl Fn(&Identity) -> Result<(), Status> + Send + Sync + 'static,
    ) -> Self {
        self.authorize = Some(Arc::new(check));
        self
    }

    /// For a server whose clients get TLS one after another: accepts plain connections, too. It
    /// needs [`ServerBuilder::allow`](crate::ServerBuilder::allow), whose rules name such clients
    /// as `anonymous`; `anyone` includes them. As long as it is on, an attacker connects without
    /// TLS: so what `anonymous` may call, everybody may call.
    #[must_use]
    pub fn optional(mut self) -> Self {
        self.is_optional = true;
        self
    }

    /// How connections within a machine are secured. Default: [`Local::Handshake`].
    #[must_use]
    pub fn local(mut self, local: Local) -> Self {
        self.local = local;
        self
    }

    /// Judges certificates by this clock, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_clock(mut self, now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        self.clock = Clock(Arc::new(now));
        self
    }

    /// For a server: accepts clients without a certificate, too. They have no
    /// [certificate](crate::identity::Identity::certificate), so rules by SPIFFE id do not match
    /// them.
    #[must_use]
    pub fn allow_anonymous_clients(mut self) -> Self {
        self.allows_anonymous = true;
        self
    }

    /// How connections over `tcp://` and `rdma://` are protected; both ends must say the same. The
    /// default is [`Protection::Encrypt`]. [`Protection::Authenticate`] keeps strangers out but
    /// neither hides nor protects what is sent: it suits a network that nobody taps. For `mem://`
    /// and `shm://` there is [`local`](Self::local).
    #[must_use]
    pub fn protection(mut self, protection: Protection) -> Self {
        self.protection = Some(protection);
        self
    }

    /// Key exchange by these groups alone.
    #[cfg(test)]
    pub(super) fn with_groups(
        mut self,
        groups: &[&'static dyn rustls::crypto::SupportedKxGroup],
    ) -> Self {
        use rustls::crypto::CryptoProvider;

        let kx_groups = groups.to_vec();
        let provider = CryptoProvider { kx_groups, ..(*self.live.provider).clone() };
        self.live = self.live.with_provider(provider);
        self
    }

    fn wrong(&mut self, text: String) {
        self.wrong.get_or_insert(TlsError(text));
    }

    /// Checks the options that have no result of their own.
    pub(super) fn check(&self) -> Result<(), TlsError> {
        match &self.wrong {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    pub(super) fn said_protection(&self) -> Option<Protection> {
        self.protection
    }

    pub(super) fn live(&self) -> &Arc<Live> {
        &self.live
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Asks the user about a peer.
    pub(super) fn ask(&self, peer: &Identity) -> Result<(), HandshakeFailure> {
        let Some(check) = &self.authorize else { return Ok(()) };
        let failed = || Err(Status::permission_denied("this end failed to check its peer"));
        caught(|| check(peer)).unwrap_or_else(failed).map_err(|status| {
            let told = status.message();
            let text = format!("the check of `Tls::authorize` refuses {peer}: {told}");
            HandshakeFailure::new(FailureReason::Denied, text, told)
        })
    }

    /// The trust domain of `ca.pem`, where this end has no id that says it.
    pub(super) fn expected_domain(&self) -> Option<&str> {
        self.expected.as_ref()?.trust_domain()
    }

    /// Whether the name of the server is known without an address.
    pub(crate) fn names_its_peer(&self) -> bool {
        self.expected.is_some() || self.live.has_raw_keys()
    }

    /// Whether `shm://` needs no handshake.
    pub(crate) fn trusts_kernel(&self) -> bool {
        self.local == Local::PeerCredentials
    }

    /// For connections to a server; `host` is that of the address that the user wrote.
    pub(super) fn client(&self, host: Option<&str>) -> Result<ClientSetup, TlsError> {
        self.check()?;
        let unusable = |error: rustls::Error| TlsError(format!("TLS cannot be used: {error}"));
        let live = &self.live;
        let builder = ClientConfig::builder_with_provider(Arc::clone(&live.provider));
        let builder = builder.with_protocol_versions(&[&TLS13]).map_err(unusable)?.dangerous();
        let expected = match (live.has_raw_keys(), &self.expected, host) {
            (true, ..) => None,
            (false, Some(expected), _) => Some(expected.clone()),
            (false, None, None) => return Err(TlsError(NO_NAME.to_owned())),
            (false, None, Some(host)) => {
                let name = ServerName::try_from(host).map_err(|_| {
                    TlsError(format!("{host:?} is no name that a certificate can have"))
                })?;
                Some(Expected::Host(name.to_owned()))
            }
        };
        let name = match &expected {
            Some(Expected::Host(name)) => name.clone(),
            _ => ServerName::IpAddress(std::net::IpAddr::from([0; 4]).into()),
        };
        let verifier = Verifier { live: Arc::clone(live), expected, is_mandatory: true };
        let builder = builder.with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match live.has_own() {
            true => builder.with_client_cert_resolver(Arc::new(Own(Arc::clone(live)))),
            false => builder.with_no_client_auth(),
        };
        config.time_provider = Arc::new(self.clock.clone());
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.resumption = Resumption::disabled();
        config.enable_early_data = false;
        Ok(ClientSetup { config: Arc::new(config), name })
    }

    /// For connections from clients.
    pub(super) fn server(&self, protocol: &[u8]) -> Result<Arc<ServerConfig>, TlsError> {
        self.check()?;
        let unusable = |error: rustls::Error| TlsError(format!("TLS cannot be used: {error}"));
        if !self.live.has_own() {
            let text = "a server needs a certificate: use `Tls::from_pem`";
            return Err(TlsError(text.to_owned()));
        }
        let (live, is_mandatory) = (Arc::clone(&self.live), !self.allows_anonymous);
        let builder = ServerConfig::builder_with_provider(Arc::clone(&live.provider));
        let builder = builder.with_protocol_versions(&[&TLS13]).map_err(unusable)?;
        let own = Arc::new(Own(Arc::clone(&live)));
        let verifier = Arc::new(Verifier { live, expected: None, is_mandatory });
        let mut config = builder.with_client_cert_verifier(verifier).with_cert_resolver(own);
        config.time_provider = Arc::new(self.clock.clone());
        config.alpn_protocols = vec![protocol.to_vec()];
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.max_early_data_size = 0;
        Ok(Arc::new(config))
    }
}

pub(super) const NO_NAME: &str = "TLS needs the name of the server: say `expect_peer` or `server_name`, as this address has no \
     host name that its user wrote";

fn authorities(own: Origin) -> PeerFiles {
    PeerFiles::Authorities { own, domains: Default::default(), revoked: Vec::new() }
}

/// The file that an environment variable names.
fn variable(name: &str) -> Result<PathBuf, TlsError> {
    let missing = || TlsError(format!("{name} is not set: it must be the path of a PEM file"));
    std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from).ok_or_else(missing)
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let trusts = if self.live.has_raw_keys() { "raw keys" } else { "authorities" };
        f.debug_struct("Tls")
            .field("trusts", &trusts)
            .field("expected", &self.expected)
            .field("protection", &self.protection)
            .finish_non_exhaustive()
    }
}
