//! Cores: where measured threads run.

use rustix::thread::{CpuSet, sched_setaffinity};

/// Pins the calling thread to `core`, if the machine has it.
pub(crate) fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    if let Err(error) = sched_setaffinity(None, &set) {
        eprintln!("cannot pin to core {core}: {error}; numbers will wander");
    }
}
