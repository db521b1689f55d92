//! Every shape of argument and result in both directions, over `mem://`, with every codec.
#![allow(missing_docs, clippy::unwrap_used, reason = "the services here are examples")]

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use rpc_core::bytes::Bytes;
use rpc_core::serde::{Deserialize, Serialize};
use rpc_core::{CallError, Status};
use tests::{CODECS, in_process};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(crate = "rpc_core::serde")]
pub struct Record {
    pub id: u64,
    pub name: String,
    pub tags: Vec<Option<u16>>,
}

fn record() -> Record {
    Record { id: 7, name: "seven".to_owned(), tags: vec![Some(1), None] }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(crate = "rpc_core::serde")]
pub struct View<'a> {
    pub key: &'a str,
    #[serde(borrow)]
    pub label: Cow<'a, str>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(crate = "rpc_core::serde")]
pub enum Mistake {
    Small,
    Large { by: u32 },
}

pub type Blob = Vec<u8>;
pub type Outcome<T> = Result<T, Mistake>;
pub type Maybe = Outcome<Blob>;

#[rpc_core::service]
#[allow(clippy::too_many_arguments, clippy::ptr_arg, reason = "that is what is tested")]
pub trait Arguments {
    async fn none(&self);
    async fn text(&self, borrowed: &str, owned: String, cow: Cow<str>, boxed: Box<str>) -> String;
    async fn bytes(&self, borrowed: &[u8], vec: Vec<u8>, bytes: Bytes, cow: Cow<'_, [u8]>) -> u64;
    async fn boxed_bytes(&self, boxed: Box<[u8]>, array: [u8; 40], lent: &[u8; 3]) -> u64;
    async fn optional(&self, a: Option<&str>, b: Option<&[u8]>, c: Option<Cow<[u8]>>) -> u64;
    async fn many(&self, texts: Vec<&str>, blobs: Vec<&[u8]>, lent: &[Vec<u8>]) -> u64;
    async fn tuples(&self, pair: (&str, &[u8]), nested: (u8, (Cow<str>, Vec<u8>)), unit: ())
    -> u64;
    async fn alias(&self, blob: Blob, lent: &Blob) -> u64;
    async fn view(&self, by_value: View<'_>, lent: &View<'_>) -> String;
    async fn lent(&self, record: &Record, all: &[Record], number: &u32, text: &String) -> Record;
    async fn maps(&self, a: HashMap<String, u8>, b: &BTreeMap<u8, Record>) -> u64;
    async fn numbers(&self, a: u8, b: i128, c: f32, d: char, e: bool, f: [u16; 3]) -> f64;
    #[rustfmt::skip]
    async fn sixteen(
        &self, a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8, h: u8, i: u8, j: u8, k: u8, l: u8,
        m: u8, n: u8, o: u8, p: &str,
    ) -> String;
}

/// Whether `part` lies in the same allocation as `other`: in the request's message.
fn near(part: &[u8], other: &[u8]) -> bool {
    part.as_ptr().addr().abs_diff(other.as_ptr().addr()) < 4096
}

struct Taker;

#[allow(clippy::too_many_arguments, reason = "that is what is tested")]
impl Arguments for Taker {
    async fn none(&self) {}

    async fn text(
        &self,
        borrowed: &str,
        owned: String,
        cow: Cow<'_, str>,
        boxed: Box<str>,
    ) -> String {
        let Cow::Borrowed(cow) = cow else { panic!("the cow is owned") };
        assert!(near(cow.as_bytes(), borrowed.as_bytes()));
        tokio::task::yield_now().await;
        format!("{borrowed}+{owned}+{cow}+{boxed}")
    }

    async fn bytes(&self, borrowed: &[u8], vec: Vec<u8>, bytes: Bytes, cow: Cow<'_, [u8]>) -> u64 {
        let Cow::Borrowed(cow) = cow else { panic!("the cow is owned") };
        assert!(near(cow, borrowed));
        tokio::task::yield_now().await;
        total([borrowed, &vec, &bytes, cow])
    }

    async fn boxed_bytes(&self, boxed: Box<[u8]>, array: [u8; 40], lent: &[u8; 3]) -> u64 {
        total([&*boxed, &array, lent])
    }

