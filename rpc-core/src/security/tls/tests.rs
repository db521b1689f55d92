//! The log of a server and its clients, at every level and of all crates, beside all keys that the
//! two have: those of files, of handshakes, of frames, and what binds tokens to a connection.

use std::fmt::Write;
use std::sync::Mutex;

use rustls::crypto::CryptoProvider;
use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::quic::{Algorithm, HeaderProtectionKey, PacketKey};
use rustls::{CipherSuiteCommon, SupportedCipherSuite, Tls13CipherSuite};
use test_kit::Watchdog;
use test_kit::certificates::rcgen::KeyPair;
use test_kit::certificates::{Authority, Leaf};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Metadata, Subscriber};

use super::*;
use crate::{Channel, Context, Server};

const KV: &str = "spiffe://prod.example/ns/shop/sa/kv";
const CART: &str = "spiffe://prod.example/ns/shop/sa/cart";

#[crate::service]
trait Shelf {
    async fn bound(&self) -> Vec<u8>;
}

struct Binding;

impl Shelf for Binding {
    async fn bound(&self) -> Vec<u8> {
        Context::current().channel_binding().expect("TLS").to_vec()
    }
}

/// Keeps the text of every event and span.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl Visit for &Log {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0.lock().unwrap(), "{field}={value:?} ");
    }
}

impl Subscriber for Log {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        span.record(&mut &*self);
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        values.record(&mut &*self);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        event.record(&mut &*self);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Makes the keys of frames, and notes them.
struct Noting {
    real: &'static dyn Algorithm,
    noted: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Algorithm for Noting {
    fn packet_key(&self, key: AeadKey, iv: Iv) -> Box<dyn PacketKey> {
        self.noted.lock().unwrap().extend([key.as_ref().to_vec(), iv.as_ref().to_vec()]);
        self.real.packet_key(key, iv)
    }

    fn header_protection_key(&self, key: AeadKey) -> Box<dyn HeaderProtectionKey> {
        self.real.header_protection_key(key)
    }

    fn aead_key_len(&self) -> usize {
        self.real.aead_key_len()
    }
}

impl Tls {
    /// With the first suite alone, whose keys are noted.
    fn noting(mut self, noted: &Arc<Mutex<Vec<Vec<u8>>>>) -> Self {
        let suite = self.live.provider.cipher_suites[0].tls13().unwrap();
        let CipherSuiteCommon { suite: name, hash_provider, confidentiality_limit } = suite.common;
        let noting = Noting { real: suite.quic.unwrap(), noted: Arc::clone(noted) };
        let suite = Tls13CipherSuite {
            common: CipherSuiteCommon { suite: name, hash_provider, confidentiality_limit },
            quic: Some(Box::leak(Box::new(noting))),
            ..*suite
        };
        let cipher_suites = vec![SupportedCipherSuite::Tls13(Box::leak(Box::new(suite)))];
        let provider = CryptoProvider { cipher_suites, ..(*self.live.provider).clone() };
        self.live = self.live.with_provider(provider);
        self
    }
}

fn tls(leaf: &Leaf, authority: &Authority) -> Tls {
    Tls::from_pem_bytes(&leaf.cert, &leaf.key, authority.pem()).unwrap()
}

/// With only one subscriber in the process, `tracing` asks the one of the thread that comes upon an
/// event first whether anybody wants such events: without a second one, other tests in the process
/// would silence the log of this one.
#[test]
fn no_log_has_bytes_of_a_key() {
    let _watchdog = Watchdog::start("keys in logs");
    let (log, _second) = (Log::default(), Dispatch::new(Log::default()));
    let ca = Authority::new("ca");
    let leaves = [ca.issue(&[KV]), ca.issue(&[CART]), Authority::new("other").issue(&[CART])];
    let (noted, mut bound) = (Arc::default(), Vec::new());
    tracing::subscriber::with_default(log.clone(), || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let builder = Server::builder().tls(tls(&leaves[0], &ca).noting(&noted));
            tracing::trace!(?builder);
            let server = builder.add_service(ShelfServer::new(Binding)).bind("tcp://127.0.0.1:0");
            let server = server.await.unwrap();
            let (at, stats) = (server.local_address().to_string(), server.stats_handle());
            tokio::spawn(server.serve());
            let client = Channel::builder().tls(tls(&leaves[1], &ca).expect_peer(KV));
            tracing::trace!(?client);
            let shelf = ShelfClient::new(client.connect(&at).await.unwrap());
            bound = shelf.bound().await.unwrap();
            let stranger = Channel::builder().tls(tls(&leaves[2], &ca).expect_peer(KV));
            stranger.connect(&at).await.unwrap_err();
            while stats.stats().denied == 0 {
                tokio::task::yield_now().await;
            }
        });
    });
    let log = log.0.lock().unwrap().to_lowercase();
    let caller = format!("peer.id=\"{CART}\"");
    for words in ["connected", "not admitted", "serverbuilder", &*caller] {
        assert!(log.contains(words), "{words} is not in the log, so it proves nothing: {log}");
    }
    let mut secrets = noted.lock().unwrap().clone();
    // Of two handshakes, in each direction, a key and an IV of the handshake and of frames.
    assert!(secrets.len() >= 12, "only {} session keys", secrets.len());
    secrets.push(bound);
    for leaf in leaves {
        let der = KeyPair::from_pem(&leaf.key).unwrap().serialize_der();
        // Where PKCS#8 has the number of a key of P-256.
        secrets.push(der[36..68].to_vec());
        let line = leaf.key.lines().nth(1).unwrap();
        assert!(!log.contains(&line[..24].to_lowercase()));
    }
    for secret in secrets {
        let hex: String = secret[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        let numbers: Vec<_> = secret[..8].iter().map(ToString::to_string).collect();
        for bytes in [hex, numbers.join(", ")] {
            assert!(!log.contains(&bytes), "{bytes}");
        }
    }
}

