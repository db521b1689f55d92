//! Large byte strings: [`Bulk`], which is passed by reference.
//!
//! Owns the type for argument and result types that holds any kind of memory: a `Vec` or [`Bytes`],
//! a buffer of a connection's [`BulkPool`], memory that the user registered, or bytes received from
//! a peer. Never copies for sending; if the device can only send from registered memory, the
//! transport copies into a staging buffer.
//!
//! Invariants:
//! 1. The bytes of a *private* `Bulk` do not change while any handle of it lives.
//! 2. The bytes of a *remote* `Bulk` are in memory that its sender can still write. They are copied
//!    out, never borrowed: a copy does not change, but a second copy may differ from the first.

mod buffer;
mod error;
pub(crate) mod handoff;
mod landing;
mod pieces;
mod pool;
mod reader;
mod serial;
mod slot;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use bytes::Bytes;
use rpc_transport::memory::mapped::MappedFile;
use rpc_transport::memory::region::Buffer;
use rpc_transport::memory::registered::RegisteredBytes;
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::part::OutPart;
use rpc_transport::message::payload::Payload;
pub use rpc_transport::message::read_error::ReadError;

pub use self::buffer::BulkMut;
pub use self::error::PoolError;
pub use self::landing::Landing;
pub use self::pieces::{PieceReader, Pieces, ReadPieces, read_pieces};
pub use self::pool::BulkPool;
pub(crate) use self::pool::Copies;
pub use self::reader::BulkReader;
pub use self::slot::ReplySlot;

/// An owned byte string of any length that is cheap to clone, to slice and to send.
///
/// It can be used anywhere in an argument or result type. Below the channel's
/// [`min_part_bytes`](crate::ChannelBuilder::min_part_bytes) its bytes are copied into the message;
/// from that length on they are sent without a copy into memory that the receiver has announced.
/// Either way it is encoded as a byte string: for the other side `Bulk`, `Vec<u8>`, `&[u8]` and
/// [`Bytes`] are equivalent.
///
/// In other serde formats a `Bulk` is plain bytes.
///
/// # Private and remote
/// A `Bulk` made in this process is *private*: [`as_slice`](Bulk::as_slice) gives its bytes, and
/// reading them never fails. A received one may be *remote*: its memory can still be written by the
/// sender, which needs it back to send more. Copy from it ([`read_at`](Bulk::read_at),
/// [`copy_to`](Bulk::copy_to), [`to_vec`](Bulk::to_vec), [`reader`](Bulk::reader),
/// [`write_to`](Bulk::write_to)), and drop it soon; to keep it, [`detach`](Bulk::detach) it.
///
/// Reading a remote one can fail, as [`ReadError`] says; `?` turns that into a
/// [`Status`](crate::Status) or an [`io::Error`]. In a child of `fork(2)`, for example, the memory
/// of an inherited remote `Bulk` belongs to the parent, which may release it.
///
/// # Example
/// ```
/// # fn main() -> Result<(), rpc_core::bulk::ReadError> {
/// use rpc_core::Bulk;
///
/// #[rpc_core::service]
/// pub trait Files {
///     async fn put(&self, name: &str, content: Bulk) -> u64;
///     async fn get(&self, name: &str) -> Option<Bulk>;
/// }
///
/// let content = Bulk::from(vec![7; 1 << 20]); // no copy
/// let head = content.slice(0..4);
/// assert_eq!(head.as_slice(), Some(&[7, 7, 7, 7][..]));
/// assert_eq!(head.to_vec()?, [7; 4]);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Bulk(Memory);

#[derive(Clone)]
enum Memory {
    Shared(Bytes),
    Pooled { buffer: Arc<Buffer>, start: usize, len: usize },
    Registered { bytes: RegisteredBytes, start: usize, len: usize },
    Received(Payload),
}

impl Bulk {
    /// An empty `Bulk`.
    #[must_use]
    pub const fn new() -> Self {
        Self(Memory::Shared(Bytes::new()))
    }

    /// A private copy of `bytes`.
    #[must_use]
    pub fn copy_from_slice(bytes: &[u8]) -> Self {
        Self::from(bytes.to_vec())
    }

