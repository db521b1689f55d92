//! Certificates and clocks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{AlgorithmIdentifier, InvalidSignature, SignatureVerificationAlgorithm};
use test_kit::certificates::rcgen::{CertificateParams, ExtendedKeyUsagePurpose};
use test_kit::certificates::{Authority, Leaf};

use super::*;
use crate::security::pem::Origin;
use crate::security::provider::provider;

const KV: &str = "spiffe://prod.example/ns/shop/sa/kv";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const BEGIN: u32 = 20_000;

fn day(number: u32) -> SystemTime {
    SystemTime::UNIX_EPOCH + number * DAY
}

fn issue(
    authority: &Authority,
    names: &[&str],
    change: impl FnOnce(&mut CertificateParams),
) -> Leaf {
    authority.issue_with(names, |params| {
        params.not_before = day(BEGIN).into();
        params.not_after = day(BEGIN + 90).into();
        params.serial_number = Some(7.into());
        change(params);
    })
}

fn roots(authorities: &[&Authority]) -> Arc<Authorities> {
    let pem: String = authorities.iter().map(|authority| authority.pem()).collect();
    let source = Origin::bytes("ca", pem.as_bytes()).read().unwrap();
    Arc::new(source.authorities(day(BEGIN)).unwrap())
}

fn trust(own: Arc<Authorities>, revoked: Vec<RevocationList>) -> Trusted {
    let (domains, known) = (BTreeMap::new(), Known::default());
    Trusted::Authorities(Trust { own, own_domain: None, domains, revoked, known })
}

fn check(
    trusted: &Trusted,
    leaf: &Leaf,
    peer: Role,
    now: u32,
) -> Result<Certificate, FailureReason> {
    let algorithms = provider().signature_verification_algorithms;
    let found = check_by(trusted, &leaf.cert, peer, now, algorithms);
    found.map_err(|refusal| refusal.reason)
}

/// Checks all certificates of a PEM text.
fn check_by(
    trusted: &Trusted,
    pem: &str,
    peer: Role,
    now: u32,
    algorithms: WebPkiSupportedAlgorithms,
) -> Result<Certificate, Refusal> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let chain = chain.unwrap();
    let since = day(now).duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let now = UnixTime::since_unix_epoch(since);
    let terms = Terms { peer, own_domain: None, now, algorithms };
    trusted.check(&chain[0], &chain[1..], &terms)
}

static CHECKS: AtomicUsize = AtomicUsize::new(0);

/// Counts the signatures that are checked.
#[derive(Debug)]
struct Counting(&'static dyn SignatureVerificationAlgorithm);

impl SignatureVerificationAlgorithm for Counting {
    fn verify_signature(
        &self,
        key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        CHECKS.fetch_add(1, Ordering::Relaxed);
        self.0.verify_signature(key, message, signature)
    }

    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        self.0.public_key_alg_id()
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        self.0.signature_alg_id()
    }
}

/// A leaf, and authorities above it that an authority of a trusted name could have issued.
fn forged(names: &[&str]) -> String {
    let pretender = Authority::new("ca");
    let above: Vec<_> = names.iter().map(|name| pretender.intermediate(name)).collect();
    let leaf = issue(&above[0], &[KV], |_| {});
    leaf.cert + &above.iter().map(Authority::pem).collect::<String>()
}

