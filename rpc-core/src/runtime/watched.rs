//! A value that others wait for changes of: tokio's `watch`, with wakers that may panic.
//!
//! Owns the value and the wakers of those who wait. tokio wakes in batches, and a waker that panics
//! there costs the rest of its batch their wake-up. Wakers are the user's, who may poll our futures
//! by hand.
//!
//! Invariants:
//! 1. Wakers are woken one by one, each [`caught`], with no lock held; they are cloned and dropped
//!    with no lock held, too.
//! 2. A task that registers has compared versions under the lock that a change is made under: no
//!    change is missed.

use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rpc_transport::lock::Mutex;
use rpc_transport::user_code::caught;

/// The end that changes the value. Cheap to clone; waiting tasks are woken when the last clone is
/// dropped.
#[derive(Debug)]
pub(crate) struct Watched<T>(Arc<Closing<T>>);

/// The end that waits for changes: of all after it was made, or has looked.
#[derive(Debug)]
pub(crate) struct Watch<T> {
    value: Arc<Mutex<Value<T>>>,
    /// The version that was looked at.
    seen: u64,
    /// Its key among those who wait.
    place: Option<u64>,
}

/// Nobody can change the value any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closed;

/// Closes the value when it is dropped.
#[derive(Debug)]
struct Closing<T>(Arc<Mutex<Value<T>>>);

struct Value<T> {
    now: T,
    version: u64,
    is_closed: bool,
    /// In the order in which they came.
    waiting: BTreeMap<u64, Waker>,
    next_place: u64,
}

impl<T: Copy> Watched<T> {
    pub(crate) fn new(now: T) -> Self {
        let waiting = BTreeMap::new();
        let value = Value { now, version: 0, is_closed: false, waiting, next_place: 0 };
        Self(Arc::new(Closing(Arc::new(Mutex::new(value)))))
    }

    #[cfg(any(feature = "macros", feature = "tls"))]
    pub(crate) fn get(&self) -> T {
        self.0.0.lock().now
    }

    /// Changes the value by `change`, which returns whether it did: then waiting tasks are woken.
    pub(crate) fn update(&self, change: impl FnOnce(&mut T) -> bool) {
        let waiting = {
            let mut value = self.0.0.lock();
            if !change(&mut value.now) {
                return;
            }
            value.version += 1;
            std::mem::take(&mut value.waiting)
        };
        wake(waiting);
    }

    pub(crate) fn watch(&self) -> Watch<T> {
        let value = Arc::clone(&self.0.0);
        let seen = value.lock().version;
        Watch { value, seen, place: None }
    }
}

impl Watched<u64> {
    /// There is news, and the number says nothing but that.
    pub(crate) fn tell(&self) {
        self.update(|count| {
            *count = count.wrapping_add(1);
            true
        });
    }
}

impl<T: Copy> Watch<T> {
    pub(crate) fn get(&self) -> T {
        self.value.lock().now
    }

    /// The value, which counts as seen from now on.
    pub(crate) fn look(&mut self) -> T {
        let value = self.value.lock();
        self.seen = value.version;
        value.now
    }

    /// Waits until there is a value that was not seen, which then is.
    ///
    /// # Errors
    /// [`Closed`], if there will be none.
    pub(crate) async fn changed(&mut self) -> Result<(), Closed> {
        poll_fn(|cx| self.poll_changed(cx)).await
    }

    /// Waits until the value fits.
    ///
    /// # Errors
    /// [`Closed`], if it never will.
    pub(crate) async fn until(&mut self, fits: impl Fn(T) -> bool) -> Result<(), Closed> {
        while !fits(self.look()) {
            self.changed().await?;
        }
        Ok(())
    }

