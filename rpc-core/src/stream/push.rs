//! Streams that are written, not polled: a body of code that sends items.
//!
//! Owns the hand-over of one item from the body to who polls the stream. Nothing is spawned: the
//! body runs whenever the stream is polled, and is dropped with it.
//!
//! Invariants:
//! 1. At most one item is between the body and the reader: the next `send` waits for room.
//! 2. Every item that was sent is given before the end of the body is.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures::Stream;
use parking_lot::Mutex;
use pin_project_lite::pin_project;

use super::producer::{Producer, Step};
use crate::status::{CallError, Status};

/// The place between a body and who polls its stream.
struct Place<T> {
    item: Option<T>,
    /// Who waits for the place to be free. Woken where it is not the task that polls the stream.
    sender: Option<Waker>,
    /// Who waits for an item.
    receiver: Option<Waker>,
    /// The stream is gone.
    is_closed: bool,
}

/// Sends items of a stream: what [`stream`], [`try_stream`] and [`producer`] hand to their bodies.
pub struct Sender<T> {
    place: Arc<Mutex<Place<T>>>,
}

/// Nobody reads the stream any more.
///
/// The body of a stream never sees this by itself, as it is dropped with the stream: only a
/// [`Sender`] that was moved to another task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("nobody reads the stream any more")]
pub struct Stopped;

/// For `?` in the body of a [`try_stream`].
impl From<Stopped> for Status {
    fn from(stopped: Stopped) -> Self {
        Self::cancelled(stopped.to_string())
    }
}

/// For `?` in the body of a [`try_stream`].
impl<E> From<Stopped> for CallError<E> {
    fn from(stopped: Stopped) -> Self {
        Self::Status(stopped.into())
    }
}

impl<T> Sender<T> {
    /// Sends an item, as soon as the one before has been taken. Dropped before it is ready, it has
    /// sent nothing.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn send(&mut self, item: T) -> impl Future<Output = Result<(), Stopped>> + use<'_, T> {
        let mut item = Some(item);
        std::future::poll_fn(move |cx| self.poll_send(cx, &mut item))
    }

    fn poll_send(&self, cx: &Context<'_>, item: &mut Option<T>) -> Poll<Result<(), Stopped>> {
        let mut place = self.place.lock();
        if place.is_closed {
            return Poll::Ready(Err(Stopped));
        }
        if place.item.is_none() {
            place.item = item.take();
            let receiver = place.receiver.take();
            drop(place);
            if let Some(receiver) = receiver {
                receiver.wake();
            }
            return Poll::Ready(Ok(()));
        }
        if place.sender.as_ref().is_some_and(|sender| sender.will_wake(cx.waker())) {
            return Poll::Pending;
        }
        drop(place);
        // Wakers are cloned and dropped outside the lock.
        let waker = cx.waker().clone();
        let mut place = self.place.lock();
        if place.item.is_none() || place.is_closed {
            drop(place);
            return self.poll_send(cx, item);
        }
        let earlier = place.sender.replace(waker);
        drop(place);
        drop(earlier);
        Poll::Pending
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

pin_project! {
    /// A body that sends items, as something to poll.
    struct Body<T, F> {
        #[pin]
        body: Option<F>,
        place: Reading<T>,
    }
}

/// The reader's side of the place.
struct Reading<T>(Arc<Mutex<Place<T>>>);

impl<T> Drop for Reading<T> {
    fn drop(&mut self) {
        let mut place = self.0.lock();
        place.is_closed = true;
        let (item, sender) = (place.item.take(), place.sender.take());
        drop(place);
        if let Some(sender) = sender {
            sender.wake();
        }
        drop(item);
    }
}

impl<T> Reading<T> {
    /// Takes the item, if there is one.
    fn take(&self, cx: &Context<'_>) -> Option<T> {
        let mut place = self.0.lock();
        let item = place.item.take()?;
        let sender = place.sender.take();
        drop(place);
        // The body is polled with this waker again anyway, before the next item is given.
        if let Some(sender) = sender.filter(|sender| !sender.will_wake(cx.waker())) {
            sender.wake();
        }
        Some(item)
    }

    /// Registers who waits for an item. Returns false if there is one.
    fn wait(&self, cx: &Context<'_>) -> bool {
        let waker = cx.waker().clone();
        let mut place = self.0.lock();
        if place.item.is_some() {
            drop(place);
            return false;
        }
        let earlier = place.receiver.replace(waker);
        drop(place);
        drop(earlier);
        true
    }
}

impl<T, F: Future> Body<T, F> {
    fn new(body: impl FnOnce(Sender<T>) -> F) -> Self {
        let place = Place { item: None, sender: None, receiver: None, is_closed: false };
        let place = Arc::new(Mutex::new(place));
        let sender = Sender { place: Arc::clone(&place) };
        Self { body: Some(body(sender)), place: Reading(place) }
    }

    fn poll_step(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Step<T, F::Output>> {
        let mut this = self.project();
        loop {
            if let Some(item) = this.place.take(cx) {
                return Poll::Ready(Step::Item(item));
            }
            let Some(body) = this.body.as_mut().as_pin_mut() else {
                panic!("a stream was polled after its end");
            };
            if let Poll::Ready(output) = body.poll(cx) {
                this.body.set(None);
                return match this.place.take(cx) {
                    // Invariant 2: `send` was ready before anybody polled again.
                    Some(item) => Poll::Ready(Step::LastItem(item, output)),
                    None => Poll::Ready(Step::End(output)),
                };
            }
            if this.place.wait(cx) {
                return Poll::Pending;
            }
        }
    }
}

pin_project! {
    /// What [`stream`] and [`try_stream`] make.
    #[must_use = "streams do nothing unless polled"]
    pub struct Pushed<T, F: Future> {
        #[pin]
        body: Body<T, F>,
        end: Option<F::Output>,
        is_over: bool,
    }
}

impl<T, F: Future> fmt::Debug for Pushed<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pushed").field("is_over", &self.is_over).finish()
    }
}

