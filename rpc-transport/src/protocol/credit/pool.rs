//! RECVs that the connections of a shared receive queue have together.
//!
//! Owns the count of what was granted to them. Never posts, and does not know which connection has how
//! many.
//!
//! A connection is granted the RECVs of its window (and one for its Close) before its peer may send, and
//! those that its window grows by before the peer is told (rule 9); what the window falls by (rule 13) it
//! gives back, and at its end the rest. A posted RECV cannot be taken back, so what is given back stays
//! posted, as *surplus*, until it is granted again or a message has taken one, which is then not posted
//! again.
//!
//! A device may lose the RECV that it was filling as a connection failed, and nobody hears of it. So one of
//! those that such a connection had is counted as *lost* from its end on: granted to nobody, whether it is
//! still posted or not. That ends with the queue, once no connection uses it ([`RecvPool::renew`]).
//!
//! Invariants, which `rpc-transport/tests/credit_model` checks by exhaustive search of two connections
//! and one pool:
//!
//! - **P1** posted + taken by messages and not posted again + what the device has lost = granted + surplus +
//!   lost, at most [`RecvPool::most`].
//! - **P2** the RECVs posted are never fewer than the messages that all peers together may have sent.
//!
//! P2 needs that a connection gives nothing back that its messages have taken and that was not posted
//! again: at its end it waits until all its completions have been polled. Else the surplus would name
//! RECVs that are not posted, and RECVs that others need would not be posted again.

/// How many RECVs connections have together, in WRs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecvPool {
    most: u32,
    granted: u32,
    surplus: u32,
    lost: u32,
}

impl RecvPool {
    /// A pool of at most so many RECVs, none of which is posted.
    #[must_use]
    pub const fn new(most: u32) -> Self {
        Self { most, granted: 0, surplus: 0, lost: 0 }
    }

    /// Most RECVs that there may be.
    #[must_use]
    pub const fn most(&self) -> u32 {
        self.most
    }

    /// RECVs granted to connections.
    #[must_use]
    pub const fn granted(&self) -> u32 {
        self.granted
    }

    /// RECVs that were given back and may still be posted.
    #[must_use]
    pub const fn surplus(&self) -> u32 {
        self.surplus
    }

    /// RECVs that the device may have lost.
    #[must_use]
    pub const fn lost(&self) -> u32 {
        self.lost
    }

    /// RECVs that may still be granted.
    #[must_use]
    pub const fn room(&self) -> u32 {
        self.most - self.granted - self.lost
    }

    /// How many RECVs are to be posted to grant `more`; `None` if there are not as many.
    #[must_use]
    pub const fn to_post(&self, more: u32) -> Option<u32> {
        if more > self.room() {
            return None;
        }
        Some(more.saturating_sub(self.surplus))
    }

    /// Grants `more` RECVs, of which so many **must be posted** before their credits are; `None` if there
    /// are not as many.
    pub const fn grant(&mut self, more: u32) -> Option<u32> {
        let Some(to_post) = self.to_post(more) else { return None };
        self.surplus -= more - to_post;
        self.granted += more;
        Some(to_post)
    }

    /// There was no memory for `unposted` of the RECVs granted last, nor are they posted: `more` are
    /// granted no longer.
    pub const fn revoke(&mut self, more: u32, unposted: u32) {
        self.granted -= more;
        self.surplus += more - unposted;
    }

    /// A connection needs `less` RECVs no longer. None of them is taken by a message and not yet posted
    /// again.
    pub const fn give_back(&mut self, less: u32) {
        self.granted -= less;
        self.surplus += less;
    }

    /// Connections have ended that had `less`, as in [`RecvPool::give_back`], of which the device may have
    /// lost so many.
    pub const fn end(&mut self, less: u32, lost: u32) {
        self.give_back(less);
        self.surplus -= lost;
        self.lost += lost;
    }

    /// The queue is made anew, with nothing posted: no connection has any.
    pub const fn renew(&mut self) {
        *self = Self::new(self.most);
    }

    /// A message has taken a RECV: whether it is to be posted again.
    #[must_use]
    pub const fn is_to_repost(&mut self) -> bool {
        if self.surplus == 0 {
            return true;
        }
        self.surplus -= 1;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_granted_again_before_more_is_posted() {
        let mut pool = RecvPool::new(10);
        assert_eq!(pool.grant(6), Some(6));
        assert_eq!(pool.grant(5), None);
        pool.give_back(3);
        assert_eq!(pool.grant(2), Some(0));
        assert_eq!(pool.grant(5), Some(4));
        assert_eq!((pool.granted(), pool.surplus()), (10, 0));
        assert_eq!(pool.grant(1), None);
    }

    #[test]
    fn a_surplus_is_not_posted_again() {
        let mut pool = RecvPool::new(4);
        assert_eq!(pool.grant(4), Some(4));
        assert!(pool.is_to_repost());
        pool.give_back(2);
        assert!(!pool.is_to_repost() && !pool.is_to_repost() && pool.is_to_repost());
        assert_eq!(pool.grant(2), Some(2));
    }

    #[test]
    fn what_may_be_lost_is_granted_to_nobody_until_the_queue_is_made_anew() {
        let mut pool = RecvPool::new(5);
        assert_eq!(pool.grant(4), Some(4));
        pool.end(4, 1);
        assert_eq!((pool.granted(), pool.surplus(), pool.lost(), pool.room()), (0, 3, 1, 4));
        assert_eq!(pool.to_post(5), None);
        assert_eq!(pool.grant(4), Some(1));
        pool.end(4, 0);
        pool.renew();
        assert_eq!(pool, RecvPool::new(5));
    }

    #[test]
    fn what_could_not_be_posted_is_revoked() {
        let mut pool = RecvPool::new(9);
        assert_eq!(pool.grant(5), Some(5));
        pool.give_back(2);
        assert_eq!(pool.grant(6), Some(4));
        pool.revoke(6, 3);
        // Two that there were, and the one that was posted.
        assert_eq!((pool.granted(), pool.surplus()), (3, 3));
    }
}
