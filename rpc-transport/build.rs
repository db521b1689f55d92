//! Does nothing itself: it is here so that the build dependency `rpc-verbs-check` (feature `verbs`)
//! is built, whose build script checks for the system libraries before anything else needs them.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
