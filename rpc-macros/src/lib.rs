//! The `#[service]` attribute of `rpc-core`.
