//! How a payload passes between its own serde code and the codec's wrapper.
//!
//! Owns a thread-local place for one payload, needed because serde's traits can carry a value only
//! as data. The side that puts a payload here calls the other one at once, with the private
//! [`NAME`], and clears the place when that call returns. So the payload found here is always the
//! one that was just named.

use std::cell::Cell;

use rpc_transport::message::payload_stream::PayloadStream;

use super::Bulk;

/// What is passed.
#[derive(Debug)]
pub(crate) enum Handed {
    /// A payload that is there.
    Bulk(Bulk),
    /// One that is still arriving.
    Stream(PayloadStream),
}

/// The name of the newtype struct that stands for a payload.
pub(crate) const NAME: &str = "$rpc_core::Bulk";

thread_local! {
    static PLACE: Cell<Option<Handed>> = const { Cell::new(None) };
}

/// Clears the place, however the call ends.
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
