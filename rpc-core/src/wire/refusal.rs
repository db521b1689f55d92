//! Marks in the details of a status with which a server refuses a call before anything of it ran.
//!
//! Both ends know them: the server sets them, and the client adds its own side to the text.

/// Marks the status of a signature mismatch, so that the caller's side adds its own. The marks mean
/// something only from a server that has not accepted the method's signature.
pub(crate) const SIGNATURES_DIFFER: &[u8] = b"signature";
/// Marks the status of an unknown method, which only the caller's side can name.
pub(crate) const UNKNOWN_METHOD: &[u8] = b"method";
