//! Calls as the requests of a service.

use std::task::{Context, Poll};

use rpc_core::Call;
use tower::Service;

/// A service whose requests are calls of a generated client, and whose responses are their results:
/// for layers around it. A call is sent when the response's future is first polled.
///
/// The calls have to own what they need: [`Call::into_owned`], not [`Call::start`], which would send
/// them before any layer has seen them. Dropping the response's future cancels the call.
#[derive(Debug, Clone, Copy, Default)]
pub struct CallService;

impl<T, E> Service<Call<'static, Result<T, E>>> for CallService {
    type Response = T;
    type Error = E;
    type Future = Call<'static, Result<T, E>>;

    /// Always ready: how many calls a connection takes is decided when one is sent.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), E>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: Call<'static, Result<T, E>>) -> Self::Future {
        call
    }
}
