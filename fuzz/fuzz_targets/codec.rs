//! All codecs: arbitrary bytes are refused, or they are a value that can be encoded and decoded
//! again.
#![no_main]

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};

use libfuzzer_sys::fuzz_target;
use rpc_core::bytes::Bytes;
use rpc_core::{Bulk, Codec};
use rpc_transport::message::outgoing::OutBuf;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
enum Tree {
    Leaf,
    Number(i64),
    Pair(Box<Tree>, Box<Tree>),
    Many(Vec<Tree>),
    Named { name: String, child: Option<Box<Tree>> },
}

#[derive(Serialize, Deserialize)]
struct Borrowing<'a> {
    id: u128,
    name: &'a str,
    #[serde(borrow)]
    text: Cow<'a, str>,
    blob: &'a [u8],
    nested: Option<Inner<'a>>,
}

#[derive(Serialize, Deserialize)]
struct Inner<'a>(u8, &'a [u8], [i16; 3], (), char);

#[derive(Serialize, Deserialize)]
struct Owning {
    flags: (bool, u8, i8, u16, i32, u64, f32, f64),
    map: BTreeMap<String, Vec<Option<u32>>>,
    results: Vec<Result<Bytes, String>>,
    unit: Vec<Unit>,
    bulk: Bulk,
}

#[derive(Serialize, Deserialize)]
struct Unit;

/// What only a format with names carries.
#[derive(Serialize, Deserialize)]
struct Named {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<Untagged>,
    #[serde(default)]
    kinds: Vec<Tagged>,
    #[serde(flatten)]
    more: BTreeMap<String, Untagged>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Untagged {
    Number(u64),
    Text(String),
    Pair(i8, Vec<u8>),
    Nested { inner: Box<Untagged> },
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "kind")]
enum Tagged {
    Unit,
    Fields { a: Option<f64>, b: Vec<bool> },
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, bytes)) = data.split_first() else { return };
    let codec = match choice & 0x11 {
        0 => Codec::Bincode,
        1 => Codec::Postcard,
        _ => Codec::MsgPack,
    };
    let room = OnceCell::new();
    if codec == Codec::MsgPack && choice & 0x20 != 0 {
        return check::<Named>(codec, bytes, &room);
    }
    match choice >> 1 & 7 {
        0 => check::<Tree>(codec, bytes, &room),
        1 => check::<Borrowing<'_>>(codec, bytes, &room),
        2 => check::<Owning>(codec, bytes, &room),
        3 => check::<Vec<Vec<Tree>>>(codec, bytes, &room),
        4 => check::<(Vec<&str>, Vec<&[u8]>)>(codec, bytes, &room),
        // Its order varies.
        5 => drop(codec.decode::<HashMap<u32, String>>(bytes)),
        6 => check::<Bytes>(codec, bytes, &room),
        _ => check::<BTreeMap<u64, BTreeMap<u8, Option<Box<Tree>>>>>(codec, bytes, &room),
    }
});

/// A decoded value is encoded, decoded and encoded again: the second time nothing changes. The
/// first encoding lies in `room`, since the value that is decoded from it may borrow.
fn check<'a, T: Serialize + Deserialize<'a>>(
    codec: Codec,
    bytes: &'a [u8],
    room: &'a OnceCell<Vec<u8>>,
) {
    let Ok(value) = codec.decode::<T>(bytes) else { return };
    let mut out = OutBuf::new();
    codec.encode(&value, &mut out).expect("a value that was read");
    let once = room.get_or_init(|| out.to_vec());
    let again: T = codec.decode(once).expect("this side's own words");
    let mut out = OutBuf::new();
    codec.encode(&again, &mut out).expect("a value that was read");
    assert!(*out == **once, "{once:?} was read as {:?}", &out[..]);
}
