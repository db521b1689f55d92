//! What is counted of a channel.

use std::sync::Arc;

use crate::method::MethodDescriptor;
use crate::stats::counts::{Counter, End, Methods};
use crate::status::Code;

/// What is counted of a channel, over all of its connections.
#[derive(Debug, Default)]
pub(crate) struct ChannelCounts {
    pub(super) methods: Arc<Methods>,
    /// Written from any thread.
    pub(super) connected: Counter,
    pub(super) connect_failures: Counter,
    /// Calls of the peers.
    pub(super) served: Option<Arc<Methods>>,
}

impl ChannelCounts {
    /// A call has ended that no connection has taken.
    #[cold]
    pub(crate) fn on_unsent(&self, method: &'static MethodDescriptor, code: Code) {
        self.methods.method(Some(method)).shared.on_shared_start();
        self.on_end(method, code);
    }

    /// A call has ended between two connections: the first one has counted its begin.
    #[cold]
    pub(crate) fn on_end(&self, method: &'static MethodDescriptor, code: Code) {
        self.methods.method(Some(method)).shared.on_shared_end(End::Code(code), 0);
    }
}
