//! Nothing at run time. The build script of this package checks for the system libraries that
//! feature `verbs` needs.
//!
//! A package of its own, and a build dependency of `rpc-transport`, because cargo runs what most
//! depends on first: so the check speaks before the build script of rdma-sys panics.
