//! Streams that are written, not polled: a body of code that sends items.
//!
//! Owns the hand-over of one item from the body to who polls the stream. Nothing is spawned: the
//! body runs whenever the stream is polled, and is dropped with it.
//!
//! Invariants:
//! 1. At most one item is between the body and the reader: the next `send` waits for room.
//! 2. Every item that `send` has accepted is given before the end, whatever the end is: also before
//!    the body's error, and before its panic goes on.
//! 3. The end that the body returned comes when its [`Sender`] is gone too. An error comes at once,
//!    and later sends are refused.
//! 4. A waiting sender is woken when there is room, unless this poll of the stream polls it anyway.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures::Stream;
use pin_project_lite::pin_project;
use rpc_transport::lock::Mutex;

use super::producer::{Producer, Step};
use crate::status::{CallError, Status};

thread_local! {
    /// The stream whose body this thread polls now: the address of its place, or 0.
    static POLLED: Cell<usize> = const { Cell::new(0) };
}

/// The place between a body and who polls its stream.
struct Place<T> {
    item: Option<T>,
    /// The sender that waits for the place to be free.
    sender: Option<Waker>,
    /// The body polled it when it last began to wait.
    is_sender_in_body: bool,
    /// The reader that waits for an item, or for the sender to go.
    receiver: Option<Waker>,
    /// The stream is gone, or has its end.
    is_closed: bool,
    sender_end: SenderEnd,
}

/// What became of the sender.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SenderEnd {
    None,
    Dropped,
    /// A panic has dropped it, so more items may have been meant to come.
    Panicked,
}

/// Sends items of a stream: what [`stream`], [`try_stream`] and [`producer`] hand to their bodies.
///
/// It may be moved out of the body, for example to a task that the body spawns. The stream then
/// continues until the `Sender` is dropped, even after the body has returned. If the task panics,
/// so does the stream, after the items that were sent. If the task is aborted, the stream ends as
/// if the task had dropped the `Sender`.
pub struct Sender<T> {
    place: Arc<Mutex<Place<T>>>,
}

/// The error of [`Sender::send`] when the stream is no longer read.
///
/// The body of a stream never gets this error, because it is dropped with the stream. A [`Sender`]
/// that was moved to another task does, after the stream was dropped or the body has ended with an
/// error.
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
    /// Sends an item as soon as the previous one has been taken. If the future is dropped before it
    /// is ready, nothing was sent. A sent item is delivered before the end of the stream, if the
    /// stream is read to its end.
    ///
    /// # Errors
    /// [`Stopped`].
    pub fn send(&mut self, item: T) -> impl Future<Output = Result<(), Stopped>> + use<'_, T> {
        let mut item = Some(item);
        std::future::poll_fn(move |cx| self.poll_send(cx, &mut item))
    }

    /// Whether the body of the stream runs in this thread now: what it does is seen when it waits.
    fn is_in_body(&self) -> bool {
        POLLED.get() == address(&self.place)
    }

    fn poll_send(&self, cx: &Context<'_>, item: &mut Option<T>) -> Poll<Result<(), Stopped>> {
        let is_in_body = self.is_in_body();
        let mut place = self.place.lock();
        if place.is_closed {
            return Poll::Ready(Err(Stopped));
        }
        if place.item.is_none() {
            place.item = item.take();
            let receiver = if is_in_body { None } else { place.receiver.take() };
            drop(place);
            if let Some(receiver) = receiver {
                receiver.wake();
            }
            return Poll::Ready(Ok(()));
        }
        if place.sender.as_ref().is_some_and(|sender| sender.will_wake(cx.waker())) {
            place.is_sender_in_body = is_in_body;
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
        place.is_sender_in_body = is_in_body;
        let earlier = place.sender.replace(waker);
        drop(place);
        drop(earlier);
        Poll::Pending
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let is_in_body = self.is_in_body();
        let panics = std::thread::panicking();
        let mut place = self.place.lock();
        place.sender_end = if panics { SenderEnd::Panicked } else { SenderEnd::Dropped };
        let sender = place.sender.take();
        let receiver = if is_in_body { None } else { place.receiver.take() };
        drop(place);
        drop(sender);
        if let Some(receiver) = receiver {
            receiver.wake();
        }
    }
}

