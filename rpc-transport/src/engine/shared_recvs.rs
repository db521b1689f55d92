//! The RECVs that the connections of a shard have together, on a device with a shared receive queue.
//!
//! Owns their buffers, and the count of what each connection was granted. Never posts: whoever gets a
//! buffer posts it to the shared receive queue of the shard's CQ.
//!
//! Invariants:
//! 1. Those of [`RecvPool`]: nobody is granted what is not posted, so no queue is ever oversubscribed.
//! 2. A connection's [`Share`] is given back once, when its QP has left (contract rule 22): by then all
//!    that its messages have taken is posted again. One that no QP ever had is given back at once.
//! 3. Of a connection that did not end with its peer's Close one RECV is counted as lost, on a device that
//!    may lose one then. When the last connection has gone the queue is made anew; where the device refuses
//!    that, for want of memory to lock, the one there is serves on with what is not lost, and the next
//!    look for room that is not there tries again.
//! 4. Windows grow by what is not kept for connections that begin, so that those which have grown keep
//!    nobody out.
//! 5. None of these buffers is lent: a message above 1 KiB is copied.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::device::{CompletionQueue, ProviderError, QpHandle};
use crate::engine::growth::Growth;
use crate::memory::region::{Buffer, BufferPool, ProtectionDomain};
use crate::protocol::credit::RecvPool;

/// Buffers that are registered at once: each registration is a command, and locks whole pages.
pub(crate) const STEP: u32 = 16;

/// Between two looks at connections that are leaving, where nothing else wakes.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The pool of a shard.
pub(crate) struct SharedRecvs {
    domain: ProtectionDomain,
    buffer_bytes: u32,
    /// The device may lose a RECV that it was filling as a QP failed.
    may_lose: bool,
    inner: Mutex<Inner>,
}

struct Inner {
    pool: RecvPool,
    /// The oldest first.
    buffers: Vec<BufferPool>,
    /// Shares of connections whose QPs were destroyed.
    leaving: Vec<Leaving>,
    /// RECVs that windows may still grow by: what is kept for connections that begin is not lent.
    spare: u32,
    /// The newest buffers could all be at home.
    is_roomy: bool,
    growth: Growth,
}

/// What a connection had whose QP is leaving.
struct Leaving {
    qp: QpHandle,
    count: u32,
    /// Those of `count` that were of [`Inner::spare`].
    spare: u32,
    /// Those of `count` that the device may have lost.
    lost: u32,
}

impl SharedRecvs {
    /// A pool of at most so many RECVs, of which `kept` are for connections that begin. Nothing is
    /// registered before it is needed.
    pub(crate) fn new(
        domain: ProtectionDomain,
        buffer_bytes: u32,
        [most, kept]: [u32; 2],
        may_lose: bool,
    ) -> Arc<Self> {
        let inner = Inner {
            pool: RecvPool::new(most),
            buffers: Vec::new(),
            leaving: Vec::new(),
            spare: most.saturating_sub(kept),
            is_roomy: false,
            growth: Growth::default(),
        };
        Arc::new(Self { domain, buffer_bytes, may_lose, inner: Mutex::new(inner) })
    }

    /// The pool as it is now, for metrics and tests.
    pub(crate) fn pool(&self) -> RecvPool {
        self.inner.lock().pool
    }

    /// Whether there are so many RECVs for connections that begin. What is leaving is not counted: when it
    /// comes is up to the device, and until then who begins is refused.
    pub(crate) fn has_room(&self, count: u32) -> bool {
        count <= self.inner.lock().pool.room()
    }

    /// The RECVs of a connection that begins.
    ///
    /// # Errors
    /// [`ProviderError::Resources`]: others have them, or there is no memory.
    pub(crate) fn begin(self: &Arc<Self>, count: u32) -> Result<Share, ProviderError> {
        loop {
            let more = {
                let mut inner = self.inner.lock();
                let Some(missing) = inner.pool.to_post(count) else {
                    return Err(inner.refusal());
                };
                let more = inner.lacks(missing);
                if more == 0 && inner.pool.grant(count).is_some() {
                    let (shared, unposted) = (Arc::clone(self), inner.take(missing));
                    let may_lose = self.may_lose;
                    return Ok(Share { shared, count, spare: 0, unposted, may_lose, qp: None });
                }
                more
            };
            // Without the lock, which those take who hold the shard's.
            let buffers = self.allocate(more)?;
            self.inner.lock().buffers.push(buffers);
        }
    }

