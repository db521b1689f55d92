//! Metadata: a few named values sent with the arguments of a call.
//!
//! Owns the map. Costs nothing, in memory or on the wire, when unused.
//!
//! Invariants:
//! 1. At most [`MAX_ENTRIES`] entries and [`MAX_ENCODED_BYTES`] encoded bytes, on both sides.
//! 2. Names are unique, sorted, 1 to [`MAX_NAME_BYTES`] bytes of lower-case ASCII letters, digits,
//!    `-`, `_` and `.`.

mod encoding;
mod error;
pub(crate) mod trace_parent;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use rpc_transport::protocol::config::ConfigError;

pub use self::error::MetadataError;
use crate::session::check_most;

/// Maximum number of entries of a call.
pub const MAX_ENTRIES: usize = 64;
/// Longest name, bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// Prefix of names reserved for the framework: setting them is refused, but they are accepted from
/// a peer.
pub const RESERVED_PREFIX: &str = "rpc-";
/// The entry with the caller's schema, in a request whose types differ from the callee's.
pub(crate) const SCHEMA: &str = "rpc-schema";
/// Longest encoding of all metadata of a call, bytes.
pub const MAX_ENCODED_BYTES: usize = u16::MAX as usize;
/// Default limit of that length, bytes, which
/// [`ChannelBuilder::max_metadata_bytes`](crate::ChannelBuilder::max_metadata_bytes) and
/// [`ServerBuilder::max_metadata_bytes`](crate::ServerBuilder::max_metadata_bytes) change.
pub const DEFAULT_MAX_BYTES: usize = 8 * 1024;

/// Checks a limit on the length of metadata, bytes.
///
/// # Errors
/// [`ConfigError`] if it exceeds the maximum of a message.
pub(crate) fn check_limit(bytes: usize) -> Result<(), ConfigError> {
    let advice = "send more as an argument or a result";
    check_most("max_metadata_bytes", bytes as u64, MAX_ENCODED_BYTES as u64, advice)
}

/// Named values of a call, sorted by name. Cheap to clone; empty ones allocate nothing.
///
/// # Example
/// ```
/// use rpc_core::Metadata;
///
/// let mut metadata = Metadata::new();
/// metadata.insert("tenant", "blue")?;
/// assert_eq!(metadata.text("tenant"), Some("blue"));
/// # Ok::<(), rpc_core::metadata::MetadataError>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Metadata(Option<Arc<Vec<Entry>>>);

#[derive(Clone, PartialEq, Eq)]
struct Entry {
    name: Box<str>,
    value: Bytes,
}

impl Entry {
    fn encoded_bytes(&self) -> usize {
        3 + self.name.len() + self.value.len()
    }
}

impl Metadata {
    /// Creates empty metadata.
    #[must_use]
    pub const fn new() -> Self {
        Self(None)
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries().len()
    }

    fn entries(&self) -> &[Entry] {
        self.0.as_ref().map_or(&[], |entries| entries)
    }

    fn position(&self, name: &str) -> Result<usize, usize> {
        self.entries().binary_search_by(|entry| (*entry.name).cmp(name))
    }

