//! Asks a resolver, which is user code: a panic of it is an answer of no use.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use rpc_transport::user_code::caught;

use super::resolve::{Resolve, Resolving, Watching};
use crate::channel::endpoint::Endpoint;

fn panicked(name: &str) -> String {
    format!("{name} was not resolved: its resolver panicked")
}

/// Asks for the end points now.
pub(super) async fn ask(resolver: &dyn Resolve, name: &str) -> Result<Vec<Endpoint>, String> {
    let resolving = caught(|| resolver.resolve()).ok_or_else(|| panicked(name))?;
    let mut resolving: Dropped<Resolving<'_>> = Dropped(Some(resolving));
    let answer = poll_fn(|cx| match &mut resolving.0 {
        Some(resolving) => match caught(|| resolving.as_mut().poll(cx)) {
            Some(polled) => polled.map(Some),
            None => Poll::Ready(None),
        },
        None => Poll::Ready(None),
    });
    answer.await.ok_or_else(|| panicked(name))?.map_err(|error| error.to_string())
}

/// What a resolver reports by itself.
pub(super) struct Told<'a> {
    stream: Dropped<Watching<'a>>,
}

impl<'a> Told<'a> {
    /// `None`: it reports nothing.
    pub(super) fn by(resolver: &'a dyn Resolve) -> Option<Self> {
        let stream = caught(|| resolver.watch()).flatten()?;
        Some(Self { stream: Dropped(Some(stream)) })
    }

    /// The next word; `None`: there will be none.
    pub(super) async fn next(&mut self, name: &str) -> Option<Result<Vec<Endpoint>, String>> {
        let told = poll_fn(|cx| self.poll_next(cx, name)).await;
        if told.is_none() {
            self.stream = Dropped(None);
        }
        told
    }

    fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        name: &str,
    ) -> Poll<Option<Result<Vec<Endpoint>, String>>> {
        let Some(stream) = &mut self.stream.0 else { return Poll::Ready(None) };
        let stream: Pin<&mut dyn Stream<Item = _>> = stream.as_mut();
        match caught(|| stream.poll_next(cx)) {
            Some(polled) => polled.map(|told| Some(told?.map_err(|error| error.to_string()))),
            None => {
                self.stream = Dropped(None);
                Poll::Ready(Some(Err(panicked(name))))
            }
        }
    }
}

/// A future or stream of the user's, whose destructor may panic, too.
struct Dropped<T>(Option<T>);

impl<T> Drop for Dropped<T> {
    fn drop(&mut self) {
        let it = self.0.take();
        caught(|| drop(it));
    }
}