/// One way in which the ends do not fit: what the client's error says, and the server's log.
struct Misfit {
    server: Option<Tls>,
    client: Option<Tls>,
    told: &'static [&'static str],
    logged: &'static str,
}

#[test]
fn each_failure_says_what_to_do() {
    let _watchdog = Watchdog::start("errors of TLS");
    let (log, _second) = (Log::default(), Dispatch::new(Log::default()));
    let [ca, other] = ["ca", "other"].map(Authority::new);
    let server = |leaf| Some(tls(&leaf, &ca));
    let client = |leaf| Some(tls(&leaf, &ca).expect_peer(KV));
    let ended = |id| {
        ca.issue_with(&[id], |params| {
            params.not_after = test_kit::certificates::rcgen::date_time_ymd(2020, 1, 1);
        })
    };
    let clear = |tls: Option<Tls>| tls.map(|tls| tls.protection(Protection::Authenticate));
    let deny = |tls: Option<Tls>| {
        tls.map(|tls| tls.authorize(|_| Err(Status::permission_denied("ask the owner of kv"))))
    };
    let (good, fine) = (|| server(ca.issue(&[KV])), || client(ca.issue(&[CART])));
    let misfits = [
        (
            server(ca.issue(&[CART])),
            fine(),
            &[CART, KV, "correct the address"][..],
            "RefusedByPeer",
        ),
        (server(other.issue(&[KV])), fine(), &["this end's ca.pem?"], "RefusedByPeer"),
        (server(ended(KV)), fine(), &["ended on 2020-01-01", "renew it"], "RefusedByPeer"),
        (good(), client(other.issue(&[CART])), &["no CA in the ca.pem here"], "UnknownAuthority"),
        (good(), client(ended(CART)), &["Expired: renew it", "its log"], "ended on 2020-01-01"),
        (good(), None, &["this server requires TLS: give the client"], "requires TLS"),
        (None, fine(), &["`Server::builder().tls(..)`", "correct the address"], ""),
        (good(), clear(fine()), &["set the same level at both ends"], "protection"),
        (deny(good()), fine(), &["ask the owner of kv", "its log says why"], CART),
    ];
    let misfits =
        misfits.map(|(server, client, told, logged)| Misfit { server, client, told, logged });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tracing::subscriber::with_default(log.clone(), || {
        for Misfit { server, client, told, logged } in misfits {
            log.0.lock().unwrap().clear();
            runtime.block_on(async {
                let builder = server.into_iter().fold(Server::builder(), |it, tls| it.tls(tls));
                let server = builder.bind("tcp://127.0.0.1:0").await.unwrap();
                let at = server.local_address().to_string();
                tokio::spawn(server.serve());
                let builder = client.into_iter().fold(Channel::builder(), |it, tls| it.tls(tls));
                let error = builder.connect(&at).await.unwrap_err().to_string();
                assert!(error.contains(&at), "{error}");
                told.iter().for_each(|words| assert!(error.contains(words), "{words}: {error}"));
                // The client may have its error first.
                let has_logged = || {
                    let log = log.0.lock().unwrap();
                    log.contains(logged)
                        && (logged.is_empty()
                            || log.contains("not admitted")
                            || log.contains("set-up failed"))
                };
                while !has_logged() {
                    tokio::task::yield_now().await;
                }
            });
        }
    });
}

/// A regression: with no time in between, files were read again and again without end.
#[test]
fn files_are_not_read_without_end() {
    let ca = Authority::new("ca");
    let tls = tls(&ca.issue(&["kv.example"]), &ca).reload_every(Duration::ZERO);
    assert_eq!(tls.reload_every, Some(SHORTEST_RELOAD));
}
