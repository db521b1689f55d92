//! Passes a payload between its own serde code and the codec's wrapper.
//!
//! Owns a thread-local place for one payload, needed because serde's traits can carry a value only
//! as data. The side that puts a payload here calls the other one at once, with the private name
//! [`PAYLOAD`](crate::layout::PAYLOAD), and clears the place when that call returns. So the payload
//! found here is always the right one.

use std::cell::Cell;

use rpc_transport::message::payload_stream::PayloadStream;

use super::Bulk;

/// A payload being passed.
#[derive(Debug)]
pub(crate) enum Handed {
    /// A payload that has arrived.
    Bulk(Bulk),
    /// A payload that is still arriving.
    Stream(PayloadStream),
}

thread_local! {
    static PLACE: Cell<Option<Handed>> = const { Cell::new(None) };
}

/// Clears the place, also if the call panics.
struct Clear;

impl Drop for Clear {
    fn drop(&mut self) {
        drop(take());
    }
}

/// Runs `call` with the payload in its place.
pub(crate) fn pass<T>(payload: Handed, call: impl FnOnce() -> T) -> T {
    let _clear = Clear;
    // If the thread's locals are already destroyed, the payload is encoded as plain bytes.
    let _ = PLACE.try_with(|place| place.set(Some(payload)));
    call()
}

/// Takes the payload that was passed.
pub(crate) fn take() -> Option<Handed> {
    PLACE.try_with(Cell::take).ok().flatten()
}
