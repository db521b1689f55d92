//! The value does not depend on what an encoder, this one or any other, takes out of the body.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use rpc_transport::message::payload::Payload;
use rpc_transport::message::read_error::ReadError;
use serde::{Deserialize, Serialize};

use super::*;
use crate::bulk::Bulk;
use crate::codec::blob::{Blob, OwnedBlob};
use crate::codec::shape::{Plain as PlainShape, Put, Take};
use crate::resolution::Decoding;
use crate::wire::{self, Part, Parts};

fn codecs() -> impl Iterator<Item = Codec> {
    [Codec::Bincode, Codec::Postcard].into_iter().filter(|codec| codec.is_compiled_in())
}

fn body<T: Serialize>(
    codec: Codec,
    value: &T,
    placement: Placement<'_>,
) -> Result<OutBuf, CodecError> {
    let mut out = OutBuf::new();
    codec.encode_body(value, &mut out, placement, Whole).map(|()| out)
}

/// All positions of byte strings in a type, with other values between them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Tree {
    Bulk(Bulk),
    Bytes(Bytes),
    /// Element by element: for the format this is not a byte string.
    Vec(Vec<u8>),
    Text(String),
    Number(u64),
    Nested {
        maybe: Option<Bulk>,
        list: Vec<Tree>,
        pair: (u16, Bulk),
    },
    Map(BTreeMap<String, Tree>),
}

fn bulk() -> impl Strategy<Value = Bulk> {
    vec(any::<u8>(), 0..40).prop_map(Bulk::from)
}

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        bulk().prop_map(Tree::Bulk),
        vec(any::<u8>(), 0..40).prop_map(|bytes| Tree::Bytes(bytes.into())),
        vec(any::<u8>(), 0..20).prop_map(Tree::Vec),
        "[a-zäß]{0,12}".prop_map(Tree::Text),
        any::<u64>().prop_map(Tree::Number),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            (prop::option::of(bulk()), vec(inner.clone(), 0..4), any::<u16>(), bulk()).prop_map(
                |(maybe, list, number, bulk)| Tree::Nested { maybe, list, pair: (number, bulk) }
            ),
            btree_map("[a-z]{0,3}", inner, 0..4).prop_map(Tree::Map),
        ]
    })
}

fn plain<T: Serialize>(codec: Codec, value: &T) -> Vec<u8> {
    let mut out = OutBuf::new();
    codec.encode(value, &mut out).unwrap();
    out.to_vec()
}

/// Head and tail, as received.
fn sent(out: &OutBuf) -> (Vec<u8>, Vec<u8>) {
    let mut tail = Vec::new();
    for part in out.tail() {
        part.append_to(0..part.len(), &mut tail);
    }
    (out.to_vec(), tail)
}

/// Head and tail, joined again.
fn joined(head: &[u8], tail: &[u8]) -> Vec<u8> {
    if tail.is_empty() {
        return head.to_vec();
    }
    let (parts, body) = Parts::split(head);
    let (mut bytes, mut from, mut tail) = (Vec::new(), 0, tail);
    for Part { at, len } in parts.iter() {
        let (part, rest) = tail.split_at(usize::try_from(len).unwrap());
        bytes.extend_from_slice(&body[from..at as usize]);
        bytes.extend_from_slice(part);
        (from, tail) = (at as usize, rest);
    }
    assert!(tail.is_empty());
    bytes.extend_from_slice(&body[from..]);
    bytes
}

/// Decodes with the tail kept by the message, and with the tail owned by the decoder.
fn decoded<T, H>(codec: Codec, shape: H, head: &[u8], tail: &[u8]) -> [Result<T, CodecError>; 2]
where
    H: for<'de> crate::codec::shape::TakeShape<'de, T>,
{
    if tail.is_empty() {
        let decode = || codec.decode_seed(Take::<T, H>::new(shape), head);
        return [decode(), decode()];
    }
    let (payload, scratch) = (Payload::private(tail.to_vec()), Scratch::new());
    let kept = codec.decode_parts(Take::new(shape), head, Tail::Kept(&payload), &scratch);
    let (payload, scratch) = (Payload::private(tail.to_vec()), Scratch::new());
    let given = Tail::Given(Bulk::from(payload));
    [kept, codec.decode_parts(Take::new(shape), head, given, &scratch)]
}