    async fn optional(&self, a: Option<&str>, b: Option<&[u8]>, c: Option<Cow<'_, [u8]>>) -> u64 {
        assert!(!matches!(c, Some(Cow::Owned(_))), "the cow is owned");
        let a = a.map_or(&b""[..], str::as_bytes);
        total([a, b.unwrap_or_default(), c.as_deref().unwrap_or_default()])
    }

    async fn many(&self, texts: Vec<&str>, blobs: Vec<&[u8]>, lent: &[Vec<u8>]) -> u64 {
        total(texts.iter().map(|text| text.as_bytes()))
            + total(blobs)
            + total(lent.iter().map(|blob| &**blob))
    }

    async fn tuples(
        &self,
        pair: (&str, &[u8]),
        nested: (u8, (Cow<'_, str>, Vec<u8>)),
        (): (),
    ) -> u64 {
        let (first, (cow, vec)) = nested;
        let Cow::Borrowed(cow) = cow else { panic!("the cow is owned") };
        total([pair.0.as_bytes(), pair.1, &[first], cow.as_bytes(), &vec])
    }

    async fn alias(&self, blob: Blob, lent: &Blob) -> u64 {
        total([&*blob, lent])
    }

    async fn view(&self, by_value: View<'_>, lent: &View<'_>) -> String {
        assert!(matches!(by_value.label, Cow::Borrowed(_)), "the label is owned");
        tokio::task::yield_now().await;
        format!("{by_value:?} {lent:?}")
    }

    async fn lent(&self, record: &Record, all: &[Record], number: &u32, text: &String) -> Record {
        tokio::task::yield_now().await;
        let mut tags = record.tags.clone();
        tags.extend(all.iter().flat_map(|record| record.tags.clone()));
        Record { id: u64::from(*number), name: text.clone(), tags }
    }

    async fn maps(&self, a: HashMap<String, u8>, b: &BTreeMap<u8, Record>) -> u64 {
        a.values().copied().map(u64::from).sum::<u64>() + b.values().map(|r| r.id).sum::<u64>()
    }

    async fn numbers(&self, a: u8, b: i128, c: f32, d: char, e: bool, f: [u16; 3]) -> f64 {
        assert_eq!((b, d, e), (i128::MIN, 'ß', true));
        f64::from(a) + f64::from(c) + f.into_iter().map(f64::from).sum::<f64>()
    }

    #[rustfmt::skip]
    async fn sixteen(
        &self, a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8, h: u8, i: u8, j: u8, k: u8, l: u8,
        m: u8, n: u8, o: u8, p: &str,
    ) -> String {
        format!("{:?} {p}", [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o])
    }
}

/// The sum of all bytes.
fn total<'a>(blobs: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    blobs.into_iter().flatten().map(|&byte| u64::from(byte)).sum()
}

#[tokio::test]
async fn arguments_arrive() {
    for codec in CODECS {
        let client = ArgumentsClient::new(in_process(ArgumentsServer::new(Taker), codec).await);
        assert_eq!(client.none().await, Ok(()));
        let cow = Cow::Borrowed("c");
        let text = client.text("a", "b".to_owned(), cow, "d".into());
        assert_eq!(text.await.as_deref(), Ok("a+b+c+d"));
        let owned = Cow::Owned(vec![4; 4]);
        let bytes = client.bytes(&[1], vec![2; 2], Bytes::from_static(&[3; 3]), owned);
        assert_eq!(bytes.await, Ok(1 + 4 + 9 + 16));
        let boxed = client.boxed_bytes(Box::from([1, 2]), [3; 40], &[4, 5, 6]);
        assert_eq!(boxed.await, Ok(3 + 120 + 15));
        let optional = client.optional(Some("\x01"), Some(&[2]), Some(Cow::Borrowed(&[3])));
        assert_eq!(optional.await, Ok(6));
        assert_eq!(client.optional(None, None, None).await, Ok(0));
        let many = client.many(vec!["\x01", "\x02"], vec![&[3], &[]], &[vec![4], vec![5, 6]]);
        assert_eq!(many.await, Ok(21));
        let nested = (3, (Cow::Borrowed("\x04"), vec![5]));
        assert_eq!(client.tuples(("\x01", &[2]), nested, ()).await, Ok(15));
        assert_eq!(client.alias(vec![1, 2], &vec![3]).await, Ok(6));
        let (a, b) = (
            View { key: "k", label: Cow::Borrowed("l") },
            View { key: "m", label: Cow::Owned("n".to_owned()) },
        );
        let expected = format!("{a:?} {b:?}");
        assert_eq!(client.view(a, &b).await, Ok(expected));
        let lent = client.lent(&record(), &[record(), record()], &9, &"nine".to_owned()).await;
        let Record { id, name, tags } = lent.unwrap();
        assert_eq!((id, &*name, tags.len()), (9, "nine", 6));
        let a = HashMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)]);
        assert_eq!(client.maps(a, &BTreeMap::from([(1, record())])).await, Ok(10));
        let numbers = client.numbers(1, i128::MIN, 0.5, 'ß', true, [1, 2, 300]);
        assert_eq!(numbers.await, Ok(304.5));
        let sixteen = client.sixteen(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, "16");
        let expected = "[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15] 16";
        assert_eq!(sixteen.await.as_deref(), Ok(expected));
    }
}