    /// So many buffers, or some more.
    fn allocate(&self, count: u32) -> Result<BufferPool, ProviderError> {
        let allocate = |count| BufferPool::allocate(&self.domain, self.buffer_bytes, count);
        allocate(count.next_multiple_of(STEP)).or_else(|_| allocate(count))
    }

    /// A message has taken a RECV: what is to be posted in its place, if anything is.
    pub(crate) fn settle(&self, buffer: Buffer) -> Option<Buffer> {
        let mut inner = self.inner.lock();
        if !inner.pool.is_to_repost() {
            return None;
        }
        if !inner.is_roomy {
            return Some(buffer);
        }
        // Of the oldest that has one, so that the newest come home.
        drop(buffer);
        inner.take(1).pop()
    }

    /// The shard has polled, and handled what it got: what connections had that have left is free.
    pub(crate) fn on_polled(&self, cq: &mut dyn CompletionQueue) {
        let inner = &mut *self.inner.lock();
        if inner.leaving.is_empty() {
            return;
        }
        let Inner { pool, leaving, spare, .. } = inner;
        // Not all leave in order: one of which the device tells nothing takes its second.
        leaving.retain(|it| {
            let has_left = cq.has_left(it.qp);
            if has_left {
                pool.end(it.count, it.lost);
                *spare += it.spare;
            }
            !has_left
        });
        inner.renew(&self.domain, cq);
    }

    /// Makes the queue anew, if that gives back what may be lost.
    #[cold]
    pub(crate) fn renew(&self, cq: &mut dyn CompletionQueue) {
        self.inner.lock().renew(&self.domain, cq);
    }

    /// When to poll though nothing wakes, as not every device tells that a connection has left.
    pub(crate) fn next_look(&self, now: Instant) -> Option<Instant> {
        let is_awaited = !self.inner.lock().leaving.is_empty();
        is_awaited.then(|| now + LOOK_INTERVAL)
    }

    /// Gives memory of buffers up that are all at home, but not the last of it.
    pub(crate) fn give_up(&self) {
        let mut inner = self.inner.lock();
        while inner.buffers.len() > 1
            && inner.buffers.last().is_some_and(|pool| pool.free_count() == pool.count() as usize)
        {
            inner.buffers.pop();
        }
        let free: usize = inner.buffers.iter().map(BufferPool::free_count).sum();
        let newest = inner.buffers.last().map_or(0, BufferPool::count);
        inner.is_roomy = inner.buffers.len() > 1 && free >= newest as usize;
    }
}

impl Inner {
    /// How many buffers there have to be more, so that so many are free.
    fn lacks(&self, count: u32) -> u32 {
        let free: usize = self.buffers.iter().map(BufferPool::free_count).sum();
        count.saturating_sub(u32::try_from(free).unwrap_or(u32::MAX))
    }

    /// Nobody begins before this is done, as that takes the lock. Where the device refuses, or still sees a
    /// user, the count stands.
    fn renew(&mut self, domain: &ProtectionDomain, cq: &mut dyn CompletionQueue) {
        let is_due = self.pool.granted() == 0 && self.pool.lost() > 0;
        if is_due && cq.create_srq(domain, self.pool.most()).is_ok() {
            self.pool.renew();
        }
    }

    fn refusal(&self) -> ProviderError {
        let (most, granted) = (self.pool.most(), self.pool.granted());
        let mut message = format!(
            "the shared receive queue has {most} receives, of which other connections have {granted}"
        );
        if self.pool.lost() > 0 {
            let lost = format!(", and {} may be lost until all have ended", self.pool.lost());
            message.push_str(&lost);
        }
        ProviderError::Resources { what: "have receives", message }
    }

    fn take(&self, count: u32) -> Vec<Buffer> {
        let free = || self.buffers.iter().find_map(BufferPool::take);
        (0..count).map_while(|_| free()).collect()
    }
}