/// Takes spans out of `bytes`: `cuts` are the lengths of the spans that stay and go, in turn.
fn cut(bytes: &[u8], cuts: &[usize]) -> (Vec<u8>, Vec<u8>) {
    let (mut body, mut tail, mut parts) = (OutBuf::new(), Vec::new(), Vec::new());
    let mut rest = bytes;
    for (turn, len) in cuts.iter().enumerate() {
        let (piece, behind) = rest.split_at((*len).min(rest.len()));
        rest = behind;
        if turn % 2 == 0 || piece.is_empty() {
            body.extend_from_slice(piece);
        } else {
            parts.push(Part { at: body.len().try_into().unwrap(), len: piece.len() as u64 });
            tail.extend_from_slice(piece);
        }
    }
    body.extend_from_slice(rest);
    if !parts.is_empty() {
        wire::prepend_parts(&mut body, parts.into_iter());
    }
    (body.to_vec(), tail)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn parts_put_back_are_the_plain_encoding(value in tree(), min_part_bytes in 0..40_usize) {
        for codec in codecs() {
            let placement = Placement { min_part_bytes, pool: Pool::None };
            let out = body(codec, &value, placement).unwrap();
            let (head, tail) = sent(&out);
            prop_assert_eq!(joined(&head, &tail), plain(codec, &value));
            for back in decoded::<Tree, _>(codec, PlainShape, &head, &tail) {
                prop_assert_eq!(back, Ok(value.clone()));
            }
        }
    }

    #[test]
    fn a_sender_may_take_out_whatever_it_likes(
        value in tree(),
        cuts in vec(prop_oneof![Just(0_usize), 0..4_usize, 0..60_usize], 0..12),
    ) {
        for codec in codecs() {
            let (head, tail) = cut(&plain(codec, &value), &cuts);
            for back in decoded::<Tree, _>(codec, PlainShape, &head, &tail) {
                prop_assert_eq!(back, Ok(value.clone()), "{:?}", codec);
            }
        }
    }

    /// For arbitrary bytes the two methods agree, and neither panics nor reads out of bounds.
    #[test]
    fn garbage_is_refused_wherever_it_lies(
        bytes in vec(any::<u8>(), 0..80),
        cuts in vec(0..20_usize, 0..8),
    ) {
        for codec in codecs() {
            let (head, tail) = cut(&bytes, &cuts);
            let whole = codec.decode::<Tree>(&bytes).ok();
            for back in decoded::<Tree, _>(codec, PlainShape, &head, &tail) {
                prop_assert_eq!(back.ok(), whole.clone());
            }
        }
    }

    #[test]
    fn borrowed_values_agree_in_body_and_tail(
        one in vec(any::<u8>(), 0..40),
        text in "[a-z]{0,30}",
        cuts in vec(0..40_usize, 0..8),
    ) {
        type Borrowed<'a> = (&'a str, &'a [u8], Cow<'a, [u8]>, Cow<'a, str>, Option<&'a [u8]>);
        let value = (&*text, Bytes::from(one.clone()), &*text, &*text, Some(Bytes::from(one.clone())));
        let shape = (PlainShape, Blob, Blob, Blob, Blob);
        for codec in codecs() {
            let (head, tail) = cut(&plain(codec, &value), &cuts);
            let (payload, scratch) = (Payload::private(tail.clone()), Scratch::new());
            let back: Borrowed<'_> = if tail.is_empty() {
                codec.decode_seed(Take::new(shape), &head).unwrap()
            } else {
                codec.decode_parts(Take::new(shape), &head, Tail::Kept(&payload), &scratch).unwrap()
            };
            let expected = (&*text, &*one, Cow::Borrowed(text.as_bytes()), Cow::Borrowed(&*text), Some(&*one));
            prop_assert_eq!(back, expected);
        }
    }
}

fn in_parts<T: Serialize>(codec: Codec, value: &T) -> (Vec<u8>, Vec<u8>) {
    let placement = Placement { min_part_bytes: 4, pool: Pool::None };
    sent(&body(codec, value, placement).unwrap())
}

#[test]
fn a_part_reaches_its_owner_without_a_copy() {
    for codec in codecs() {
        let (head, tail) = in_parts(codec, &(1_u8, Bulk::from(vec![7; 100]), 2_u8));
        let address = tail.as_ptr();
        let given = || Tail::Given(Bulk::from(Payload::private(tail.clone())));
        let scratch = Scratch::new();
        let shape = (PlainShape, OwnedBlob, PlainShape);
        let seed = Take::<(u8, Vec<u8>, u8), _>::new(shape);
        let (_, copied, _) = codec.decode_parts(seed, &head, given(), &scratch).unwrap();
        assert_eq!(copied, [7; 100]);
        assert_ne!(copied.as_ptr(), address);
        let seed = Take::<(u8, Vec<u8>, u8), _>::new(shape);
        let only = Tail::Given(Bulk::from(Payload::private(tail)));
        let (_, moved, _) = codec.decode_parts(seed, &head, only, &scratch).unwrap();
        assert_eq!(moved.as_ptr(), address);
    }
}

