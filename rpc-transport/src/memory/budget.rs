//! Memory budgets: how many bytes all users of a budget may hold at once.
//!
//! Owns counters, not memory. Only large messages use a budget, on both ends: small messages do not
//! touch it.
//!
//! Invariants:
//! 1. Reserved bytes are given back exactly once: a [`Reservation`] is not `Clone`, and gives them
//!    back when it is dropped, however its owner ended.
//! 2. A budget without a parent never has more reserved than its limit.
//! 3. A share never has more reserved than its limit, except for a single reservation: one large
//!    message may take whatever the whole budget has left.
//! 4. A budget that is locked never has more reserved than [`LOCKED_BYTES`].

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// What a budget gives while it is locked, bytes: for what a peer says of itself.
pub const LOCKED_BYTES: u64 = 16 << 10;

/// A number of bytes that may be held at once. Cheap to clone; clones are the same budget.
///
/// ```
/// use rpc_transport::memory::budget::MemoryBudget;
///
/// let budget = MemoryBudget::new(1000);
/// let first = budget.reserve(700).unwrap();
/// assert!(budget.reserve(400).is_err());
/// drop(first);
/// assert!(budget.reserve(400).is_ok());
/// ```
#[derive(Clone)]
pub struct MemoryBudget(Arc<Inner>);

struct Inner {
    limit: u64,
    used: AtomicU64,
    /// Large messages that are arriving or held.
    large: AtomicU32,
    is_locked: AtomicBool,
    /// The budget that this one is a share of.
    whole: Option<MemoryBudget>,
}

impl Inner {
    fn new(limit: u64, whole: Option<MemoryBudget>) -> Self {
        let is_locked = AtomicBool::new(false);
        Self { limit, used: AtomicU64::new(0), large: AtomicU32::new(0), is_locked, whole }
    }
}

/// A budget has no room for a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} more bytes, with {used} in use, would exceed the memory budget of {limit} bytes")]
pub struct BudgetExhausted {
    /// The bytes that were requested.
    pub bytes: u64,
    /// The bytes that were in use.
    pub used: u64,
    /// The limit of the budget.
    pub limit: u64,
}

impl MemoryBudget {
    /// A budget of `limit_bytes` bytes.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        Self(Arc::new(Inner::new(limit_bytes, None)))
    }

    /// A budget that is never exhausted.
    #[must_use]
    pub fn unlimited() -> Self {
        Self::new(u64::MAX)
    }

    /// A share of this budget for one of its users: at most half of it, so that no single user
    /// takes everything.
    #[must_use]
    pub fn share(&self) -> Self {
        Self(Arc::new(Inner::new(self.0.limit / 2, Some(self.clone()))))
    }

    /// Gives no more than [`LOCKED_BYTES`] from now on, as nobody knows its user yet.
    pub fn lock(&self) {
        self.0.is_locked.store(true, Ordering::Relaxed);
    }

    /// Gives what it has again.
    pub fn unlock(&self) {
        self.0.is_locked.store(false, Ordering::Relaxed);
    }

    /// Whether both are the same budget.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The limit, bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.0.limit
    }

    /// Bytes reserved now.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    /// Counts a large message, in the whole budget, from its beginning until it is dropped. Also
    /// returns whether it is the only one.
    pub(crate) fn hold_large(&self) -> (HeldLarge, bool) {
        let whole = self.0.whole.as_ref().unwrap_or(self);
        let others = whole.0.large.fetch_add(1, Ordering::Relaxed);
        (HeldLarge(whole.clone()), others == 0)
    }

    /// Reserves bytes until the reservation is dropped.
    ///
    /// # Errors
    /// [`BudgetExhausted`] when fewer bytes are left.
    pub fn reserve(&self, bytes: u64) -> Result<Reservation, BudgetExhausted> {
        self.take(bytes, 1)?;
        Ok(Reservation { budget: self.clone(), bytes, large: None })
    }

    /// Like [`MemoryBudget::reserve`], for optional memory: fails if more than half of the budget
    /// would then be in use.
    ///
    /// # Errors
    /// [`BudgetExhausted`], with half the budget as its limit.
    pub fn reserve_spare(&self, bytes: u64) -> Result<Reservation, BudgetExhausted> {
        self.take(bytes, 2)?;
        Ok(Reservation { budget: self.clone(), bytes, large: None })
    }

    /// Counts bytes as used, in this budget and in its parent, up to 1/`part` of each limit.
    fn take(&self, bytes: u64, part: u64) -> Result<(), BudgetExhausted> {
        let Inner { limit, used, whole, is_locked, .. } = &*self.0;
        let is_locked = is_locked.load(Ordering::Relaxed);
        let limit = if is_locked { (limit / part).min(LOCKED_BYTES) } else { limit / part };
        let take = |used: u64| {
            let is_alone = used == 0 && whole.is_some() && !is_locked;
            let then = used.checked_add(bytes)?;
            (then <= limit || is_alone).then_some(then)
        };
        used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .map_err(|used| BudgetExhausted { bytes, used, limit })?;
        let taken = whole.as_ref().map_or(Ok(()), |whole| whole.take(bytes, part));
        taken.inspect_err(|_| {
            used.fetch_sub(bytes, Ordering::Relaxed);
        })
    }

    fn give_back(&self, bytes: u64) {
        let before = self.0.used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "more was given back than was reserved");
        if let Some(whole) = &self.0.whole {
            whole.give_back(bytes);
        }
    }
}

