//! Certificates for tests, each with what a test wants to be wrong with it.

use std::time::SystemTime;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams,
    SanType,
};

pub use rcgen;

/// An authority that issues certificates.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, as PEM.
#[derive(Debug, Clone)]
pub struct Leaf {
    /// The certificate.
    pub cert: String,
    /// The private key, PKCS#8.
    pub key: String,
}

impl Authority {
    /// An authority with a key of its own.
    ///
    /// # Panics
    /// When the system has no random numbers.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self::with(name, |_| {})
    }

    /// The same after a change.
    ///
    /// # Panics
    /// When the system has no random numbers.
    pub fn with(name: &str, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = Self::params(name);
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// An authority with this key.
    ///
    /// # Panics
    /// When the system has no random numbers.
    #[must_use]
    pub fn with_key(name: &str, key: KeyPair) -> Self {
        let issuer = CertifiedIssuer::self_signed(Self::params(name), key);
        Self(issuer.expect("a certificate"))
    }

    /// An authority whose certificate this one has issued.
    ///
    /// # Panics
    /// When the system has no random numbers.
    #[must_use]
    pub fn intermediate(&self, name: &str) -> Self {
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::signed_by(Self::params(name), key, &self.0);
        Self(issuer.expect("a certificate"))
    }

    /// A further certificate of another authority, with that one's name and key, as PEM.
    ///
    /// # Panics
    /// Never, as that one has a key.
    #[must_use]
    pub fn cross_sign(&self, name: &str, other: &Self) -> String {
        Self::params(name).signed_by(other.0.key(), &self.0).expect("a certificate").pem()
    }

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
    }

    /// Its own certificate, as PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A list of the certificates with these serial numbers as revoked, as PEM.
    ///
    /// # Panics
    /// When the times are in the wrong order.
    #[must_use]
    pub fn revoke(&self, serials: &[u64], made: SystemTime, ends: SystemTime) -> String {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: (*serial).into(),
            revocation_time: made.into(),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: made.into(),
            next_update: ends.into(),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.0).expect("a list").pem().expect("PEM")
    }

    /// A certificate for both roles and for these names: SPIFFE ids, IP addresses or DNS names.
    #[must_use]
    pub fn issue(&self, names: &[&str]) -> Leaf {
        self.issue_with(names, |_| {})
    }

    /// The same after a change.
    ///
    /// # Panics
    /// When a name is none, or the system has no random numbers.
    pub fn issue_with(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Leaf {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "nobody looks at this");
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let name = |name: &&str| match name.parse() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) if name.contains("://") => SanType::URI((*name).try_into().expect("a URI")),
            Err(_) => SanType::DnsName((*name).try_into().expect("a name")),
        };
        params.subject_alt_names = names.iter().map(name).collect();
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.0).expect("a certificate").pem();
        Leaf { cert, key: key.serialize_pem() }
    }
}