/// Regression: an argument took twice its size at the receiver, a result once.
#[test]
fn an_argument_is_the_received_byte_string() {
    use crate::__private::{MethodDescriptor, Request, Seeds, seed, split};
    use crate::context::Context;
    use rpc_transport::message::received::Message;

    static METHOD: MethodDescriptor = MethodDescriptor::new("A.a", "(bytes) -> ()", &["a"]);
    for codec in codecs() {
        let (head, tail) = in_parts(codec, &(Bulk::from(vec![7; 100]),));
        let incoming = || {
            let payload = Payload::private(tail.clone());
            let address = payload.as_private_slice().unwrap().as_ptr();
            let message = Message::private(head.clone()).with_tail(Some(payload));
            (address, split(Request::new(message, codec, Decoding::OwnTypes, Context::new())).1)
        };
        let (address, request) = incoming();
        let (vec,) = request.arguments(&METHOD, Seeds((seed::<Vec<u8>, _>(Blob),))).unwrap();
        assert_eq!((vec.as_ptr(), &*vec), (address, &[7; 100][..]));
        let (address, request) = incoming();
        let (bytes,) = request.arguments(&METHOD, Seeds((seed::<Bytes, _>(Blob),))).unwrap();
        assert_eq!((bytes.as_ptr(), &*bytes), (address, &[7; 100][..]));
        let (address, request) = incoming();
        let (slice,) = request.arguments(&METHOD, Seeds((seed::<&[u8], _>(Blob),))).unwrap();
        assert_eq!((slice.as_ptr(), slice), (address, &[7; 100][..]));
        let (address, request) = incoming();
        let (bulk,) = request.arguments(&METHOD, Seeds((seed::<Bulk, _>(PlainShape),))).unwrap();
        assert_eq!(bulk.as_slice().unwrap().as_ptr(), address);
    }
}

#[test]
fn a_message_with_unreadable_bytes_is_refused() {
    fn refused<T, H>(codec: Codec, shape: H, head: &[u8], tail: u64)
    where
        H: for<'de> crate::codec::shape::TakeShape<'de, T> + Copy,
    {
        let scratch = Scratch::new();
        let payload = Payload::unreadable(usize::try_from(tail).unwrap());
        for tail in [Tail::Kept(&payload), Tail::Given(Bulk::from(payload.clone()))] {
            let decoded = codec.decode_parts(Take::<T, H>::new(shape), head, tail, &scratch);
            let Err(error) = decoded else { panic!("{codec:?} reads what cannot be read") };
            assert_eq!(*error.kind(), CodecErrorKind::Unreadable(ReadError::Forked));
        }
    }

    let unreadable = || Bulk::from(Payload::unreadable(100));
    for codec in codecs() {
        let (head, tail) = in_parts(codec, &(Bulk::from(vec![7; 100]), Bulk::from(vec![8; 50])));
        refused::<(Vec<u8>, Bulk), _>(codec, (Blob, PlainShape), &head, tail.len() as u64);
        // Joined first.
        refused::<(Vec<u8>, String), _>(codec, PlainShape, &head, tail.len() as u64);
        let (head, tail) = in_parts(codec, &(Bulk::from(vec![7; 100]),));
        refused::<(Vec<u8>,), _>(codec, (Blob,), &head, tail.len() as u64);
        for min_part_bytes in [50, usize::MAX] {
            let placement = Placement { min_part_bytes, pool: Pool::None };
            let mut out = OutBuf::new();
            out.extend_from_slice(b"before");
            let value = (Bulk::from(vec![7; 200]), unreadable());
            let failed = codec.encode_body(&value, &mut out, placement, Whole);
            let kind = failed.unwrap_err().kind().clone();
            assert_eq!(kind, CodecErrorKind::Unreadable(ReadError::Forked));
            assert_eq!((&*out, out.tail_len()), (&b"before"[..], 0));
        }
    }
}

