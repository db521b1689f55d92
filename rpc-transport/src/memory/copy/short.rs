//! Reads of a few shared bytes: single loads in line, where a copy would be a call.
//!
//! Each load is an assembly block that is opaque to the compiler, as the long copies are. Loads of
//! different places are independent, so a processor handles many of their cache misses at once:
//! sampling a few bytes of a large payload takes about as long as one miss.
#![allow(unsafe_code, reason = "memory that others use at the same time")]

/// Most bytes of such a read.
pub(super) const MAX_BYTES: usize = 16;

/// Copies up to [`MAX_BYTES`] bytes from shared memory to the caller's own.
///
/// # Safety
/// As for [`super::from_shared`], and `len` is at most [`MAX_BYTES`].
#[inline]
pub(super) unsafe fn from(source: *const u8, target: *mut u8, len: usize) {
    /// Copies all bytes as two words that may overlap.
    macro_rules! ends {
        ($load:ident, $word:ty) => {{
            let behind = len - size_of::<$word>();
            // SAFETY: the first word lies within `len` bytes of the source.
            let first = unsafe { $load(source) };
            // SAFETY: the last word does too.
            let last = unsafe { $load(source.wrapping_add(behind)) };
            // SAFETY: as in the source, so in the target, which is the caller's own.
            unsafe { target.cast::<$word>().write_unaligned(first) };
            // SAFETY: as above.
            unsafe { target.wrapping_add(behind).cast::<$word>().write_unaligned(last) };
        }};
    }
    match len {
        0 => {}
        1 => {
            // SAFETY: there is one byte.
            let byte = unsafe { load_1(source) };
            // SAFETY: as above.
            unsafe { target.write(byte) };
        }
        2..4 => ends!(load_2, u16),
        4..8 => ends!(load_4, u32),
        _ => ends!(load_8, u64),
    }
}

/// Defines a load of one word.
macro_rules! load {
    ($name:ident, $word:ty, $class:ident, $x86:literal, $arm:literal) => {
        /// # Safety
        /// The word at `at` is readable; others may write it in the meantime.
        #[inline]
        unsafe fn $name(at: *const u8) -> $word {
            let word: $word;
            // SAFETY: one load of memory that is readable (the caller's promise); nothing is
            // written.
            #[cfg(target_arch = "x86_64")]
            unsafe {
                std::arch::asm!(
                    $x86,
                    word = lateout($class) word,
                    at = in(reg) at,
                    options(nostack, preserves_flags, readonly),
                );
            }
            // SAFETY: as on x86-64.
            #[cfg(target_arch = "aarch64")]
            unsafe {
                std::arch::asm!(
                    $arm,
                    word = lateout(reg) word,
                    at = in(reg) at,
                    options(nostack, preserves_flags, readonly),
                );
            }
            word
        }
    };
}

load!(load_1, u8, reg_byte, "mov {word}, byte ptr [{at}]", "ldrb {word:w}, [{at}]");
load!(load_2, u16, reg, "mov {word:x}, word ptr [{at}]", "ldrh {word:w}, [{at}]");
load!(load_4, u32, reg, "mov {word:e}, dword ptr [{at}]", "ldr {word:w}, [{at}]");
load!(load_8, u64, reg, "mov {word}, qword ptr [{at}]", "ldr {word}, [{at}]");
