//! The resources of a process, as the kernel counts them.

use std::fs;

use crate::probe::Resources;

/// The resources of this process. Tasks are those of the current runtime.
///
/// # Panics
/// Without `/proc`.
#[must_use]
pub fn of_this_process() -> Resources {
    let count = |path: &str| fs::read_dir(path).expect("/proc is mounted").count() as u64;
    let statm = fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
    let resident: u64 = field(&statm, 1);
    let maps = fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    let runtime = tokio::runtime::Handle::try_current();
    Resources {
        fds: count("/proc/self/fd"),
        rss_bytes: resident * rustix::param::page_size() as u64,
        mappings: maps.lines().count() as u64,
        tasks: runtime.map_or(0, |runtime| runtime.metrics().num_alive_tasks() as u64),
    }
}

/// CPU time that a process has used, user and system, in clock ticks; from its `/proc/PID/stat`.
///
/// # Panics
/// When the text is not that of such a file.
#[must_use]
pub fn cpu_ticks(stat: &str) -> u64 {
    // The name in parentheses may hold anything.
    let (_, fields) = stat.rsplit_once(')').expect("a name in parentheses");
    // Fields 14 and 15; the first here is field 3.
    field(fields, 11) + field(fields, 12)
}

fn field(line: &str, at: usize) -> u64 {
    let text = line.split_whitespace().nth(at).expect("the kernel's field");
    text.parse().expect("the kernel's number")
}

/// Lets this process open as many files as the system allows.
pub fn raise_fd_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If this fails, a later lack of files shows it.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Limits this process to `count` open files, until it raises the limit again.
///
/// # Panics
/// When the system refuses.
pub fn limit_open_files(count: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(count), maximum }).expect("a lower limit");
}

/// Limits the address space of this process.
///
/// # Panics
/// When the system refuses.
pub fn limit_address_space(bytes: u64) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    setrlimit(Resource::As, limit).expect("a lower limit");
}

/// Limits the size of files and shared memory of this process.
///
/// # Panics
/// When the system refuses.
pub fn limit_file_size(bytes: u64) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    setrlimit(Resource::Fsize, limit).expect("a lower limit");
}

/// Resident memory of another process of this machine, bytes.
///
/// # Panics
/// When it has ended.
#[must_use]
pub fn rss_bytes_of(pid: u32) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).expect("the process lives");
    field(&statm, 1) * rustix::param::page_size() as u64
}

/// The most resident memory that another process of this machine has had so far, bytes.
///
/// # Panics
/// When it has ended.
#[must_use]
pub fn peak_rss_bytes_of(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("the kernel's line");
    field(line, 1) * 1024
}