#[test]
fn bytes_are_taken_by_reference_count() {
    for codec in codecs() {
        let bytes = Bytes::from(vec![9; 8192]);
        let placement = Placement { min_part_bytes: 4096, pool: Pool::None };
        let out = body(codec, &Put(&bytes, Blob), placement).unwrap();
        assert_eq!((out.tail().len(), out.tail_len()), (1, 8192));
        assert!(!bytes.is_unique(), "the tail shares them");
        drop(out);
        assert!(bytes.is_unique());
    }
}

#[test]
fn borrowed_values_lie_in_a_private_tail() {
    for codec in codecs() {
        let (head, tail) = in_parts(codec, &(Bulk::from(vec![1; 50]), Bulk::from(vec![2; 60])));
        let (payload, scratch) = (Payload::private(tail), Scratch::new());
        let seed = Take::<(&[u8], Cow<'_, [u8]>), _>::new((Blob, Blob));
        let (first, second) =
            codec.decode_parts(seed, &head, Tail::Kept(&payload), &scratch).unwrap();
        let all = payload.as_private_slice().unwrap();
        assert_eq!((first, &*second), (&all[..50], &all[50..]));
        assert!(all.as_ptr_range().contains(&first.as_ptr()));
        assert!(
            matches!(second, Cow::Borrowed(bytes) if all.as_ptr_range().contains(&bytes.as_ptr()))
        );
    }
}

/// More borrowed parts than are copied individually.
#[test]
fn many_borrowed_parts_are_put_together() {
    for codec in codecs() {
        let value: Vec<Bulk> = (0..200_u8).map(|at| Bulk::from(vec![at; 5])).collect();
        let (head, tail) = in_parts(codec, &value);
        assert_eq!(Parts::split(&head).0.count(), 200);
        let scratch = Scratch::new();
        let given = Tail::Given(Bulk::from(Payload::private(tail)));
        let seed = Take::<Vec<&[u8]>, _>::new(Blob);
        let back = codec.decode_parts(seed, &head, given, &scratch).unwrap();
        assert!(back.iter().zip(0_u8..).all(|(bytes, at)| *bytes == [at; 5]));
        assert_eq!(back.len(), 200);
    }
}

#[test]
fn the_number_of_parts_is_limited() {
    for codec in codecs() {
        let value = vec![Bulk::from(vec![3; 10]); 5000];
        let (head, tail) = in_parts(codec, &value);
        assert_eq!(Parts::split(&head).0.count(), usize::from(wire::MAX_PARTS));
        for back in decoded::<Vec<Bulk>, _>(codec, PlainShape, &head, &tail) {
            assert_eq!(back.as_ref(), Ok(&value));
        }
    }
}

#[test]
fn a_tail_of_the_wrong_length_is_refused() {
    for codec in codecs() {
        let (head, tail) = in_parts(codec, &(5_u8, Bulk::from(vec![7; 100])));
        let longer = [&head[..], &[0, 0]].concat();
        for back in decoded::<(u8, Bulk), _>(codec, PlainShape, &longer, &tail) {
            assert_eq!(*back.unwrap_err().kind(), CodecErrorKind::TrailingBytes { count: 2 });
        }
        for back in decoded::<u8, _>(codec, PlainShape, &head, &tail) {
            assert_eq!(*back.unwrap_err().kind(), CodecErrorKind::TrailingBytes { count: 101 });
        }
        for back in decoded::<(u8, Bulk, u8), _>(codec, PlainShape, &head, &tail) {
            assert!(matches!(back.unwrap_err().kind(), CodecErrorKind::Malformed { .. }));
        }
    }
}

#[test]
fn a_failed_encoding_leaves_no_tail() {
    for codec in codecs() {
        let placement = Placement { min_part_bytes: 4, pool: Pool::None };
        let bytes = Bytes::from(vec![1; 100]);
        let value = (Bulk::from(bytes.clone()), vec![(); 1000]);
        body(codec, &value, placement).unwrap_err();
        drop(value);
        assert!(bytes.is_unique());
    }
}

/// A value may encode another one while it is encoded, and fail: the payload still belongs to the
/// first.
#[test]
fn nested_serializers_do_not_interfere() {
    thread_local!(static INNER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
    struct Outer;
    impl Serialize for Outer {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let inner = plain(Codec::default(), &Bulk::from(vec![1; 10]));
            INNER.with(|place| place.replace(inner));
            Bulk::from(vec![2; 10]).serialize(serializer)
        }
    }
    for codec in codecs() {
        assert_eq!(in_parts(codec, &Outer).1, [2; 10]);
        assert_eq!(INNER.take()[1..], [1; 10]);
    }
}
