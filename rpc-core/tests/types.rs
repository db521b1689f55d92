//! Types that differ at the two ends, or that cannot be sent: no wrong value arrives silently.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use rpc_core::{Bulk, CallError, Channel, Code, Codec, Server};
use serde::{Deserialize, Deserializer, Serialize};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};

const CODECS: [Codec; 2] = [Codec::Bincode, Codec::Postcard];

/// A string that is never one of the made-up values.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Secret(String);

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        match text.as_str() {
            "secret" => Ok(Self(text)),
            _ => Err(serde::de::Error::custom(format!("{text:?} is not the secret"))),
        }
    }
}

fn secret() -> Secret {
    Secret("secret".to_owned())
}

/// The server's version of the service.
mod new {
    use super::*;

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(super) enum State {
        Placed,
        Cancelled,
        Shipped,
    }

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(super) struct Order {
        at: Secret,
        state: State,
        tail: (u8, Secret, State),
    }

    #[rpc_core::service]
    pub(super) trait Orders {
        async fn find(&self, id: u64) -> Option<Order>;
        async fn hidden(&self) -> (Secret, State);
        async fn pay(&self, from: &str, to: &str) -> String;
        async fn move_to(&self, from: &str, count: u32) -> String;
    }

    pub(super) struct Book;

    impl Orders for Book {
        async fn find(&self, _: u64) -> Option<Order> {
            let tail = (0, secret(), State::Placed);
            Some(Order { at: secret(), state: State::Shipped, tail })
        }

        async fn hidden(&self) -> (Secret, State) {
            (secret(), State::Cancelled)
        }

        async fn pay(&self, from: &str, to: &str) -> String {
            format!("{from} pays {to}")
        }

        async fn move_to(&self, from: &str, count: u32) -> String {
            format!("{count} from {from}")
        }
    }
}

/// The version of an older or foreign client.
mod old {
    use super::*;

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(super) enum State {
        Placed,
        Shipped,
    }

    #[derive(Debug, Clone, Serialize, Deserialize)]
    pub(super) struct Order {
        pub(super) at: Secret,
        pub(super) state: State,
        pub(super) tail: (u8, Secret, State),
    }

    #[rpc_core::service]
    pub(super) trait Orders {
        async fn find(&self, id: u64) -> Option<Order>;
        async fn pay(&self, to: &str, from: &str) -> String;
        async fn move_to(&self, place: &str, count: u32) -> String;
    }
}

#[tokio::test]
async fn another_type_behind_a_refusing_one_is_refused() {
    for codec in CODECS {
        let to = Channel::builder().codec(codec).to(new::OrdersServer::new(new::Book));
        let client = old::OrdersClient::new(to.await.unwrap());
        let status = client.find(1).await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition);
        let text = "`result?.tail.2`: its type is unknown";
        assert!(status.message().contains(text), "{status}");
    }
}

