//! The options of TLS, for both roles.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{ServerName, SubjectPublicKeyInfoDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, ServerConfig};

use super::pem::{Source, TlsError};
use super::provider::provider;
use super::verify::{Authorities, ClientVerifier, Expected, KeyVerifier, ServerVerifier, Trust};
use crate::identity::Protection;

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
    provider: Arc<CryptoProvider>,
    /// The certificate or raw key of this end.
    own: Option<Arc<CertifiedKey>>,
    trusted: Trusted,
    expected: Option<Expected>,
    /// An option that cannot be understood.
    wrong: Option<TlsError>,
    protection: Option<Protection>,
    allows_anonymous: bool,
}

#[derive(Clone)]
enum Trusted {
    Authorities(Trust),
    Keys(Arc<[SubjectPublicKeyInfoDer<'static>]>),
}

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
        let [cert, key, ca] = [cert.as_ref(), key.as_ref(), ca.as_ref()].map(Source::file);
        Self::from_sources(&cert?, &key?, &ca?)
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
        Self::from_sources(
            &Source::bytes("the certificate", cert.as_ref()),
            &Source::bytes("the key", key.as_ref()),
            &Source::bytes("the CA", ca.as_ref()),
        )
    }

    /// As [`from_pem`](Self::from_pem), with the files that `RPC_TLS_CERT`, `RPC_TLS_KEY` and
    /// `RPC_TLS_CA` name. The environment is read by this alone.
    ///
    /// # Errors
    /// As `from_pem`; also if one of the variables is not set.
    pub fn from_env() -> Result<Self, TlsError> {
        let [cert, key, ca] = ["RPC_TLS_CERT", "RPC_TLS_KEY", "RPC_TLS_CA"].map(Source::variable);
        Self::from_pem(cert?, key?, ca?)
    }

    /// For clients without a certificate: they trust servers of these authorities, and servers do
    /// not know them. The server has to [allow that](Self::allow_anonymous_clients).
    ///
    /// # Errors
    /// [`TlsError`]: the file cannot be read or understood.
    pub fn server_only(ca: impl AsRef<Path>) -> Result<Self, TlsError> {
        let provider = provider();
        let own = authorities(&Source::file(ca.as_ref())?, &provider)?;
        let trust = Trust { own, own_domain: None, domains: Default::default() };
        Ok(Self::new(provider, None, Trusted::Authorities(trust)))
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
        let provider = provider();
        let key = Source::bytes("the own key", key.as_ref()).private_key(&provider)?;
        let Some(public) = key.public_key() else {
            return Err(TlsError("the own key has no public key that can be shown".to_owned()));
        };
        let peers = peers.into_iter().enumerate().map(|(at, peer)| {
            Source::bytes(&format!("peer key {}", at + 1), peer.as_ref()).public_key()
        });
        let peers = peers.collect::<Result<Vec<_>, _>>()?;
        if peers.is_empty() {
            return Err(TlsError("no peer's key is given, so nobody could connect".to_owned()));
        }
        if peers.contains(&public.clone().into_owned()) {
            let text = "the own key is among those of the peers: give each end a key of its own";
            return Err(TlsError(text.to_owned()));
        }
        let shown = vec![public.as_ref().to_vec().into()];
        let own = CertifiedKey::new(shown, key);
        Ok(Self::new(provider, Some(own), Trusted::Keys(peers.into())))
    }

    fn from_sources(cert: &Source, key: &Source, ca: &Source) -> Result<Self, TlsError> {
        let provider = provider();
        let (certified, said) = cert.certified(key, &provider)?;
        let own_domain = said.spiffe().map(|id| id.trust_domain().to_owned());
        let own = authorities(ca, &provider)?;
        let trust = Trust { own, own_domain, domains: Default::default() };
        Ok(Self::new(provider, Some(certified), Trusted::Authorities(trust)))
    }

