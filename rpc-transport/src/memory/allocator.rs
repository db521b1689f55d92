//! Memory that the allocator keeps though nobody uses it.
//!
//! Owns one call. glibc keeps the memory of large `Vec`s that were freed, in each of its arenas, for
//! the next ones: after a burst of large messages that can be all that the burst has taken.
#![allow(unsafe_code, reason = "the allocator is asked through libc")]

/// Has glibc give freed memory back to the system, which may take milliseconds; does nothing with
/// another libc. What another global allocator keeps is its own business.
pub fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` may be called at any time from any thread (malloc_trim(3): MT-Safe) and
    // touches no memory that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