#[tokio::test]
async fn swapped_arguments_of_one_type_keep_their_names() {
    let to = Channel::builder().to(new::OrdersServer::new(new::Book));
    let client = old::OrdersClient::new(to.await.unwrap());
    assert_eq!(client.pay("Bob", "Ada").await.unwrap(), "Ada pays Bob");
    // Their types distinguish these, so their names may change.
    assert_eq!(client.move_to("here", 2).await.unwrap(), "2 from here");
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum SkippedFirst {
    #[serde(skip)]
    #[allow(dead_code, reason = "it is skipped")]
    Here,
    Start,
    Stop,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct OldAndNew {
    #[serde(skip_serializing, default)]
    old: u32,
    #[serde(skip_deserializing)]
    new: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Untagged {
    Number(u32),
}

/// Each method has one type that cannot be sent.
mod refused {
    use super::*;

    #[rpc_core::service(name = "Values")]
    pub(super) trait Variants {
        async fn variants(&self, value: Vec<SkippedFirst>) -> u8;
    }

    #[rpc_core::service(name = "Values")]
    pub(super) trait Fields {
        async fn fields(&self) -> Result<u8, OldAndNew>;
    }

    #[rpc_core::service(name = "Values")]
    pub(super) trait Asks {
        async fn asks(&self, value: Option<Untagged>) -> u8;
    }

    #[rpc_core::service(name = "Values")]
    pub(super) trait Items {
        fn items(&self) -> impl rpc_core::stream::Stream<Item = SkippedFirst>;
    }

    pub(super) struct It;

    impl Variants for It {
        async fn variants(&self, _: Vec<SkippedFirst>) -> u8 {
            0
        }
    }

    impl Fields for It {
        async fn fields(&self) -> Result<u8, OldAndNew> {
            Ok(0)
        }
    }

    impl Asks for It {
        async fn asks(&self, _: Option<Untagged>) -> u8 {
            0
        }
    }

    impl Items for It {
        fn items(&self) -> impl rpc_core::stream::Stream<Item = SkippedFirst> {
            futures::stream::empty()
        }
    }
}

/// A server whose methods have the same names and types that can be sent.
mod fine {
    #[rpc_core::service(name = "Values")]
    pub(super) trait Values {
        async fn variants(&self, value: Vec<u8>) -> u8;
        async fn fields(&self) -> Result<u8, u8>;
        async fn asks(&self, value: Option<u8>) -> u8;
    }

    pub(super) struct It;

    impl Values for It {
        async fn variants(&self, _: Vec<u8>) -> u8 {
            0
        }

        async fn fields(&self) -> Result<u8, u8> {
            Ok(0)
        }

        async fn asks(&self, _: Option<u8>) -> u8 {
            0
        }
    }
}

const VARIANTS: &str = "Values.variants: `value[]` (`types::SkippedFirst`) cannot be sent: the \
                        variant `Start` of `SkippedFirst` is written as number 1, which is read as \
                        `Stop`";
const FIELDS: &str = "Values.fields: `error` (`types::OldAndNew`) cannot be sent: \
                      `types::OldAndNew` is written as `{ new }` but read as `{ old }`";
const ASKS: &str = "Values.asks: `value?` (`core::option::Option<types::Untagged>`) cannot be \
                    sent: serde's `untagged` needs a self-describing format; remove the attribute";

#[tokio::test]
async fn bind_refuses_types_that_cannot_be_sent() {
    let bind = |server: rpc_core::ServerBuilder| async {
        server.bind("mem://refused").await.unwrap_err().to_string()
    };
    use refused::{AsksServer, FieldsServer, It, ItemsServer, VariantsServer};
    let text = bind(Server::builder().add_service(VariantsServer::new(It))).await;
    assert!(text.contains(VARIANTS), "{text}");
    let text = bind(Server::builder().add_service(FieldsServer::new(It))).await;
    assert!(text.contains(FIELDS), "{text}");
    let text = bind(Server::builder().add_service(AsksServer::new(It))).await;
    assert!(text.contains(ASKS), "{text}");
    let text = bind(Server::builder().add_service(ItemsServer::new(It))).await;
    assert!(text.contains("Values.items: `item` ("), "{text}");
}

#[tokio::test]
async fn a_client_refuses_types_that_cannot_be_sent() {
    for codec in CODECS {
        let to = Channel::builder().codec(codec).to(fine::ValuesServer::new(fine::It));
        let channel = to.await.unwrap();
        let variants = refused::VariantsClient::new(channel.clone());
        // Each call is refused, not only the first one.
        for _ in 0..3 {
            let status = variants.variants(vec![SkippedFirst::Start]).await.unwrap_err();
            assert_eq!(status.code(), Code::FailedPrecondition);
            assert!(status.message().contains(VARIANTS), "{status}");
        }
        let fields = refused::FieldsClient::new(channel.clone());
        let CallError::Status(status) = fields.fields().await.unwrap_err() else { panic!() };
        assert!(status.message().contains(FIELDS), "{status}");
        let asks = refused::AsksClient::new(channel.clone());
        let status = asks.asks(None).start().await.unwrap_err();
        assert!(status.message().contains(ASKS), "{status}");
        let items = refused::ItemsClient::new(channel);
        let status = items.items().await.map(drop).unwrap_err();
        assert!(status.message().contains("Values.items: `item` ("), "{status}");
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Inner {
    x: u32,
}

/// Neither can be written.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Flat {
    id: u32,
    #[serde(flatten)]
    inner: Inner,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct LeavesOut {
    #[serde(skip_serializing_if = "is_one", default = "one")]
    count: u32,
    last: u8,
}

fn is_one(count: &u32) -> bool {
    *count == 1
}

fn one() -> u32 {
    1
}

#[rpc_core::service]
trait Unwritten {
    async fn flat(&self, value: Flat) -> u8;
    async fn omitted(&self, value: LeavesOut) -> u8;
    async fn upload(&self, value: Flat, items: rpc_core::stream::Streaming<u8>) -> u8;
    fn items(&self, value: Flat) -> impl rpc_core::stream::Stream<Item = u8>;
}

/// A regression: what was found as such a value was written had another code than the types have
/// that are looked at first.
#[tokio::test]
async fn no_value_changes_a_refusals_code() {
    let channel = Channel::builder().to(fine::ValuesServer::new(fine::It)).await.unwrap();
    let client = UnwrittenClient::new(channel);
    let flat = || Flat { id: 1, inner: Inner { x: 2 } };
    let items = || futures::stream::iter([1_u8]);
    let errors = [
        client.flat(flat()).await.unwrap_err(),
        client.omitted(LeavesOut { count: 1, last: 1 }).await.unwrap_err(),
        client.upload(flat(), items()).await.unwrap_err(),
        client.items(flat()).await.map(drop).unwrap_err(),
    ];
    for status in errors {
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        let text = status.message();
        assert!(text.contains("`value") && text.contains(" cannot be sent: serde's"), "{text}");
    }
}

/// Fields that are omitted if they are `None`, empty, 0 or false.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Sparse {
    id: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tags: Vec<String>,
    #[serde(default, skip_serializing_if = "is_zero")]
    count: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    flag: bool,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    text: String,
    last: i16,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Failed {
    With {
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<u8>,
        why: String,
    },
}

#[rpc_core::service]
trait Echo {
    async fn echo(&self, value: Sparse, list: Vec<Sparse>) -> (Sparse, Vec<Sparse>);
    async fn fail(&self, failed: Failed) -> Result<Bulk, Failed>;
    fn each(&self, values: Vec<Sparse>) -> impl rpc_core::stream::Stream<Item = Sparse>;
}

struct Echoes;

impl Echo for Echoes {
    async fn echo(&self, value: Sparse, list: Vec<Sparse>) -> (Sparse, Vec<Sparse>) {
        (value, list)
    }

    async fn fail(&self, failed: Failed) -> Result<Bulk, Failed> {
        Err(failed)
    }

    fn each(&self, values: Vec<Sparse>) -> impl rpc_core::stream::Stream<Item = Sparse> {
        futures::stream::iter(values)
    }
}

/// Each of its fields is present or omitted.
fn sparse(present: u32) -> Sparse {
    let is = |bit: u32| present & 1 << bit != 0;
    Sparse {
        id: present,
        note: is(0).then(|| "note".to_owned()),
        tags: if is(1) { vec!["a".to_owned(), String::new()] } else { Vec::new() },
        count: if is(2) { 300 } else { 0 },
        flag: is(3),
        text: if is(4) { "text".to_owned() } else { String::new() },
        last: -2,
    }
}

#[tokio::test]
async fn fields_that_are_left_out_arrive_empty() {
    for codec in CODECS {
        let to = Channel::builder().codec(codec).to(EchoServer::new(Echoes));
        let client = EchoClient::new(to.await.unwrap());
        let all: Vec<Sparse> = (0..32).map(sparse).collect();
        for one in &all {
            let back = client.echo(one.clone(), all.clone()).await.unwrap();
            assert_eq!(back, (one.clone(), all.clone()), "{codec:?}");
        }
        for code in [None, Some(3)] {
            let failed = Failed::With { code, why: "no".to_owned() };
            let CallError::User(back) = client.fail(failed.clone()).await.unwrap_err() else {
                panic!("{codec:?}")
            };
            assert_eq!(back, failed);
        }
        let items = client.each(all.clone()).await.unwrap();
        let items: Vec<Sparse> = items.map(|item| item.unwrap()).collect().await;
        assert_eq!(items, all);
    }
}

/// A value that is omitted although the reader cannot restore it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Odd {
    #[serde(skip_serializing_if = "is_secret_number")]
    number: u32,
}

fn is_secret_number(number: &u32) -> bool {
    *number == 4711
}

#[rpc_core::service]
trait Odds {
    async fn odd(&self, value: Odd) -> u32;
}

struct Numbers;

impl Odds for Numbers {
    async fn odd(&self, value: Odd) -> u32 {
        value.number
    }
}

#[tokio::test]
async fn a_field_left_out_unexpectedly_is_an_error() {
    for codec in CODECS {
        let to = Channel::builder().codec(codec).to(OddsServer::new(Numbers));
        let client = OddsClient::new(to.await.unwrap());
        assert_eq!(client.odd(Odd { number: 5 }).await, Ok(5));
        let status = client.odd(Odd { number: 4711 }).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(
            status.message().contains("number: serde's skip_serializing_if omits a field"),
            "{status}"
        );
    }
}

/// Keeps the text of each warning.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.0, "{value:?}");
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN && metadata.target().starts_with("rpc_")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Separate, as other tests have already triggered warnings that are logged once.
mod warned {
    use super::*;

    #[rpc_core::service]
    pub(super) trait Warned {
        async fn find(&self, id: u64) -> Option<(u8, Secret, bool)>;
        async fn seen(&self, id: u64) -> Option<String>;
    }

    pub(super) struct It;

    impl Warned for It {
        async fn find(&self, _: u64) -> Option<(u8, Secret, bool)> {
            None
        }

        async fn seen(&self, _: u64) -> Option<String> {
            None
        }
    }
}

#[test]
fn what_is_not_compared_is_said_once() {
    let warnings = Warnings::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tracing::subscriber::with_default(warnings.clone(), || {
        runtime.block_on(async {
            for _ in 0..2 {
                let to = Channel::builder().to(warned::WarnedServer::new(warned::It));
                let client = warned::WarnedClient::new(to.await.unwrap());
                assert_eq!(client.find(1).await, Ok(None));
                assert_eq!(client.seen(1).await, Ok(None));
            }
        });
    });
    let text =
        "Warned.find: `result?.1` rejects made-up values; the parts after it are not compared";
    // A busy machine may make the driver warn of a slow handler.
    let warnings = warnings.0.lock().unwrap();
    let of_types: Vec<_> = warnings.iter().filter(|text| text.starts_with("Warned")).collect();
    assert_eq!(of_types, [text]);
}

#[rpc_core::service]
trait Picky {
    async fn tell(&self, secret: Secret, count: u8) -> u8;
    async fn even(&self, number: Even) -> u32;
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
struct Even(u32);

impl TryFrom<u32> for Even {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        if number.is_multiple_of(2) { Ok(Self(number)) } else { Err(format!("{number} is odd")) }
    }
}

impl From<Even> for u32 {
    fn from(even: Even) -> Self {
        even.0
    }
}

struct Refuses;

impl Picky for Refuses {
    async fn tell(&self, _: Secret, count: u8) -> u8 {
        count
    }

    async fn even(&self, number: Even) -> u32 {
        number.0
    }
}

#[tokio::test]
async fn a_refusal_of_the_type_keeps_its_reason() {
    for codec in CODECS {
        let to = Channel::builder().codec(codec).to(PickyServer::new(Refuses));
        let client = PickyClient::new(to.await.unwrap());
        let status = client.even(Even(7)).await.unwrap_err();
        let text = "cannot decode the arguments of Picky.even: argument number: 7 is odd";
        assert_eq!(status.message(), text, "{codec:?}");
        assert_eq!(client.tell(secret(), 3).await, Ok(3));
        let status = client.tell(Secret("told".to_owned()), 3).await.unwrap_err();
        let text = "argument secret: \"told\" is not the secret";
        assert!(status.message().contains(text), "{status}");
    }
}
