//! What a certificate says, and the rules that the names in it keep.
//!
//! Invariant: a certificate of a peer that has a URI has exactly one, which is a SPIFFE id with a
//! path, and belongs to no authority.

use super::der;
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
    if fields.is_authority || !fields.uris.is_empty() && fields.signs_others {
        return Err(bad("it is that of an authority"));
    }
    Ok(certificate)
}
