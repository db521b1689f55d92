//! Empty at run time. With the feature `check`, the build script of this package checks for the
//! system libraries that feature `verbs` of rpc-over-rdma-transport needs.
//!
//! It is a package of its own because cargo runs the build scripts of dependencies first: the check
//! reports what is missing before the build script of rdma-sys panics.
