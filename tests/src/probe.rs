//! The service that the tests call.
//!
//! Owns the trait and the types that travel. The behaviour is in [`crate::service`].

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use rpc_core::Bulk;
use serde::{Deserialize, Serialize};

/// One value of every shape that a method may take or return.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Shapes {
    /// The smallest.
    pub flag: bool,
    /// Unsigned, of every width.
    pub unsigned: (u8, u16, u32, u64, u128),
    /// Signed, of every width.
    pub signed: (i8, i16, i32, i64, i128),
    /// Floats.
    pub floats: (f32, f64),
    /// A character beyond ASCII.
    pub letter: char,
    /// Text.
    pub text: String,
    /// Nested options.
    pub maybe: Option<Option<u8>>,
    /// Lists of lists.
    pub lists: Vec<Vec<u16>>,
    /// A map in order.
    pub map: BTreeMap<String, i32>,
    /// Every kind of variant.
    pub variants: Vec<Variant>,
    /// A fixed number of elements.
    pub array: [u16; 4],
    /// Nothing.
    pub unit: (),
    /// A nested value of this type.
    pub inner: Option<Box<Shapes>>,
}

/// Every kind of enum variant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Variant {
    /// Without content.
    Unit,
    /// With one value.
    Newtype(i64),
    /// With several.
    Tuple(u8, String),
    /// With named ones.
    Struct {
        /// A field.
        left: f64,
        /// Another.
        right: Option<String>,
    },
}

impl Shapes {
    /// A value whose fields all differ from their defaults; `depth` nested ones inside.
    #[must_use]
    pub fn sample(depth: u8) -> Self {
        Self {
            flag: true,
            unsigned: (u8::MAX, u16::MAX, u32::MAX, u64::MAX, u128::MAX),
            signed: (i8::MIN, i16::MIN, i32::MIN, i64::MIN, i128::MIN),
            floats: (f32::MIN_POSITIVE, -1.5e300),
            letter: '\u{1F980}',
            text: format!("größe {depth}"),
            maybe: Some(None),
            lists: vec![vec![], vec![1], vec![2, 3]],
            map: BTreeMap::from([("one".to_owned(), 1), ("minus".to_owned(), -1)]),
            variants: vec![
                Variant::Unit,
                Variant::Newtype(-7),
                Variant::Tuple(9, "nine".to_owned()),
                Variant::Struct { left: 0.25, right: None },
            ],
            array: [4, 3, 2, 1],
            unit: (),
            inner: depth.checked_sub(1).map(|depth| Box::new(Self::sample(depth))),
        }
    }
}

/// An argument that borrows from the request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Borrowing<'a> {
    /// Borrowed text.
    #[serde(borrow)]
    pub name: &'a str,
    /// Next to an owned value.
    pub count: u32,
}

/// Payloads inside a type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Parcel {
    /// Next to the payloads.
    pub name: String,
    /// A payload.
    pub content: Bulk,
    /// An optional payload.
    pub label: Option<Bulk>,
    /// Nested parcels.
    pub inside: Vec<Parcel>,
}

/// The methods' own error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ProbeError {
    /// As it says.
    #[error("division by zero")]
    DivisionByZero,
    /// With content.
    #[error("refused with {code}: {reason}")]
    Refused {
        /// A number.
        code: u32,
        /// A text.
        reason: String,
    },
    /// The server has no other server to call, or that call failed.
    #[error("the nested call failed: {0}")]
    Nested(String),
}

/// A handler's view of its call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// `Service.method`.
    pub method: String,
    /// Time left, µs; `None` without a deadline.
    pub remaining_micros: Option<u64>,
    /// Names and values of the metadata, in order.
    pub metadata: Vec<(String, Vec<u8>)>,
    /// The caller.
    pub peer: SeenPeer,
    /// Process id of the handler.
    pub pid: u32,
}

/// A caller's identity, in a form that travels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeenPeer {
    /// The same process.
    SameProcess,
    /// A process of this machine.
    Process {
        /// Process id.
        pid: u32,
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
    },
    /// A network address, as text.
    Network(String),
    /// The context has no peer.
    Nobody,
}

/// A stage of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mark {
    /// It began to run.
    Started,
    /// It ran to its end.
    Finished,
    /// It was dropped before its end.
    Cancelled,
}

/// Resources of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// Open file descriptors.
    pub fds: u64,
    /// Resident memory, bytes.
    pub rss_bytes: u64,
    /// Mappings of the address space.
    pub mappings: u64,
    /// Tasks of the runtime that have not ended.
    pub tasks: u64,
}

