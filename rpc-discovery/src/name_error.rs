//! What is wrong with a name.

use rpc_core::text::printable;

/// A name that no resolver can be made of.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("bad name `{name}`: {reason}")]
pub struct NameError {
    name: String,
    reason: String,
}

impl NameError {
    pub(crate) fn new(name: &str, reason: impl Into<String>) -> Self {
        Self { name: printable(name).to_string(), reason: reason.into() }
    }
}
