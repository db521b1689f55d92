//! Two links, driven by operations that the bytes choose, against an oracle that knows every
//! message.
#![no_main]

use libfuzzer_sys::fuzz_target;
use test_kit::Rng;

fuzz_target!(|data: &[u8]| {
    let Some((choice, bytes)) = data.split_first() else { return };
    let mut rng = Rng::from_bytes(bytes);
    match choice % 4 {
        0 => models::link::run_closing(&mut rng),
        1 => models::link::run_left_behind(&mut rng),
        _ => drop(models::link::run(&mut rng)),
    }
});
