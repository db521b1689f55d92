//! Output of the examples about a channel.

use rpc_core::Channel;

/// The transport that it uses, and why.
#[must_use]
pub fn path(channel: &Channel) -> String {
    channel.path().map_or_else(|| "not connected".to_owned(), |path| path.to_string())
}
