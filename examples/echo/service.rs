//! The service: one method. Everything that a client and a server need is generated from this
//! trait.

/// Returns its argument.
#[rpc_core::service]
pub(crate) trait Echo {
    /// Returns `data`.
    async fn echo(&self, data: &[u8]) -> Vec<u8>;
}

/// The implementation.
pub(crate) struct Echoing;

impl Echo for Echoing {
    async fn echo(&self, data: &[u8]) -> Vec<u8> {
        data.to_vec()
    }
}