/// Whatever a stranger shows, it costs few signatures, or none.
#[test]
fn costly_chains_cost_few_signatures() {
    let known = provider().signature_verification_algorithms;
    let counting = |it: &&'static dyn SignatureVerificationAlgorithm| {
        &*Box::leak(Box::new(Counting(*it))) as &'static dyn SignatureVerificationAlgorithm
    };
    let all: Vec<_> = known.all.iter().map(counting).collect();
    let algorithms = WebPkiSupportedAlgorithms { all: Box::leak(all.into()), ..known };
    let ca = Authority::new("ca");
    let trusted = trust(roots(&[&ca]), Vec::new());
    let check = |pem: &str| {
        CHECKS.store(0, Ordering::Relaxed);
        let found = check_by(&trusted, pem, Role::Client, BEGIN, algorithms);
        (found.map(drop), CHECKS.load(Ordering::Relaxed))
    };
    let numbered: Vec<_> = (0..8).map(|at| format!("X{at}")).collect();
    let numbered: Vec<_> = numbered.iter().map(String::as_str).collect();
    let long = issue(&ca.intermediate(&"long ".repeat(4_000)), &[KV], |_| {});
    let long = long.cert + &ca.intermediate(&"long ".repeat(4_000)).pem();
    for (pem, says) in [
        (forged(&["X"; 100]), "more than 8 certificates"),
        (forged(&numbered), "more than 8 certificates"),
        (long, "more than 16384 bytes"),
        (forged(&["X", "X"]), "several certificates of one authority"),
    ] {
        let (found, checks) = check(&pem);
        let refusal = found.unwrap_err();
        assert!(refusal.text.contains(says), "{refusal}");
        assert_eq!((refusal.reason, checks), (FailureReason::BadCertificate, 0));
    }
    let (found, checks) = check(&forged(&numbered[..7]));
    assert_eq!(found.unwrap_err().reason, FailureReason::UnknownAuthority);
    assert!((1..=8).contains(&checks), "{checks}");
    // What good peers show. Two authorities may have signed the one in the middle.
    let (other, middle) = (Authority::new("other"), ca.intermediate("middle"));
    let leaf = issue(&middle, &[KV], |_| {}).cert;
    let crossed = other.cross_sign("middle", &middle);
    for above in [middle.pem(), crossed.clone() + &middle.pem(), middle.pem() + &crossed] {
        assert_eq!(check(&(leaf.clone() + &above)).0, Ok(()));
    }
}

#[test]
fn an_authority_vouches_within_its_dates() {
    let dated = |name: String, begin: u32, end: u32| {
        Authority::with(&name, |params| {
            params.not_before = day(begin).into();
            params.not_after = day(end).into();
        })
    };
    let [early, late] = [(0, 20), (30, 60)]
        .map(|(begin, end)| dated(format!("from {begin}"), BEGIN + begin, BEGIN + end));
    let [of_early, of_late] = [&early, &late].map(|ca| issue(ca, &[KV], |_| {}));
    let trusted = trust(roots(&[&early, &late]), Vec::new());
    for (leaf, now, expected) in [
        (&of_early, BEGIN + 5, None),
        // Known by then, and no longer verified.
        (&of_early, BEGIN + 21, Some(FailureReason::Expired)),
        (&of_late, BEGIN + 5, Some(FailureReason::NotYetValid)),
        (&of_late, BEGIN + 31, None),
        (&of_late, BEGIN + 61, Some(FailureReason::Expired)),
    ] {
        for role in [Role::Client, Role::Server] {
            let found = check(&trusted, leaf, role, now);
            assert_eq!(found.err(), expected, "{now}");
        }
    }
    let algorithms = provider().signature_verification_algorithms;
    let found = check_by(&trusted, &of_early.cert, Role::Client, BEGIN + 21, algorithms);
    let text = found.unwrap_err().text;
    assert!(text.contains("issued by the authority from 0, which ended on"), "{text}");
    // A file of which nothing is left is refused when it is read.
    let source = Origin::bytes("ca", (early.pem() + &late.pem()).as_bytes()).read().unwrap();
    assert!(source.authorities(day(BEGIN + 25)).is_ok());
    let error = source.authorities(day(BEGIN + 61)).err().unwrap().to_string();
    assert!(error.contains("no authority that is valid now: the authority from 0"), "{error}");
}

