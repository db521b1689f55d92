//! Seeded random numbers, and the seed printed when a test fails.

/// SplitMix64: small, and every seed is a good one.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `bound - 1`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).expect("an index")]
    }
}

/// Prints its seed when dropped by a panic.
pub(crate) struct PrintSeed(u64);

impl PrintSeed {
    #[allow(dead_code, reason = "not every test that shares this file has seeds of its own")]
    pub(crate) fn new(seed: u64) -> Self {
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
pub(crate) fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs `body` for many seeds from `base` on, or for the one that `MODEL_SEED` names;
/// `MODEL_RUNS` overrides how many.
pub(crate) fn for_seeds(base: u64, runs: u64, mut body: impl FnMut(&mut Random)) {
    let mut run = |seed| {
        let _print = PrintSeed(seed);
        body(&mut Random::new(seed));
    };
    match variable("MODEL_SEED") {
        Some(seed) => run(seed),
        None => (base..base + variable("MODEL_RUNS").unwrap_or(runs)).for_each(run),
    }
}