#[rpc_core::service]
pub trait Results {
    async fn unit(&self);
    async fn record(&self) -> Record;
    async fn vec(&self) -> Vec<u8>;
    async fn bytes(&self) -> Bytes;
    async fn optional(&self, some: bool) -> Option<Vec<u8>>;
    async fn many(&self) -> Vec<Option<Bytes>>;
    async fn array(&self) -> [u8; 50];
    async fn tuple(&self) -> (Vec<u8>, u64, (String,));
    async fn text(&self) -> Cow<'_, str>;
    #[allow(mismatched_lifetime_syntaxes)]
    async fn elided(&self) -> Cow<[u8]>;
    async fn constant(&self) -> Cow<'static, [u8]>;
    async fn checked(&self, input: u32) -> Result<u32, Mistake>;
    async fn checked_bytes(&self, input: u32) -> std::result::Result<Vec<u8>, Mistake>;
    async fn checked_cow(&self, input: u32) -> core::result::Result<Option<Cow<'_, str>>, Mistake>;
    async fn nothing(&self, input: u32) -> Result<(), Mistake>;
    async fn status(&self, input: u32) -> Result<u32, String>;
    #[rpc(result)]
    async fn alias(&self, input: u32) -> Outcome<Record>;
    #[rpc(result)]
    async fn deep_alias(&self, input: u32) -> Maybe;
    async fn refused(&self, input: u32) -> Result<u32, Status>;
    #[rpc(plain)]
    async fn plain(&self, input: u32) -> Result<u32, Mistake>;
    #[rpc(plain)]
    async fn plain_alias(&self, input: u32) -> Outcome<u32>;
}

struct Giver {
    text: String,
}

fn check(input: u32) -> Result<u32, Mistake> {
    match input {
        0 => Err(Mistake::Small),
        1..=10 => Ok(input),
        _ => Err(Mistake::Large { by: input - 10 }),
    }
}

impl Results for Giver {
    async fn unit(&self) {}
    async fn record(&self) -> Record {
        record()
    }
    async fn vec(&self) -> Vec<u8> {
        vec![1, 2, 255]
    }
    async fn bytes(&self) -> Bytes {
        Bytes::from_static(b"bytes")
    }
    async fn optional(&self, some: bool) -> Option<Vec<u8>> {
        some.then(Vec::new)
    }
    async fn many(&self) -> Vec<Option<Bytes>> {
        vec![None, Some(Bytes::from_static(b"one"))]
    }
    async fn array(&self) -> [u8; 50] {
        [9; 50]
    }
    async fn tuple(&self) -> (Vec<u8>, u64, (String,)) {
        (vec![7], 8, ("nine".to_owned(),))
    }
    async fn text(&self) -> Cow<'_, str> {
        tokio::task::yield_now().await;
        Cow::Borrowed(&self.text)
    }
    async fn elided(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.text.as_bytes())
    }
    async fn constant(&self) -> Cow<'static, [u8]> {
        Cow::Borrowed(b"constant")
    }
    async fn checked(&self, input: u32) -> Result<u32, Mistake> {
        check(input)
    }
    async fn checked_bytes(&self, input: u32) -> Result<Vec<u8>, Mistake> {
        Ok(vec![0; check(input)? as usize])
    }
    async fn checked_cow(&self, input: u32) -> Result<Option<Cow<'_, str>>, Mistake> {
        check(input)?;
        Ok(Some(Cow::Borrowed(&self.text)))
    }
    async fn nothing(&self, input: u32) -> Result<(), Mistake> {
        check(input).map(drop)
    }
    async fn status(&self, input: u32) -> Result<u32, String> {
        check(input).map_err(|mistake| format!("{mistake:?}"))
    }
    async fn alias(&self, input: u32) -> Outcome<Record> {
        Ok(Record { id: check(input)?.into(), ..record() })
    }
    async fn deep_alias(&self, input: u32) -> Maybe {
        Ok(vec![3; check(input)? as usize])
    }
    async fn refused(&self, input: u32) -> Result<u32, Status> {
        check(input).map_err(|_| Status::not_found("no").with_details(&b"d"[..]))
    }
    async fn plain(&self, input: u32) -> Result<u32, Mistake> {
        check(input)
    }
    async fn plain_alias(&self, input: u32) -> Outcome<u32> {
        check(input)
    }
}