impl<T, F: Future> Pushed<T, F> {
    /// The next item, or how the body ended.
    fn poll_body(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T, F::Output>> {
        let mut this = self.project();
        if let Some(output) = this.end.take() {
            return Poll::Ready(Err(output));
        }
        Poll::Ready(match std::task::ready!(this.body.as_mut().poll_step(cx)) {
            Step::Item(item) => Ok(item),
            Step::LastItem(item, output) => {
                *this.end = Some(output);
                Ok(item)
            }
            Step::End(output) => Err(output),
        })
    }
}

/// A stream whose items a body of code sends.
///
/// The body runs where the stream is polled, and may borrow what the stream may borrow. It is
/// dropped with the stream: when the reader stops, while it waits for anything.
///
/// ```
/// use rpc_core::stream::{Stream, stream};
///
/// fn numbers(upto: &u32) -> impl Stream<Item = u32> {
///     stream(async |mut out| {
///         for number in 0..*upto {
///             out.send(number).await?;
///         }
///         Ok(())
///     })
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use futures::StreamExt;
/// assert_eq!(numbers(&3).collect::<Vec<_>>().await, [0, 1, 2]);
/// # }
/// ```
pub fn stream<T, F>(body: impl FnOnce(Sender<T>) -> F) -> Pushing<T, F>
where
    F: Future<Output = Result<(), Stopped>>,
{
    Pushing { pushed: Pushed { body: Body::new(body), end: None, is_over: false } }
}

pin_project! {
    /// What [`stream`] makes.
    #[derive(Debug)]
    #[must_use = "streams do nothing unless polled"]
    pub struct Pushing<T, F: Future> {
        #[pin]
        pushed: Pushed<T, F>,
    }
}

impl<T, F> Stream for Pushing<T, F>
where
    F: Future<Output = Result<(), Stopped>>,
{
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut pushed = self.project().pushed;
        if pushed.is_over {
            return Poll::Ready(None);
        }
        let step = std::task::ready!(pushed.as_mut().poll_body(cx));
        *pushed.project().is_over = step.is_err();
        Poll::Ready(step.ok())
    }
}

/// The same for a stream that may end with an error, which is its last item.
///
/// For `out.send(item).await?` the error must be made from [`Stopped`]. A `Status` and a `CallError` are;
/// an error type of your own needs `impl From<Stopped>`.
///
/// ```
/// use rpc_core::Status;
/// use rpc_core::stream::{Stream, try_stream};
///
/// fn halves(from: u32) -> impl Stream<Item = Result<u32, Status>> {
///     try_stream(async move |mut out| {
///         let mut number = from;
///         while number > 1 {
///             if number % 2 == 1 {
///                 return Err(Status::out_of_range(format!("{number} is odd")));
///             }
///             number /= 2;
///             out.send(number).await?;
///         }
///         Ok(())
///     })
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use futures::StreamExt;
/// let all: Vec<_> = halves(6).collect().await;
/// assert_eq!(all, [Ok(3), Err(Status::out_of_range("3 is odd"))]);
/// # }
/// ```
pub fn try_stream<T, E, F>(body: impl FnOnce(Sender<T>) -> F) -> Pushed<T, F>
where
    F: Future<Output = Result<(), E>>,
{
    Pushed { body: Body::new(body), end: None, is_over: false }
}

