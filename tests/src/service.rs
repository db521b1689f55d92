//! The implementation of [`Probe`].

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use rpc_core::transport::PeerIdentity;
use rpc_core::{Bulk, Context};

use tokio::io::AsyncReadExt;
use tokio::sync::OnceCell;

use crate::journal::Journal;
use crate::limit::patient_channel;
use crate::probe::{
    Borrowing, Mark, Parcel, Probe, ProbeClient, ProbeError, Resources, Seen, SeenPeer, Shapes,
};
use crate::resources;

/// `len` bytes that depend on `seed` and differ by position.
#[must_use]
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // splitmix64: each position has its own value, so that a shifted or repeated block is detected.
    // Word by word: an unoptimized build in an emulated machine makes megabytes of them.
    let mut state = seed;
    for place in bytes.chunks_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let word = (z ^ (z >> 31)).to_le_bytes();
        place.copy_from_slice(&word[..place.len()]);
    }
    bytes
}

/// A checksum that depends on the order of the bytes.
#[must_use]
pub fn checksum(data: &[u8]) -> u64 {
    let add = |sum: u64, word: [u8; 8]| {
        (sum.rotate_left(5) ^ u64::from_le_bytes(word)).wrapping_mul(0x0000_0100_0000_01b3)
    };
    let (words, rest) = data.as_chunks::<8>();
    let mut sum = 0xcbf2_9ce4_8422_2325;
    for word in words {
        sum = add(sum, *word);
    }
    if rest.is_empty() {
        return sum;
    }
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    add(sum, last)
}

/// Length of a payload and its [`checksum`], without holding all of it in one piece.
///
/// # Errors
/// Those of reading it.
pub async fn digest_of(data: &Bulk) -> std::io::Result<(u64, u64)> {
    let mut reader = data.reader();
    let mut bytes = Vec::new();
    // Steps that fit neither chunks nor words.
    let mut step = [0; 10_007];
    loop {
        match AsyncReadExt::read(&mut reader, &mut step).await? {
            0 => return Ok((data.len(), checksum(&bytes))),
            count => bytes.extend_from_slice(&step[..count]),
        }
    }
}

/// The service that the tests call.
#[derive(Debug, Default)]
pub struct ProbeService {
    journal: Arc<Journal>,
    next: Option<String>,
    next_client: OnceCell<ProbeClient>,
    kept: Mutex<Vec<Bulk>>,
}

impl ProbeService {
    /// A service that leaves its marks in `journal` and makes nested calls at `next`.
    #[must_use]
    pub fn new(journal: Arc<Journal>, next: Option<String>) -> Self {
        Self { journal, next, next_client: OnceCell::new(), kept: Mutex::default() }
    }

    async fn next(&self) -> Result<&ProbeClient, ProbeError> {
        let nested = |text: String| ProbeError::Nested(text);
        let address = self.next.as_ref().ok_or_else(|| nested("there is no next".to_owned()))?;
        let connect = || async {
            let builder = patient_channel();
            builder.connect(address).await.map(ProbeClient::new)
        };
        self.next_client.get_or_try_init(connect).await.map_err(|error| nested(error.to_string()))
    }
}

impl Probe for ProbeService {
    async fn echo(&self, data: &[u8]) -> Vec<u8> {
        data.to_vec()
    }

    async fn add(&self, a: u64, b: u64) -> u64 {
        a.wrapping_add(b)
    }

    async fn nothing(&self) {}

    async fn shapes(&self, value: Shapes) -> Shapes {
        value
    }

