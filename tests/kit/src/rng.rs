//! Random numbers of tests.
//!
//! From a seed (SplitMix64: small, and every seed is a good one), which a failure prints. Or from
//! the bytes of a fuzzer, so that a fuzzer can drive a model that draws its operations: each draw
//! takes as few bytes as it needs, and draws after the last byte are derived from all of them.

use std::hash::{DefaultHasher, Hasher};

/// A generator. Not `Clone`: two models must not draw the same by accident.
#[derive(Debug)]
pub struct Rng {
    state: u64,
    /// Used up first, from the end.
    bytes: Vec<u8>,
}

impl Rng {
    /// All output is derived from the seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed, bytes: Vec::new() }
    }

    /// All output is derived from the bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut hash = DefaultHasher::new();
        hash.write(bytes);
        Self { state: hash.finish(), bytes: bytes.iter().rev().copied().collect() }
    }

    /// Whether there are bytes that no draw has used yet.
    #[must_use]
    pub fn has_bytes(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Any number.
    #[expect(clippy::should_implement_trait, reason = "it has no end")]
    pub fn next(&mut self) -> u64 {
        if self.has_bytes() {
            return self.drawn(8);
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `bound - 1`.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        match bound {
            1 => 0,
            2..=0x100 if self.has_bytes() => self.drawn(1) % bound,
            0x101..=0x1_0000 if self.has_bytes() => self.drawn(2) % bound,
            _ => self.next() % bound,
        }
    }

    /// An index below `len`.
    ///
    /// # Panics
    /// When `len` is 0.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("below a usize")
    }

    /// True in `percent` of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of these.
    ///
    /// # Panics
    /// When there are none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }

    /// Any byte.
    pub fn byte(&mut self) -> u8 {
        self.below(256).to_le_bytes()[0]
    }

    /// `len` bytes.
    #[must_use]
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.byte()).collect()
    }

    fn drawn(&mut self, bytes: usize) -> u64 {
        (0..bytes).fold(0, |number, _| number << 8 | u64::from(self.bytes.pop().unwrap_or(0)))
    }
}

/// Prints its seed when dropped by a panic.
#[derive(Debug)]
pub struct PrintSeed(u64);

impl PrintSeed {
    /// For a test with seeds of its own; `MODEL_SEED` should repeat it.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }
}

impl Drop for PrintSeed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with MODEL_SEED={}", self.0);
        }
    }
}

/// A number from the environment.
///
/// # Panics
/// When the variable holds anything else.
#[must_use]
pub fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs `body` for `runs` seeds from `base` on, or for the one in `MODEL_SEED`; `MODEL_RUNS`
/// overrides the number.
///
/// # Panics
/// When `body` does, after printing the seed.
pub fn for_seeds(base: u64, runs: u64, mut body: impl FnMut(&mut Rng)) {
    let mut run = |seed| {
        let _print = PrintSeed(seed);
        body(&mut Rng::new(seed));
    };
    match variable("MODEL_SEED") {
        Some(seed) => run(seed),
        None => (base..base + variable("MODEL_RUNS").unwrap_or(runs)).for_each(run),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_drawn_before_a_derived_sequence() {
        let mut rng = Rng::from_bytes(&[7, 1, 2, 9]);
        assert_eq!((rng.below(4), rng.below(0x1_0000), rng.below(1)), (3, 0x0102, 0));
        assert!(rng.has_bytes());
        assert_eq!(rng.byte(), 9);
        assert!(!rng.has_bytes());
        let tail: Vec<u64> = (0..4).map(|_| rng.next()).collect();
        let mut again = Rng::from_bytes(&[7, 1, 2, 9]);
        for _ in 0..4 {
            again.byte();
        }
        assert_eq!((0..4).map(|_| again.next()).collect::<Vec<_>>(), tail);
        assert_ne!(Rng::from_bytes(&[8]).state, Rng::from_bytes(&[9]).state);
    }
}
