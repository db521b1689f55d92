//! Two handshakes against each other, without a connection.

use std::collections::VecDeque;

use rpc_transport::protocol::lock::{FrameKey, PARAMETERS_BYTES, SealError};
use rustls::crypto::ring::kx_group;
use test_kit::certificates::rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
    SanType, date_time_ymd,
};
use test_kit::certificates::{Authority, Leaf};

use super::*;
use crate::identity::Proof;
use crate::security::TlsError;

const KV: &str = "spiffe://prod.example/ns/shop/sa/kv";
const CART: &str = "spiffe://prod.example/ns/shop/sa/cart";

type Outcome = Result<Arc<Proof>, HandshakeFailure>;

fn tls(leaf: &Leaf, authority: &Authority) -> Tls {
    Tls::from_pem_bytes(&leaf.cert, &leaf.key, authority.pem()).unwrap()
}

/// A flight of messages on its way: its level, its number and its bytes.
type Flight = (Level, u64, Vec<u8>);

/// One end, with what it has yet to say.
struct End {
    driver: Box<dyn Handshake>,
    sent: [u64; 3],
    out: VecDeque<Flight>,
}

impl End {
    fn start(factory: &Factory, role: Role, host: Option<&str>) -> Self {
        let parameters = [role as u8 + 1; PARAMETERS_BYTES];
        let start = Start::new(role, parameters, host, Protection::Encrypt);
        let driver = factory.start(start).unwrap();
        let mut end = Self { driver, sent: [0; 3], out: VecDeque::new() };
        end.write();
        end
    }

    /// Two ends that know each other.
    fn pair() -> [Self; 2] {
        let ca = Authority::new("ca");
        let client = tls(&ca.issue(&[CART]), &ca).expect_peer(KV);
        let (client, server) = factories(&client, &tls(&ca.issue(&[KV]), &ca));
        [Self::start(&client, Role::Client, None), Self::start(&server, Role::Server, None)]
    }

    fn write(&mut self) {
        let mut bytes = Vec::new();
        while let Some(level) = self.driver.write(&mut bytes).unwrap() {
            let mut bytes = std::mem::take(&mut bytes);
            let number = &mut self.sent[level as usize];
            if level != Level::Initial {
                let header = [level as u8; HEADER_BYTES];
                self.driver.seal(level, *number, &header, &mut bytes).unwrap();
            }
            self.out.push_back((level, *number, bytes));
            *number += 1;
        }
        assert!(bytes.is_empty());
    }

    /// Takes a flight, message by message.
    fn read(&mut self, (level, number, mut bytes): Flight) -> Result<(), HandshakeFailure> {
        if self.driver.read_level() != level {
            return Err(internal("another level"));
        }
        if level != Level::Initial {
            let header = [level as u8; HEADER_BYTES];
            self.driver.open(level, number, &header, &mut bytes)?;
        }
        let mut rest = &bytes[..];
        while let [_, high, middle, low, ..] = *rest {
            let len = 4 + u32::from_be_bytes([0, high, middle, low]) as usize;
            let message = rest.get(..len).ok_or_else(|| internal("a message that is cut"))?;
            self.driver.read(message)?;
            self.write();
            rest = &rest[len..];
        }
        Ok(())
    }

    fn outcome(&mut self, broken: Option<HandshakeFailure>, peer: u8) -> Outcome {
        if let Some(failure) = broken {
            assert!(!self.driver.is_complete());
            return Err(failure);
        }
        let secured = self.driver.finish()?;
        assert_eq!(self.driver.peer_parameters(), Some(&[peer; PARAMETERS_BYTES][..]));
        Ok(secured.proof.downcast::<Proof>().unwrap())
    }
}

/// Passes flights on until there are none; how many there were, and what the ends found.
fn exchange(ends: &mut [End; 2]) -> (usize, [Option<HandshakeFailure>; 2]) {
    let (mut count, mut broken) = (0, [None, None]);
    loop {
        let Some((from, flight)) =
            (0..2).find_map(|from| Some((from, ends[from].out.pop_front()?)))
        else {
            return (count, broken);
        };
        count += 1;
        if let Err(failure) = ends[1 - from].read(flight) {
            broken[1 - from] = Some(failure);
            return (count, broken);
        }
    }
}

