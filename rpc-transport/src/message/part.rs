//! Parts of an outgoing message that are not copied into it: spans of registered or shared memory.
//!
//! Owns a handle of the memory until the part's WRs have completed, so that the bytes cannot be
//! reused during a transfer. Never changes them.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::memory::region::{Buffer, MemoryRegion};
use crate::memory::registered::RegisteredBytes;
use crate::memory::shared::SharedBytes;
use crate::user_code::UserOwner;

/// A span of bytes behind the head of a message (see [`OutBuf::push_tail`]). Cloning shares them.
///
/// [`OutBuf::push_tail`]: crate::message::outgoing::OutBuf::push_tail
#[derive(Clone)]
pub struct OutPart {
    source: PartSource,
    start: u64,
    len: u64,
}

/// The memory of a part.
#[derive(Clone)]
pub(crate) enum PartSource {
    /// Registered memory: sent in place, if it is of the connection's domain.
    Region { region: MemoryRegion, _owner: Option<UserOwner> },
    /// Private memory: copied into a staging buffer, where the device needs registered memory.
    Shared(SharedBytes),
}

impl From<&RegisteredBytes> for OutPart {
    /// All of the bytes.
    fn from(bytes: &RegisteredBytes) -> Self {
        let region = bytes.region();
        Self::region(region.clone(), 0, region.len() as u64, None)
    }
}

impl OutPart {
    /// `len` bytes of registered memory from `start` on. `owner` is dropped when the transfer no
    /// longer needs the bytes. They are read only by devices and by atomic copies, so if a peer
    /// changes them until then, the message has a mixture of old and new bytes, and nothing worse
    /// happens.
    ///
    /// # Panics
    /// When the span lies outside the region.
    #[must_use]
    pub fn region(
        region: MemoryRegion,
        start: u64,
        len: u64,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Self {
        let end = start.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= region.len() as u64),
            "part {start}+{len} lies outside the region of {} bytes",
            region.len()
        );
        Self {
            source: PartSource::Region { region, _owner: owner.map(UserOwner::new) },
            start,
            len,
        }
    }

    /// All bytes of a buffer, which returns to its pool when the transfer no longer needs them.
    #[must_use]
    pub fn buffer(buffer: Arc<Buffer>) -> Self {
        let (start, len) = (buffer.region_offset() as u64, buffer.len() as u64);
        Self::region(buffer.region().clone(), start, len, Some(buffer))
    }

    /// All bytes of `owner`.
    #[must_use]
    pub fn shared<T: AsRef<[u8]> + Send + Sync + 'static>(owner: Arc<T>) -> Self {
        let bytes = SharedBytes::new(owner);
        let len = bytes.as_slice().len() as u64;
        Self { source: PartSource::Shared(bytes), start: 0, len }
    }

    /// Length, bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A sub-range of the part.
    ///
    /// # Panics
    /// When the range lies outside.
    #[must_use]
    pub fn slice(&self, range: Range<u64>) -> Self {
        let Range { start, end } = range;
        assert!(start <= end && end <= self.len, "slice {start}..{end} of a part of {}", self.len);
        Self { source: self.source.clone(), start: self.start + start, len: end - start }
    }

    /// Appends the bytes of `range` to `to`.
    ///
    /// # Panics
    /// When the range lies outside.
    pub fn append_to(&self, range: Range<u64>, to: &mut Vec<u8>) {
        let span = self.slice(range);
        let (start, len) = (in_memory(span.start), in_memory(span.len));
        match &span.source {
            PartSource::Region { region, .. } => region.append_to(start, len, to),
            PartSource::Shared(bytes) => {
                to.extend_from_slice(&bytes.as_slice()[start..start + len])
            }
        }
    }

    /// Copies all bytes.
    ///
    /// # Panics
    /// When `to` is not as long as the part.
    pub fn copy_to(&self, to: &mut [u8]) {
        let (start, len) = (in_memory(self.start), in_memory(self.len));
        assert_eq!(to.len(), len, "room for a part");
        match &self.source {
            PartSource::Region { region, .. } => region.copy_out(start, to),
            PartSource::Shared(bytes) => {
                to.copy_from_slice(&bytes.as_slice()[start..start + len]);
            }
        }
    }

    pub(crate) fn source(&self) -> &PartSource {
        &self.source
    }

    /// The protection domain that its memory is registered in, if it is.
    pub(crate) fn domain(&self) -> Option<u64> {
        match &self.source {
            PartSource::Region { region, .. } => Some(region.domain()),
            PartSource::Shared(_) => None,
        }
    }

    /// Where it starts within its source, bytes.
    pub(crate) fn start(&self) -> u64 {
        self.start
    }
}

/// An offset or length within memory of this process.
fn in_memory(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl fmt::Debug for OutPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.source {
            PartSource::Region { .. } => "registered",
            PartSource::Shared(_) => "shared",
        };
        write!(f, "OutPart({} bytes, {kind})", self.len)
    }
}