    /// The value of that name, as bytes.
    #[must_use]
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        let at = self.position(name).ok()?;
        Some(&self.entries()[at].value)
    }

    /// The value of that name, if it is UTF-8. For a value that is required, see
    /// [`Metadata::require_text`].
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.bytes(name)?).ok()
    }

    /// Names and values, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.entries().iter().map(|entry| (&*entry.name, &*entry.value))
    }

    pub(crate) fn iter_bytes(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.entries().iter().map(|entry| (&*entry.name, &entry.value))
    }

    /// Sets a value, replacing an earlier one of that name.
    ///
    /// # Errors
    /// An invalid name, or too much metadata in total; the metadata is unchanged.
    pub fn insert(&mut self, name: &str, value: impl Into<Bytes>) -> Result<(), MetadataError> {
        check_name(name.as_bytes())?;
        if name.starts_with(RESERVED_PREFIX) {
            return Err(MetadataError::Reserved);
        }
        self.set(name, value.into())
    }

    /// Sets the caller's schema.
    ///
    /// # Errors
    /// Too much metadata in total; the metadata is unchanged.
    pub(crate) fn set_schema(&mut self, schema: &'static str) -> Result<(), MetadataError> {
        self.set(SCHEMA, Bytes::from_static(schema.as_bytes()))
    }

    /// Length of the entry with the caller's schema, bytes; 0 without one.
    #[cold]
    pub(crate) fn schema_bytes(&self) -> usize {
        self.position(SCHEMA).map_or(0, |at| self.entries()[at].encoded_bytes())
    }

    fn set(&mut self, name: &str, value: Bytes) -> Result<(), MetadataError> {
        let entry = Entry { name: name.into(), value };
        let position = self.position(name);
        let replaced = position.map_or(0, |at| self.entries()[at].encoded_bytes());
        if self.encoded_bytes().max(1) - replaced + entry.encoded_bytes() > MAX_ENCODED_BYTES {
            return Err(MetadataError::TooLong);
        }
        if position.is_err() && self.len() == MAX_ENTRIES {
            return Err(MetadataError::TooMany);
        }
        let entries = Arc::make_mut(self.0.get_or_insert_default());
        match position {
            Ok(at) => entries[at] = entry,
            Err(at) => entries.insert(at, entry),
        }
        Ok(())
    }

    /// Adds the values of another one, as far as there is room.
    pub(crate) fn extend(&mut self, other: &Self) {
        if self.is_empty() {
            *self = other.clone();
            return;
        }
        for (name, value) in other.iter_bytes() {
            if let Err(error) = self.insert(name, value.clone()) {
                tracing::debug!(name, %error, "the metadata of a reply is dropped");
            }
        }
    }

    /// Removes the value of that name.
    pub fn remove(&mut self, name: &str) -> Option<Bytes> {
        let at = self.position(name).ok()?;
        let entries = Arc::make_mut(self.0.as_mut()?);
        let removed = entries.remove(at);
        if entries.is_empty() {
            self.0 = None;
        }
        Some(removed.value)
    }

    /// Length of the encoding, bytes; 0 when there are no entries (then nothing is sent).
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        match self.entries() {
            [] => 0,
            entries => 1 + entries.iter().map(Entry::encoded_bytes).sum::<usize>(),
        }
    }
}

fn check_name(name: &[u8]) -> Result<&str, MetadataError> {
    let allowed = |byte: &u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_' | b'.')
    };
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.iter().all(allowed) {
        return Err(MetadataError::BadName);
    }
    std::str::from_utf8(name).map_err(|_| MetadataError::BadName)
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may be credentials, so only names and lengths are shown.
        f.debug_map().entries(self.iter().map(|(name, value)| (name, value.len()))).finish()
    }
}

#[cfg(test)]
mod tests {
    use rpc_transport::message::outgoing::OutBuf;

    use super::*;

    fn encoded(metadata: &Metadata) -> Vec<u8> {
        let mut out = OutBuf::new();
        metadata.encode(&mut out);
        assert_eq!(out.len(), metadata.encoded_bytes());
        out.to_vec()
    }

    fn sample() -> Metadata {
        let mut metadata = Metadata::new();
        metadata.insert("traceparent", "00-ab").unwrap();
        metadata.insert("auth", &b"\xff\0"[..]).unwrap();
        metadata
    }

    #[test]
    fn nothing_costs_nothing() {
        let metadata = Metadata::new();
        assert_eq!(size_of::<Metadata>(), size_of::<usize>());
        assert_eq!(encoded(&metadata), b"");
        assert_eq!(Metadata::decode(b""), Ok(metadata));
    }

