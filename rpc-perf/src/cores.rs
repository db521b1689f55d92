//! The CPUs of measured threads.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs on which the two ends run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuPair {
    /// The CPU of the client, or of the side that begins.
    pub client: usize,
    /// The CPU of the server, or of the side that replies.
    pub server: usize,
}

impl CpuPair {
    /// The first two CPUs that this thread may use; `None` if there is only one.
    ///
    /// # Errors
    /// The error of the system.
    pub fn allowed() -> io::Result<Option<Self>> {
        let set = sched_getaffinity(None)?;
        let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
        Ok(cpus.next().zip(cpus.next()).map(|(client, server)| Self { client, server }))
    }
}

/// Pins the calling thread to a CPU, if the machine has it.
pub fn pin(cpu: usize) {
    if let Err(error) = try_pin(cpu) {
        eprintln!("cannot pin to CPU {cpu}: {error}; results will vary more");
    }
}

/// Pins the calling thread to a CPU.
///
/// # Errors
/// The error of the system, `InvalidInput` for a CPU that does not exist or may not be used.
pub fn try_pin(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}
