//! Services as a server and a client see them, over `mem://`: options, identity, failures,
//! contexts.
#![allow(missing_docs, clippy::unwrap_used, reason = "the services here are examples")]

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rpc_core::service::{Decoding, Dispatch, MethodDescriptor, Request};
use rpc_core::{CallError, Channel, Code, Codec, Context, Status};
use rpc_transport::message::received::Message;
use serde::{Deserialize, Serialize};
use tests::{CODECS, in_process};
use tokio::sync::Notify;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum KvError {
    Full { limit: u32 },
}

#[rpc_core::service]
pub trait Kv {
    /// Looks a key up.
    async fn get(&self, key: &str) -> Option<Vec<u8>>;
    async fn put(&self, key: &str, value: &[u8]) -> Result<u64, KvError>;
    /// With a default body, so that old implementations need not define it.
    #[rpc(idempotent)]
    async fn size(&self, key: &str) -> Option<usize> {
        let value = self.get(key).await?;
        Some(value.len())
    }
}

struct Store;

impl Kv for Store {
    async fn get(&self, key: &str) -> Option<Vec<u8>> {
        tokio::task::yield_now().await;
        (key != "missing").then(|| key.as_bytes().to_vec())
    }

    async fn put(&self, key: &str, value: &[u8]) -> Result<u64, KvError> {
        if key == "full" { Err(KvError::Full { limit: 7 }) } else { Ok(value.len() as u64) }
    }
}

#[tokio::test]
async fn calls_come_back() {
    for codec in CODECS {
        let kv = KvClient::new(in_process(KvServer::new(Store), codec).await);
        assert_eq!(kv.get("k").timeout(Duration::from_secs(5)).await, Ok(Some(b"k".to_vec())));
        assert_eq!(kv.get("missing").await, Ok(None));
        assert_eq!(kv.put("k", b"12345").await, Ok(5));
        assert_eq!(kv.put("full", b"").await, Err(CallError::User(KvError::Full { limit: 7 })));
        assert_eq!(kv.size("four").await, Ok(Some(4)), "a default body");
    }
}

/// A regression: it was refused, in an unrelated place and without mentioning `from_arc`.
#[tokio::test]
async fn an_implementation_in_an_arc_is_served() {
    let store = Arc::new(Store);
    let codec = Codec::default();
    let kv = KvClient::new(in_process(KvServer::new(Arc::clone(&store)), codec).await);
    assert_eq!(kv.put("k", b"12345").await, Ok(5));
    let kv = KvClient::new(in_process(KvServer::from_arc(store), codec).await);
    assert_eq!(kv.size("four").await, Ok(Some(4)));
}

#[rpc_core::service]
pub trait Refuser {
    async fn refuse(&self, code: u8, details: &[u8]) -> Result<(), Status>;
}

impl Refuser for Store {
    async fn refuse(&self, code: u8, details: &[u8]) -> Result<(), Status> {
        let code = Code::from_number(code).unwrap();
        Err(Status::new(code, "mine").with_details(details.to_vec()))
    }
}

/// A regression: such details were mistaken for the marks of this framework's own refusals, and the
/// text was rewritten.
#[tokio::test]
async fn a_users_status_is_no_refusal() {
    let refuser = RefuserClient::new(in_process(RefuserServer::new(Store), Codec::default()).await);
    // The first call carries the signature, the others do not.
    for round in 0..3 {
        for code in [Code::FailedPrecondition, Code::Unimplemented] {
            for details in [&b"signature"[..], b"method"] {
                let status = match refuser.refuse(code.number(), details).await.unwrap_err() {
                    CallError::User(status) | CallError::Status(status) => status,
                };
                let expected = Status::new(code, "mine").with_details(details.to_vec());
                assert_eq!(status, expected, "round {round}");
            }
        }
    }
}

fn is_a_good_future<F: Future + Send + Unpin>(future: F) -> F {
    future
}

