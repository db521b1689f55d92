//! All rows of the table.

use crate::peers;
use crate::row::Row;

/// The row of this name.
pub(crate) fn named(name: &str) -> Option<Row> {
    all().into_iter().find(|row| row.name() == name)
}

/// All of them, in the order of the table.
pub(crate) fn all() -> Vec<Row> {
    [
        peers::ours::rows(),
        #[cfg(feature = "tarpc")]
        peers::tarpc::rows(),
        #[cfg(feature = "tonic")]
        peers::tonic::rows(),
        #[cfg(feature = "capnp")]
        peers::capnp::rows(),
        peers::ruapc::rows(),
        #[cfg(feature = "iceoryx2")]
        peers::iceoryx2::rows(),
        peers::floors::rows(),
    ]
    .concat()
}
