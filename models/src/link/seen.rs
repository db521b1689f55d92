//! Events of a run, so that a run which misses a case is noticed.

/// How often the interesting cases occurred.
#[derive(Default, Clone, Copy)]
pub struct Seen {
    pub aborts: u64,
    pub pings: u64,
    pub written: u64,
    pub placed: u64,
    pub slices: u64,
    pub remote_tails: u64,
    pub private_tails: u64,
    pub blocked: u64,
    pub given_up: u64,
    pub streams: u64,
    pub streams_ended: u64,
    pub streams_aborted: u64,
    pub streams_dropped: u64,
    pub held_back: u64,
    pub grown_windows: u64,
}

impl Seen {
    pub fn all(&mut self) -> [(&'static str, &mut u64); 15] {
        [
            ("aborts", &mut self.aborts),
            ("pings", &mut self.pings),
            ("written segments", &mut self.written),
            ("placed segments", &mut self.placed),
            ("slices ahead of their frame", &mut self.slices),
            ("remote tails", &mut self.remote_tails),
            ("private tails", &mut self.private_tails),
            ("waits for chunks", &mut self.blocked),
            ("arenas given up", &mut self.given_up),
            ("streams", &mut self.streams),
            ("streams read to their end", &mut self.streams_ended),
            ("streams given up by their senders", &mut self.streams_aborted),
            ("streams dropped by their readers", &mut self.streams_dropped),
            ("news of how far a stream was read", &mut self.held_back),
            ("windows that grew", &mut self.grown_windows),
        ]
    }

    pub fn add(&mut self, mut other: Self) {
        for ((_, count), (_, more)) in self.all().into_iter().zip(other.all()) {
            *count += *more;
        }
    }
}