#[tokio::test]
async fn a_call_is_a_future_like_any_other() {
    let kv = KvClient::new(in_process(KvServer::new(Store), Codec::default()).await);
    let call = is_a_good_future(kv.get("a"));
    let started = is_a_good_future(kv.get("b").start());
    let spawned = tokio::spawn(started);
    let (a, b) = tokio::join!(call, spawned);
    assert_eq!((a, b.unwrap()), (Ok(Some(b"a".to_vec())), Ok(Some(b"b".to_vec()))));
    // The arguments are encoded when the call is made, so borrowed values may be dropped.
    let call = {
        let key = String::from("gone");
        kv.get(&key)
    };
    assert_eq!(call.await, Ok(Some(b"gone".to_vec())));
    assert_eq!(format!("{:?}", KvServer::new(Store)), "KvServer");
    assert!(format!("{kv:?}").starts_with("KvClient("));
}

#[rpc_core::service(name = "Renamed", version = 3)]
pub trait Options {
    #[rpc(idempotent)]
    async fn idempotent(&self, key: &str);
    #[rpc(no_cancel, spawn)]
    async fn lasting(&self) -> u64;
    #[rpc(name = "other", version = 4)]
    #[rpc(spawn)]
    async fn named(&self, value: &[u8], r#type: u8) -> Result<Vec<u8>, KvError>;
    #[cfg(any())]
    async fn left_out(&self, value: NoSuchType);
    #[cfg(not(any()))]
    async fn kept(&self) -> u64;
    #[cfg(any())]
    #[rpc(name = "kept")]
    async fn kept_elsewhere(&self) -> u64;
}

struct Nothing;

impl Options for Nothing {
    async fn idempotent(&self, _key: &str) {}
    async fn lasting(&self) -> u64 {
        1
    }
    async fn named(&self, value: &[u8], r#type: u8) -> Result<Vec<u8>, KvError> {
        Ok(vec![r#type; value.len()])
    }
    async fn kept(&self) -> u64 {
        2
    }
}

#[tokio::test]
async fn options_reach_the_descriptor() {
    let server = OptionsServer::new(Nothing);
    let service = server.descriptor();
    assert_eq!(service.name, "Renamed");
    let flags = |method: &MethodDescriptor| (method.idempotent, method.no_cancel, method.spawn);
    let [idempotent, lasting, named, kept] = service.methods else {
        panic!("{service:?}");
    };
    assert_eq!((idempotent.name, flags(idempotent)), ("Renamed.idempotent", (true, false, false)));
    assert_eq!((lasting.name, flags(lasting)), ("Renamed.lasting", (false, true, true)));
    assert_eq!((named.name, flags(named)), ("Renamed.other", (false, false, true)));
    assert_eq!((kept.name, kept.signature), ("Renamed.kept", "() -> u64 #3"));
    assert_eq!(named.signature, "(bytes, u8) -> bytes / KvError #4");
    assert_eq!(named.arguments, ["value", "type"]);
    assert_eq!(service.position(named.id), Some(2));

    let client = OptionsClient::new(in_process(server, Codec::default()).await);
    assert_eq!(client.named(b"abc", 5).await, Ok(vec![5; 3]));
    assert_eq!(client.kept().await, Ok(2), "positions skip what is left out");
}

/// These values are part of the wire format: they never change.
#[test]
fn identities_are_golden() {
    let server = KvServer::new(Store);
    let seen: Vec<_> = server
        .descriptor()
        .methods
        .iter()
        .map(|method| (method.name, method.id, method.signature, method.signature_hash))
        .collect();
    let expected = [
        ("Kv.get", 0xf050_bb1a, "(str) -> Option<bytes>", 0x3999_6d05_d9b7_2704),
        ("Kv.put", 0xdd1a_7f8b, "(str, bytes) -> u64 / KvError", 0xa29a_b044_d526_cea2),
        ("Kv.size", 0xf904_31af, "(str) -> Option<usize>", 0x448d_de00_648f_ebab),
    ];
    assert_eq!(seen, expected);
}

/// A second trait for the same service, of which one method has changed.
mod later {
    #[rpc_core::service]
    pub trait Kv {
        async fn get(&self, key: String) -> Option<Vec<u8>>;
        async fn put(&self, key: &str, value: &[u8]) -> Result<String, super::KvError>;
        async fn delete(&self, key: &str) -> bool;
    }
}

#[tokio::test]
async fn what_has_not_changed_still_works() {
    let kv = later::KvClient::new(in_process(KvServer::new(Store), Codec::default()).await);
    assert_eq!(kv.get("k".to_owned()).await, Ok(Some(b"k".to_vec())), "same bytes, same signature");
    let Err(CallError::Status(status)) = kv.put("k", b"").await else { panic!("no status") };
    assert_eq!(status.code(), Code::FailedPrecondition);
    for part in ["Kv.put", "`result`", "it is `u64` at the writer and `str` here"] {
        assert!(status.message().contains(part), "{status}");
    }
    let status = kv.delete("k").await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("its services are: Kv"), "{status}");
}

/// A server's answer to a request with these bytes.
async fn answer(dispatch: &dyn Dispatch, method: usize, bytes: &[u8]) -> Status {
    let message = Message::copied(bytes);
    let request = Request::new(message, Codec::default(), Decoding::OwnTypes, Context::new());
    let mut handler = dispatch.dispatch(method, request);
    let reply = poll_fn(|cx| handler.poll_caught(cx)).await;
    match reply {
        rpc_core::service::Reply::Status(status) => status,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn arguments_that_cannot_be_decoded_are_named() {
    let server = KvServer::new(Store);
    let status = answer(&server, 1, b"\x01k\x05ab").await;
    assert_eq!(status.code(), Code::InvalidArgument);
    // No advice: differing types would have been detected at the first call.
    let expected =
        "cannot decode the arguments of Kv.put: argument value: the message ends too early";
    assert_eq!(status.message(), expected);
    let status = answer(&server, 0, b"\x01\xff").await;
    let expected = "cannot decode the arguments of Kv.get: argument key: a string is not UTF-8";
    assert_eq!(status.message(), expected);
    let status = answer(&server, 0, b"\x01kmore").await;
    assert!(status.message().contains("4 bytes are left over"), "{status}");
    assert_eq!(answer(&server, 9, b"").await.code(), Code::Unimplemented);
}

#[rpc_core::service]
pub trait Unlucky {
    async fn panics(&self, early: bool) -> u64;
    async fn takes(&self, number: u8, list: Vec<()>) -> u64;
    async fn gives(&self) -> Vec<()>;
    async fn fails(&self) -> Result<u8, Vec<()>>;
    async fn waits(&self);
    async fn picky(&self, name: Picky);
}

/// Panics while it is decoded.
#[derive(Debug, Serialize)]
pub struct Picky;

impl<'de> Deserialize<'de> for Picky {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("secret");
    }
}

#[derive(Default)]
struct Bad {
    started: Arc<Notify>,
    dropped: Arc<Notify>,
}

/// Reports when it is dropped.
struct Running(Arc<Notify>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

impl Unlucky for Bad {
    async fn panics(&self, early: bool) -> u64 {
        if !early {
            tokio::task::yield_now().await;
        }
        panic!("secret {early}");
    }

    async fn takes(&self, _number: u8, _list: Vec<()>) -> u64 {
        1
    }

    async fn gives(&self) -> Vec<()> {
        vec![(); 100]
    }

    async fn fails(&self) -> Result<u8, Vec<()>> {
        Err(vec![(); 100])
    }

    async fn waits(&self) {
        let _running = Running(Arc::clone(&self.dropped));
        self.started.notify_one();
        std::future::pending().await
    }

    async fn picky(&self, _name: Picky) {}
}

#[tokio::test]
async fn a_panic_stays_at_home() {
    for codec in CODECS {
        let client =
            UnluckyClient::new(in_process(UnluckyServer::new(Bad::default()), codec).await);
        let panicked = Status::internal("the handler panicked");
        assert_eq!(client.panics(true).await, Err(panicked.clone()));
        assert_eq!(client.panics(false).await, Err(panicked.clone()));
        assert_eq!(client.picky(Picky).await, Err(panicked), "while decoding");
        assert_eq!(client.takes(1, vec![]).await, Ok(1), "and the next call works");
    }
}

#[tokio::test]
async fn values_that_cannot_be_encoded_are_named() {
    for codec in CODECS {
        let client =
            UnluckyClient::new(in_process(UnluckyServer::new(Bad::default()), codec).await);
        let status = client.takes(1, vec![(); 100]).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with("cannot encode the arguments of Unlucky.takes: "));
        for status in [
            client.gives().await.unwrap_err(),
            client.fails().await.unwrap_err().status().unwrap().clone(),
        ] {
            assert_eq!(status.code(), Code::Internal);
            assert!(status.message().starts_with("cannot encode the result of Unlucky."));
        }
    }
}

#[tokio::test]
async fn dropping_a_call_drops_its_handler() {
    let bad = Bad::default();
    let (started, dropped) = (Arc::clone(&bad.started), Arc::clone(&bad.dropped));
    let client = UnluckyClient::new(in_process(UnluckyServer::new(bad), Codec::default()).await);
    let call = client.waits().start();
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, started.notified()).await.expect("the handler starts");
    drop(call);
    tokio::time::timeout(limit, dropped.notified()).await.expect("the handler is dropped");
}

#[rpc_core::service]
pub trait Inspect {
    async fn describe(&self) -> (String, Option<String>, String, bool);
    async fn remaining_ms(&self) -> Option<u64>;
    async fn nested_ms(&self) -> Option<u64>;
    async fn spawned(&self) -> (String, String);
}

struct Inspector(std::sync::OnceLock<Channel>);

impl Inspect for Inspector {
    async fn describe(&self) -> (String, Option<String>, String, bool) {
        let before = Context::current();
        tokio::task::yield_now().await;
        let context = Context::current();
        assert_eq!(before.method_name(), context.method_name());
        let tenant = context.metadata().text("tenant").map(str::to_owned);
        let peer = format!("{:?}", context.peer().unwrap());
        (context.method_name().to_owned(), tenant, peer, context.deadline().is_some())
    }

