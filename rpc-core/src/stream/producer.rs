//! Streams with a value after their items.

use std::pin::Pin;
use std::task::{Context, Poll};

/// The next step of a [`Producer`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step<T, R> {
    /// An item.
    Item(T),
    /// The last item, and the value after it.
    LastItem(T, R),
    /// The value after the items.
    End(R),
}

/// A stream of items with a value after them. [`producer`](crate::stream::producer) makes one.
///
/// The client of a method that returns `impl Producer<Item = T, Output = R>` gets a [`Streaming<T,
/// R>`](crate::stream::Streaming), whose [`finish`](crate::stream::Streaming::finish) returns the
/// value. With `Output = Result<R, E>`, the stream may end with the method's own error.
pub trait Producer {
    /// The items.
    type Item;
    /// The value after them.
    type Output;

    /// The next item, or the value after the last. Not to be polled after that.
    fn poll_step(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Step<Self::Item, Self::Output>>;
}
