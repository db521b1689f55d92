//! How a payload passes between its own serde code and the codec's wrapper.
//!
//! Owns the one place on each thread where a payload lies between the two: serde's traits carry
//! values of any type, but only as data. Whoever puts one here calls the other side at once, under
//! the private [`NAME`], and clears the place when that returns; so what is found here is always
//! the payload that was just named.

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
    // A thread that is being torn down has no place: the payload then goes as plain bytes.
    let _ = PLACE.try_with(|place| place.set(Some(payload)));
    call()
}

/// Takes the payload that was passed.
pub(crate) fn take() -> Option<Handed> {
    PLACE.try_with(Cell::take).ok().flatten()
}
