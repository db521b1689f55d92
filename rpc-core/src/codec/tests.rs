//! Round trips of values, and bytes that encode no value.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};
use std::marker::PhantomData;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::*;
use crate::codec::blob::{Blob, OwnedBlob};
use crate::codec::shape::{Plain, Put, Take};

/// The codecs that are compiled in.
fn codecs() -> impl Iterator<Item = Codec> {
    [Codec::Bincode, Codec::Postcard].into_iter().filter(|codec| codec.is_compiled_in())
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Everything {
    numbers: (u8, i16, u32, i64, u128, f32, f64),
    text: String,
    letter: char,
    maybe: Option<Box<Everything>>,
    list: Vec<Shape>,
    map: BTreeMap<String, Vec<u16>>,
    unit: (),
    new: Newtype,
    flag: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Shape {
    Unit,
    New(i32),
    Tuple(u8, String),
    Struct { x: f64, y: Option<f64> },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Newtype(u64);

fn everything() -> Everything {
    let inner = Everything {
        numbers: (0, -1, 70_000, i64::MIN, u128::MAX, 1.5, -0.0),
        text: String::new(),
        letter: 'ß',
        maybe: None,
        list: vec![],
        map: BTreeMap::new(),
        unit: (),
        new: Newtype(u64::MAX),
        flag: false,
    };
    Everything {
        text: "grüße".to_owned(),
        maybe: Some(Box::new(inner.clone())),
        list: vec![
            Shape::Unit,
            Shape::New(-5),
            Shape::Tuple(9, "t".to_owned()),
            Shape::Struct { x: 0.5, y: Some(f64::MAX) },
        ],
        map: BTreeMap::from([("a".to_owned(), vec![1, 2, 300]), ("b".to_owned(), vec![])]),
        flag: true,
        ..inner
    }
}

fn encoded<T: Serialize + ?Sized>(codec: Codec, value: &T) -> Vec<u8> {
    let mut out = OutBuf::new();
    codec.encode(value, &mut out).unwrap();
    out.to_vec()
}

fn decode_error<T: DeserializeOwned + Debug>(codec: Codec, bytes: &[u8]) -> CodecErrorKind {
    codec.decode::<T>(bytes).unwrap_err().kind().clone()
}

/// A bincode or postcard count, little-endian, without the elements that it announces.
fn huge_count(codec: Codec, count: u64) -> Vec<u8> {
    encoded(codec, &count)
}

#[test]
fn values_come_back() {
    for codec in codecs() {
        let value = everything();
        let bytes = encoded(codec, &value);
        assert_eq!(codec.decode::<Everything>(&bytes), Ok(value), "{codec:?}");
        assert_eq!(codec.decode::<()>(&encoded(codec, &())), Ok(()));
    }
}

#[test]
fn encodings_do_not_change() {
    let value = (300_u32, "ab", Some(-1_i64), [1_u16, 2], Shape::Tuple(7, "x".to_owned()));
    let bytes = Put(&&[9_u8, 8][..], Blob);
    for codec in codecs() {
        let number: &[u8] = if codec == Codec::Bincode { &[251, 44, 1] } else { &[172, 2] };
        let rest = [2, b'a', b'b', 1, 1, 1, 2, 2, 7, 1, b'x'];
        assert_eq!(encoded(codec, &value), [number, &rest].concat(), "{codec:?}");
        assert_eq!(encoded(codec, &bytes), [2, 9, 8]);
    }
}

#[test]
fn ids_are_those_of_the_wire_format() {
    assert_eq!((Codec::Bincode.id(), Codec::Postcard.id(), Codec::MsgPack.id()), (1, 2, 3));
    for codec in codecs() {
        assert_eq!(Codec::from_id(codec.id()), Ok(codec));
    }
    for id in [0, 4, 255] {
        let error = Codec::from_id(id).unwrap_err();
        assert_eq!(*error.kind(), CodecErrorKind::UnknownCodec { id });
    }
    let missing = CodecErrorKind::NotCompiledIn { codec: Codec::Postcard };
    assert!(missing.to_string().contains("cargo feature `postcard`"), "{missing}");
}

#[test]
fn encoding_appends_and_a_failed_one_leaves_nothing() {
    for codec in codecs() {
        let mut out = OutBuf::new();
        out.extend_from_slice(b"before");
        codec.encode(&7_u8, &mut out).unwrap();
        assert_eq!(&*out, b"before\x07");
        codec.encode(&("written first", vec![(); 1000]), &mut out).unwrap_err();
        assert_eq!(&*out, b"before\x07");
    }
}

#[test]
fn trailing_bytes_are_refused() {
    for codec in codecs() {
        let mut bytes = encoded(codec, &("k", 5_u32));
        bytes.extend_from_slice(&[0, 0, 0]);
        let kind = decode_error::<(String, u32)>(codec, &bytes);
        assert_eq!(kind, CodecErrorKind::TrailingBytes { count: 3 });
    }
}

#[test]
fn a_message_cut_anywhere_is_refused() {
    for codec in codecs() {
        let bytes = encoded(codec, &everything());
        for len in 0..bytes.len() {
            let error = codec.decode::<Everything>(&bytes[..len]).unwrap_err();
            assert!(
                matches!(
                    error.kind(),
                    CodecErrorKind::Malformed { .. } | CodecErrorKind::TooManyElements { .. }
                ),
                "{codec:?} {len}: {error}"
            );
        }
    }
}

#[test]
fn damaged_messages_never_panic() {
    let seed = RandomState::new().hash_one(0);
    println!("seed {seed}");
    let mut state = seed | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 33).unwrap()
    };
    for codec in codecs() {
        let good = encoded(codec, &everything());
        for _ in 0..20_000 {
            let mut bytes = good.clone();
            for _ in 0..1 + random() % 4 {
                let at = random() % bytes.len();
                bytes[at] = u8::try_from(random() % 256).unwrap();
            }
            // Damaged bytes may still decode: the value must then survive a round trip.
            if let Ok(value) = codec.decode::<Everything>(&bytes) {
                let again = encoded(codec, &value);
                let value_again = codec.decode::<Everything>(&again).unwrap();
                assert_eq!(format!("{value:?}"), format!("{value_again:?}"));
            }
        }
    }
}

#[test]
fn counts_larger_than_the_message_are_refused_first() {
    for codec in codecs() {
        for count in [1_000_000, u64::from(u32::MAX), u64::MAX / 2, u64::MAX] {
            let bytes = huge_count(codec, count);
            let refused = CodecErrorKind::TooManyElements { limit: bytes.len() };
            assert_eq!(decode_error::<Vec<u64>>(codec, &bytes), refused);
            assert_eq!(decode_error::<Vec<[u64; 32]>>(codec, &bytes), refused);
            assert_eq!(decode_error::<Vec<()>>(codec, &bytes), refused);
            assert_eq!(decode_error::<Vec<PhantomData<u8>>>(codec, &bytes), refused);
            assert_eq!(decode_error::<HashMap<(), ()>>(codec, &bytes), refused);
            assert_eq!(decode_error::<HashMap<String, u8>>(codec, &bytes), refused);
            // The format checks strings and bytes, and must not allocate before that.
            for result in [
                codec.decode::<String>(&bytes).map(drop),
                codec.decode::<Box<str>>(&bytes).map(drop),
                codec.decode_seed(Take::<Vec<u8>, _>::new(Blob), &bytes).map(drop),
                codec.decode_seed(Take::<Bytes, _>::new(OwnedBlob), &bytes).map(drop),
                codec.decode::<std::ffi::CString>(&bytes).map(drop),
            ] {
                assert!(matches!(result.unwrap_err().kind(), CodecErrorKind::Malformed { .. }));
            }
        }
    }
}

#[test]
fn elements_of_all_sequences_are_counted() {
    for codec in codecs() {
        // Four sequences of three elements without bytes, in a message of five bytes.
        let bytes = encoded(codec, &(3_u8, 3_u8, 3_u8, 3_u8, 0_u8));
        type Lists = (Vec<()>, Vec<()>, Vec<()>, Vec<()>, u8);
        let kind = decode_error::<Lists>(codec, &bytes);
        assert_eq!(kind, CodecErrorKind::TooManyElements { limit: 5 });
        // As many elements as bytes are allowed: honest values need no more.
        let value = vec![vec![vec![true; 3]; 2]; 2];
        assert_eq!(codec.decode(&encoded(codec, &value)), Ok(value));
        let full = vec![7_u8; 1000];
        assert_eq!(codec.decode(&encoded(codec, &full)), Ok(full));
    }
}

#[test]
fn elements_without_bytes_are_refused_by_the_sender() {
    for codec in codecs() {
        let mut out = OutBuf::new();
        let error = codec.encode(&vec![(); 5], &mut out).unwrap_err();
        assert_eq!(*error.kind(), CodecErrorKind::TooManyElements { limit: 1 });
        // The receiver accepts everything that the sender encodes.
        let few = ("padding", vec![(); 3]);
        assert_eq!(codec.decode(&encoded(codec, &few)), Ok(("padding".to_owned(), vec![(); 3])));
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Tree(Vec<Tree>);

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Chain {
    End,
    Link(Box<Chain>),
}

/// Runs on a stack much smaller than those of a runtime's workers.
fn on_a_small_stack(test: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(512 * 1024).spawn(test).unwrap().join().unwrap();
}

#[test]
fn deep_nesting_is_refused_without_stack_overflow() {
    on_a_small_stack(|| {
        for codec in codecs() {
            // Each byte opens one more level: one element, or variant 1.
            let bytes = vec![1_u8; 1_000_000];
            assert_eq!(decode_error::<Tree>(codec, &bytes), CodecErrorKind::TooDeep);
            assert_eq!(decode_error::<Chain>(codec, &bytes), CodecErrorKind::TooDeep);
        }
    });
}

#[test]
fn the_sender_refuses_too_deep_values() {
    fn chain(levels: u32) -> Chain {
        (0..levels).fold(Chain::End, |chain, _| Chain::Link(Box::new(chain)))
    }
    on_a_small_stack(|| {
        for codec in codecs() {
            let deepest = chain(MAX_DEPTH - 1);
            assert_eq!(codec.decode(&encoded(codec, &deepest)), Ok(deepest));
            let error = codec.encode(&chain(MAX_DEPTH), &mut OutBuf::new()).unwrap_err();
            assert_eq!(*error.kind(), CodecErrorKind::TooDeep);
        }
    });
}

/// 8 KiB in memory, 1 KiB on the wire.
#[derive(Debug, Serialize, Deserialize)]
struct Large {
    inline: [[u64; 32]; 32],
    next: Option<Box<Large>>,
}

/// A limit on depth alone does not bound the stack when levels are large: 40 of these once aborted
/// the process.
#[test]
fn large_recursive_nodes_do_not_overflow_the_stack() {
    // The stack of a runtime's worker.
    let worker = std::thread::Builder::new().stack_size(2 << 20);
    let test = || {
        for codec in codecs() {
            let level = [vec![0; 32 * 32], vec![1]].concat();
            for levels in [40, MAX_DEPTH as usize, 1000] {
                let bytes = level.repeat(levels);
                assert_eq!(decode_error::<Large>(codec, &bytes), CodecErrorKind::TooMuchStack);
            }
            let end = [vec![0; 32 * 32], vec![0]].concat();
            let few = codec.decode::<Large>(&[level, end].concat()).unwrap();
            assert!(few.inline[31][31] == 0 && few.next.is_some_and(|next| next.next.is_none()));
        }
    };
    worker.spawn(test).unwrap().join().unwrap();
}

/// 1 KiB in memory, one byte on the wire.
#[derive(Debug, Serialize, Deserialize)]
#[allow(clippy::large_enum_variant, reason = "that is the point")]
enum Sparse {
    Nothing,
    Something([[u64; 32]; 4]),
}

#[test]
fn elements_large_in_memory_are_bounded() {
    for codec in codecs() {
        let many: Vec<Option<u8>> = vec![None; 400_000];
        let bytes = encoded(codec, &many);
        let limit = bytes.len() * 64 + (16 << 20);
        let error = decode_error::<Vec<Sparse>>(codec, &bytes);
        assert_eq!(error, CodecErrorKind::TooMuchMemory { limit });
        let error = decode_error::<Vec<Vec<Sparse>>>(codec, &encoded(codec, &vec![&many, &many]));
        assert!(matches!(error, CodecErrorKind::TooMuchMemory { .. }), "{error}");
        // A few large elements are allowed, and so are many elements of ordinary types.
        let few = codec.decode::<Vec<Sparse>>(&encoded(codec, &vec![None::<u8>; 10_000])).unwrap();
        assert!(few.len() == 10_000 && matches!(few[0], Sparse::Nothing));
        let empty = vec![String::new(); 1_000_000];
        assert_eq!(codec.decode::<Vec<String>>(&encoded(codec, &empty)), Ok(empty));
    }
}

#[test]
fn a_rejected_value_keeps_its_types_reason() {
    struct Odd(u32);
    impl Serialize for Odd {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            match self.0 {
                7 => Err(serde::ser::Error::custom("seven is taken")),
                number => serializer.serialize_u32(number),
            }
        }
    }
    for codec in codecs() {
        let error = codec.encode(&(1, vec![Odd(1), Odd(7)]), &mut OutBuf::new()).unwrap_err();
        assert_eq!(error.to_string(), "[1][1]: seven is taken");
        assert_eq!(encoded(codec, &Odd(1)), [1]);
    }
}

#[test]
fn the_reason_of_a_rejection_is_kept() {
    #[derive(Debug)]
    struct Even;
    impl<'de> Deserialize<'de> for Even {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let number = u32::deserialize(deserializer)?;
            Err(serde::de::Error::custom(format!("{number} is odd")))
        }
    }
    for codec in codecs() {
        let text = |error: CodecError| error.to_string();
        // After the value, in its visitor, at a variant, and by length.
        let bytes = encoded(codec, &(1_u8, vec![7_u32]));
        let error = codec.decode::<(u8, Vec<Even>)>(&bytes).unwrap_err();
        assert_eq!(text(error), "[1][0]: 7 is odd", "{codec:?}");
        let zero = encoded(codec, &(1_u8, 0_u32));
        let error = text(codec.decode::<(u8, std::num::NonZeroU32)>(&zero).unwrap_err());
        assert!(error.contains("nonzero"), "{codec:?}: {error}");
        let variant = encoded(codec, &(1_u8, 9_u32));
        let error = text(codec.decode::<(u8, Shape)>(&variant).unwrap_err());
        assert!(error.contains("variant index 0 <= i < 4"), "{codec:?}: {error}");
        // A failure of the format has none of these reasons.
        let error = text(codec.decode::<(u8, u32)>(&[1]).unwrap_err());
        assert_eq!(error, "[1]: the message ends too early", "{codec:?}");
    }
}

#[test]
fn the_sender_refuses_inexpressible_values() {
    #[derive(Serialize)]
    struct Skipping {
        kept: u8,
        #[serde(skip_serializing_if = "Option::is_none")]
        skipped: Option<u8>,
    }
    #[derive(Serialize)]
    struct Flattening {
        #[serde(flatten)]
        inner: Newtypes,
    }
    #[derive(Serialize)]
    struct Newtypes {
        a: u8,
    }
    for codec in codecs() {
        let mut out = OutBuf::new();
        let skipping = (1, Skipping { kept: 1, skipped: None });
        let error = codec.encode(&skipping, &mut out).unwrap_err();
        assert_eq!(*error.kind(), CodecErrorKind::SkippedField);
        assert_eq!(error.path(), "[1].skipped");
        let skipping = Skipping { kept: 1, skipped: Some(2) };
        assert_eq!(encoded(codec, &skipping).len(), 3);
        let flattening = Flattening { inner: Newtypes { a: 1 } };
        let error = codec.encode(&flattening, &mut out).unwrap_err();
        assert_eq!(*error.kind(), CodecErrorKind::UnknownLength);
        assert!(error.to_string().contains("flatten"), "{error}");
    }
}

#[test]
fn types_needing_self_description_are_refused() {
    #[derive(Debug, Serialize, Deserialize)]
    #[serde(untagged)]
    enum Untagged {
        Number(u32),
    }
    for codec in codecs() {
        let bytes = encoded(codec, &Untagged::Number(5));
        let kind = decode_error::<Untagged>(codec, &bytes);
        assert_eq!(kind, CodecErrorKind::NotSelfDescribing);
        assert!(kind.to_string().contains("untagged"), "{kind}");
    }
}

#[test]
fn an_error_says_where() {
    #[derive(Debug, Serialize, Deserialize)]
    struct Outer {
        id: u8,
        items: Vec<Item>,
    }
    #[derive(Debug, Serialize, Deserialize)]
    struct Item {
        flag: bool,
    }
    for codec in codecs() {
        let value = ("k", Outer { id: 0, items: vec![Item { flag: true }, Item { flag: true }] });
        let mut bytes = encoded(codec, &value);
        *bytes.last_mut().unwrap() = 2;
        let error = codec.decode::<(String, Outer)>(&bytes).unwrap_err();
        assert_eq!(error.path(), "[1].items[1].flag", "{error}");
        let text = error.describe(&["key", "value"]);
        assert!(text.starts_with("argument value.items[1].flag: "), "{text}");
        assert!(error.to_string().starts_with("[1].items[1].flag: "), "{error}");
    }
}

#[test]
fn byte_strings_have_the_same_bytes_either_way() {
    fn same<T>(value: &T)
    where
        T: Serialize + crate::codec::blob::PutBlob,
    {
        for codec in codecs() {
            assert_eq!(encoded(codec, &Put(value, Blob)), encoded(codec, &Put(value, Plain)));
        }
    }
    let long = [200_u8; 300];
    same(&&long[..]);
    same(&long.to_vec());
    same(&Bytes::copy_from_slice(&long));
    same(&Cow::Borrowed(&long[..]));
    same(&Box::<[u8]>::from(&long[..]));
    same(&[251_u8, 252, 253, 0]);
    same(&Some(vec![1_u8, 2]));
    same(&None::<Vec<u8>>);
    same(&vec![Some(vec![1_u8]), None, Some(vec![])]);
    same(&&[vec![1_u8], vec![]][..]);
}

#[test]
fn byte_strings_come_back_in_every_form() {
    fn back<T>(value: T)
    where
        T: crate::codec::blob::PutBlob + crate::codec::blob::TakeOwnedBlob + PartialEq + Debug,
        for<'a> T: crate::codec::blob::TakeBlob<'a>,
    {
        for codec in codecs() {
            let bytes = encoded(codec, &Put(&value, Blob));
            assert_eq!(codec.decode_seed(Take::<T, _>::new(Blob), &bytes).unwrap(), value);
            assert_eq!(codec.decode_seed(Take::<T, _>::new(OwnedBlob), &bytes).unwrap(), value);
            let cut = &bytes[..bytes.len() - 1];
            codec.decode_seed(Take::<T, _>::new(Blob), cut).unwrap_err();
        }
    }
    back(vec![1_u8, 2, 255]);
    back(Bytes::from_static(b"bytes"));
    back(Box::<[u8]>::from(&b"box"[..]));
    back([7_u8; 100]);
    back(Some(vec![0_u8]));
    back(vec![Some(vec![1_u8, 2]), None]);
}

#[test]
fn borrowed_values_lie_in_the_message() {
    type Borrowed<'a> = (&'a str, &'a [u8], Cow<'a, [u8]>, Cow<'a, str>, Option<&'a [u8]>);
    for codec in codecs() {
        let bytes = encoded(codec, &("text", "one", "two", "three", Some("four")));
        let shapes = (Plain, Blob, Blob, Blob, Blob);
        let (text, one, two, three, four) =
            codec.decode_seed(Take::<Borrowed<'_>, _>::new(shapes), &bytes).unwrap();
        assert_eq!((text, one, four), ("text", &b"one"[..], Some(&b"four"[..])));
        let (Cow::Borrowed(two), Cow::Borrowed(three)) = (two, three) else {
            panic!("not borrowed");
        };
        assert_eq!((two, three), (&b"two"[..], "three"));
        let message = bytes.as_ptr_range();
        for part in [text.as_bytes(), one, two, three.as_bytes(), four.unwrap()] {
            assert!(message.contains(&part.as_ptr()), "copied");
        }
    }
}