/// One handshake: what client and server found, and how many flights there were.
fn shake(client: &Factory, server: &Factory, host: Option<&str>) -> (Outcome, Outcome, usize) {
    let client = End::start(client, Role::Client, host);
    let mut ends = [client, End::start(server, Role::Server, None)];
    let (count, [client, server]) = exchange(&mut ends);
    (ends[0].outcome(client, 2), ends[1].outcome(server, 1), count)
}

fn factories(client: &Tls, server: &Tls) -> (Factory, Factory) {
    (Factory::client(client).unwrap(), Factory::server(server).unwrap())
}

fn run(client: &Tls, server: &Tls, host: Option<&str>) -> (Outcome, Outcome) {
    let (client, server) = factories(client, server);
    let (client, server, _) = shake(&client, &server, host);
    (client, server)
}

fn reason(outcome: Outcome) -> FailureReason {
    outcome.unwrap_err().reason
}

#[test]
fn frame_keys_of_both_ends_match_and_advance() {
    let mut ends = End::pair();
    assert!(matches!(exchange(&mut ends), (_, [None, None])));
    let [client, server] = ends.map(|mut end| {
        let keys = end.driver.frame_keys().unwrap();
        assert!(end.driver.frame_keys().is_err(), "nobody else has them");
        keys
    });
    let header = [0x81; HEADER_BYTES];
    for (mut from, mut to) in [(client.own, server.peer), (server.own, client.peer)] {
        let mut last: Option<Vec<u8>> = None;
        for _ in 0..50 {
            let seal = |key: &dyn FrameKey, number| {
                let mut payload = b"call".to_vec();
                let tag = key.seal(number, &header, &mut payload).unwrap();
                [&payload[..], &tag].concat()
            };
            let mut sealed = seal(&*from, 7);
            assert_ne!(Some(&sealed), last.as_ref(), "the key did not change");
            if let Some(mut old) = last.replace(sealed.clone()) {
                assert_eq!(to.open(7, &header, &mut old), Err(SealError::Forged));
            }
            assert_eq!(to.open(8, &header, &mut sealed.clone()), Err(SealError::Forged));
            assert_eq!(to.open(7, &[0x82; 8], &mut sealed.clone()), Err(SealError::Forged));
            to.open(7, &header, &mut sealed).unwrap();
            assert_eq!(sealed[..4], *b"call");
            from.advance();
            to.advance();
        }
    }
}

#[test]
fn both_ends_know_each_other_afterwards() {
    let ca = Authority::new("ca");
    let server = tls(&ca.issue(&["kv.internal", "10.0.0.7"]), &ca);
    let client = tls(&ca.issue(&[CART]), &ca);
    for host in ["kv.internal", "10.0.0.7"] {
        let (seen_by_client, seen_by_server) = run(&client, &server, Some(host));
        let (server, client) = (seen_by_client.unwrap(), seen_by_server.unwrap());
        let server = server.certificate.as_ref().unwrap();
        assert_eq!(server.dns_names(), ["kv.internal"]);
        assert_eq!(server.spiffe(), None);
        let client = client.certificate.as_ref().unwrap();
        assert_eq!(client.spiffe().unwrap().as_str(), CART);
        assert!(client.not_after().is_some() && client.key_sha256() != server.key_sha256());
    }
}

#[test]
fn keys_of_the_connection_agree() {
    let mut ends = End::pair();
    assert_eq!(exchange(&mut ends), (4, [None, None]));
    let [End { driver: client, .. }, End { driver: server, .. }] = &mut ends;
    let header = [8; HEADER_BYTES];
    let mut frame = b"unlocked".to_vec();
    server.seal(Level::Application, 0, &header, &mut frame).unwrap();
    assert_eq!(frame.len(), 8 + server.tag_bytes());
    for (number, header, flip) in [(1, header, 0), (0, [9; HEADER_BYTES], 0), (0, header, 1)] {
        let mut forged = frame.clone();
        forged[3] ^= flip;
        let refused = client.open(Level::Application, number, &header, &mut forged);
        assert_eq!(refused.unwrap_err().reason, FailureReason::BrokenRule);
    }
    client.open(Level::Application, 0, &header, &mut frame).unwrap();
    assert_eq!(frame, b"unlocked");
}

