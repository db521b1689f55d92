//! Whether this process has inherited the RDMA libraries in use, from a parent that created it by
//! `fork(2)`.
//!
//! Owns the process that used them first. Both libraries keep open devices for the process. Their
//! commands in a child would change the parent's queues and memory, and the threads of this
//! provider are missing there. So a child opens nothing, and destroys nothing.

use std::io;
use std::sync::OnceLock;

use crate::memory::process::Process;

static USER: OnceLock<Process> = OnceLock::new();

/// Call it before the libraries are used.
///
/// # Errors
/// The parent of this process has used them.
pub(super) fn check() -> io::Result<()> {
    if USER.get_or_init(Process::current).is_current() {
        return Ok(());
    }
    Err(io::Error::other(
        "this process was forked from one that already used RDMA, and cannot share its devices: \
         fork before the first use, or exec a new program in the child",
    ))
}

/// Whether all objects of the libraries belong to the parent. Destructors ask this first, and then
/// do nothing.
pub(super) fn is_inherited() -> bool {
    USER.get().is_some_and(|user| !user.is_current())
}
