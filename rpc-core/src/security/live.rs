//! Certificates, keys and lists: what was read of their files last.
//!
//! Invariants:
//! 1. Files that cannot be read or understood, all together, leave what was read before.
//! 2. A thread that sees a generation sees what was read for it, or something newer.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use rpc_transport::lock::Mutex;
use rustls::SignatureScheme;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::sign::CertifiedKey;

use super::known::Known;
use super::pem::{Origin, TlsError};
use super::provider::sha256;
use super::trust::{Trust, Trusted};
use crate::identity::Certificate;
use crate::runtime::watched::{Watch, Watched};

/// Where everything comes from.
#[derive(Clone)]
pub(super) struct Files {
    pub(super) own: Option<OwnFiles>,
    pub(super) peers: PeerFiles,
}

#[derive(Clone)]
pub(super) enum OwnFiles {
    Certificate { chain: Origin, key: Origin },
    Key(Origin),
}

#[derive(Clone)]
pub(super) enum PeerFiles {
    Authorities { own: Origin, domains: BTreeMap<String, Origin>, revoked: Vec<Origin> },
    Keys(Vec<Origin>),
}

/// What the files say.
pub(super) struct Material {
    /// SHA-256 of all of them.
    hash: [u8; 32],
    /// The certificate or raw key of this end.
    pub(super) own: Option<Arc<CertifiedKey>>,
    /// What the certificate says.
    pub(super) says: Option<Certificate>,
    pub(super) trusted: Trusted,
}

impl Files {
    fn read(&self, provider: &CryptoProvider, now: SystemTime) -> Result<Material, TlsError> {
        let mut contents = Vec::new();
        let mut read = |origin: &Origin| {
            let source = origin.read()?;
            contents.extend_from_slice(&sha256(&source.bytes));
            Ok::<_, TlsError>(source)
        };
        let (own, says) = match &self.own {
            None => (None, None),
            Some(OwnFiles::Certificate { chain, key }) => {
                let (certified, says) = read(chain)?.certified(&read(key)?, provider)?;
                (Some(certified), Some(says))
            }
            Some(OwnFiles::Key(key)) => {
                let key = read(key)?.private_key(provider)?;
                let Some(public) = key.public_key() else {
                    let text = "the own key has no public key that can be shown";
                    return Err(TlsError(text.to_owned()));
                };
                let shown = vec![public.as_ref().to_vec().into()];
                (Some(CertifiedKey::new(shown, key)), None)
            }
        };
        let trusted = match &self.peers {
            PeerFiles::Authorities { own, domains, revoked } => {
                let mut roots = |origin: &Origin| Ok(Arc::new(read(origin)?.authorities(now)?));
                let own = roots(own)?;
                let bundle =
                    |(name, origin): (&String, &Origin)| Ok((name.clone(), roots(origin)?));
                let domains = domains.iter().map(bundle).collect::<Result<_, TlsError>>()?;
                let lists = revoked.iter().map(|origin| read(origin)?.revocation_lists(now));
                let revoked = lists.collect::<Result<Vec<_>, TlsError>>()?.concat();
                let id = says.as_ref().and_then(Certificate::spiffe);
                let own_domain = id.map(|id| id.trust_domain().to_owned());
                let known = Known::default();
                Trusted::Authorities(Trust { own, own_domain, domains, revoked, known })
            }
            PeerFiles::Keys(peers) => {
                let peers = peers.iter().map(|peer| read(peer)?.public_key());
                let peers = peers.collect::<Result<Vec<_>, _>>()?;
                check_keys(&peers, own.as_ref())?;
                Trusted::Keys(peers.into())
            }
        };
        Ok(Material { hash: sha256(&contents), own: own.map(Arc::new), says, trusted })
    }
}

fn check_keys(
    peers: &[SubjectPublicKeyInfoDer<'static>],
    own: Option<&CertifiedKey>,
) -> Result<(), TlsError> {
    if peers.is_empty() {
        return Err(TlsError("no peer's key is given, so nobody could connect".to_owned()));
    }
    let own = own.and_then(|own| own.cert.first());
    if peers.iter().any(|peer| own.is_some_and(|own| own.as_ref() == peer.as_ref())) {
        let text = "the own key is among those of the peers: give each end a key of its own";
        return Err(TlsError(text.to_owned()));
    }
    Ok(())
}

/// What all clones of the options share.
pub(super) struct Live {
    pub(super) provider: Arc<CryptoProvider>,
    files: Files,
    current: ArcSwap<Material>,
    /// How often it was replaced.
    generation: Watched<u64>,
    /// Held while files are read.
    reading: Mutex<()>,
}

impl Live {
    pub(super) fn read(
        provider: Arc<CryptoProvider>,
        files: Files,
        now: SystemTime,
    ) -> Result<Arc<Self>, TlsError> {
        let current = ArcSwap::from_pointee(files.read(&provider, now)?);
        let (generation, reading) = (Watched::default(), Mutex::new(()));
        Ok(Arc::new(Self { provider, files, current, generation, reading }))
    }

    /// The same with other files.
    pub(super) fn with(
        &self,
        now: SystemTime,
        change: impl FnOnce(&mut Files),
    ) -> Result<Arc<Self>, TlsError> {
        let mut files = self.files.clone();
        change(&mut files);
        Self::read(Arc::clone(&self.provider), files, now)
    }

    #[cfg(test)]
    pub(super) fn with_provider(&self, provider: CryptoProvider) -> Arc<Self> {
        let now = SystemTime::now();
        Self::read(Arc::new(provider), self.files.clone(), now).expect("they were read before")
    }

    /// Reads all files again. Returns whether something has changed.
    pub(super) fn reload(&self, now: SystemTime) -> Result<bool, TlsError> {
        {
            let _reading = self.reading.lock();
            let material = self.files.read(&self.provider, now)?;
            if material.hash == self.current.load().hash {
                return Ok(false);
            }
            self.current.store(Arc::new(material));
        }
        // Afterwards: invariant 2.
        self.generation.tell();
        Ok(true)
    }

    pub(super) fn current(&self) -> Arc<Material> {
        self.current.load_full()
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.get()
    }

    pub(super) fn changes(&self) -> Watch<u64> {
        self.generation.watch()
    }

    pub(super) fn has_raw_keys(&self) -> bool {
        matches!(self.files.peers, PeerFiles::Keys(_))
    }

    pub(super) fn has_own(&self) -> bool {
        self.files.own.is_some()
    }

    pub(super) fn algorithms(&self) -> WebPkiSupportedAlgorithms {
        self.provider.signature_verification_algorithms
    }
}

/// Shows every peer what is this end's when it comes.
pub(super) struct Own(pub(super) Arc<Live>);

impl rustls::client::ResolvesClientCert for Own {
    fn resolve(&self, _: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let own = self.0.current().own.clone()?;
        own.key.choose_scheme(schemes)?;
        Some(own)
    }

    fn only_raw_public_keys(&self) -> bool {
        self.0.has_raw_keys()
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl rustls::server::ResolvesServerCert for Own {
    fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.current().own.clone()
    }

    fn only_raw_public_keys(&self) -> bool {
        self.0.has_raw_keys()
    }
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Own(..)")
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("generation", &self.generation()).finish_non_exhaustive()
    }
}
