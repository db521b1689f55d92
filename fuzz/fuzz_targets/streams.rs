//! Two sessions and their streams, driven by operations that the bytes choose, with tasks that sleep
//! until they are woken.
#![no_main]

use libfuzzer_sys::fuzz_target;
use test_kit::Rng;

fuzz_target!(|data: &[u8]| {
    drop(models::streams::run(&mut Rng::from_bytes(data), None));
});