    fn new(provider: Arc<CryptoProvider>, own: Option<CertifiedKey>, trusted: Trusted) -> Self {
        Self {
            provider,
            own: own.map(Arc::new),
            trusted,
            expected: None,
            wrong: None,
            protection: None,
            allows_anonymous: false,
        }
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
        let Trusted::Authorities(trust) = &mut self.trusted else {
            return Err(TlsError("raw keys belong to no trust domain".to_owned()));
        };
        let bundle = authorities(&Source::file(ca.as_ref())?, &self.provider)?;
        trust.domains.insert(name.to_owned(), bundle);
        Ok(self)
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
    /// neither hides nor protects what is sent: it suits a network that nobody taps. Over `mem://`
    /// and `shm://` the kernel keeps others away from what is sent, and either is the latter.
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
        let kx_groups = groups.to_vec();
        self.provider = Arc::new(CryptoProvider { kx_groups, ..(*self.provider).clone() });
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

    pub(super) fn has_raw_keys(&self) -> bool {
        matches!(self.trusted, Trusted::Keys(_))
    }

    /// Whether the name of the server is known without an address.
    pub(crate) fn names_its_peer(&self) -> bool {
        self.expected.is_some() || self.has_raw_keys()
    }

    /// For connections to a server; `host` is that of the address that the user wrote.
    pub(super) fn client(&self, host: Option<&str>) -> Result<ClientSetup, TlsError> {
        self.check()?;
        let unusable = |error: rustls::Error| TlsError(format!("TLS cannot be used: {error}"));
        let builder = ClientConfig::builder_with_provider(Arc::clone(&self.provider));
        let builder = builder.with_protocol_versions(&[&TLS13]).map_err(unusable)?.dangerous();
        let algorithms = self.provider.signature_verification_algorithms;
        let nameless = ServerName::IpAddress(std::net::IpAddr::from([0; 4]).into());
        let (mut config, name) = match &self.trusted {
            Trusted::Keys(keys) => {
                let verifier = Arc::new(KeyVerifier { keys: Arc::clone(keys), algorithms });
                let builder = builder.with_custom_certificate_verifier(verifier);
                let own = self.own.clone().ok_or_else(|| TlsError("no own key".to_owned()))?;
                let resolver = AlwaysResolvesClientRawPublicKeys::new(own);
                (builder.with_client_cert_resolver(Arc::new(resolver)), nameless)
            }
            Trusted::Authorities(trust) => {
                let host = || {
                    let host = host.ok_or_else(|| TlsError(NO_NAME.to_owned()))?;
                    let name = ServerName::try_from(host).map_err(|_| {
                        TlsError(format!("{host:?} is no name that a certificate can have"))
                    })?;
                    Ok(Expected::Host(name.to_owned()))
                };
                let expected = self.expected.clone().map_or_else(host, Ok)?;
                let mut trust = trust.clone();
                let name = match &expected {
                    Expected::Host(name) => name.clone(),
                    Expected::Spiffe(id) => {
                        let domain = || id.trust_domain().to_owned();
                        trust.own_domain.get_or_insert_with(domain);
                        nameless
                    }
                };
                let verifier = Arc::new(ServerVerifier { trust, expected, algorithms });
                let builder = builder.with_custom_certificate_verifier(verifier);
                let config = match &self.own {
                    Some(own) => builder.with_client_cert_resolver(Arc::new(Own(Arc::clone(own)))),
                    None => builder.with_no_client_auth(),
                };
                (config, name)
            }
        };
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.resumption = Resumption::disabled();
        config.enable_early_data = false;
        Ok(ClientSetup { config: Arc::new(config), name })
    }

    /// For connections from clients.
    pub(super) fn server(&self) -> Result<Arc<ServerConfig>, TlsError> {
        self.check()?;
        let unusable = |error: rustls::Error| TlsError(format!("TLS cannot be used: {error}"));
        let own = self.own.clone().ok_or_else(|| {
            TlsError("a server needs a certificate: use `Tls::from_pem`".to_owned())
        })?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&self.provider));
        let builder = builder.with_protocol_versions(&[&TLS13]).map_err(unusable)?;
        let algorithms = self.provider.signature_verification_algorithms;
        let mut config = match &self.trusted {
            Trusted::Keys(keys) => {
                let verifier = Arc::new(KeyVerifier { keys: Arc::clone(keys), algorithms });
                let builder = builder.with_client_cert_verifier(verifier);
                let resolver = AlwaysResolvesServerRawPublicKeys::new(own);
                builder.with_cert_resolver(Arc::new(resolver))
            }
            Trusted::Authorities(trust) => {
                let (trust, is_mandatory) = (trust.clone(), !self.allows_anonymous);
                let verifier: Arc<dyn ClientCertVerifier> =
                    Arc::new(ClientVerifier { trust, algorithms, is_mandatory });
                let builder = builder.with_client_cert_verifier(verifier);
                builder.with_cert_resolver(Arc::new(Own(own)))
            }
        };
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.max_early_data_size = 0;
        Ok(Arc::new(config))
    }
}

pub(super) const NO_NAME: &str = "TLS needs the name of the server: say `expect_peer` or `server_name`, as this address has no \
     host name that its user wrote";

fn authorities(source: &Source, provider: &Arc<CryptoProvider>) -> Result<Authorities, TlsError> {
    Authorities::new(source.authorities()?, Arc::clone(provider))
        .map_err(|error| TlsError(format!("the authorities cannot be used: {error}")))
}

/// Shows the same certificate to every peer.
#[derive(Debug)]
struct Own(Arc<CertifiedKey>);

impl rustls::client::ResolvesClientCert for Own {
    fn resolve(
        &self,
        _: &[&[u8]],
        schemes: &[rustls::SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        self.0.key.choose_scheme(schemes)?;
        Some(Arc::clone(&self.0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl rustls::server::ResolvesServerCert for Own {
    fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let trusts = match &self.trusted {
            Trusted::Authorities(_) => "authorities",
            Trusted::Keys(_) => "raw keys",
        };
        f.debug_struct("Tls")
            .field("trusts", &trusts)
            .field("expected", &self.expected)
            .field("protection", &self.protection)
            .finish_non_exhaustive()
    }
}
