//! One end of a locked connection, with a peer whose frames the bytes choose.
#![no_main]

use libfuzzer_sys::fuzz_target;
use test_kit::Rng;

fuzz_target!(|data: &[u8]| {
    let _tally = models::locked_link::run(&mut Rng::from_bytes(data));
});
