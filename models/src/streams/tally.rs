//! How often the interesting events happened: a run that never meets them proves nothing.

#[derive(Debug, Default)]
pub struct Tally {
    pub(super) started: u64,
    pub(super) sent: u64,
    pub(super) read: u64,
    pub(super) full: u64,
    pub(super) stopped: u64,
    pub(super) clean: u64,
    pub(super) read_after_end: u64,
    pub(super) cancelled: u64,
    pub(super) cuts: u64,
    pub(super) failed: u64,
    pub(super) replies: u64,
    pub(super) resets: u64,
    pub(super) fed: u64,
}

impl Tally {
    fn counts(&mut self) -> [&mut u64; 13] {
        let Self { started, sent, read, full, stopped, clean, .. } = self;
        let Self { read_after_end, cancelled, cuts, failed, replies, resets, fed, .. } = self;
        [
            started,
            sent,
            read,
            full,
            stopped,
            clean,
            read_after_end,
            cancelled,
            cuts,
            failed,
            replies,
            resets,
            fed,
        ]
    }

    pub fn add(&mut self, mut other: Self) {
        for (sum, more) in self.counts().into_iter().zip(other.counts()) {
            *sum += *more;
        }
    }

    /// # Panics
    /// If a case that the world is about hardly occurred.
    pub fn check(&mut self) {
        let rarest = self.counts().into_iter().map(|count| *count).min();
        assert!(rarest > Some(50), "too tame: {self:?}");
    }
}
