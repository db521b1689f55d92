//! The shares that connections have of one shared receive queue.
//!
//! Owns their count. Never posts, and does not know whose share is whose.
//!
//! All RECVs of the queue are posted when it is made: those of one window for each of its *places*.
//! Each that a message takes is posted again. A connection has a share from before its peer may
//! send until none of its messages can take a RECV any more and all that they took are posted
//! again.
//!
//! Where that is not known, or the device may have lost a RECV, the share is *spent*: it is
//! nobody's until the queue is made anew, which needs that nobody uses it.
//!
//! `rpc-transport/tests/credit_model` checks by exhaustive search of two connections:
//!
//! - **P1** the RECVs posted are never fewer than the messages that all peers together may have
//!   sent.

/// How many connections may use a shared receive queue, and how many do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SharePool {
    places: u32,
    used: u32,
    spent: u32,
}

impl SharePool {
    /// A queue that was just made, with RECVs for so many connections.
    #[must_use]
    pub const fn new(places: u32) -> Self {
        Self { places, used: 0, spent: 0 }
    }

    /// Connections that have a share.
    #[must_use]
    pub const fn used(&self) -> u32 {
        self.used
    }

    /// Shares that are nobody's until the queue is made anew.
    #[must_use]
    pub const fn spent(&self) -> u32 {
        self.spent
    }

    /// Connections that may still begin.
    #[must_use]
    pub const fn room(&self) -> u32 {
        self.places - self.used - self.spent
    }

    /// A connection begins. False: there is no share for it.
    #[must_use]
    pub const fn begin(&mut self) -> bool {
        if self.room() == 0 {
            return false;
        }
        self.used += 1;
        true
    }

    /// A connection has ended. `is_whole`: all RECVs of its share are posted.
    pub const fn end(&mut self, is_whole: bool) {
        self.used -= 1;
        if !is_whole {
            self.spent += 1;
        }
    }

    /// Whether to make the queue anew: nobody uses it, and shares are spent.
    #[must_use]
    pub const fn is_to_renew(&self) -> bool {
        self.used == 0 && self.spent > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_as_many_as_places() {
        let mut pool = SharePool::new(2);
        assert!(pool.begin() && pool.begin() && !pool.begin());
        pool.end(true);
        assert_eq!((pool.used(), pool.spent(), pool.room()), (1, 0, 1));
        assert!(pool.begin() && !pool.begin());
    }

    #[test]
    fn a_spent_share_waits_for_a_new_queue() {
        let mut pool = SharePool::new(2);
        assert!(pool.begin() && pool.begin());
        pool.end(false);
        assert!(!pool.begin() && !pool.is_to_renew(), "the other still uses it");
        pool.end(true);
        assert_eq!((pool.used(), pool.spent(), pool.room()), (0, 1, 1));
        assert!(pool.is_to_renew());
    }
}
