//! Returns freed memory from the allocator to the system.
//!
//! Owns one call. glibc keeps the memory of freed large `Vec`s in each of its arenas for later
//! allocations: after a burst of large messages it may keep as much as the burst took.
#![allow(unsafe_code, reason = "the allocator is asked through libc")]

/// Has glibc give freed memory back to the system, which may take milliseconds. Does nothing with
/// another libc, nor for memory of another global allocator.
pub fn return_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` may be called at any time from any thread (malloc_trim(3): MT-Safe) and
    // touches no memory that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}