/// What a connection was granted; it goes back after this was dropped, which is after its QP was destroyed.
pub(crate) struct Share {
    shared: Arc<SharedRecvs>,
    /// RECVs granted.
    count: u32,
    /// Those of them that the window has grown by.
    spare: u32,
    /// Buffers of those that are yet to be posted.
    unposted: Vec<Buffer>,
    /// Its end may cost a RECV.
    may_lose: bool,
    /// Whose messages may take them.
    qp: Option<QpHandle>,
}

impl Share {
    /// The connection has a QP: what is granted may be taken from now on.
    pub(crate) fn on_qp(&mut self, qp: QpHandle) {
        self.qp = Some(qp);
    }

    /// The pool that it is of.
    pub(crate) fn shared(&self) -> &Arc<SharedRecvs> {
        &self.shared
    }

    /// RECVs granted.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Identity of the protection domain.
    pub(crate) fn domain(&self) -> u64 {
        let inner = self.shared.inner.lock();
        inner.buffers.first().map_or(0, BufferPool::domain)
    }

    /// The next buffer that is to be posted.
    pub(crate) fn next_unposted(&mut self) -> Option<Buffer> {
        self.unposted.pop()
    }

    /// A RECV could not be posted.
    pub(crate) fn put_back(&mut self, buffer: Buffer) {
        self.unposted.push(buffer);
    }

    /// More RECVs for a window that grows, to be posted before it does. False: there are none.
    pub(crate) fn grow(&mut self, more: u32) -> bool {
        let shared = Arc::clone(&self.shared);
        let inner = &mut *shared.inner.lock();
        // What is lost is of what windows may grow by, as long as there is any.
        let spare = inner.spare.saturating_sub(inner.pool.lost());
        let Some(missing) = inner.pool.to_post(more).filter(|_| more <= spare) else {
            return false;
        };
        let lacks = inner.lacks(missing);
        if lacks > 0 {
            let Some(buffers) = inner.growth.by(1, |_| shared.allocate(lacks)) else {
                return false;
            };
            inner.buffers.push(buffers);
        }
        if inner.pool.grant(more).is_none() {
            return false;
        }
        self.unposted.extend(inner.take(missing));
        inner.spare -= more;
        (self.count, self.spare) = (self.count + more, self.spare + more);
        true
    }

    /// Its peer has sent its last message, and that is here: none is cut off.
    pub(crate) fn on_last_message(&mut self) {
        self.may_lose = false;
    }

    /// The window has fallen.
    pub(crate) fn fall(&mut self, less: u32) {
        (self.count, self.spare) = (self.count - less, self.spare - less);
        let mut inner = self.shared.inner.lock();
        inner.pool.give_back(less);
        inner.spare += less;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut inner = self.shared.inner.lock();
        let unposted = u32::try_from(self.unposted.len()).unwrap_or(u32::MAX).min(self.count);
        // What was never posted is nowhere.
        inner.pool.revoke(unposted, unposted);
        let (count, spare) = (self.count - unposted, self.spare);
        let Some(qp) = self.qp else {
            inner.pool.give_back(count);
            inner.spare += spare;
            return;
        };
        let lost = u32::from(self.may_lose).min(count);
        inner.leaving.push(Leaving { qp, count, spare, lost });
    }
}

