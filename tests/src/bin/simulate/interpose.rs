//! The C library's sources of time and chance, replaced for threads with time of their own.
//!
//! Owns the symbols that this binary defines in place of the library's. The linker takes the first
//! definition of a symbol, which is the executable's; `build.rs` exports them for what is looked up
//! at run time. On other threads they do what the library does.
//!
//! Invariants:
//! 1. Only symbols are defined here; what they mean is in `clock` and
//!    `chance`.
//! 2. On a thread with its own time, none of these asks the system for a time, or waits.
#![expect(unsafe_code, reason = "defines and calls functions of the C library")]

use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    c_int, c_long, c_void, clockid_t, cpu_set_t, epoll_event, pid_t, size_t, ssize_t, timespec,
};

use crate::{chance, clock};

/// The process id of every world.
const PID: pid_t = 4242;

/// A function of the library, behind the one that is defined here.
struct Real {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Real {
    const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    fn get(&self) -> *mut c_void {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: dlsym(3): the name is a C string, and RTLD_NEXT is valid in an executable.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        assert!(!found.is_null(), "the C library has no {:?}", self.name);
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

type Syscall = unsafe extern "C" fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long;
type GetRandom = unsafe extern "C" fn(*mut u8, size_t, u32) -> ssize_t;
type GetTime = unsafe extern "C" fn(clockid_t, *mut timespec) -> c_int;
type GetPid = unsafe extern "C" fn() -> pid_t;
type GetAffinity = unsafe extern "C" fn(pid_t, size_t, *mut cpu_set_t) -> c_int;
type Wait = unsafe extern "C" fn(c_int, *mut epoll_event, c_int, c_int) -> c_int;
type Sleep = unsafe extern "C" fn(clockid_t, c_int, *const timespec, *mut timespec) -> c_int;

static SYSCALL: Real = Real::new(c"syscall");
static GET_RANDOM: Real = Real::new(c"getrandom");
static GET_TIME: Real = Real::new(c"clock_gettime");
static GET_PID: Real = Real::new(c"getpid");
static GET_AFFINITY: Real = Real::new(c"sched_getaffinity");
static WAIT: Real = Real::new(c"epoll_wait");
static SLEEP: Real = Real::new(c"clock_nanosleep");

/// Writes random bytes of the world.
///
/// # Safety
/// `len` bytes at `buf` can be written.
unsafe fn fill(buf: *mut u8, len: usize) {
    // SAFETY: the caller says so, and they need not be initialized: a `u8` is only written.
    let bytes = unsafe { std::slice::from_raw_parts_mut(buf, len) };
    bytes.fill_with(chance::system_byte);
}

/// # Safety
/// As getrandom(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buf: *mut u8, len: size_t, flags: u32) -> ssize_t {
    if clock::is_own() {
        // SAFETY: getrandom(2): the caller lends `len` bytes.
        unsafe { fill(buf, len) };
        return len.cast_signed();
    }
    // SAFETY: the library's function of this name has this type.
    let real = unsafe { std::mem::transmute::<*mut c_void, GetRandom>(GET_RANDOM.get()) };
    // SAFETY: the caller's arguments are those of getrandom(2).
    unsafe { real(buf, len, flags) }
}

/// The `getrandom` of some crates makes the system call itself.
///
/// # Safety
/// As syscall(2). It is variadic in C; on the processors that are supported, six words in registers
/// are passed in the same way.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    if number == libc::SYS_getrandom && clock::is_own() {
        // SAFETY: getrandom(2): the first two arguments are a buffer and its length.
        unsafe { fill(a as *mut u8, b) };
        return b.cast_signed() as c_long;
    }
    // SAFETY: the library's function of this name can be called with this type; see above.
    let real = unsafe { std::mem::transmute::<*mut c_void, Syscall>(SYSCALL.get()) };
    // SAFETY: the caller's arguments are those of the system call.
    unsafe { real(number, a, b, c, d, e, f) }
}

/// # Safety
/// As clock_gettime(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: clockid_t, at: *mut timespec) -> c_int {
    if clock::is_own() {
        let now = clock::look();
        let seconds = match clock {
            libc::CLOCK_REALTIME => clock::calendar_s(now),
            _ => now / 1_000_000_000,
        };
        let tv_sec = seconds.cast_signed();
        let tv_nsec = (now % 1_000_000_000).cast_signed();
        // SAFETY: clock_gettime(2): the caller lends a `timespec`.
        unsafe { at.write(timespec { tv_sec, tv_nsec }) };
        return 0;
    }
    // SAFETY: the library's function of this name has this type.
    let real = unsafe { std::mem::transmute::<*mut c_void, GetTime>(GET_TIME.get()) };
    // SAFETY: the caller's arguments are those of clock_gettime(2).
    unsafe { real(clock, at) }
}

/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
unsafe extern "C" fn getpid() -> pid_t {
    if clock::is_own() {
        return PID;
    }
    // SAFETY: the library's function of this name has this type.
    let real = unsafe { std::mem::transmute::<*mut c_void, GetPid>(GET_PID.get()) };
    // SAFETY: getpid(2) has no requirements.
    unsafe { real() }
}

/// How many cores there are decides how many turns and shards there are: one, on every machine.
///
/// # Safety
/// As sched_getaffinity(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn sched_getaffinity(pid: pid_t, size: size_t, set: *mut cpu_set_t) -> c_int {
    if clock::is_own() {
        let bytes = set.cast::<u8>();
        // SAFETY: sched_getaffinity(2): the caller lends `size` bytes.
        unsafe { bytes.write_bytes(0, size) };
        // SAFETY: the same, and a set has at least one byte.
        unsafe { bytes.write(1) };
        return 0;
    }
    // SAFETY: the library's function of this name has this type.
    let real = unsafe { std::mem::transmute::<*mut c_void, GetAffinity>(GET_AFFINITY.get()) };
    // SAFETY: the caller's arguments are those of sched_getaffinity(2).
    unsafe { real(pid, size, set) }
}

/// # Safety
/// As epoll_wait(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(
    fd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the library's function of this name has this type.
    let real = unsafe { std::mem::transmute::<*mut c_void, Wait>(WAIT.get()) };
    let is_own = clock::is_own();
    // SAFETY: the caller's arguments are those of epoll_wait(2).
    let found = unsafe { real(fd, events, most, if is_own { 0 } else { timeout_ms }) };
    if is_own {
        clock::mark(u64::from(found.unsigned_abs()));
        if found == 0 && timeout_ms != 0 {
            let Ok(waits) = u64::try_from(timeout_ms) else { crate::world::stuck() };
            clock::pass(waits * 1_000_000);
        }
    }
    found
}

/// # Safety
/// As clock_nanosleep(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    if clock::is_own() && flags == 0 {
        // SAFETY: clock_nanosleep(2): the caller lends a `timespec`.
        let time = unsafe { time.read() };
        clock::pass(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs());
        return 0;
    }
    // SAFETY: the library's function of this name has this type.
    let real = unsafe { std::mem::transmute::<*mut c_void, Sleep>(SLEEP.get()) };
    // SAFETY: the caller's arguments are those of clock_nanosleep(2).
    unsafe { real(clock, flags, time, left) }
}
