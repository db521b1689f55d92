//! Two programs that disagree about a service: traits of one name with different methods.

/// The trait that the server of these tests was built with.
pub mod old {
    /// The service.
    #[rpc_core::service]
    pub trait Ledger {
        /// Same in both.
        async fn total(&self) -> u64;
        /// Takes a number here.
        async fn enter(&self, amount: u64) -> u64;
        /// Its content changed, not its types.
        #[rpc(version = 1)]
        async fn audit(&self, year: u16) -> String;
    }
}

/// The trait that its client was built with.
pub mod new {
    /// The service.
    #[rpc_core::service]
    pub trait Ledger {
        /// Same in both.
        async fn total(&self) -> u64;
        /// Takes a text here.
        async fn enter(&self, amount: String) -> u64;
        /// Its content changed, not its types.
        #[rpc(version = 2)]
        async fn audit(&self, year: u16) -> String;
        /// Missing in the other.
        async fn close(&self) -> bool;
    }
}

/// Serves the old trait.
#[derive(Debug, Clone, Copy, Default)]
pub struct OldLedger;

impl old::Ledger for OldLedger {
    async fn total(&self) -> u64 {
        42
    }

    async fn enter(&self, amount: u64) -> u64 {
        42 + amount
    }

    async fn audit(&self, year: u16) -> String {
        format!("{year}: fine")
    }
}