    /// Length, bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        match &self.0 {
            Memory::Shared(bytes) => bytes.len() as u64,
            Memory::Pooled { len, .. } | Memory::Registered { len, .. } => *len as u64,
            Memory::Received(payload) => payload.len(),
        }
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A slice, which shares the memory.
    ///
    /// # Panics
    /// If the range is out of bounds.
    #[must_use]
    pub fn slice(&self, range: Range<u64>) -> Self {
        let Range { start: from, end } = range;
        let len = self.len();
        assert!(from <= end && end <= len, "slice {from}..{end} of a bulk of {len}");
        // The length of a single piece of memory fits a `usize`.
        let part = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        Self(match &self.0 {
            Memory::Shared(bytes) => Memory::Shared(bytes.slice(part(from)..part(end))),
            Memory::Received(payload) => Memory::Received(payload.slice(from..end)),
            Memory::Pooled { buffer, start, .. } => {
                let buffer = Arc::clone(buffer);
                Memory::Pooled { buffer, start: start + part(from), len: part(end - from) }
            }
            Memory::Registered { bytes, start, .. } => {
                let bytes = bytes.clone();
                Memory::Registered { bytes, start: start + part(from), len: part(end - from) }
            }
        })
    }

    /// Whether a peer can still write the bytes, so that they can only be copied out.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        matches!(&self.0, Memory::Received(payload) if !payload.is_private())
    }

    /// The bytes, if they are private and contiguous. They are if the `Bulk` was made in this
    /// process or [detached](Bulk::detach). `None` does not say that they cannot be read.
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        match &self.0 {
            Memory::Shared(bytes) => Some(bytes),
            Memory::Pooled { buffer, start, len } => buffer.get(*start..start + len),
            Memory::Registered { bytes, start, len } => bytes.as_slice().get(*start..start + len),
            Memory::Received(payload) => payload.as_private_slice(),
        }
    }

    /// The transport's [`Payload`], if this arrived from a peer. It has an unsafe method to borrow
    /// the bytes of a remote one without a copy, for peers that are trusted as much as this
    /// process.
    #[must_use]
    pub fn as_payload(&self) -> Option<&Payload> {
        match &self.0 {
            Memory::Received(payload) => Some(payload),
            _ => None,
        }
    }

    /// Copies all bytes to `to`.
    ///
    /// # Errors
    /// [`ReadError`]; what `to` holds then is of no use.
    ///
    /// # Panics
    /// If `to` has another length.
    pub fn copy_to(&self, to: &mut [u8]) -> Result<(), ReadError> {
        let (len, room) = (self.len(), to.len());
        assert!(len == room as u64, "a bulk of {len} bytes copied to {room}");
        self.read_at(0, to).map(drop)
    }

    /// Copies bytes from `offset` on to `to`. Returns their number: less than `to.len()` near the
    /// end, 0 at the end.
    ///
    /// # Errors
    /// [`ReadError`]; what `to` holds then is of no use.
    #[inline]
    pub fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<usize, ReadError> {
        let left = self.len().saturating_sub(offset);
        let count = usize::try_from(left).map_or(to.len(), |left| left.min(to.len()));
        let to = &mut to[..count];
        if count == 0 {
            return Ok(0);
        }
        match &self.0 {
            Memory::Received(payload) => payload.copy_to(offset, to)?,
            _ => {
                let bytes = self.as_slice().unwrap_or_default();
                let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                to.copy_from_slice(&bytes[start..start + count]);
            }
        }
        Ok(count)
    }

    /// A private copy of all bytes.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn to_vec(&self) -> Result<Vec<u8>, ReadError> {
        match &self.0 {
            Memory::Received(payload) => payload.to_vec(),
            _ => Ok(self.as_slice().unwrap_or_default().to_vec()),
        }
    }

    /// All bytes as a `Vec`; not copied if they are private and there is no other handle.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn into_vec(self) -> Result<Vec<u8>, ReadError> {
        match self.0 {
            Memory::Shared(bytes) => Ok(bytes.into()),
            Memory::Received(payload) => payload.into_vec(),
            memory => Self(memory).to_vec(),
        }
    }

    /// All bytes as [`Bytes`]; copied only if remote.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn to_bytes(&self) -> Result<Bytes, ReadError> {
        match &self.0 {
            Memory::Shared(bytes) => Ok(bytes.clone()),
            _ if self.as_slice().is_some() => Ok(Bytes::from_owner(Private(self.clone()))),
            _ => self.to_vec().map(Bytes::from),
        }
    }

    /// Appends all bytes.
    pub(crate) fn append_to(&self, to: &mut Vec<u8>) -> Result<(), ReadError> {
        match &self.0 {
            Memory::Received(payload) => payload.append_to(0..payload.len(), to),
            _ => {
                to.extend_from_slice(self.as_slice().unwrap_or_default());
                Ok(())
            }
        }
    }

    /// All bytes in one piece.
    pub(crate) fn contiguous(&self) -> Result<Cow<'_, [u8]>, ReadError> {
        match self.as_slice() {
            Some(bytes) => Ok(Cow::Borrowed(bytes)),
            None => self.to_vec().map(Cow::Owned),
        }
    }

    /// A private, contiguous `Bulk` that can be kept: itself, or a copy if it is remote. After a
    /// copy, this handle no longer holds memory that the peer needs to send more.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn detach(self) -> Result<Self, ReadError> {
        if self.as_slice().is_some() { Ok(self) } else { self.to_vec().map(Self::from) }
    }

    /// Reads the bytes in order, from the first one on.
    #[must_use]
    pub fn reader(&self) -> BulkReader {
        BulkReader::new(self.clone())
    }

    /// Writes all bytes to a file, a pipe or a blocking socket, without copying them in this
    /// process, unless they came encrypted.
    ///
    /// # Errors
    /// The error of `write(2)`, or a [`ReadError`] as its source; some of the bytes may have been
    /// written.
    pub fn write_to(&self, to: impl AsFd) -> io::Result<()> {
        if let Some(bytes) = self.as_slice() {
            return File::from(to.as_fd().try_clone_to_owned()?).write_all(bytes);
        }
        let Memory::Received(payload) = &self.0 else { return Ok(()) };
        let mut at = 0;
        while at < payload.len() {
            match payload.write_to(at, &to)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => at += count as u64,
            }
        }
        Ok(())
    }

    /// The pool's buffer, for reuse, if this is a whole one and there is no other handle.
    ///
    /// # Errors
    /// This `Bulk`, unchanged, otherwise.
    pub fn try_into_mut(self) -> Result<BulkMut, Self> {
        let Memory::Pooled { buffer, start: 0, len } = self.0 else { return Err(self) };
        match Arc::try_unwrap(buffer) {
            Ok(buffer) => Ok(BulkMut::of(buffer, len)),
            Err(buffer) => Err(Self(Memory::Pooled { buffer, start: 0, len })),
        }
    }

    /// Appends the bytes to the message's tail: all of them, or none if they cannot be read.
    pub(crate) fn push_to(&self, out: &mut OutBuf) -> Result<(), ReadError> {
        match &self.0 {
            Memory::Shared(bytes) => out.push_tail(OutPart::shared(Arc::new(bytes.clone()))),
            Memory::Pooled { buffer, start, len } => {
                let range = *start as u64..(*start + *len) as u64;
                out.push_tail(OutPart::buffer(Arc::clone(buffer)).slice(range));
            }
            Memory::Registered { bytes, start, len } => {
                let range = *start as u64..(*start + *len) as u64;
                out.push_tail(OutPart::from(bytes).slice(range));
            }
            Memory::Received(payload) => {
                for part in payload.to_parts()? {
                    out.push_tail(part);
                }
            }
        }
        Ok(())
    }
}