    #[test]
    fn values_come_back() {
        let metadata = sample();
        let bytes = encoded(&metadata);
        assert_eq!(bytes, b"\x02\x04auth\x02\0\xff\0\x0btraceparent\x05\x0000-ab");
        let back = Metadata::decode(&bytes).unwrap();
        assert_eq!(back, metadata);
        assert_eq!(back.text("traceparent"), Some("00-ab"));
        assert_eq!((back.bytes("auth"), back.text("auth")), (Some(&b"\xff\0"[..]), None));
        assert_eq!(back.bytes("other"), None);
        assert_eq!(back.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["auth", "traceparent"]);
    }

    #[test]
    fn a_peer_may_use_reserved_names() {
        let metadata = Metadata::decode(b"\x01\x05rpc-x\x01\0v").unwrap();
        assert_eq!(metadata.text("rpc-x"), Some("v"));
    }

    #[test]
    fn a_later_value_replaces_an_earlier_one() {
        let mut metadata = sample();
        let shared = metadata.clone();
        metadata.insert("auth", "new").unwrap();
        assert_eq!((metadata.len(), metadata.text("auth")), (2, Some("new")));
        assert_eq!(shared, sample(), "clones are independent");
        assert_eq!(metadata.remove("auth").as_deref(), Some(&b"new"[..]));
        metadata.remove("traceparent").unwrap();
        assert_eq!(metadata, Metadata::new());
    }

    #[test]
    fn what_would_be_refused_is_not_sent() {
        let mut metadata = Metadata::new();
        let long = "x".repeat(MAX_NAME_BYTES + 1);
        assert_eq!(metadata.insert("rpc-own", "v"), Err(MetadataError::Reserved));
        for name in ["", "Upper", "spa ce", "umläut", &long] {
            assert_eq!(metadata.insert(name, "v"), Err(MetadataError::BadName), "{name}");
        }
        let fits = MAX_ENCODED_BYTES - 1 - 3 - 1;
        assert_eq!(metadata.insert("n", vec![0; fits + 1]), Err(MetadataError::TooLong));
        metadata.insert("n", vec![0; fits]).unwrap();
        assert_eq!(encoded(&metadata).len(), MAX_ENCODED_BYTES);
        Metadata::decode(&encoded(&metadata)).unwrap();
        assert_eq!(metadata.insert("m", ""), Err(MetadataError::TooLong));
        metadata.insert("n", "short").unwrap();
        for at in 1..MAX_ENTRIES {
            metadata.insert(&format!("n{at}"), "").unwrap();
        }
        assert_eq!(metadata.insert("one-more", ""), Err(MetadataError::TooMany));
        assert_eq!(Metadata::decode(&encoded(&metadata)), Ok(metadata));
    }

    #[test]
    fn malformed_bytes_are_refused_by_name() {
        let good = encoded(&sample());
        for len in 1..good.len() {
            assert_eq!(Metadata::decode(&good[..len]), Err(MetadataError::Truncated), "{len}");
        }
        let too_many = [&[65][..], &[0; 200]].concat();
        for (bytes, error) in [
            (&[&good[..], b"x"].concat()[..], MetadataError::TrailingBytes),
            (b"\0", MetadataError::Empty),
            (b"\x02\x01b\0\0\x01a\0\0", MetadataError::Unsorted),
            (b"\x02\x01a\0\0\x01a\0\0", MetadataError::Unsorted),
            (b"\x01\x00\0\0", MetadataError::BadName),
            (b"\x01\x01A\0\0", MetadataError::BadName),
            (b"\x01\x01\xff\0\0", MetadataError::BadName),
            (&too_many, MetadataError::TooMany),
            (&vec![1; MAX_ENCODED_BYTES + 1], MetadataError::TooLong),
        ] {
            assert_eq!(Metadata::decode(bytes), Err(error), "{bytes:?}");
        }
    }

    #[test]
    fn debug_shows_no_values() {
        let text = format!("{:?}", sample());
        assert!(text.contains("traceparent") && !text.contains("00-ab"), "{text}");
    }
}
