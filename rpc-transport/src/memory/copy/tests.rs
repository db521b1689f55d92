use std::ptr::NonNull;
use std::thread;

use proptest::prelude::*;

use super::*;

type Copy = unsafe fn(*const u8, *mut u8, usize);

/// Every implementation, for this target and for others.
const COPIES: [Copy; 6] =
    [from_shared, to_shared, between_shared, bytewise::from, bytewise::to, bytewise::between];

/// Copies `len` bytes between two places, and checks the bytes around the target too.
fn check(from: usize, to: usize, len: usize) {
    let mut source: Vec<u8> = (0..=250).cycle().take(from + len + 9).collect();
    let mut expected = vec![0xee; to + len + 9];
    expected[to..to + len].copy_from_slice(&source[from..from + len]);
    for (which, copy) in COPIES.into_iter().enumerate() {
        let mut target = vec![0xee; to + len + 9];
        // Both spans lie inside their vectors.
        let (from, to) = (&mut source[from..], &mut target[to..]);
        // SAFETY: both spans lie inside their vectors, which nobody else has.
        unsafe { copy(from.as_mut_ptr(), to.as_mut_ptr(), len) };
        assert!(target == expected, "copy {which}");
    }
}

#[test]
fn short_copies_match_plain_copies_at_every_alignment() {
    let (most, step) = if cfg!(miri) { (9, 16) } else { (80, 1) };
    for len in 0..most {
        for from in (0..=16).step_by(step) {
            for to in (0..=16).step_by(step) {
                check(from, to, len);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    #[cfg_attr(miri, ignore = "generating the lengths takes longer than the copies")]
    fn copies_of_any_length_are_plain_copies(
        from in 0..70_usize,
        to in 0..70_usize,
        len in 0..20_000_usize,
    ) {
        check(from, to, len);
    }
}

#[derive(Clone, Copy)]
struct Shared(NonNull<u8>);

// SAFETY: the tests access the pointed-to bytes only by the copies.
unsafe impl Send for Shared {}

impl Shared {
    const BYTES: usize = if cfg!(miri) { 40 } else { 4096 };

    fn new() -> Self {
        let bytes = Box::leak(vec![0_u8; Self::BYTES].into_boxed_slice());
        Self(NonNull::from(bytes).cast())
    }
}

/// For miri: with plain copies this is a data race.
#[test]
fn racing_copies_yield_only_written_bytes() {
    let (here, there) = (Shared::new(), Shared::new());
    let rounds = if cfg!(miri) { 3 } else { 2_000 };
    let run = move |fill: u8| {
        let (here, there) = (here, there);
        let own = [fill; Shared::BYTES];
        let mut seen = [0; Shared::BYTES];
        for _ in 0..rounds {
            // SAFETY: all three hold that many bytes; the leaked ones are used by copies alone.
            unsafe { to_shared(own.as_ptr(), here.0.as_ptr(), own.len()) };
            // SAFETY: as above.
            unsafe { between_shared(here.0.as_ptr(), there.0.as_ptr(), own.len()) };
            // SAFETY: as above.
            unsafe { from_shared(there.0.as_ptr(), seen.as_mut_ptr(), own.len()) };
            assert!(seen.iter().all(|byte| matches!(byte, 1 | 2)), "{seen:?}");
        }
    };
    thread::scope(|scope| {
        for fill in [1, 2] {
            scope.spawn(move || run(fill));
        }
    });
    for shared in [here, there] {
        let bytes = std::ptr::slice_from_raw_parts_mut(shared.0.as_ptr(), Shared::BYTES);
        // SAFETY: leaked by `new`; both threads have ended.
        drop(unsafe { Box::from_raw(bytes) });
    }
}