/// The service.
#[allow(clippy::too_many_arguments, reason = "one method takes one of each kind")]
#[rpc_core::service]
pub trait Probe {
    /// Returns the bytes.
    async fn echo(&self, data: &[u8]) -> Vec<u8>;

    /// Adds, wrapping.
    async fn add(&self, a: u64, b: u64) -> u64;

    /// Takes and returns nothing.
    async fn nothing(&self);

    /// Returns the value.
    async fn shapes(&self, value: Shapes) -> Shapes;

    /// Borrowed arguments of each kind, printed.
    async fn borrowed(
        &self,
        text: &str,
        bytes: &[u8],
        cow: Cow<'_, str>,
        blob: Cow<'_, [u8]>,
        whole: Borrowing<'_>,
    ) -> String;

    /// Many arguments, printed.
    async fn many(
        &self,
        a: u8,
        b: i16,
        c: Option<u32>,
        d: (i64, bool),
        e: Vec<String>,
        f: HashMap<u8, f64>,
        g: [u8; 3],
        h: char,
    ) -> String;

    /// Returns the bytes, as a type that may share them.
    async fn blob(&self, data: Bytes) -> Bytes;

    /// A reply of `len` bytes: [`crate::service::pattern`] of `seed`.
    async fn produce(&self, len: u64, seed: u64) -> Vec<u8>;

    /// Length and checksum of a large argument.
    async fn digest(&self, data: &[u8]) -> (u64, u64);

    /// Returns the received payload without copying it.
    async fn bulk(&self, data: Bulk) -> Bulk;

    /// A payload of `len` bytes, [`crate::service::pattern`] of `seed`, from a registered buffer.
    async fn produce_bulk(&self, len: u64, seed: u64) -> Option<Bulk>;

    /// Length and checksum of a payload, read piece by piece.
    async fn digest_bulk(&self, data: Bulk) -> Result<(u64, u64), ProbeError>;

    /// Returns parcels in the opposite order.
    async fn parcels(&self, parcels: Vec<Parcel>) -> Vec<Parcel>;

    /// Checksums of one byte string of each type.
    async fn digests(
        &self,
        slice: &[u8],
        cow: Cow<'_, [u8]>,
        vec: Vec<u8>,
        bytes: Bytes,
        bulk: Bulk,
        maybe: Option<&[u8]>,
    ) -> Vec<u64>;

    /// Waits until the gate `tag` is opened, holding the payload; then returns it.
    async fn hold_bulk(&self, tag: u64, data: Bulk) -> Bulk;

    /// Waits until the gate `tag` is opened; then returns `len` zeros, which take only address
    /// space.
    async fn hold_zeros(&self, tag: u64, len: u64) -> Bulk;

    /// Keeps a payload as it arrived.
    async fn keep(&self, data: Bulk) -> u64;

    /// Lengths and checksums of kept payloads, which are released.
    async fn let_go(&self) -> Vec<(u64, u64)>;

    /// Adds after giving other tasks a turn `turns` times.
    async fn add_slowly(&self, a: u64, b: u64, turns: u32) -> u64;

    /// Divides, or fails with the method's own error.
    async fn divide(&self, a: i64, b: i64) -> Result<i64, ProbeError>;

    /// Fails with content.
    async fn refuse(&self, code: u32, reason: &str) -> Result<(), ProbeError>;

    /// The handler's view of this call.
    async fn seen(&self) -> Seen;

    /// The view of the next server's handler, for a call made by this handler.
    async fn seen_by_next(&self) -> Result<Seen, ProbeError>;

    /// Waits until the gate `tag` is opened; marks how the handler ends.
    async fn hold(&self, tag: u64) -> u64;

    /// `hold` at the next server.
    async fn hold_at_next(&self, tag: u64) -> Result<u64, ProbeError>;

    /// Like `hold`, but continues when its caller has gone.
    #[rpc(no_cancel)]
    async fn hold_to_the_end(&self, tag: u64) -> u64;

    /// Blocks its thread until the gate `tag` is opened; leaves no marks.
    #[rpc(spawn)]
    async fn block(&self, tag: u64) -> u64;

    /// The task that the handler runs in.
    #[rpc(spawn)]
    async fn task_of_its_own(&self) -> String;

    /// Opens a gate, for waiting handlers and later ones.
    async fn open(&self, tag: u64);

    /// Waits until handlers have left `count` marks under `tag`; returns the number of marks.
    async fn wait_for(&self, tag: u64, mark: Mark, count: u64) -> u64;

    /// The number of marks so far.
    async fn marks(&self, tag: u64, mark: Mark) -> u64;

    /// Panics, at once or after giving other tasks a turn.
    async fn panic(&self, text: &str, late: bool) -> u64;

    /// The resources of this process now.
    async fn resources(&self) -> Resources;
}
