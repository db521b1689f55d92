//! Methods in MessagePack: types that need names, and types that change as serde lets them.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt;
use rpc_core::codec::CodecErrorKind;
use rpc_core::service::Dispatch;
use rpc_core::{Bulk, CallError, Channel, Code, Codec, Server, stream};
use rpc_transport::message::outgoing::OutBuf;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Id {
    Number(u64),
    Name(String),
    Pair(u8, Vec<u8>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Shape {
    Circle { radius: f64 },
    Square { side: f64, label: Option<String> },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "t", content = "c")]
enum Adjacent {
    One(u32),
    Two { x: i64 },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Extra {
    depth: u16,
    #[serde(flatten)]
    more: BTreeMap<String, Id>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Everything {
    id: Id,
    shapes: Vec<Shape>,
    adjacent: Vec<Adjacent>,
    #[serde(flatten)]
    extra: Extra,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    wide: (i128, u128, char, f32),
    bytes: Vec<u8>,
    array: [u8; 3],
    set: BTreeSet<u8>,
    bulk: Bulk,
    some_bulk: Option<Bulk>,
    unit: (),
    maybe: Option<Vec<Option<u8>>>,
}

fn everything(note: Option<&str>) -> Everything {
    let more = [("a", Id::Number(7)), ("b", Id::Name("x".into())), ("c", Id::Pair(1, vec![2]))];
    Everything {
        id: Id::Name("id".into()),
        shapes: vec![
            Shape::Circle { radius: 1.5 },
            Shape::Square { side: 2.0, label: Some("s".into()) },
        ],
        adjacent: vec![Adjacent::One(1), Adjacent::Two { x: -5 }],
        extra: Extra { depth: 3, more: more.map(|(key, id)| (key.to_owned(), id)).into() },
        note: note.map(str::to_owned),
        wide: (i128::MIN, u128::from(u64::MAX), 'ß', 0.5),
        bytes: vec![0, 255, 3],
        array: [1, 2, 3],
        set: [9, 8].into(),
        bulk: Bulk::from(vec![5; 20_000]),
        some_bulk: Some(Bulk::from(vec![6; 10])),
        unit: (),
        maybe: Some(vec![Some(1), None]),
    }
}

fn round_trip<T>(value: &T) -> T
where
    T: Serialize + for<'a> Deserialize<'a>,
{
    let mut out = OutBuf::new();
    Codec::MsgPack.encode(value, &mut out).unwrap();
    Codec::MsgPack.decode(&out).unwrap()
}

async fn serve(address: &str, service: impl Dispatch) {
    let server = Server::builder().add_service(service).bind(address).await.unwrap();
    tokio::spawn(server.serve());
}

/// The service as it was, and as it is now.
mod old {
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    pub(super) struct Order {
        pub(super) id: u32,
        pub(super) text: String,
        pub(super) gone: u8,
    }

    #[rpc_core::service(codec = "msgpack")]
    pub(super) trait Orders {
        async fn place(&self, order: Order) -> Order;
    }
}

mod new {
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    pub(super) struct Renamed {
        #[serde(default)]
        pub(super) added: Vec<String>,
        #[serde(rename = "text", alias = "note")]
        pub(super) words: String,
        pub(super) id: u64,
        #[serde(default)]
        pub(super) gone: Option<u8>,
    }

    #[rpc_core::service(codec = "msgpack")]
    pub(super) trait Orders {
        async fn place(&self, order: Renamed) -> Renamed;
    }
}

#[rpc_core::service]
trait Mixed {
    #[rpc(codec = "msgpack")]
    async fn echo(&self, value: Everything) -> Everything;
    #[rpc(codec = "msgpack")]
    async fn borrowed(&self, text: &str, bytes: &[u8], id: Option<Id>) -> String;
    #[rpc(codec = "msgpack")]
    async fn fails(&self, id: Id) -> Result<u8, Shape>;
    #[rpc(codec = "msgpack")]
    fn each(&self, ids: stream::Streaming<Id>) -> impl stream::Stream<Item = Shape>;
    #[rpc(codec = "msgpack")]
    async fn nested(&self, value: Option<Option<u8>>) -> u8;
    async fn plain(&self, number: u32) -> u32;
}

struct Here;

impl Mixed for Here {
    async fn echo(&self, value: Everything) -> Everything {
        value
    }

    async fn borrowed(&self, text: &str, bytes: &[u8], id: Option<Id>) -> String {
        format!("{text} {bytes:?} {id:?}")
    }

    async fn fails(&self, _: Id) -> Result<u8, Shape> {
        Err(Shape::Circle { radius: 2.0 })
    }

    fn each(&self, ids: stream::Streaming<Id>) -> impl stream::Stream<Item = Shape> {
        ids.map(|id| match id {
            Ok(Id::Number(number)) => Shape::Circle { radius: number as f64 },
            other => Shape::Square { side: 0.0, label: Some(format!("{other:?}")) },
        })
    }

    async fn nested(&self, value: Option<Option<u8>>) -> u8 {
        value.flatten().unwrap_or_default()
    }

    async fn plain(&self, number: u32) -> u32 {
        number
    }
}

#[test]
fn types_that_need_names_come_back() {
    for note in [None, Some("a note")] {
        let value = everything(note);
        assert_eq!(round_trip(&value), value);
    }
}

#[tokio::test]
async fn calls_and_streams_carry_types_with_names() {
    let address = "mem://msgpack-mixed";
    serve(address, MixedServer::new(Here)).await;
    let client = MixedClient::new(Channel::connect(address).await.unwrap());
    let value = everything(None);
    assert_eq!(client.echo(value.clone()).await.unwrap(), value);
    let said = client.borrowed("text", &[1, 2, 200], Some(Id::Number(3))).await.unwrap();
    assert_eq!(said, "text [1, 2, 200] Some(Number(3))");
    let error = client.fails(Id::Number(1)).await.unwrap_err();
    assert!(matches!(error, CallError::User(Shape::Circle { radius: 2.0 })), "{error:?}");
    let ids = futures::stream::iter([Id::Number(4), Id::Name("n".into())]);
    let shapes: Vec<_> = client.each(ids).await.unwrap().collect().await;
    assert_eq!(*shapes[0].as_ref().unwrap(), Shape::Circle { radius: 4.0 });
    assert!(matches!(shapes[1].as_ref().unwrap(), Shape::Square { .. }));
    // The methods without the option go on in the channel's codec.
    assert_eq!(client.plain(7).await.unwrap(), 7);

    assert_eq!(client.nested(Some(Some(4))).await.unwrap(), 4);
    let refused = client.nested(Some(None)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.to_string().contains("arrives as `None`"), "{refused}");
}

struct Orders;

impl new::Orders for Orders {
    async fn place(&self, mut order: new::Renamed) -> new::Renamed {
        order.added.push(format!("{} {:?}", order.words, order.gone));
        order
    }
}

impl old::Orders for Orders {
    async fn place(&self, order: old::Order) -> old::Order {
        order
    }
}

#[tokio::test]
async fn ends_of_other_types_read_by_name() {
    let address = "mem://msgpack-new";
    serve(address, new::OrdersServer::new(Orders)).await;
    let client = old::OrdersClient::new(Channel::connect(address).await.unwrap());
    let order = old::Order { id: 5, text: "t".into(), gone: 9 };
    let back = client.place(order).await.unwrap();
    assert_eq!((back.id, back.text.as_str(), back.gone), (5, "t", 9));

    let address = "mem://msgpack-old";
    serve(address, old::OrdersServer::new(Orders)).await;
    let client = new::OrdersClient::new(Channel::connect(address).await.unwrap());
    let order = || new::Renamed { added: vec![], words: "w".into(), id: 1, gone: None };
    let refused = client.place(order()).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.to_string().contains("gone"), "{refused}");
    let order = new::Renamed { id: 1 << 40, gone: Some(1), ..order() };
    let refused = client.place(order).await.unwrap_err();
    assert!(refused.to_string().contains("id"), "{refused}");
}

mod bare {
    #[rpc_core::service]
    pub(super) trait Orders {
        async fn place(&self, order: u32) -> u32;
    }
}

#[tokio::test]
async fn ends_of_different_codecs_are_refused() {
    let address = "mem://msgpack-codecs";
    serve(address, new::OrdersServer::new(Orders)).await;
    let client = bare::OrdersClient::new(Channel::connect(address).await.unwrap());
    let refused = client.place(1).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    let channel = Channel::builder().codec(Codec::MsgPack).connect(address).await;
    let refused = channel.unwrap_err().to_string();
    assert!(refused.contains("#[service(codec"), "{refused}");
}

#[test]
fn hostile_messages_are_refused() {
    let kind = |bytes: &[u8]| Codec::MsgPack.decode::<Id>(bytes).unwrap_err().kind().clone();
    let list = |bytes: &[u8]| {
        let error = Codec::MsgPack.decode::<Vec<Vec<u64>>>(bytes).unwrap_err();
        error.kind().clone()
    };
    // Arrays, maps and strings that claim more than there is.
    assert!(matches!(
        list(&[0xdd, 0xff, 0xff, 0xff, 0xff]),
        CodecErrorKind::TooManyElements { .. }
    ));
    assert!(matches!(
        kind(&[0xdd, 0xff, 0xff, 0xff, 0xff]),
        CodecErrorKind::TooManyElements { .. }
    ));
    assert!(matches!(kind(&[0xdb, 0xff, 0xff, 0xff, 0xff]), CodecErrorKind::Malformed { .. }));
    assert!(matches!(kind(&[0xc6, 0xff, 0xff, 0xff, 0xff]), CodecErrorKind::Malformed { .. }));
    // Nested without an end, where the type is known and where anything is taken or skipped.
    let is_deep = |kind: &_| matches!(kind, CodecErrorKind::TooDeep | CodecErrorKind::TooMuchStack);
    assert!(is_deep(&kind(&[0x91; 100_000])));
    let skipped = [&[0x81, 0xa1, b'x'][..], &[0x91; 100_000]].concat();
    let error = Codec::MsgPack.decode::<new::Renamed>(&skipped).unwrap_err();
    assert!(is_deep(error.kind()), "{error}");
    // What follows the value.
    let error = Codec::MsgPack.decode::<u8>(&[7, 1, 2, 3]).unwrap_err();
    assert_eq!(*error.kind(), CodecErrorKind::TrailingBytes { count: 3 });
    let error = Codec::MsgPack.decode::<u8>(&[7, 0xdb]).unwrap_err();
    assert_eq!(*error.kind(), CodecErrorKind::TrailingBytes { count: 1 });
    assert!(Codec::MsgPack.decode::<u8>(&[]).unwrap_err().to_string().contains("too early"));
}
