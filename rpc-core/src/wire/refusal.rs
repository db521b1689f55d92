//! Marks in the details of a status: for calls that a server refuses before any user code has run,
//! and for those with a pushback.
//!
//! The server sets a mark; the client then adds its own side (signature, method name) to the text.

/// Marks a signature mismatch; the client adds its signature. A mark counts only from a server that
/// has not yet accepted the method's signature.
pub(crate) const SIGNATURES_DIFFER: &[u8] = b"signature";
/// Ends the lines that follow [`SIGNATURES_DIFFER`], for a caller that resolves: the text of the
/// callee's schema follows.
pub(crate) const SCHEMA_FOLLOWS: u8 = 0;
/// Marks an unknown method; only the client knows its name.
pub(crate) const UNKNOWN_METHOD: &[u8] = b"method";

/// Marks the pushback of a retryable status: followed by the delay before a retry, a little-endian
/// u64 in milliseconds, and then the details.
pub(crate) const RETRY_AFTER: &[u8; 8] = b"retry-ms";

/// Whether these are details of a call that its caller may send again with its schema.
#[cold]
pub(crate) fn has_schema(details: &[u8]) -> bool {
    details.starts_with(SIGNATURES_DIFFER) && details.contains(&SCHEMA_FOLLOWS)
}