/// A `Bulk` whose `as_slice` is `Some`.
struct Private(Bulk);

impl AsRef<[u8]> for Private {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice().unwrap_or_default()
    }
}

impl Default for Bulk {
    fn default() -> Self {
        Self::new()
    }
}

/// Without a copy.
impl From<Vec<u8>> for Bulk {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Memory::Shared(bytes.into()))
    }
}

/// Without a copy.
impl From<Bytes> for Bulk {
    fn from(bytes: Bytes) -> Self {
        Self(Memory::Shared(bytes))
    }
}

/// Without a copy.
impl From<String> for Bulk {
    fn from(text: String) -> Self {
        Self::from(text.into_bytes())
    }
}

/// Without a copy.
impl From<&'static [u8]> for Bulk {
    fn from(bytes: &'static [u8]) -> Self {
        Self(Memory::Shared(Bytes::from_static(bytes)))
    }
}

/// Without a copy.
impl<const N: usize> From<&'static [u8; N]> for Bulk {
    fn from(bytes: &'static [u8; N]) -> Self {
        Self::from(&bytes[..])
    }
}

/// Without a copy.
impl From<&'static str> for Bulk {
    fn from(text: &'static str) -> Self {
        Self::from(text.as_bytes())
    }
}

/// Without a copy. If the device needs registered memory, [`BulkPool::register`] saves another one.
impl From<MappedFile> for Bulk {
    fn from(file: MappedFile) -> Self {
        Self::from(Bytes::from_owner(file))
    }
}

/// Wraps the tail of a received message.
impl From<Payload> for Bulk {
    fn from(payload: Payload) -> Self {
        Self(Memory::Received(payload))
    }
}

impl From<RegisteredBytes> for Bulk {
    fn from(bytes: RegisteredBytes) -> Self {
        let len = bytes.as_slice().len();
        Self(Memory::Registered { bytes, start: 0, len })
    }
}

/// Compares the bytes; those of a remote one are copied first. One that cannot be read equals only
/// its own clones.
impl PartialEq for Bulk {
    fn eq(&self, other: &Self) -> bool {
        if self.len() != other.len() {
            return false;
        }
        match (self.contiguous(), other.contiguous(), &self.0, &other.0) {
            (Ok(own), Ok(others), ..) => own == others,
            (.., Memory::Received(own), Memory::Received(others)) => own.is_same(others),
            _ => false,
        }
    }
}

impl Eq for Bulk {}

/// False if the bytes cannot be read.
impl PartialEq<[u8]> for Bulk {
    fn eq(&self, other: &[u8]) -> bool {
        self.len() == other.len() as u64 && self.contiguous().is_ok_and(|bytes| *bytes == *other)
    }
}

impl<const N: usize> PartialEq<[u8; N]> for Bulk {
    fn eq(&self, other: &[u8; N]) -> bool {
        *self == other[..]
    }
}

impl PartialEq<Vec<u8>> for Bulk {
    fn eq(&self, other: &Vec<u8>) -> bool {
        *self == **other
    }
}

impl fmt::Debug for Bulk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0 {
            Memory::Shared(_) => "shared",
            Memory::Pooled { .. } => "pooled",
            Memory::Registered { .. } => "registered",
            Memory::Received(payload) if payload.is_private() => "received",
            Memory::Received(_) => "remote",
        };
        write!(f, "Bulk({} bytes, {kind})", self.len())
    }
}
