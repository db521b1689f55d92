//! What a certificate says, and the rules that the names in it keep.
//!
//! Invariant: a certificate of a peer that has a URI has exactly one, which is a SPIFFE id with a
//! path, and belongs to no authority.

use super::der::{self, KeyUsage, MAX_NAMES};
use super::provider::sha256;
use super::refusal::{Refusal, bad, quoted};
use crate::identity::{Certificate, SpiffeId};

/// What a certificate says.
pub(super) fn read(der: &[u8]) -> Option<(Certificate, der::Fields<'_>)> {
    let fields = der::fields(der)?;
    let certificate = Certificate {
        spiffe: fields.uris.first().and_then(|uri| uri.parse().ok()),
        dns: fields.dns.iter().map(|name| (*name).to_owned()).collect(),
        addresses: fields.addresses.clone(),
        common_name: fields.common_name.map(ToOwned::to_owned),
        key_sha256: sha256(fields.key),
        not_before: fields.not_before,
        not_after: fields.not_after,
        is_authority: fields.is_authority,
    };
    Some((certificate, fields))
}

/// What the certificate of a peer says, if it keeps the rules of identities.
pub(super) fn leaf(der: &[u8]) -> Result<Certificate, Refusal> {
    let Some((certificate, fields)) = read(der) else {
        return Err(bad("it is no X.509 certificate that can be read here"));
    };
    if fields.has_more_names {
        return Err(bad(&format!("it has more than {MAX_NAMES} names")));
    }
    match &fields.uris[..] {
        [] if fields.dns.is_empty() && fields.addresses.is_empty() => {
            return Err(bad("it has no subject alternative name"));
        }
        [] => {}
        [uri] => match uri.parse::<SpiffeId>() {
            Ok(id) if id.path().is_empty() => {
                return Err(bad("its SPIFFE id is that of a whole trust domain"));
            }
            Ok(_) => {}
            Err(error) => return Err(bad(&quoted(&error.to_string()))),
        },
        more => return Err(bad(&format!("it has {} URIs, where one is allowed", more.len()))),
    }
    if fields.is_authority {
        return Err(bad(
            "it is that of an authority (basicConstraints CA:TRUE), as `openssl req -x509` makes \
             it: add `-addext basicConstraints=critical,CA:FALSE`, or use `rpcctl cert dev`",
        ));
    }
    if !fields.uris.is_empty() && fields.signs_others {
        return Err(bad("it is that of an authority: its key usage allows to sign certificates"));
    }
    if fields.key_usage == (KeyUsage::Limited { digital_signature: false }) {
        return Err(bad("its key usage lacks digitalSignature, which TLS 1.3 needs"));
    }
    Ok(certificate)
}

/// What a certificate says, and why peers would refuse it: for fuzzing.
#[doc(hidden)]
#[must_use]
pub fn inspect_der(der: &[u8]) -> (Option<Certificate>, Option<String>) {
    (read(der).map(|(certificate, _)| certificate), leaf(der).err().map(|refusal| refusal.text))
}

#[cfg(test)]
mod tests {
    use rpc_transport::text::is_printable;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    use test_kit::certificates::Authority;

    use super::*;

    fn check(der: &[u8]) {
        if let Err(refusal) = leaf(der) {
            assert!(is_printable(&refusal.text), "{}", refusal.text);
        }
        if let Some((certificate, _)) = read(der) {
            assert!(is_printable(&certificate.to_string()), "{certificate}");
        }
    }

    /// Each byte changed in several ways, and each beginning: refused or read, with texts that
    /// forge no line of a log.
    #[test]
    fn broken_certificates_are_refused_or_read() {
        let ca = Authority::new("ca");
        let id = "spiffe://prod.example/ns/shop/sa/kv";
        for names in [&[id][..], &["kv.example", "127.0.0.1"], &[id, "kv.example", "::1"]] {
            let pem = ca.issue(names).cert;
            let der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
            assert!(leaf(&der).is_ok());
            for at in 0..der.len() {
                check(&der[..at]);
                for changed in
                    [0, 1, 0x0a, 0x1b, 0x7f, 0x80, 0x84, 0xff, der[at] ^ 1, der[at] ^ 0x80]
                {
                    let mut der = der.to_vec();
                    der[at] = changed;
                    check(&der);
                }
            }
        }
    }
}