impl fmt::Debug for MemoryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryBudget({} of {} bytes)", self.used_bytes(), self.limit_bytes())
    }
}

/// Bytes of a [`MemoryBudget`], reserved until this is dropped.
#[must_use = "dropping it gives the bytes back"]
pub struct Reservation {
    budget: MemoryBudget,
    bytes: u64,
    large: Option<HeldLarge>,
}

/// See [`MemoryBudget::hold_large`].
#[derive(Debug)]
pub(crate) struct HeldLarge(MemoryBudget);

impl Drop for HeldLarge {
    fn drop(&mut self) {
        self.0.0.large.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Reservation {
    /// Bytes reserved.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reserves more bytes.
    ///
    /// # Errors
    /// [`BudgetExhausted`]; what was reserved before stays reserved.
    pub fn grow(&mut self, bytes: u64) -> Result<(), BudgetExhausted> {
        self.budget.take(bytes, 1)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Counts its message as held until this is dropped.
    pub(crate) fn holding(mut self, large: Option<HeldLarge>) -> Self {
        self.large = large;
        self
    }

    /// Takes over the bytes of another reservation of the same budget.
    pub fn absorb(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.budget.0, &other.budget.0), "of different budgets");
        self.bytes += mem::take(&mut other.bytes);
    }

    /// Gives back all but `bytes`; a smaller reservation stays as it is.
    pub fn shrink_to(&mut self, bytes: u64) {
        let excess = self.bytes.saturating_sub(bytes);
        self.bytes -= excess;
        self.budget.give_back(excess);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({} bytes)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_locked_share_gives_little() {
        let whole = MemoryBudget::new(1 << 30);
        let share = whole.share();
        share.lock();
        let refused = share.reserve(LOCKED_BYTES + 1).unwrap_err();
        assert_eq!((refused.limit, share.used_bytes(), whole.used_bytes()), (LOCKED_BYTES, 0, 0));
        let little = share.reserve(LOCKED_BYTES).unwrap();
        assert!(share.reserve_spare(1).is_err());
        assert!(whole.reserve(1 << 20).is_ok(), "others go on");
        share.unlock();
        drop((share.reserve(1 << 29).unwrap_err(), little));
        assert_eq!(share.reserve(1 << 29).unwrap().bytes(), 1 << 29);
    }

    #[test]
    fn reservations_stay_within_the_limit_and_return() {
        let budget = MemoryBudget::new(100);
        let mut first = budget.reserve(60).unwrap();
        let refused = budget.reserve(41).unwrap_err();
        assert_eq!(refused, BudgetExhausted { bytes: 41, used: 60, limit: 100 });
        assert!(refused.to_string().contains("memory budget of 100 bytes"), "{refused}");
        first.grow(40).unwrap();
        assert!(first.grow(1).is_err());
        first.shrink_to(10);
        first.shrink_to(50);
        assert_eq!((first.bytes(), budget.used_bytes()), (10, 10));
        drop(first);
        assert_eq!(budget.used_bytes(), 0);
        assert!(budget.reserve(u64::MAX).is_err());
    }

    #[test]
    fn nobody_uses_a_shared_budget_up_alone() {
        let whole = MemoryBudget::new(100);
        let (greedy, modest) = (whole.share(), whole.share());
        let held = greedy.reserve(50).unwrap();
        assert!(greedy.reserve(1).is_err());
        assert_eq!(whole.used_bytes(), 50);
        let others = modest.reserve(40).unwrap();
        // Within the share's limit, but beyond the whole budget: nothing stays counted.
        assert_eq!(whole.share().reserve(20).unwrap_err().used, 90);
        assert_eq!((modest.used_bytes(), whole.used_bytes()), (40, 90));
        drop((held, others));
        assert_eq!((greedy.used_bytes(), modest.used_bytes(), whole.used_bytes()), (0, 0, 0));
    }

    #[test]
    fn reservation_may_exceed_a_share_not_the_whole() {
        let whole = MemoryBudget::new(100);
        let share = whole.share();
        let single = share.reserve(90).unwrap();
        assert!(share.reserve(1).is_err());
        drop(single);
        assert!(share.reserve(101).is_err());
        assert_eq!((share.used_bytes(), whole.used_bytes()), (0, 0));
    }

    #[test]
    fn optional_reservations_leave_half_free() {
        let whole = MemoryBudget::new(100);
        let spare = whole.reserve_spare(50).unwrap();
        assert_eq!(whole.reserve_spare(1).unwrap_err().limit, 50);
        assert!(whole.reserve(50).is_ok());
        drop(spare);
    }

    #[test]
    fn threads_that_race_keep_to_the_limit() {
        let rounds = if cfg!(miri) { 100 } else { 2000 };
        let whole = MemoryBudget::new(1000);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let share = whole.share();
                let whole = &whole;
                scope.spawn(move || {
                    for bytes in 0..rounds {
                        let held = share.reserve(bytes % 400);
                        assert!(whole.used_bytes() <= 1000);
                        drop(held);
                    }
                });
            }
        });
        assert_eq!(whole.used_bytes(), 0);
    }
}