    fn poll_changed(&mut self, cx: &Context<'_>) -> Poll<Result<(), Closed>> {
        if let Some(ready) = self.news(cx) {
            return ready;
        }
        let waker = cx.waker().clone();
        let earlier = {
            let mut value = self.value.lock();
            if value.version != self.seen || value.is_closed {
                None
            } else {
                let next = value.next_place;
                let place = *self.place.get_or_insert(next);
                value.next_place += u64::from(place == next);
                Some(value.waiting.insert(place, waker))
            }
        };
        match earlier {
            Some(_earlier) => Poll::Pending,
            None => self.news(cx).unwrap_or(Poll::Pending),
        }
    }

    /// `None`: there is none, and this waker is not registered.
    fn news(&mut self, cx: &Context<'_>) -> Option<Poll<Result<(), Closed>>> {
        let value = self.value.lock();
        if value.version != self.seen {
            self.seen = value.version;
            return Some(Poll::Ready(Ok(())));
        }
        if value.is_closed {
            return Some(Poll::Ready(Err(Closed)));
        }
        let own = self.place.and_then(|place| value.waiting.get(&place));
        own.is_some_and(|own| own.will_wake(cx.waker())).then_some(Poll::Pending)
    }
}

fn wake(waiting: BTreeMap<u64, Waker>) {
    for waker in waiting.into_values() {
        caught(|| waker.wake());
    }
}

impl<T> Clone for Watched<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Copy + Default> Default for Watched<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Clone for Watch<T> {
    fn clone(&self) -> Self {
        Self { value: Arc::clone(&self.value), seen: self.seen, place: None }
    }
}

impl<T> Drop for Closing<T> {
    fn drop(&mut self) {
        let waiting = {
            let mut value = self.0.lock();
            value.is_closed = true;
            std::mem::take(&mut value.waiting)
        };
        wake(waiting);
    }
}

impl<T> Drop for Watch<T> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let own = self.value.lock().waiting.remove(&place);
            if let Some(own) = own {
                caught(|| drop(own));
            }
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Value<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Value").field("now", &self.now).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    struct Counts(AtomicU32);

    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            assert!(!rpc_transport::user_code::holds_lock());
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            std::panic::resume_unwind(Box::new("on purpose"));
        }
    }

    #[test]
    fn a_waker_that_panics_costs_no_other() {
        let watched = Watched::new(0_u64);
        let counts = Arc::new(Counts(AtomicU32::new(0)));
        let (good, bad) = (Waker::from(Arc::clone(&counts)), Waker::from(Arc::new(Panics)));
        let mut watches: Vec<_> = (0..64).map(|_| watched.watch()).collect();
        let mut waiting: Vec<_> =
            watches.iter_mut().map(|watch| Box::pin(watch.changed())).collect();
        for (number, wait) in waiting.iter_mut().enumerate() {
            let waker = if number % 2 == 0 { &bad } else { &good };
            assert!(wait.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
        }
        watched.tell();
        assert_eq!(counts.0.load(Ordering::SeqCst), 32);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waiting.iter_mut().all(|wait| wait.as_mut().poll(&mut cx) == Poll::Ready(Ok(()))));
    }

    #[test]
    fn former_waiters_leave_nothing() {
        let watched = Watched::new(false);
        let mut cx = Context::from_waker(Waker::noop());
        let mut watch = watched.watch();
        {
            let mut until = pin!(watch.until(|now| now));
            assert!(until.as_mut().poll(&mut cx).is_pending());
            watched.update(|_| false);
            assert!(until.as_mut().poll(&mut cx).is_pending());
            watched.update(|now| !std::mem::replace(now, true));
            assert!(until.as_mut().poll(&mut cx).is_ready());
        }
        assert!(pin!(watch.changed()).poll(&mut cx).is_pending(), "seen already");
        let other = watch.clone();
        drop(watch);
        assert!(watched.0.0.lock().waiting.is_empty());
        drop(watched);
        let mut other = other;
        assert_eq!(pin!(other.changed()).poll(&mut cx), Poll::Ready(Err(Closed)));
    }
}