impl fmt::Debug for SharedRecvs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRecvs").field("pool", &self.pool()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};
    use std::os::fd::BorrowedFd;

    use super::*;
    use crate::device::soft::mem_device;
    use crate::device::{Completion, PostError, QpEvent, QpState, RecvWr, SendWr};

    /// Knows which queue pairs have left, and is asked nothing else.
    #[derive(Debug, Default)]
    struct Told(HashSet<QpHandle>);

    impl CompletionQueue for Told {
        fn has_left(&self, qp: QpHandle) -> bool {
            self.0.contains(&qp)
        }

        fn capacity(&self) -> u32 {
            unreachable!()
        }

        fn poll(&mut self, _: &mut Vec<Completion>, _: usize) -> Result<usize, ProviderError> {
            unreachable!()
        }

        fn arm(&mut self) -> Result<(), ProviderError> {
            unreachable!()
        }

        fn event_fd(&self) -> BorrowedFd<'_> {
            unreachable!()
        }

        fn clear_events(&mut self) -> Result<(), ProviderError> {
            unreachable!()
        }

        fn poll_event(&mut self) -> Option<QpEvent> {
            unreachable!()
        }

        fn post_send(&mut self, _: QpHandle, _: &mut [SendWr<'_>]) -> Result<(), PostError> {
            unreachable!()
        }

        fn post_recv(&mut self, _: QpHandle, _: RecvWr) -> Result<(), (PostError, RecvWr)> {
            unreachable!()
        }

        fn flush(&mut self) {}

        fn state(&self, _: QpHandle) -> Option<QpState> {
            None
        }

        fn max_inline_bytes(&self, _: QpHandle) -> u32 {
            unreachable!()
        }

        fn modify_to_error(&mut self, _: QpHandle) -> Result<(), ProviderError> {
            unreachable!()
        }

        fn destroy_qp(&mut self, _: QpHandle) -> Result<(), ProviderError> {
            unreachable!()
        }
    }

    fn posted(shared: &Arc<SharedRecvs>, qp: QpHandle) -> Share {
        let mut share = shared.begin(6).unwrap();
        share.on_qp(qp);
        while share.next_unposted().is_some() {}
        share
    }

    /// What was posted last was posted again and again, so that the memory of many connections which had
    /// gone stayed locked for the one that went on.
    #[test]
    fn memory_of_connections_that_have_gone_is_given_up_as_messages_of_another_go_on() {
        let domain = mem_device().allocate_pd().unwrap();
        let shared = SharedRecvs::new(domain, 64, [120, 120], false);
        let (mut cq, mut queue, mut shares) = (Told::default(), VecDeque::new(), VecDeque::new());
        for index in 0..20 {
            let qp = QpHandle { index, generation: 0 };
            let mut share = shared.begin(6).unwrap();
            share.on_qp(qp);
            queue.extend(std::iter::from_fn(|| share.next_unposted()));
            shares.push_back(share);
            cq.0.insert(qp);
        }
        assert_eq!((queue.len(), shared.inner.lock().buffers.len()), (120, 8));
        let stays = shares.pop_back();
        drop(shares);
        shared.on_polled(&mut cq);
        for _ in 0..10 {
            for _ in 0..20 {
                let taken = queue.pop_front().unwrap();
                queue.extend(shared.settle(taken));
            }
            shared.give_up();
        }
        assert_eq!((queue.len(), shared.inner.lock().buffers.len()), (6, 1));
        drop(stays);
    }

    #[test]
    fn what_a_connection_had_is_given_back_when_its_queue_pair_has_left_however_often_was_polled() {
        let domain = mem_device().allocate_pd().unwrap();
        let shared = SharedRecvs::new(domain, 64, [12, 12], false);
        let [first, second] = [1, 2].map(|index| QpHandle { index, generation: 0 });
        let shares = [first, second].map(|qp| posted(&shared, qp));
        let (mut cq, now) = (Told::default(), Instant::now());
        assert_eq!(shared.next_look(now), None);
        drop(shares);
        for _ in 0..100 {
            shared.on_polled(&mut cq);
        }
        assert_eq!(shared.pool().granted(), 12);
        assert!(shared.begin(6).is_err() && !shared.has_room(6));
        // Nothing may wake who waits for this.
        assert_eq!(shared.next_look(now), Some(now + LOOK_INTERVAL));
        // The first says nothing yet, and keeps nobody else's.
        cq.0.insert(second);
        shared.on_polled(&mut cq);
        assert_eq!(shared.pool().granted(), 6);
        cq.0.insert(first);
        shared.on_polled(&mut cq);
        assert_eq!((shared.pool().granted(), shared.pool().surplus()), (0, 12));
        assert_eq!(shared.next_look(now), None);
        // No queue pair has it, so nothing of it is awaited.
        drop(shared.begin(6).unwrap());
        assert_eq!((shared.pool().granted(), shared.pool().surplus()), (0, 12));
    }
}
