//! Certificates and clocks.

use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::PemObject;
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

fn roots(authorities: &[&Authority]) -> Arc<RootCertStore> {
    let pem: String = authorities.iter().map(|authority| authority.pem()).collect();
    Arc::new(Origin::bytes("ca", pem.as_bytes()).read().unwrap().authorities().unwrap())
}

fn check(trust: Trust, leaf: &Leaf, peer: Role, now: u32) -> Result<Certificate, FailureReason> {
    let der = CertificateDer::from_pem_slice(leaf.cert.as_bytes()).unwrap();
    let since = day(now).duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let algorithms = provider().signature_verification_algorithms;
    let now = UnixTime::since_unix_epoch(since);
    let terms = Terms { peer, own_domain: None, now, algorithms };
    Trusted::Authorities(trust).check(&der, &[], &terms).map_err(|refusal| refusal.reason)
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
            let own = roots(&[&ca]);
            let trust =
                Trust { own, own_domain: None, domains: BTreeMap::new(), revoked: Vec::new() };
            let found = check(trust, &leaf, *role, now);
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
            let own = roots(&[&ca, &other]);
            let revoked = lists.clone();
            let trust = Trust { own, own_domain: None, domains: BTreeMap::new(), revoked };
            assert_eq!(check(trust, leaf, role, now).err(), expected, "{now}");
        }
    }
    // A list that another one has signed revokes nobody of this authority.
    let forged = list(&Authority::new("ca")).0.unwrap();
    let own = roots(&[&ca]);
    let trust = Trust { own, own_domain: None, domains: BTreeMap::new(), revoked: forged };
    let found = check(trust, &spared, Role::Client, BEGIN + 2);
    assert_eq!(found.err(), Some(FailureReason::Configuration));
}
