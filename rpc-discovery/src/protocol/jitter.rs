//! How long to wait before a registry is asked again.

use std::time::Duration;

const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// Full jitter: any time from 0.1 s to a bound that doubles with each failure in a row, up to 10 s.
/// Clients that lost the same registry do not return together. `random` decides.
pub(crate) fn full_jitter(failures: u32, random: u64) -> Duration {
    let bound = SHORTEST.saturating_mul(1 << failures.clamp(1, 10)).min(LONGEST);
    let share = (random >> 11) as f64 / (1_u64 << 53) as f64;
    SHORTEST + (bound - SHORTEST).mul_f64(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_fill_their_range() {
        for (failures, least, most) in
            [(0, 100, 200), (1, 100, 200), (3, 100, 800), (7, 100, 10_000), (u32::MAX, 100, 10_000)]
        {
            let millis = |random| full_jitter(failures, random).as_millis();
            assert_eq!((millis(0), millis(u64::MAX).div_ceil(10) * 10), (least, most));
            assert!((least..=most).contains(&millis(u64::MAX / 3)));
        }
    }
}