#[tokio::test]
async fn results_come_back() {
    for codec in CODECS {
        let giver = Arc::new(Giver { text: "text".to_owned() });
        let server = ResultsServer::from_arc(giver).clone();
        let client = ResultsClient::from(in_process(server, codec).await);
        assert_eq!(client.unit().await, Ok(()));
        assert_eq!(client.record().await, Ok(record()));
        assert_eq!(client.vec().await, Ok(vec![1, 2, 255]));
        assert_eq!(client.bytes().await, Ok(Bytes::from_static(b"bytes")));
        assert_eq!(client.optional(true).await, Ok(Some(vec![])));
        assert_eq!(client.optional(false).await, Ok(None));
        assert_eq!(client.many().await, Ok(vec![None, Some(Bytes::from_static(b"one"))]));
        assert_eq!(client.array().await, Ok([9; 50]));
        assert_eq!(client.tuple().await, Ok((vec![7], 8, ("nine".to_owned(),))));
        let text: Cow<'static, str> = client.text().await.unwrap();
        assert_eq!(text, "text");
        let elided: Cow<'static, [u8]> = client.elided().await.unwrap();
        assert_eq!(elided, &b"text"[..]);
        assert_eq!(client.constant().await, Ok(Cow::Borrowed(&b"constant"[..])));
    }
}

#[tokio::test]
async fn the_methods_own_errors_come_back() {
    for codec in CODECS {
        let server = ResultsServer::new(Giver { text: "text".to_owned() });
        let client = ResultsClient::new(in_process(server, codec).await);
        assert_eq!(client.checked(5).await, Ok(5));
        assert_eq!(client.checked(0).await, Err(CallError::User(Mistake::Small)));
        let large = CallError::User(Mistake::Large { by: 2 });
        assert_eq!(client.checked(12).await, Err(large.clone()));
        assert_eq!(client.checked_bytes(3).await, Ok(vec![0; 3]));
        assert_eq!(client.checked_bytes(12).await, Err(large.clone()));
        let cow: Option<Cow<'static, str>> = client.checked_cow(1).await.unwrap();
        assert_eq!(cow.as_deref(), Some("text"));
        assert_eq!(client.checked_cow(12).await, Err(large.clone()));
        assert_eq!(client.nothing(1).await, Ok(()));
        assert_eq!(client.nothing(12).await, Err(large.clone()));
        assert_eq!(client.status(0).await, Err(CallError::User("Small".to_owned())));
        let aliased: Result<Record, CallError<Mistake>> = client.alias(4).await;
        assert_eq!(aliased.unwrap().id, 4);
        assert_eq!(client.alias(12).await, Err(large.clone()));
        assert_eq!(client.deep_alias(2).await, Ok(vec![3; 2]));
        assert_eq!(client.deep_alias(12).await, Err(large));
        assert_eq!(client.refused(5).await, Ok(5));
        let status = Status::not_found("no").with_details(&b"d"[..]);
        let refused = client.refused(0).await.unwrap_err();
        assert_eq!(refused, CallError::Status(status.clone()), "not a body, but a status");
        assert_eq!(Status::from(refused), status);
        let plain: Result<Result<u32, Mistake>, Status> = client.plain(0).await;
        assert_eq!(plain, Ok(Err(Mistake::Small)));
        assert_eq!(client.plain_alias(5).await, Ok(Ok(5)));
    }
}