    async fn borrowed(
        &self,
        text: &str,
        bytes: &[u8],
        cow: Cow<'_, str>,
        blob: Cow<'_, [u8]>,
        whole: Borrowing<'_>,
    ) -> String {
        format!("{text} {bytes:?} {cow} {blob:?} {} {}", whole.name, whole.count)
    }

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
    ) -> String {
        let f: BTreeMap<u8, f64> = f.into_iter().collect();
        format!("{a} {b} {c:?} {d:?} {e:?} {f:?} {g:?} {h}")
    }

    async fn blob(&self, data: Bytes) -> Bytes {
        data
    }

    async fn produce(&self, len: u64, seed: u64) -> Vec<u8> {
        pattern(usize::try_from(len).unwrap_or(0), seed)
    }

    async fn digest(&self, data: &[u8]) -> (u64, u64) {
        (data.len() as u64, checksum(data))
    }

    async fn bulk(&self, data: Bulk) -> Bulk {
        data
    }

    async fn produce_bulk(&self, len: u64, seed: u64) -> Option<Bulk> {
        let len = usize::try_from(len).ok()?;
        let mut buffer = Context::current().bulk_pool()?.take(len).ok()?;
        buffer.copy_from_slice(&pattern(len, seed));
        Some(buffer.freeze())
    }

    async fn digest_bulk(&self, data: Bulk) -> Result<(u64, u64), ProbeError> {
        digest_of(&data).await.map_err(|error| ProbeError::Nested(error.to_string()))
    }

    async fn parcels(&self, parcels: Vec<Parcel>) -> Vec<Parcel> {
        parcels.into_iter().rev().collect()
    }

    async fn digests(
        &self,
        slice: &[u8],
        cow: Cow<'_, [u8]>,
        vec: Vec<u8>,
        bytes: Bytes,
        bulk: Bulk,
        maybe: Option<&[u8]>,
    ) -> Vec<u64> {
        let bulk = bulk.to_bytes().expect("the payload can be read");
        [slice, &cow, &vec, &bytes, &bulk, maybe.unwrap_or_default()].map(checksum).to_vec()
    }

    async fn hold_bulk(&self, tag: u64, data: Bulk) -> Bulk {
        self.journal.pass(tag).await;
        data
    }

    async fn hold_zeros(&self, tag: u64, len: u64) -> Bulk {
        self.journal.pass(tag).await;
        Bulk::from(vec![0; usize::try_from(len).unwrap_or(0)])
    }

    async fn keep(&self, data: Bulk) -> u64 {
        let mut kept = self.kept.lock();
        kept.push(data);
        kept.len() as u64
    }

    async fn let_go(&self) -> Vec<(u64, u64)> {
        let kept = std::mem::take(&mut *self.kept.lock());
        kept.iter()
            .map(|data| (data.len(), checksum(&data.to_vec().expect("the payload can be read"))))
            .collect()
    }

    async fn add_slowly(&self, a: u64, b: u64, turns: u32) -> u64 {
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        a.wrapping_add(b)
    }

    async fn divide(&self, a: i64, b: i64) -> Result<i64, ProbeError> {
        a.checked_div(b).ok_or(ProbeError::DivisionByZero)
    }

    async fn refuse(&self, code: u32, reason: &str) -> Result<(), ProbeError> {
        Err(ProbeError::Refused { code, reason: reason.to_owned() })
    }

    async fn seen(&self) -> Seen {
        seen()
    }

    async fn seen_by_next(&self) -> Result<Seen, ProbeError> {
        let next = self.next().await?;
        next.seen().await.map_err(|status| ProbeError::Nested(status.to_string()))
    }

    async fn hold(&self, tag: u64) -> u64 {
        self.journal.pass(tag).await;
        tag
    }

    async fn hold_at_next(&self, tag: u64) -> Result<u64, ProbeError> {
        let next = self.next().await?;
        next.hold(tag).await.map_err(|status| ProbeError::Nested(status.to_string()))
    }

    async fn hold_to_the_end(&self, tag: u64) -> u64 {
        self.journal.pass(tag).await;
        tag
    }

    async fn block(&self, tag: u64) -> u64 {
        self.journal.pass_blocking(tag);
        tag
    }

    async fn task_of_its_own(&self) -> String {
        tokio::task::try_id().map_or_else(|| "none".to_owned(), |id| id.to_string())
    }

    async fn open(&self, tag: u64) {
        self.journal.open(tag);
    }

    async fn wait_for(&self, tag: u64, mark: Mark, count: u64) -> u64 {
        self.journal.wait_for(tag, mark, count).await
    }

    async fn marks(&self, tag: u64, mark: Mark) -> u64 {
        self.journal.marks(tag, mark)
    }

    async fn panic(&self, text: &str, late: bool) -> u64 {
        if late {
            tokio::task::yield_now().await;
        }
        panic!("{text}")
    }

    async fn resources(&self) -> Resources {
        resources::of_this_process()
    }
}

fn seen() -> Seen {
    let context = Context::current();
    let micros =
        |remaining: std::time::Duration| u64::try_from(remaining.as_micros()).unwrap_or(u64::MAX);
    let metadata =
        context.metadata().iter().map(|(name, value)| (name.to_owned(), value.to_vec())).collect();
    let peer = match context.peer() {
        None => SeenPeer::Nobody,
        Some(PeerIdentity::SameProcess) => SeenPeer::SameProcess,
        Some(PeerIdentity::Process { pid, uid, gid }) => {
            SeenPeer::Process { pid: *pid, uid: *uid, gid: *gid }
        }
        Some(PeerIdentity::Network(address)) => SeenPeer::Network(address.to_string()),
        Some(_) => SeenPeer::Nobody,
    };
    Seen {
        method: context.method_name().to_owned(),
        remaining_micros: context.remaining().map(micros),
        metadata,
        peer,
        pid: std::process::id(),
    }
}
