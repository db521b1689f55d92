//! Calls as requests of a tower service.

use std::task::{Context, Poll};

use rpc_core::Call;
use tower::Service;

/// A tower service whose requests are calls of a generated client, and whose responses are their
/// results, so that layers can wrap it. A call is sent when the response's future is first polled.
///
/// The calls must own their arguments: use [`Call::into_owned`], not [`Call::start`], which would
/// send them before the layers run. Dropping the response's future cancels the call.
#[derive(Debug, Clone, Copy, Default)]
pub struct CallService;

impl<T, E> Service<Call<'static, Result<T, E>>> for CallService {
    type Response = T;
    type Error = E;
    type Future = Call<'static, Result<T, E>>;

    /// Always ready: the limits of a connection apply when a call is sent.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), E>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call<'static, Result<T, E>>) -> Self::Future {
        call
    }
}