type Issue = Box<dyn Fn(&Authority, &str) -> Leaf>;

/// What is wrong with one end's certificate, and the reason that the other end finds.
fn wrong_leaves() -> Vec<(&'static str, Issue, FailureReason)> {
    fn with(change: fn(&mut CertificateParams)) -> Issue {
        Box::new(move |ca, id| ca.issue_with(&[id], change))
    }
    vec![
        (
            "expired",
            with(|params| params.not_after = date_time_ymd(2020, 1, 1)),
            FailureReason::Expired,
        ),
        (
            "not valid yet",
            with(|params| params.not_before = date_time_ymd(3000, 1, 1)),
            FailureReason::NotYetValid,
        ),
        (
            "another authority",
            Box::new(|_, id| Authority::new("ca").issue(&[id])),
            FailureReason::UnknownAuthority,
        ),
        (
            "wrong purpose",
            with(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::CodeSigning]),
            FailureReason::BadCertificate,
        ),
    ]
}

#[test]
fn wrong_certificates_are_refused_by_both_roles() {
    let ca = Authority::new("ca");
    for (what, issue, expected) in wrong_leaves() {
        let good = |id| tls(&ca.issue(&[id]), &ca);
        let (seen_by_client, _) =
            run(&good(CART).expect_peer(KV), &tls(&issue(&ca, KV), &ca), None);
        assert_eq!(reason(seen_by_client), expected, "{what} server");
        let client = tls(&issue(&ca, CART), &ca).expect_peer(KV);
        let (_, seen_by_server) = run(&client, &good(KV), None);
        assert_eq!(reason(seen_by_server), expected, "{what} client");
    }
}

#[test]
fn the_other_roles_purpose_is_refused() {
    let ca = Authority::new("ca");
    let only = |id, purpose| {
        tls(&ca.issue_with(&[id], |params| params.extended_key_usages = vec![purpose]), &ca)
    };
    let server = only(KV, ExtendedKeyUsagePurpose::ServerAuth);
    let client = only(CART, ExtendedKeyUsagePurpose::ClientAuth).expect_peer(KV);
    let (seen_by_client, seen_by_server) = run(&client, &server, None);
    assert!(seen_by_client.is_ok() && seen_by_server.is_ok());
    let client = only(CART, ExtendedKeyUsagePurpose::ServerAuth).expect_peer(KV);
    assert_eq!(reason(run(&client, &server, None).1), FailureReason::BadCertificate);
    let server = only(KV, ExtendedKeyUsagePurpose::ClientAuth);
    let client = only(CART, ExtendedKeyUsagePurpose::ClientAuth).expect_peer(KV);
    assert_eq!(reason(run(&client, &server, None).0), FailureReason::BadCertificate);
}

#[test]
fn another_name_than_the_expected_is_refused() {
    let ca = Authority::new("ca");
    let client = tls(&ca.issue(&[CART]), &ca);
    let server = tls(&ca.issue(&["kv.internal"]), &ca);
    let (refused, _) = run(&client, &server, Some("other.internal"));
    let failure = refused.unwrap_err();
    assert_eq!(failure.reason, FailureReason::WrongName);
    assert!(failure.text.contains("for kv.internal; this channel expects other.internal"));
    for client in [client.clone().expect_peer(KV), client.clone().server_name("other")] {
        let (refused, _) = run(&client, &server, Some("kv.internal"));
        assert_eq!(reason(refused), FailureReason::WrongName);
    }
    // What the user says counts, not the host.
    let (accepted, _) = run(&client.server_name("kv.internal"), &server, Some("10.0.0.1"));
    assert!(accepted.is_ok());
    let as_name = tls(
        &ca.issue_with(&[], |params| {
            params.subject_alt_names = vec![SanType::DnsName("10.0.0.7".try_into().unwrap())];
        }),
        &ca,
    );
    let (refused, _) = run(&tls(&ca.issue(&[CART]), &ca), &as_name, Some("10.0.0.7"));
    let failure = refused.unwrap_err();
    assert_eq!(failure.reason, FailureReason::WrongName);
    assert!(failure.text.contains("is IP:10.0.0.7, not DNS:10.0.0.7"), "{failure}");
    // The common name counts nowhere.
    let (refused, _) = run(&tls(&ca.issue(&[CART]), &ca), &server, Some("nobody"));
    assert_eq!(reason(refused), FailureReason::WrongName);
}