fn address<T>(place: &Arc<Mutex<Place<T>>>) -> usize {
    Arc::as_ptr(place).addr()
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

pin_project! {
    /// A body that sends items, as something to poll.
    struct Body<T, F: Future> {
        #[pin]
        body: Option<F>,
        place: Reading<T>,
        // How the body ended, until it is given.
        end: Option<End<F::Output>>,
    }
}

/// How a body ended.
enum End<R> {
    Returned(R),
    /// The mutex is never locked: it makes the stream `Sync`.
    Panicked(Mutex<Box<dyn Any + Send>>),
}

/// The reader's side of the place.
struct Reading<T>(Arc<Mutex<Place<T>>>);

impl<T> Drop for Reading<T> {
    fn drop(&mut self) {
        let mut place = self.0.lock();
        place.is_closed = true;
        let (item, sender) = (place.item.take(), place.sender.take());
        let receiver = place.receiver.take();
        drop(place);
        if let Some(sender) = sender {
            sender.wake();
        }
        drop((item, receiver));
    }
}

impl<T> Reading<T> {
    /// Takes the item, if there is one, while the body runs.
    fn take(&self, cx: &Context<'_>) -> Option<T> {
        let mut place = self.0.lock();
        let item = place.item.take()?;
        let (sender, is_in_body) = (place.sender.take(), place.is_sender_in_body);
        drop(place);
        // Invariant 4: the body is polled with this waker again before the next item is given.
        let is_polled = |sender: &Waker| is_in_body && sender.will_wake(cx.waker());
        if let Some(sender) = sender.filter(|sender| !is_polled(sender)) {
            sender.wake();
        }
        Some(item)
    }

    /// Takes the item, if there is one, after the body has ended; and what became of the sender.
    /// `closes`: further items are refused.
    fn take_last(&self, closes: bool) -> (Option<T>, SenderEnd) {
        let mut place = self.0.lock();
        place.is_closed |= closes;
        let (item, end) = (place.item.take(), place.sender_end);
        let sender = if item.is_some() || closes { place.sender.take() } else { None };
        drop(place);
        if let Some(sender) = sender {
            sender.wake();
        }
        (item, end)
    }

    /// Registers the reader, which waits for an item; after the body has ended, also for the sender
    /// to go. Returns false if there is no need to wait.
    fn wait(&self, cx: &Context<'_>, has_ended: bool) -> bool {
        let waker = cx.waker().clone();
        let mut place = self.0.lock();
        if place.item.is_some() || has_ended && place.sender_end != SenderEnd::None {
            drop(place);
            return false;
        }
        let earlier = place.receiver.replace(waker);
        drop(place);
        drop(earlier);
        true
    }

    /// Polls the body.
    fn poll<F: Future>(&self, body: Pin<&mut F>, cx: &mut Context<'_>) -> Poll<End<F::Output>> {
        let outer = POLLED.replace(address(&self.0));
        let polled = catch_unwind(AssertUnwindSafe(|| body.poll(cx)));
        POLLED.set(outer);
        match polled {
            Ok(polled) => polled.map(End::Returned),
            Err(panic) => Poll::Ready(End::Panicked(Mutex::new(panic))),
        }
    }
}

impl<T, F: Future> Body<T, F> {
    fn new(body: impl FnOnce(Sender<T>) -> F) -> Self {
        let place = Place {
            item: None,
            sender: None,
            is_sender_in_body: false,
            receiver: None,
            is_closed: false,
            sender_end: SenderEnd::None,
        };
        let place = Arc::new(Mutex::new(place));
        let sender = Sender { place: Arc::clone(&place) };
        Self { body: Some(body(sender)), place: Reading(place), end: None }
    }

    /// `is_error`: whether what the body returned ends the stream at once.
    fn poll_step(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        is_error: impl Fn(&F::Output) -> bool,
    ) -> Poll<Step<T, F::Output>> {
        let mut this = self.project();
        while let Some(body) = this.body.as_mut().as_pin_mut() {
            if let Some(item) = this.place.take(cx) {
                return Poll::Ready(Step::Item(item));
            }
            match this.place.poll(body, cx) {
                Poll::Ready(end) => {
                    *this.end = Some(end);
                    this.body.set(None);
                }
                Poll::Pending if this.place.wait(cx, false) => return Poll::Pending,
                Poll::Pending => {}
            }
        }
        loop {
            let closes = match this.end {
                Some(End::Returned(output)) => is_error(output),
                Some(End::Panicked(_)) => true,
                None => panic!("a stream was polled after its end"),
            };
            let (item, sender) = this.place.take_last(closes);
            if !closes && sender == SenderEnd::None {
                match item {
                    Some(item) => return Poll::Ready(Step::Item(item)),
                    None if this.place.wait(cx, true) => return Poll::Pending,
                    None => continue,
                }
            }
            let is_clean = closes || sender != SenderEnd::Panicked;
            return Poll::Ready(match (item, this.end.take()) {
                (Some(item), Some(End::Returned(output))) if is_clean => {
                    Step::LastItem(item, output)
                }
                (None, Some(End::Returned(output))) if is_clean => Step::End(output),
                (Some(item), end) => {
                    *this.end = end;
                    Step::Item(item)
                }
                (None, Some(End::Panicked(panic))) => resume_unwind(panic.into_inner()),
                (None, _) => panic!("the task that sent the items of a stream has panicked"),
            });
        }
    }
}

pin_project! {
    /// The stream that [`try_stream`] returns, and the inner stream of [`Pushing`].
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
    fn poll_body<E>(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T, F::Output>>
    where
        F: Future<Output = Result<(), E>>,
    {
        let mut this = self.project();
        if let Some(output) = this.end.take() {
            return Poll::Ready(Err(output));
        }
        let step = this.body.as_mut().poll_step(cx, Result::is_err);
        Poll::Ready(match std::task::ready!(step) {
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
/// The body runs whenever the stream is polled, and may borrow what the stream may borrow. It is
/// dropped with the stream, at any `await`, when the reader stops.
///
/// The stream ends when the body has returned and its [`Sender`] has been dropped. If the body
/// moves the `Sender` elsewhere, the stream continues after the body has returned:
///
/// ```
/// use rpc_core::stream::{Stream, stream};
///
/// fn ticks() -> impl Stream<Item = u32> {
///     stream(async |mut out| {
///         tokio::spawn(async move {
///             for number in 0..3 {
///                 if out.send(number).await.is_err() {
///                     break; // nobody reads any more
///                 }
///             }
///         });
///         Ok(())
///     })
/// }
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use futures::StreamExt;
/// assert_eq!(ticks().collect::<Vec<_>>().await, [0, 1, 2]);
/// # }
/// ```
///
/// # Panics
/// The stream panics when it is polled, after the items that were sent, if the body or a task that
/// has the `Sender` panics.
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
    /// The stream that [`stream`] returns.
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

/// Like [`stream`], for a stream that may end with an error, which is its last item. An error ends
/// the stream at once, even if its [`Sender`] was moved elsewhere; later sends return [`Stopped`].
///
/// For `out.send(item).await?` the error type must implement `From<Stopped>`. `Status` and
/// `CallError` do.
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

/// A stream of items, followed by the value that the body returns. As with [`stream`], the value
/// comes when the [`Sender`] has been dropped, too.
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
    /// The stream that [`producer`] returns.
    #[must_use = "producers do nothing unless polled"]
    pub struct Produced<T, F: Future> {
        #[pin]
        body: Body<T, F>,
    }
}

impl<T, F: Future> fmt::Debug for Produced<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Produced")
    }
}

impl<T, F: Future> Producer for Produced<T, F> {
    type Item = T;
    type Output = F::Output;

    fn poll_step(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Step<T, F::Output>> {
        // What is an error among values of any type, nobody knows here.
        self.project().body.poll_step(cx, |_| false)
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
    fn the_last_item_comes_before_the_end() {
        let last = producer(async |mut out: Sender<u8>| {
            out.send(1).await.unwrap();
            "end"
        });
        let mut last = pin!(last);
        let step = block_on(std::future::poll_fn(|cx| last.as_mut().poll_step(cx)));
        assert!(matches!(step, Step::LastItem(1, "end")), "{step:?}");
    }

    #[test]
    fn items_of_the_same_task_wake_nobody() {
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
    fn a_sender_notices_the_dropped_stream() {
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

    /// A stream whose body has given its sender away and has ended as `end` says, or waits for
    /// ever.
    #[allow(clippy::type_complexity, reason = "a stream and its sender")]
    fn given_away(
        end: Option<Result<(), Status>>,
    ) -> (Pin<Box<dyn Stream<Item = Result<u32, Status>>>>, Sender<u32>) {
        let (kept, taken) = std::sync::mpsc::channel();
        let mut items = Box::pin(try_stream(async move |out: Sender<u32>| {
            kept.send(out).unwrap();
            match end {
                Some(Ok(())) => Ok(()),
                Some(Err(_)) => {
                    // It ends when it is polled again.
                    let mut is_first = true;
                    std::future::poll_fn(|_| match std::mem::take(&mut is_first) {
                        true => Poll::Pending,
                        false => Poll::Ready(()),
                    })
                    .await;
                    Err(Status::aborted("the body failed"))
                }
                None => std::future::pending().await,
            }
        }));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(items.as_mut().poll_next(&mut cx).is_pending());
        (items, taken.recv().unwrap())
    }

    #[test]
    fn a_sender_outside_of_the_body_is_woken() {
        let (mut items, mut out) = given_away(None);
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut cx = Context::from_waker(&waker);
        assert_eq!(block_on(out.send(1)), Ok(()));
        // The task that reads sends too, but not in the body.
        let mut second = Box::pin(out.send(2));
        assert!(second.as_mut().poll(&mut cx).is_pending());
        assert_eq!(items.as_mut().poll_next(&mut cx), Poll::Ready(Some(Ok(1))));
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1, "there is room for the second");
        assert_eq!(second.as_mut().poll(&mut cx), Poll::Ready(Ok(())));
    }

    #[test]
    fn the_stream_lasts_until_its_sender_drops() {
        let (mut items, mut out) = given_away(Some(Ok(())));
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut cx = Context::from_waker(&waker);
        assert!(items.as_mut().poll_next(&mut cx).is_pending());
        assert_eq!(block_on(out.send(1)), Ok(()));
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1, "an item is there");
        assert_eq!(items.as_mut().poll_next(&mut cx), Poll::Ready(Some(Ok(1))));
        assert_eq!(block_on(out.send(2)), Ok(()));
        drop(out);
        assert_eq!(items.as_mut().poll_next(&mut cx), Poll::Ready(Some(Ok(2))));
        assert_eq!(items.as_mut().poll_next(&mut cx), Poll::Ready(None));
    }

    #[test]
    fn the_reader_is_woken_when_the_sender_goes() {
        let (mut items, out) = given_away(Some(Ok(())));
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut cx = Context::from_waker(&waker);
        assert!(items.as_mut().poll_next(&mut cx).is_pending());
        drop(out);
        assert_eq!(wakes.0.load(Ordering::SeqCst), 1);
        assert_eq!(items.as_mut().poll_next(&mut cx), Poll::Ready(None));
    }

    #[test]
    fn an_error_refuses_items_of_senders_elsewhere() {
        let (mut items, mut out) = given_away(Some(Err(Status::aborted(""))));
        assert_eq!(block_on(out.send(1)), Ok(()));
        assert_eq!(block_on(items.next()), Some(Ok(1)));
        let end = block_on(items.next());
        assert_eq!(end, Some(Err(Status::aborted("the body failed"))));
        assert_eq!(block_on(out.send(2)), Err(Stopped), "nobody would get it");
        assert_eq!(block_on(items.next()), None);
    }

    #[test]
    fn a_panic_comes_behind_the_last_item() {
        let mut items = Box::pin(stream(async |mut out| {
            out.send(1).await?;
            panic!("on purpose");
        }));
        assert_eq!(block_on(items.next()), Some(1));
        let panic = catch_unwind(AssertUnwindSafe(|| block_on(items.next())));
        let panic = panic.expect_err("the body has panicked");
        assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
    }

    #[test]
    fn a_senders_panic_is_no_end() {
        let (mut items, mut out) = given_away(Some(Ok(())));
        let thread = std::thread::spawn(move || {
            block_on(out.send(1)).unwrap();
            panic!("on purpose");
        });
        assert!(thread.join().is_err());
        assert_eq!(block_on(items.next()), Some(Ok(1)));
        let panic = catch_unwind(AssertUnwindSafe(|| block_on(items.next())));
        assert!(panic.is_err(), "more items may have been meant to come: {panic:?}");
    }
}
