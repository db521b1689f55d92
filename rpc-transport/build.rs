//! Does nothing. It exists so that the build dependency `rpc-over-rdma-verbs-check` (feature
//! `verbs`) is built, whose build script checks for the system libraries before anything else needs
//! them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
