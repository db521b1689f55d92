#![allow(unused_imports)]

use std::path::Path;

#[rpc_core::service]
pub trait Mistake {
    async fn call(&self, path: &Path, full: &std::ffi::OsStr);
}

fn main() {}