impl<T, E, F> Stream for Pushed<T, F>
where
    F: Future<Output = Result<(), E>>,
{
    type Item = Result<T, E>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<T, E>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let step = std::task::ready!(self.as_mut().poll_body(cx));
        *self.project().is_over = step.is_err();
        Poll::Ready(match step {
            Ok(item) => Some(Ok(item)),
            Err(Err(error)) => Some(Err(error)),
            Err(Ok(())) => None,
        })
    }
}

/// A stream of items with a value after them: the body's.
///
/// ```
/// use rpc_core::stream::{Producer, producer};
///
/// fn count(words: &str) -> impl Producer<Item = String, Output = u64> {
///     producer(async move |mut out| {
///         let mut count = 0;
///         for word in words.split(' ') {
///             let _ = out.send(word.to_owned()).await;
///             count += 1;
///         }
///         count
///     })
/// }
/// # drop(count("a b"));
/// ```
pub fn producer<T, F: Future>(body: impl FnOnce(Sender<T>) -> F) -> Produced<T, F> {
    Produced { body: Body::new(body) }
}

pin_project! {
    /// What [`producer`] makes.
    #[must_use = "producers do nothing unless polled"]
    pub struct Produced<T, F> {
        #[pin]
        body: Body<T, F>,
    }
}

impl<T, F> fmt::Debug for Produced<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Produced")
    }
}

impl<T, F: Future> Producer for Produced<T, F> {
    type Item = T;
    type Output = F::Output;

    fn poll_step(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Step<T, F::Output>> {
        self.project().body.poll_step(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::StreamExt;

    use super::*;

    fn block_on<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl std::task::Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn items_come_in_order_and_then_the_end() {
        let numbers = stream(async |mut out| {
            for number in 0..100 {
                out.send(number).await?;
            }
            Ok(())
        });
        let all: Vec<u32> = block_on(numbers.collect());
        assert_eq!(all, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn an_item_that_was_sent_last_comes_before_the_end() {
        let last = producer(async |mut out: Sender<u8>| {
            out.send(1).await.unwrap();
            "end"
        });
        let mut last = pin!(last);
        let step = block_on(std::future::poll_fn(|cx| last.as_mut().poll_step(cx)));
        assert!(matches!(step, Step::LastItem(1, "end")), "{step:?}");
    }

    #[test]
    fn nobody_is_woken_for_items_of_the_same_task() {
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut cx = Context::from_waker(&waker);
        let mut numbers = pin!(stream(async |mut out| {
            for number in 0..10_u32 {
                out.send(number).await?;
            }
            Ok(())
        }));
        for number in 0..10 {
            assert_eq!(numbers.as_mut().poll_next(&mut cx), Poll::Ready(Some(number)));
        }
        assert_eq!(numbers.as_mut().poll_next(&mut cx), Poll::Ready(None));
        assert_eq!(numbers.as_mut().poll_next(&mut cx), Poll::Ready(None), "and stays over");
        assert_eq!(wakes.0.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn the_body_is_dropped_with_the_stream() {
        let held = Arc::new(());
        let seen = Arc::clone(&held);
        let mut waiting = Box::pin(stream(async move |mut out| {
            let _held = held;
            out.send(1).await?;
            std::future::pending().await
        }));
        assert_eq!(block_on(waiting.next()), Some(1));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waiting.as_mut().poll_next(&mut cx).is_pending());
        assert_eq!(Arc::strong_count(&seen), 2);
        drop(waiting);
        assert_eq!(Arc::strong_count(&seen), 1);
    }

    #[test]
    fn a_sender_in_another_task_is_told_when_the_stream_is_gone() {
        let (kept, taken) = std::sync::mpsc::channel();
        let mut waiting = Box::pin(stream(async move |out: Sender<u32>| {
            kept.send(out).unwrap();
            std::future::pending().await
        }));
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut cx = Context::from_waker(&waker);
        assert!(waiting.as_mut().poll_next(&mut cx).is_pending());
        let mut out = taken.recv().unwrap();
        assert_eq!(block_on(out.send(1)), Ok(()));
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1, "the reader waits");
        let mut second = Box::pin(out.send(2));
        let other = Arc::new(Wakes::default());
        let other_waker = Waker::from(Arc::clone(&other));
        let mut other_cx = Context::from_waker(&other_waker);
        assert!(second.as_mut().poll(&mut other_cx).is_pending());
        drop(waiting);
        assert_eq!(other.0.load(Ordering::SeqCst), 1);
        assert_eq!(second.as_mut().poll(&mut other_cx), Poll::Ready(Err(Stopped)));
    }
}
