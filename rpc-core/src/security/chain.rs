//! Chains of certificates, as peers show them: their bounds, and who is missing in them.
//!
//! Invariant: whatever a peer shows, few signatures are checked. Within these bounds there are at
//! most 8 ways from its certificate to an authority.

use rpc_transport::protocol::lock::FailureReason;
use rustls::pki_types::CertificateDer;

use super::authorities::{Authorities, name};
use super::der::{self, Head};
use super::refusal::{Refusal, bad};

/// Certificates of a chain, at most, and their bytes.
pub(super) const MAX_CERTIFICATES: usize = 8;
pub(super) const MAX_BYTES: usize = 16 << 10;
/// Certificates of one name above the peer's own, at most: two authorities may have signed one key.
const MAX_SAME: usize = 2;

/// Refuses a chain that would cost too much.
pub(super) fn check_bounds(
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
) -> Result<(), Refusal> {
    let too_long = |what: &str| Err(bad(what).telling("its chain is too long"));
    if intermediates.len() >= MAX_CERTIFICATES {
        return too_long(&format!("its chain has more than {MAX_CERTIFICATES} certificates"));
    }
    let bytes = intermediates.iter().map(|der| der.len()).sum::<usize>() + end_entity.len();
    if bytes > MAX_BYTES {
        return too_long(&format!("its chain has more than {MAX_BYTES} bytes"));
    }
    let heads: Option<Vec<_>> = intermediates.iter().map(|der| der::head(der)).collect();
    let Some(heads) = heads else {
        return Err(bad("a certificate of its chain is none that can be read here"));
    };
    for head in &heads {
        let same: Vec<_> = heads.iter().filter(|other| other.subject == head.subject).collect();
        if same.len() > MAX_SAME || same.iter().any(|other| other.key != head.key) {
            return too_long("its chain has several certificates of one authority");
        }
    }
    Ok(())
}

/// Why no authority is found above a certificate: it is unknown here, or the peer left one out.
pub(super) fn no_authority(
    end_entity: &CertificateDer<'_>,
    intermediates: &[CertificateDer<'_>],
    authorities: &Authorities,
) -> Refusal {
    let heads: Vec<Head<'_>> = intermediates.iter().filter_map(|der| der::head(der)).collect();
    let mut last = der::head(end_entity);
    for _ in 0..MAX_CERTIFICATES {
        let above = |it: &Head<'_>| heads.iter().position(|head| head.subject == it.issuer);
        match last.as_ref().filter(|it| it.issuer != it.subject).and_then(above) {
            Some(at) => last = der::head(&intermediates[at]),
            None => break,
        }
    }
    let mut text =
        "the peer's certificate is of an authority that is unknown here: is it signed by \
                    a CA in this end's ca.pem?"
            .to_owned();
    if let Some(Head { issuer, subject, .. }) = last {
        let by = name(issuer);
        text += &match (authorities.has_name(issuer), issuer == subject) {
            (true, _) => format!(" There is one named {by}, but it has not signed this one"),
            (false, true) => format!(" It ends at {by}, which has signed itself"),
            (false, false) => format!(
                " It is issued by {by}. If that is an intermediate authority, the peer has to show \
                 its certificate as well, behind its own in the same file"
            ),
        };
    }
    Refusal::new(FailureReason::UnknownAuthority, text)
}

/// Why a file of this end's certificates does not begin with that of its key.
pub(super) fn wrong_order(chain: &[CertificateDer<'_>], key: &[u8]) -> Option<String> {
    let is_of_key = |der: &CertificateDer<'_>| der::head(der).is_some_and(|it| it.key == key);
    let at = chain.iter().position(is_of_key).filter(|at| *at > 0)?;
    let text = "its certificates are in the wrong order: the one of the key has to come first, and \
                is number";
    Some(format!("{text} {}", at + 1))
}
