//! What few calls have: options, and state until their end.

use rpc_transport::lock::Mutex;
use rpc_transport::memory::free_list::{self, FreeList};
use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::protocol::config::WhenFull;
use tracing::Span;

use super::elsewhere::Refusals;
use super::hedge::Hedge;
use super::{RawCall, Wait};
use crate::bulk::{BulkMut, ReplySlot};
use crate::channel::hedging::HedgingPolicy;
use crate::channel::picker::CallEnd;
use crate::channel::retry::Attempts;
use crate::client::load::Loaded;
use crate::interceptor::client::Watch;
use crate::metadata::Metadata;
use crate::method::MethodDescriptor;
use crate::reply::CallOutcome;
use crate::stats::counts::Timed;

/// Most unused boxes that a thread keeps.
const KEEP_COUNT: usize = 64;

thread_local! {
    static FREE: FreeList<Box<CallExtras>, KEEP_COUNT> = const { FreeList::new() };
}

/// Options and state of a call, in a box that is used again: it costs most calls one word, and the
/// others no allocation.
#[derive(Default)]
pub(super) struct CallExtras {
    pub(super) metadata: Metadata,
    /// The buffer for the large part of the reply.
    pub(super) into: Option<Box<BulkMut>>,
    /// Memory for the reply that the server writes itself.
    pub(super) slot: Option<ReplySlot>,
    /// `None`: as the channel says. So for the next two.
    pub(super) wait_for_ready: Option<bool>,
    pub(super) when_full: Option<WhenFull>,
    pub(super) hedging: Option<Option<HedgingPolicy>>,
    /// The hash of its key, where calls of one key go to one end point.
    pub(super) affinity: Option<u64>,
    /// The outcome of a call in [`State::Over`](super::State::Over).
    pub(super) found: CallOutcome,
    /// It is the second attempt of another call.
    pub(super) is_second: bool,
    /// It was dropped, and goes on in a task of its own.
    pub(super) is_alone: bool,
    /// A connection that gave it back unsent has counted its begin.
    pub(super) is_counted: bool,
    /// It has its place in a trace.
    pub(super) is_traced: bool,
    /// The span of the call, if there is one.
    pub(super) span: Option<Span>,
    pub(super) attempts: Attempts,
    pub(super) hedge: Option<Hedge>,
    /// What a call in [`State::Waiting`](super::State::Waiting) waits for. The mutex is never
    /// locked: it makes a future that only one thread at a time polls fit for a call that several
    /// may see.
    pub(super) wait: Option<Mutex<Wait>>,
    /// Its share of the load, where there are several end points.
    pub(super) load: Option<Loaded>,
    /// Interceptors that wait for its end.
    pub(super) watch: Watch,
    /// The body once more, if the call may be sent again after its handler has begun.
    pub(super) kept: Option<OutBuf>,
    /// When the attempt in flight was sent, if it is timed.
    pub(super) began: Option<Timed>,
    /// The servers that have refused the call before any handler ran.
    pub(super) refusals: Option<Box<Refusals>>,
}

impl CallExtras {
    /// An empty box.
    #[inline]
    pub(super) fn take() -> Box<Self> {
        free_list::take(&FREE).unwrap_or_default()
    }

    /// Whether the request of a call that is not repeated is sent as if there were none.
    #[inline]
    pub(super) fn are_plain(&self) -> bool {
        self.metadata.is_empty()
            && self.slot.is_none()
            && self.when_full.is_none()
            && !self.is_counted
    }

    /// Drops what is in the box, and keeps the box for another call. The caller has taken `into`,
    /// `span`, `hedge` and `load`.
    #[inline]
    pub(super) fn give_back(mut self: Box<Self>) {
        // Field by field, as most are empty.
        let Self {
            metadata,
            into,
            slot,
            wait_for_ready,
            when_full,
            hedging,
            affinity,
            found,
            is_second,
            is_alone,
            is_counted,
            is_traced,
            span,
            attempts,
            hedge,
            wait,
            load,
            watch,
            kept,
            began,
            refusals,
        } = &mut *self;
        if !metadata.is_empty() {
            *metadata = Metadata::default();
        }
        debug_assert!(into.is_none() && span.is_none() && hedge.is_none() && load.is_none());
        clear(slot);
        clear(found);
        clear(wait);
        clear(kept);
        clear(refusals);
        (*wait_for_ready, *when_full, *hedging, *began) = (None, None, None, None);
        *affinity = None;
        (*is_second, *is_alone, *is_counted, *is_traced) = (false, false, false, false);
        *attempts = Attempts::default();
        watch.clear();
        free_list::keep(&FREE, self);
    }
}

/// Empties a field. The test comes first: an assignment reads all that is dropped, and writes.
#[inline]
fn clear<T>(field: &mut Option<T>) {
    if field.is_some() {
        *field = None;
    }
}

impl Loaded {
    /// The call of this method has ended with this outcome.
    #[inline]
    pub(super) fn end_with(self, found: &CallOutcome, method: &MethodDescriptor) {
        match found {
            Some(Err(status)) => self.end_with_code(method.name, status.code()),
            _ => self.end(CallEnd::Answered),
        }
    }
}

impl RawCall<'_> {
    /// The extras of a call that has some from now on.
    pub(super) fn extras_mut(&mut self) -> &mut CallExtras {
        self.extras.get_or_insert_with(CallExtras::take)
    }

    /// The call's share of the load, if it has one.
    #[inline]
    pub(super) fn take_load(&mut self) -> Option<Loaded> {
        self.extras.as_mut()?.load.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_is_empty_when_taken_again() {
        let mut extras = CallExtras::take();
        let address = &raw const *extras;
        extras.metadata.insert("tenant", "blue").unwrap();
        extras.kept = Some(OutBuf::new());
        extras.is_second = true;
        extras.give_back();
        let again = CallExtras::take();
        assert!(std::ptr::eq(address, &raw const *again), "it was kept");
        assert!(again.metadata.is_empty() && again.kept.is_none() && !again.is_second);
    }
}
