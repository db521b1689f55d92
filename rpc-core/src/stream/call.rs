//! The call that a client's stream of results belongs to, as the stream sees it.

use super::end::StreamEnd;
use super::item_counts::ItemCounters;
use super::stream_ref::StreamRef;
use super::upload::PumpedCall;
use crate::codec::Codec;
use crate::method::MethodDescriptor;
use crate::reply::ReplyParts;
use crate::status::Status;

/// A call whose stream of results is read. Dropping it cancels the call, unless it has ended.
pub(crate) trait ResultsCall: Send + Sync {
    fn codec(&self) -> Codec;

    fn method(&self) -> &'static MethodDescriptor;

    /// The stream's place, while there is a connection.
    fn stream(&self) -> Option<StreamRef<'_>>;

    /// The call, while arguments may be sent.
    fn pumped(&self) -> Option<PumpedCall<'_>>;

    fn item_counters(&self) -> Option<&ItemCounters>;

    /// How the stream ended, and what is behind it. `own` is the error of the source of arguments.
    fn finish(&mut self, own: Option<Status>) -> (StreamEnd, ReplyParts);

    /// Ends the call from this side.
    fn cancel(&mut self);
}
