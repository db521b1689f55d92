//! Two sessions, driven by operations that the bytes choose, against an oracle that knows every
//! call.
#![no_main]

use libfuzzer_sys::fuzz_target;
use test_kit::Rng;

fuzz_target!(|data: &[u8]| {
    drop(models::session::run(&mut Rng::from_bytes(data)));
});
