//! How often the interesting events happened: a run that never meets them proves nothing.

/// How often the interesting events happened: a run that never meets them proves nothing.
#[derive(Debug, Default)]
pub struct Tally {
    pub(super) started: u64,
    pub(super) full: u64,
    pub(super) nested: u64,
    /// Nested calls that were not to wait.
    pub(super) handlers_wait: u64,
    pub(super) replies: u64,
    pub(super) expired: u64,
    pub(super) never_sent: u64,
    pub(super) stops: u64,
    pub(super) refused_attach: u64,
    pub(super) gone: u64,
    pub(super) whole: u64,
    pub(super) aborted: u64,
    /// Requests and responses taken back that had been delivered with their first segment.
    pub(super) begun: u64,
    pub(super) revoked_responses: u64,
    pub(super) quarantined: u64,
    pub(super) no_cancel_dropped: u64,
    pub(super) drained: u64,
    pub(super) closed: u64,
    pub(super) going_away: u64,
    pub(super) most_in_flight: u32,
}

impl Tally {
    /// # Panics
    /// If a case that the world is about hardly occurred.
    pub fn check(&self) {
        let Self { started, replies, expired, never_sent, stops, refused_attach, gone, .. } = *self;
        let Self {
            whole, aborted, begun, revoked_responses, quarantined, no_cancel_dropped, ..
        } = *self;
        let Self { drained, closed, going_away, most_in_flight, .. } = *self;
        let mut counts = vec![started, replies, expired, never_sent, stops, refused_attach, gone];
        counts.extend([whole, aborted, begun, revoked_responses, quarantined, no_cancel_dropped]);
        counts.extend([drained, closed, going_away, self.full, self.nested, self.handlers_wait]);
        let rarest = counts.into_iter().min();
        assert!(rarest > Some(50) && most_in_flight > 20, "too tame: {self:?}");
    }

    pub fn add(&mut self, other: &Self) {
        self.started += other.started;
        self.full += other.full;
        self.nested += other.nested;
        self.handlers_wait += other.handlers_wait;
        self.replies += other.replies;
        self.expired += other.expired;
        self.never_sent += other.never_sent;
        self.stops += other.stops;
        self.refused_attach += other.refused_attach;
        self.gone += other.gone;
        self.whole += other.whole;
        self.aborted += other.aborted;
        self.begun += other.begun;
        self.revoked_responses += other.revoked_responses;
        self.quarantined += other.quarantined;
        self.no_cancel_dropped += other.no_cancel_dropped;
        self.drained += other.drained;
        self.closed += other.closed;
        self.going_away += other.going_away;
        self.most_in_flight = self.most_in_flight.max(other.most_in_flight);
    }
}