/// An authority that is unknown, one that the peer left out, and one of the same name.
#[test]
fn a_missing_authority_is_named() {
    let [ca, stranger] = ["ca", "stranger"].map(Authority::new);
    let middle = ca.intermediate("middle");
    let trusted = trust(roots(&[&ca]), Vec::new());
    let algorithms = provider().signature_verification_algorithms;
    let leaf = |of: &Authority| issue(of, &[KV], |_| {}).cert;
    for (pem, says) in [
        (leaf(&middle), "issued by middle. If that is an intermediate authority, the peer has to"),
        (leaf(&stranger), "issued by stranger. If"),
        (leaf(&stranger) + &stranger.pem(), "ends at stranger, which has signed itself"),
        (leaf(&Authority::new("ca")), "There is one named ca, but it has not signed"),
    ] {
        let refusal = check_by(&trusted, &pem, Role::Server, BEGIN, algorithms).unwrap_err();
        assert_eq!(refusal.reason, FailureReason::UnknownAuthority);
        assert!(refusal.text.contains(says), "{refusal}");
    }
}

#[test]
fn each_wrong_certificate_has_its_reason() {
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    let [ca, other] = ["ca", "ca"].map(Authority::new);
    let good = |ca: &Authority| issue(ca, &[KV], |_| {});
    let only = |usage: ExtendedKeyUsagePurpose| {
        issue(&ca, &[KV], |params| params.extended_key_usages = vec![usage])
    };
    let none = || issue(&ca, &[KV], |params| params.extended_key_usages.clear());
    let (both, middle) = ([Role::Client, Role::Server], BEGIN + 45);
    for (leaf, roles, now, expected) in [
        (good(&ca), &both[..], middle, None),
        (good(&ca), &both, BEGIN, None),
        (good(&ca), &both, BEGIN - 1, Some(FailureReason::NotYetValid)),
        (good(&ca), &both, BEGIN + 90, None),
        (good(&ca), &both, BEGIN + 91, Some(FailureReason::Expired)),
        (good(&other), &both, middle, Some(FailureReason::UnknownAuthority)),
        (only(ClientAuth), &both[..1], middle, None),
        (only(ClientAuth), &both[1..], middle, Some(FailureReason::BadCertificate)),
        (only(ServerAuth), &both[1..], middle, None),
        (only(ServerAuth), &both[..1], middle, Some(FailureReason::BadCertificate)),
        (none(), &both, middle, None),
        (issue(&ca, &[], |_| {}), &both, middle, Some(FailureReason::BadCertificate)),
        (
            issue(&ca, &[KV, "spiffe://prod.example/b"], |_| {}),
            &both,
            middle,
            Some(FailureReason::BadCertificate),
        ),
        (
            issue(&ca, &["https://prod.example/b"], |_| {}),
            &both,
            middle,
            Some(FailureReason::BadCertificate),
        ),
    ] {
        for role in roles {
            let trusted = trust(roots(&[&ca]), Vec::new());
            let found = check(&trusted, &leaf, *role, now);
            let names = found.as_ref().map(ToString::to_string);
            assert_eq!(found.as_ref().err().copied(), expected, "{role:?} at {now}: {names:?}");
        }
    }
}

#[test]
fn a_list_counts_until_its_end() {
    let [ca, other] = ["ca", "other"].map(Authority::new);
    let [revoked, spared] = [7_u64, 8]
        .map(|serial| issue(&ca, &[KV], |params| params.serial_number = Some(serial.into())));
    let foreign = issue(&other, &[KV], |_| {});
    let list = |by: &Authority| {
        let list = by.revoke(&[7], day(BEGIN + 1), day(BEGIN + 10));
        let source = Origin::bytes("crl", list.as_bytes()).read().unwrap();
        (source.revocation_lists(day(BEGIN)), source.revocation_lists(day(BEGIN + 10)))
    };
    let (read, late) = list(&ca);
    assert!(late.err().unwrap().to_string().contains("it ended on"));
    let lists = read.unwrap();
    assert_eq!((lists[0].made, lists[0].ends), (day(BEGIN + 1), day(BEGIN + 10)));
    for (leaf, now, expected) in [
        (&revoked, BEGIN + 2, Some(FailureReason::Revoked)),
        (&spared, BEGIN + 2, None),
        // The other authority has another 7.
        (&foreign, BEGIN + 2, None),
        (&spared, BEGIN + 11, Some(FailureReason::Revoked)),
        (&foreign, BEGIN + 11, None),
    ] {
        for role in [Role::Client, Role::Server] {
            let trusted = trust(roots(&[&ca, &other]), lists.clone());
            assert_eq!(check(&trusted, leaf, role, now).err(), expected, "{now}");
        }
    }
    // A list that another one has signed revokes nobody of this authority.
    let forged = list(&Authority::new("ca")).0.unwrap();
    let trusted = trust(roots(&[&ca]), forged);
    let found = check(&trusted, &spared, Role::Client, BEGIN + 2);
    assert_eq!(found.err(), Some(FailureReason::Configuration));
}