/// A certificate that [`Tls`] refuses as its own, but that a peer may have.
fn unchecked(leaf: &Leaf, tls: &Tls) -> Factory {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let provider = super::super::provider::provider();
    let chain = vec![CertificateDer::from_pem_slice(leaf.cert.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
    let own = rustls::sign::CertifiedKey::from_der(chain, key, &provider).unwrap();
    let mut factory = Factory::server(tls).unwrap();
    if let Side::Server(config) = &mut factory.side {
        let config = Arc::make_mut(config);
        config.cert_resolver = Arc::new(rustls::sign::SingleCertAndKey::from(own));
    }
    factory
}

#[test]
fn certificates_without_exactly_one_identity_are_refused() {
    let ca = Authority::new("ca");
    let is_ca: fn(&mut CertificateParams) =
        |params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let signs: fn(&mut CertificateParams) =
        |params| params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let only_encrypts: fn(&mut CertificateParams) =
        |params| params.key_usages = vec![KeyUsagePurpose::KeyEncipherment];
    let same: fn(&mut CertificateParams) = |_| {};
    let client = Factory::client(&tls(&ca.issue(&[CART]), &ca).expect_peer(KV)).unwrap();
    let good = tls(&ca.issue(&[KV]), &ca);
    for (names, change, text) in [
        (&[][..], same, "no subject alternative name"),
        (&[KV, CART], same, "2 URIs"),
        (&["spiffe://prod.example"], same, "whole trust domain"),
        (&["spiffe://prod.example/a/../b"], same, "no SPIFFE id"),
        (&["https://prod.example/kv"], same, "no SPIFFE id"),
        (&[KV], is_ca, "CA:FALSE"),
        (&[KV], signs, "authority"),
        (&[KV], only_encrypts, "digitalSignature"),
    ] {
        let leaf = ca.issue_with(names, change);
        let (refused, ..) = shake(&client, &unchecked(&leaf, &good), None);
        let failure = refused.unwrap_err();
        assert_eq!(failure.reason, FailureReason::BadCertificate, "{names:?}");
        assert!(failure.text.contains(text), "{failure}");
        // Nor is it accepted as one's own.
        let own = Tls::from_pem_bytes(&leaf.cert, &leaf.key, ca.pem());
        assert!(own.unwrap_err().to_string().contains(text));
    }
    let (accepted, ..) = shake(&client, &unchecked(&ca.issue(&[KV, "kv"]), &good), None);
    assert!(accepted.is_ok());
}

#[test]
fn certificates_with_too_many_names_are_refused() {
    let ca = Authority::new("ca");
    let client = Factory::client(&tls(&ca.issue(&[CART]), &ca).expect_peer(KV)).unwrap();
    let good = tls(&ca.issue(&[KV]), &ca);
    for (count, is_accepted) in [(255, true), (256, false)] {
        let names: Vec<_> = (0..count).map(|number| format!("kv-{number}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).chain([KV]).collect();
        let (outcome, ..) = shake(&client, &unchecked(&ca.issue(&names), &good), None);
        let says = outcome.err().map(|failure| failure.text).unwrap_or_default();
        assert_eq!(says.is_empty(), is_accepted, "{count}");
        assert!(is_accepted || says.contains("more than 256 names"), "{says}");
    }
}

#[test]
fn a_client_without_certificate_needs_permission() {
    let ca = Authority::new("ca");
    let file = std::env::temp_dir().join(format!("rpc-anonymous-{}.pem", std::process::id()));
    std::fs::write(&file, ca.pem()).unwrap();
    let client = Tls::server_only(&file).unwrap().expect_peer(KV);
    std::fs::remove_file(&file).unwrap();
    let server = tls(&ca.issue(&[KV]), &ca);
    assert_eq!(reason(run(&client, &server, None).1), FailureReason::NoCertificate);
    let (seen_by_client, seen_by_server) = run(&client, &server.allow_anonymous_clients(), None);
    assert!(seen_by_client.unwrap().certificate.is_some());
    assert_eq!(seen_by_server.unwrap().certificate, None);
    assert!(Factory::server(&client).unwrap_err().to_string().contains("needs a certificate"));
}

#[test]
fn another_application_protocol_is_refused() {
    let ca = Authority::new("ca");
    let (client, mut server) =
        factories(&tls(&ca.issue(&[CART]), &ca).expect_peer(KV), &tls(&ca.issue(&[KV]), &ca));
    if let Side::Server(config) = &mut server.side {
        Arc::make_mut(config).alpn_protocols = vec![b"h3".to_vec()];
    }
    let (_, refused, _) = shake(&client, &server, None);
    let failure = refused.unwrap_err();
    assert_eq!(failure.reason, FailureReason::NothingInCommon);
    assert_eq!(failure.told, "tls alert 120 NoApplicationProtocol");
}

#[test]
fn a_hello_retry_costs_two_more_flights() {
    let ca = Authority::new("ca");
    let client = tls(&ca.issue(&[CART]), &ca).expect_peer(KV);
    let server = tls(&ca.issue(&[KV]), &ca);
    let count = |server: &Tls| {
        let (client, server) = factories(&client, server);
        let (seen_by_client, seen_by_server, count) = shake(&client, &server, None);
        assert!(seen_by_client.is_ok() && seen_by_server.is_ok());
        count
    };
    assert_eq!(count(&server), 4);
    assert_eq!(count(&server.with_groups(&[kx_group::SECP384R1])), 6);
}

fn raw(own: &KeyPair, peers: &[&KeyPair]) -> Result<Tls, TlsError> {
    Tls::raw_keys(own.serialize_pem(), peers.iter().map(|peer| peer.public_key_pem()))
}

#[test]
fn raw_keys_name_both_ends() {
    let [client, server, other] = [(); 3].map(|()| KeyPair::generate().unwrap());
    let trusting = raw(&client, &[&other, &server]).unwrap();
    let (seen_by_client, seen_by_server) = run(&trusting, &raw(&server, &[&client]).unwrap(), None);
    let (of_server, of_client) = (seen_by_client.unwrap(), seen_by_server.unwrap());
    let hash = |proof: &Proof| proof.certificate.as_ref().unwrap().key_sha256();
    assert_ne!(hash(&of_server), hash(&of_client));
    assert!(of_client.certificate.as_ref().unwrap().to_string().starts_with("sha256:"));
    // Each end looks.
    let strict = raw(&client, &[&other]).unwrap();
    let refused = run(&strict, &raw(&server, &[&client]).unwrap(), None).0;
    assert_eq!(reason(refused), FailureReason::UnknownAuthority);
    let refused = run(&trusting, &raw(&server, &[&other]).unwrap(), None).1;
    assert_eq!(reason(refused), FailureReason::UnknownAuthority);
    // One's own key at the other end would be a mirror.
    assert!(raw(&client, &[&client]).unwrap_err().to_string().contains("own key"));
    assert!(raw(&client, &[]).unwrap_err().to_string().contains("nobody"));
    // Certificates do not mix with keys.
    let ca = Authority::new("ca");
    let refused = run(&trusting, &tls(&ca.issue(&[KV]), &ca), None).1;
    assert_eq!(reason(refused), FailureReason::NothingInCommon);
}

#[test]
fn a_domain_is_trusted_by_its_own_authorities() {
    let [prod, test] = ["prod", "test"].map(Authority::new);
    let alone = tls(&prod.issue(&[KV]), &prod);
    let and = |tls: &Tls, name: &str, authority: &Authority| {
        let file = format!("rpc-{name}-{}.pem", std::process::id()).replace('/', "_");
        let file = std::env::temp_dir().join(file);
        std::fs::write(&file, authority.pem()).unwrap();
        let both = tls.clone().trust_domain(name, &file);
        std::fs::remove_file(&file).unwrap();
        both
    };
    let both = and(&alone, "test.example", &test).unwrap();
    assert!(and(&alone, "Test/x", &test).is_err());
    let foreign = "spiffe://test.example/cart";
    for (server, issuer, id, expected) in [
        (&alone, &prod, CART, None),
        (&alone, &prod, foreign, Some(FailureReason::UnknownAuthority)),
        (&both, &test, foreign, None),
        (&both, &test, CART, Some(FailureReason::UnknownAuthority)),
        (&both, &prod, foreign, Some(FailureReason::UnknownAuthority)),
        (&both, &test, "cart.test", Some(FailureReason::UnknownAuthority)),
    ] {
        let client = tls(&issuer.issue(&[id]), &prod).expect_peer(KV);
        let client = and(&client, "prod.example", &prod).unwrap();
        let found = run(&client, server, None).1.map(|_| ()).map_err(|failure| failure.reason);
        assert_eq!(found, expected.map_or(Ok(()), Err), "{id}");
    }
}

#[test]
fn a_changed_message_fails_the_handshake() {
    let len = End::pair()[0].out[0].2.len();
    for at in 0..len {
        let mut ends = End::pair();
        ends[0].out[0].2[at] ^= 1;
        let (_, broken) = exchange(&mut ends);
        assert!(broken.iter().any(Option::is_some), "byte {at}");
        assert!(!ends.iter().any(|end| end.driver.is_complete()), "byte {at}");
    }
}

#[test]
fn nothing_shows_bytes_of_keys() {
    let ca = Authority::new("ca");
    let leaf = ca.issue(&[KV]);
    let tls = tls(&leaf, &ca).expect_peer(CART);
    let (client, server) = factories(&tls, &tls);
    let shown = format!("{tls:?} {client:?} {server:?}");
    let secret = leaf.key.lines().nth(1).unwrap();
    assert!(!shown.contains(secret) && shown.len() < 400, "{shown}");
    let broken = leaf.key.replace("PRIVATE", "PRIVAT");
    for (cert, key) in [(&leaf.cert, &broken), (&leaf.key, &leaf.key)] {
        let error = Tls::from_pem_bytes(cert, key, ca.pem());
        let error = format!("{:?}", error.unwrap_err());
        assert!(!error.contains(&secret[..16]), "{error}");
    }
}

#[test]
fn a_key_of_another_certificate_is_refused() {
    let ca = Authority::new("ca");
    let [one, other] = [KV, CART].map(|id| ca.issue(&[id]));
    let ca = ca.pem();
    let build = |cert: &str, key: &str, ca: &str| {
        Tls::from_pem_bytes(cert, key, ca).unwrap_err().to_string()
    };
    assert!(
        build(&one.cert, &other.key, &ca).contains("the key does not belong to the certificate")
    );
    assert!(build("", &one.key, &ca).contains("-----BEGIN CERTIFICATE-----"));
    assert!(build(&one.cert, "", &ca).contains("the key: no private key in it"));
    assert!(build(&one.cert, &one.key, "").contains("the CA: no certificate in it"));
    let middle = Authority::new("ca").intermediate("middle");
    let chained = middle.issue(&[KV]);
    let wrong_order = middle.pem() + &chained.cert;
    assert!(build(&wrong_order, &chained.key, &ca).contains("wrong order: the one of the key"));
    let both = one.cert.clone() + &one.key;
    assert!(Tls::from_pem_bytes(&both, &both, &ca).is_ok(), "one file with both");
    for (cert, key, authorities, says) in [
        (&one.cert, &(one.key.clone() + &other.key), &ca, "the key: more than one private key"),
        (&one.cert, &one.key.replace("PRIVATE", "ENCRYPTED PRIVATE"), &ca, "with a password"),
        (&one.cert, &one.key, &(ca.trim_end().to_owned() + &ca), "the CA: line"),
        (&one.cert, &one.key, &(ca.clone() + &one.key), "the CA: a block PRIVATE KEY is in it"),
        (&(one.cert.trim_end().to_owned() + &ca), &one.key, &ca, "the certificate: line"),
    ] {
        let error = build(cert, key, authorities);
        assert!(error.contains(says), "{error}");
    }
    let missing = Tls::from_pem("/nowhere/cert.pem", "k", "c").unwrap_err().to_string();
    assert!(
        missing.contains("cannot read /nowhere/cert.pem") && missing.contains("check the path")
    );
}