    async fn remaining_ms(&self) -> Option<u64> {
        Some(u64::try_from(Context::current().remaining()?.as_millis()).unwrap())
    }

    async fn nested_ms(&self) -> Option<u64> {
        let client = InspectClient::new(self.0.get().unwrap().clone());
        let inner = client.remaining_ms().timeout(Duration::from_secs(3600)).await.unwrap();
        assert_eq!(Context::current().method_name(), "Inspect.nested_ms");
        inner
    }

    async fn spawned(&self) -> (String, String) {
        let name = async { Context::current().method_name().to_owned() };
        let without = tokio::spawn(name).await.unwrap();
        let name = async { Context::current().method_name().to_owned() };
        let with = tokio::spawn(Context::current().scope(name)).await.unwrap();
        (without, with)
    }
}

async fn inspector(codec: Codec) -> InspectClient {
    let inspector = Arc::new(Inspector(std::sync::OnceLock::new()));
    let channel = in_process(InspectServer::from_arc(Arc::clone(&inspector)), codec).await;
    inspector.0.set(channel.clone()).unwrap();
    InspectClient::new(channel)
}

#[tokio::test]
async fn a_handler_knows_its_call() {
    for codec in CODECS {
        let client = inspector(codec).await;
        let name = "Inspect.describe".to_owned();
        let peer = "SameProcess".to_owned();
        let described = client.describe().metadata("tenant", "t1").await.unwrap();
        assert_eq!(described, (name.clone(), Some("t1".to_owned()), peer.clone(), false));
        let described = client.describe().timeout(Duration::from_secs(60)).await.unwrap();
        assert_eq!(described, (name, None, peer, true));
        let (without, with) = client.spawned().await.unwrap();
        assert_eq!((&*without, &*with), ("", "Inspect.spawned"));
        let status = client.describe().metadata("Bad Name", "").await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
    }
}

#[tokio::test]
async fn calls_of_a_handler_inherit_its_deadline() {
    let client = inspector(Codec::default()).await;
    let remaining = client.nested_ms().timeout(Duration::from_secs(60)).await.unwrap().unwrap();
    assert!(remaining <= 60_000, "{remaining}");
    assert_eq!(client.remaining_ms().await, Ok(None));
    let past = client.remaining_ms().deadline(Instant::now()).await;
    assert_eq!(past.unwrap_err().code(), Code::DeadlineExceeded);
}