fn is_known(trusted: &Trusted, leaf: &Leaf, peer: Role, now: u32) -> bool {
    let Trusted::Authorities(trust) = trusted else { return false };
    let der = CertificateDer::from_pem_slice(leaf.cert.as_bytes()).unwrap();
    let since = day(now).duration_since(SystemTime::UNIX_EPOCH).unwrap();
    trust.known.has(&key(peer, &der, &[]), UnixTime::since_unix_epoch(since))
}

/// Before and after its dates, in the other role and with other bytes, it is verified.
#[test]
fn verified_chain_is_known_within_its_dates() {
    let ca = Authority::new("ca");
    let [mine, other] = [0, 1].map(|_| issue(&ca, &[KV], |_| {}));
    let trusted = trust(roots(&[&ca]), Vec::new());
    let [first, last] = [BEGIN, BEGIN + 90];
    assert!(!is_known(&trusted, &mine, Role::Client, first));
    check(&trusted, &mine, Role::Client, first).unwrap();
    let known = |leaf, peer, now| is_known(&trusted, leaf, peer, now);
    let within = [first - 1, first, last, last + 1].map(|now| known(&mine, Role::Client, now));
    assert_eq!(within, [false, true, true, false]);
    assert!(!known(&mine, Role::Server, first) && !known(&other, Role::Client, first));
    let late = check(&trusted, &mine, Role::Client, last + 1);
    assert_eq!(late.err(), Some(FailureReason::Expired));
}

#[test]
fn revocation_lists_leave_no_chain_known() {
    let ca = Authority::new("ca");
    let list = ca.revoke(&[8], day(BEGIN + 1), day(BEGIN + 10));
    let list = Origin::bytes("crl", list.as_bytes()).read().unwrap();
    let trusted = trust(roots(&[&ca]), list.revocation_lists(day(BEGIN)).unwrap());
    let mine = issue(&ca, &[KV], |_| {});
    check(&trusted, &mine, Role::Client, BEGIN + 2).unwrap();
    assert!(!is_known(&trusted, &mine, Role::Client, BEGIN + 2));
}

#[test]
fn refused_chain_is_not_known() {
    let [ca, other] = ["ca", "other"].map(Authority::new);
    let stranger = issue(&other, &[KV], |_| {});
    let trusted = trust(roots(&[&ca]), Vec::new());
    for _ in 0..2 {
        let found = check(&trusted, &stranger, Role::Client, BEGIN);
        assert_eq!(found.err(), Some(FailureReason::UnknownAuthority));
    }
}

#[test]
fn many_chains_are_known_at_once() {
    let ca = Authority::new("ca");
    let mine = issue(&ca, &[KV], |_| {});
    let der = CertificateDer::from_pem_slice(mine.cert.as_bytes()).unwrap();
    let trusted = trust(roots(&[&ca]), Vec::new());
    let Trusted::Authorities(trust) = &trusted else { unreachable!("they are authorities") };
    let fill = |count: u16| {
        (0..count).for_each(|at| {
            let mut key = [0; 32];
            key[..2].copy_from_slice(&at.to_le_bytes());
            trust.known.add(key, &der, &[], [0, u64::MAX]);
        });
    };
    check(&trusted, &mine, Role::Client, BEGIN).unwrap();
    fill(255);
    assert!(is_known(&trusted, &mine, Role::Client, BEGIN));
    fill(256);
    assert!(!is_known(&trusted, &mine, Role::Client, BEGIN));
}
