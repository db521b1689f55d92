//! Two sessions and their streams, driven by operations that the bytes choose, with tasks that
//! sleep until they are woken; or one session, and a peer that sends arbitrary frames.
#![no_main]

use libfuzzer_sys::fuzz_target;
use test_kit::Rng;

fuzz_target!(|data: &[u8]| {
    let mut rng = Rng::from_bytes(data);
    if rng.chance(70) {
        drop(models::streams::run(&mut rng, None));
    } else {
        models::streams::run_hostile(&mut rng);
    }
});
