//! The table of calls that this end makes.
//!
//! Owns each call from `start` to its one outcome, and the queue of those that wait for a slot.
//! Knows slots only by index; their states are in `slots`.
//!
//! Invariants:
//! 1. A call gets exactly one outcome: a sent call's slot is released once, and `fail` on a call
//!    that has its outcome does nothing.
//! 2. An index is reused only with another generation, so an old id never finds a new call.
//! 3. Nobody waits for a detached call; it leaves the table when it is sent or fails.
//! 4. A request whose signature the peer has not accepted is kept once more, until its outcome is
//!    taken or known not to be a refusal of its types: at most one for each place in the table.
//! 5. The queue holds every unsent call once, and at most as many stale ids as live ones + 64.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use rpc_transport::message::outgoing::OutBuf;
use rpc_transport::message::received::Message;

use super::call::{
    CallHead, CallId, CallOptions, Failure, NoResult, Outcome, ReadBy, Reads, Reply,
};
use super::deadlines::TimerKey;
use super::signatures::AcceptedByPeer;
use crate::wire::{self, ReplyKind, RequestHead, WireId};

/// Stale ids that the queue may hold before it is cleaned.
const STALE_SLACK: usize = 64;

/// Calls of the table that are looked at for a waiter.
const LOOKED_AT: usize = 64;

/// A call's deadline and its entry in the timer wheel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Timed {
    pub(super) at: Instant,
    pub(super) key: TimerKey,
}

/// The stage of a call.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stage {
    Free,
    /// Waits for a free slot or for `poll_transmit`.
    Unsent,
    /// Handed to the link, under this slot.
    Sent(u32),
    /// The reply waits to be taken. It is read by this end's own types.
    Replied(ReplyKind),
    /// The reply waits to be taken. It is read in another way.
    RepliedBy(ReplyKind, ReadBy),
    /// The failure waits to be taken.
    Failed {
        reason: Failure,
        never_sent: bool,
    },
}

/// Request and reply are fields, not parts of the stage, so that each is moved once in and once
/// out: a small call spends most of its time on such moves.
#[derive(Debug)]
struct Call<W> {
    generation: u32,
    detached: bool,
    codec: u8,
    has_metadata: bool,
    /// Of no meaning before it is sent.
    reads: Reads,
    head: CallHead,
    stage: Stage,
    deadline: Option<Timed>,
    waiter: Option<W>,
    request: Option<OutBuf>,
    reply: Option<Message>,
}

impl<W> Call<W> {
    /// The next call in its place has another id.
    #[inline]
    fn free(&mut self) {
        self.stage = Stage::Free;
        self.detached = false;
        self.generation = self.generation.wrapping_add(1);
    }

    fn take_reply(&mut self, kind: ReplyKind, read_by: ReadBy) -> Option<Outcome> {
        let message = self.reply.take()?;
        Some(Outcome::Reply(Reply { kind, message, is_reset: false, read_by }))
    }

    /// Whether it failed for a reason that another connection need not share, before the peer could
    /// see it. Its request is kept for the caller that takes the outcome.
    fn is_to_be_sent_again(&self) -> bool {
        let reason = match self.stage {
            Stage::Failed { reason, never_sent: true } if !self.detached => reason,
            _ => return false,
        };
        matches!(reason, Failure::Closed | Failure::PeerGoingAway)
    }
}

/// A call that may be sent now.
pub(super) struct Ready {
    pub(super) id: CallId,
    /// It has neither a deadline nor streams.
    pub(super) is_plain: bool,
}

/// The stage of a call when it was taken out of the table.
#[must_use = "waiter and request are not dropped in the session"]
pub(super) struct Taken<W> {
    pub(super) stage: Stage,
    pub(super) deadline: Option<Timed>,
    pub(super) waiter: Option<W>,
    pub(super) request: Option<OutBuf>,
}

/// What the caller must release after a call has failed.
#[must_use = "waiter and request are not dropped in the session"]
pub(super) struct Failed<W> {
    /// To be removed from the timer wheel.
    pub(super) deadline: Option<Timed>,
    /// The waiter to wake.
    pub(super) waiter: Option<W>,
    /// The request, if it was never sent.
    pub(super) request: Option<OutBuf>,
}

/// The table of this end's calls.
#[derive(Debug)]
pub(super) struct Calls<W> {
    calls: Vec<Call<W>>,
    free: Vec<u32>,
    unsent: VecDeque<CallId>,
    unsent_live: usize,
    /// Requests once more, by the index and with the generation of their calls.
    kept: HashMap<u32, (u32, OutBuf)>,
}

impl<W> Calls<W> {
    pub(super) fn new() -> Self {
        Self {
            calls: Vec::new(),
            free: Vec::new(),
            unsent: VecDeque::new(),
            unsent_live: 0,
            kept: HashMap::new(),
        }
    }

    /// Calls in the table, finished ones included until they are taken.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.calls.len() - self.free.len()
    }

    /// Calls that wait to be sent.
    pub(super) fn unsent_len(&self) -> usize {
        self.unsent_live
    }

    /// Adds a call to the end of the queue.
    #[inline]
    pub(super) fn insert(
        &mut self,
        head: &CallHead,
        options: &CallOptions,
        request: Option<OutBuf>,
        waiter: Option<W>,
    ) -> CallId {
        let index = match self.free.pop() {
            Some(index) => index,
            None => self.make(*head),
        };
        let call = &mut self.calls[index as usize];
        call.head = *head;
        call.codec = options.codec;
        call.has_metadata = options.metadata.is_some();
        call.stage = Stage::Unsent;
        debug_assert!(call.request.is_none() && call.waiter.is_none(), "its place is free");
        (call.request, call.waiter) = (request, waiter);
        let id = CallId { index, generation: call.generation };
        self.unsent.push_back(id);
        self.unsent_live += 1;
        id
    }

    fn make(&mut self, head: CallHead) -> u32 {
        let index = u32::try_from(self.calls.len()).unwrap_or(u32::MAX);
        self.calls.push(Call {
            generation: 1,
            detached: false,
            codec: 0,
            has_metadata: false,
            reads: Reads::Asked,
            head,
            stage: Stage::Free,
            deadline: None,
            waiter: None,
            request: None,
            reply: None,
        });
        index
    }

    pub(super) fn set_deadline(&mut self, id: CallId, deadline: Timed) {
        self.calls[id.index as usize].deadline = Some(deadline);
    }

    /// The deadline of a call starts anew, or there is none any more; it has fired or was none.
    pub(super) fn restart_deadline(&mut self, index: u32, deadline: Option<Timed>) {
        self.calls[index as usize].deadline = deadline;
    }

    /// The call that has waited longest.
    #[inline]
    pub(super) fn next_unsent(&mut self) -> Option<Ready> {
        while let Some(&id) = self.unsent.front() {
            if let Some(Call { stage: Stage::Unsent, deadline, head, .. }) = self.find(id) {
                return Some(Ready { id, is_plain: deadline.is_none() && !head.streams.any() });
            }
            self.unsent.pop_front();
        }
        None
    }

    /// Takes the request of the call that [`next_unsent`](Self::next_unsent) named, with its header
    /// in front, and says whether the call is detached: then the caller must free it. `discard`
    /// gets what is to be dropped outside the lock.
    #[inline]
    pub(super) fn send(
        &mut self,
        call: CallId,
        id: WireId,
        remaining_micros: Option<u64>,
        accepted: &AcceptedByPeer,
        discard: impl FnOnce(OutBuf),
    ) -> Option<(OutBuf, bool)> {
        self.unsent.pop_front();
        self.unsent_live -= 1;
        let Call { stage, request, detached, head, codec, has_metadata, reads, .. } =
            &mut self.calls[call.index as usize];
        *stage = Stage::Sent(id.slot);
        let mut frame = request.take()?;
        *reads = accepted.reads(head);
        let asks = *reads != Reads::Same;
        let head = RequestHead {
            id,
            method: head.method,
            codec: *codec,
            no_cancel: head.no_cancel,
            remaining_micros,
            signature: if asks { Some(head.signature) } else { None },
            has_parts: frame.tail_len() != 0,
            streams: head.streams,
        };
        let detached = *detached;
        let has_metadata = *has_metadata;
        if asks
            && accepted.resolves()
            && !detached
            && let Some(stale) = self.keep(call, &frame)
        {
            discard(stale);
        }
        wire::prepend_request(&mut frame, &head, has_metadata);
        Some((frame, detached))
    }

    /// Keeps a request once more (invariant 4). Returns one that is of no use any more.
    #[cold]
    fn keep(&mut self, call: CallId, request: &OutBuf) -> Option<OutBuf> {
        self.kept.insert(call.index, (call.generation, request.copied())).map(|(_, stale)| stale)
    }

    /// Takes the request that is kept of a call.
    #[cold]
    pub(super) fn take_kept(&mut self, id: CallId) -> Option<OutBuf> {
        let (generation, request) = self.kept.remove(&id.index)?;
        if generation != id.generation {
            self.kept.insert(id.index, (generation, request));
            return None;
        }
        Some(request)
    }

    /// Takes the request that is kept of the call in that place.
    #[cold]
    pub(super) fn take_kept_at(&mut self, index: u32) -> Option<OutBuf> {
        self.kept.remove(&index).map(|(_, request)| request)
    }

    /// Whether the peer has refused a call before any handler ran: it lacks the method, or its
    /// types differ.
    #[cold]
    pub(super) fn is_refused(&self, id: CallId) -> bool {
        let Some(call) = self.find(id) else { return false };
        // A status that a handler gives has been read by somebody.
        let Stage::RepliedBy(kind, ReadBy::Nobody) = call.stage else { return false };
        let ReplyKind::Status { code, details_bytes, .. } = kind else { return false };
        let Some(reply) = &call.reply else { return false };
        let body = reply.get(reply.marked().len()..).unwrap_or_default();
        let details = body.get(..details_bytes as usize).unwrap_or_default();
        match code {
            wire::code::FAILED_PRECONDITION => {
                details.starts_with(wire::refusal::SIGNATURES_DIFFER)
            }
            wire::code::UNIMPLEMENTED => details == wire::refusal::UNKNOWN_METHOD,
            _ => false,
        }
    }

    /// How this end means to read what the callee writes of a call that was sent.
    #[inline]
    pub(super) fn reads(&self, index: u32) -> Reads {
        self.calls[index as usize].reads
    }

    /// Whether the request of a call asks whether the types are the same, or will ask, and so may
    /// be refused and sent again.
    pub(super) fn asks(&self, index: u32, accepted: &AcceptedByPeer) -> bool {
        let call = &self.calls[index as usize];
        let reads = match call.stage {
            Stage::Unsent => accepted.reads(&call.head),
            _ => call.reads,
        };
        accepted.resolves() && reads != Reads::Same
    }

    /// A reply that is stored is not read by this end's own types.
    #[cold]
    pub(super) fn set_read_by(&mut self, index: u32, read_by: ReadBy) {
        let stage = &mut self.calls[index as usize].stage;
        if let Stage::Replied(kind) = *stage {
            *stage = Stage::RepliedBy(kind, read_by);
        }
    }

    /// A detached call was sent, and is out of the table. Gives its deadline, to be removed.
    #[cold]
    pub(super) fn free_detached(&mut self, index: u32) -> Option<Timed> {
        let deadline = self.calls[index as usize].deadline.take();
        self.free(index);
        deadline
    }

    #[inline]
    fn find(&self, id: CallId) -> Option<&Call<W>> {
        self.calls.get(id.index as usize).filter(|call| call.generation == id.generation)
    }

    #[inline]
    fn find_mut(&mut self, id: CallId) -> Option<&mut Call<W>> {
        self.calls.get_mut(id.index as usize).filter(|call| call.generation == id.generation)
    }

    pub(super) fn deadline(&self, index: u32) -> Option<Timed> {
        self.calls[index as usize].deadline
    }

    #[inline]
    pub(super) fn head(&self, index: u32) -> CallHead {
        self.calls[index as usize].head
    }

    #[inline]
    pub(super) fn stage(&self, index: u32) -> Stage {
        self.calls[index as usize].stage
    }

    /// Whether the id names a call that has no outcome yet.
    #[inline]
    pub(super) fn is_pending(&self, id: CallId) -> bool {
        self.find(id).is_some_and(|call| matches!(call.stage, Stage::Unsent | Stage::Sent(_)))
    }

    /// Whether the id names a call that waits to be sent.
    pub(super) fn is_unsent(&self, id: CallId) -> bool {
        self.find(id).is_some_and(|call| matches!(call.stage, Stage::Unsent))
    }

    /// Whether the id names a call.
    pub(super) fn contains(&self, id: CallId) -> bool {
        self.find(id).is_some()
    }

    /// Registers a waiter. Returns the previous one, or `waiter` itself if there is nothing to wait
    /// for.
    pub(super) fn set_waiter(&mut self, id: CallId, waiter: W) -> Option<W> {
        match self.find_mut(id) {
            Some(Call {
                stage: Stage::Replied(_) | Stage::RepliedBy(..) | Stage::Failed { .. },
                ..
            })
            | None => Some(waiter),
            Some(call) => call.waiter.replace(waiter),
        }
    }

    pub(super) fn waiter(&self, id: CallId) -> Option<&W> {
        self.find(id)?.waiter.as_ref()
    }

    /// The waiter of a call that has no outcome yet, if it is among the first in the table: that
    /// never shrinks, and mostly they are.
    pub(super) fn take_waiter(&mut self) -> Option<(CallId, W)> {
        (0..).zip(&mut self.calls).take(LOOKED_AT).find_map(|(index, call)| {
            let id = CallId { index, generation: call.generation };
            call.waiter.take().map(|waiter| (id, waiter))
        })
    }

    /// Whether [`take_waiter`](Self::take_waiter) looks at all of them.
    pub(super) fn looks_at_all(&self) -> bool {
        self.calls.len() <= LOOKED_AT
    }

    /// Takes the request of a call that failed before the peer could see it.
    pub(super) fn take_request(&mut self, id: CallId) -> Option<OutBuf> {
        match self.find_mut(id)? {
            Call { stage: Stage::Failed { never_sent: true, .. }, request, .. } => request.take(),
            _ => None,
        }
    }

    /// Puts back the request of a call that failed after it was handed to the link, which has sent
    /// nothing of it. Returns a request that is of no use.
    pub(super) fn put_request(&mut self, index: u32, request: OutBuf) -> Option<OutBuf> {
        match self.calls.get_mut(index as usize) {
            Some(call) if call.is_to_be_sent_again() => call.request.replace(request),
            _ => Some(request),
        }
    }

    /// Takes the outcome, and the call out of the table. An id that names no call gives
    /// [`Failure::NoSuchCall`].
    pub(super) fn take_outcome(&mut self, id: CallId) -> Option<Outcome> {
        let Some(call) = self.find_mut(id) else {
            return Some(Outcome::Failed { reason: Failure::NoSuchCall, never_sent: false });
        };
        let outcome = match call.stage {
            Stage::Replied(kind) => call.take_reply(kind, ReadBy::OwnTypes)?,
            Stage::RepliedBy(kind, read_by) => call.take_reply(kind, read_by)?,
            Stage::Failed { reason, never_sent } => Outcome::Failed { reason, never_sent },
            Stage::Free | Stage::Unsent | Stage::Sent(_) => return None,
        };
        self.free(id.index);
        Some(outcome)
    }

    /// Takes the outcome if it is a result. Gives the method's dense index, too.
    #[inline]
    pub(super) fn take_result(&mut self, id: CallId) -> Result<(Message, u32), NoResult> {
        let Some(call) = self.find_mut(id) else { return Err(NoResult::Other) };
        if !matches!(call.stage, Stage::Replied(ReplyKind::Ok)) {
            return Err(match call.stage {
                Stage::Unsent | Stage::Sent(_) => NoResult::Pending,
                _ => NoResult::Other,
            });
        }
        let reply = call.reply.take().ok_or(NoResult::Other)?;
        let method_index = call.head.method_index;
        call.free();
        self.free.push(id.index);
        Ok((reply, method_index))
    }

    /// Stores the reply to a sent call, without its header. Returns the call's deadline, to be
    /// removed, and its waiter, to be woken.
    #[inline(always)]
    pub(super) fn reply(
        &mut self,
        index: u32,
        kind: ReplyKind,
        reply: Message,
    ) -> (Option<Timed>, Option<W>) {
        let call = &mut self.calls[index as usize];
        call.stage = Stage::Replied(kind);
        debug_assert!(call.reply.is_none(), "a call has one reply");
        call.reply = Some(reply);
        (call.deadline.take(), call.waiter.take())
    }

    /// Ends a call without a reply, unless it has an outcome (invariant 1).
    pub(super) fn fail(&mut self, index: u32, reason: Failure, never_sent: bool) -> Failed<W> {
        let call = &mut self.calls[index as usize];
        match call.stage {
            Stage::Free | Stage::Replied(_) | Stage::RepliedBy(..) | Stage::Failed { .. } => {
                return Failed { deadline: None, waiter: None, request: None };
            }
            Stage::Unsent => self.unsent_live -= 1,
            Stage::Sent(_) => {}
        }
        call.stage = Stage::Failed { reason, never_sent };
        let is_kept = call.is_to_be_sent_again();
        let failed = Failed {
            deadline: call.deadline.take(),
            waiter: call.waiter.take(),
            request: if is_kept { None } else { call.request.take() },
        };
        if call.detached {
            self.free(index);
        }
        self.clean_queue();
        failed
    }

    /// Takes a call out of the table, whatever its stage.
    pub(super) fn remove(&mut self, id: CallId) -> Option<Taken<W>> {
        let call = self.find_mut(id)?;
        let (deadline, waiter) = (call.deadline.take(), call.waiter.take());
        let taken = Taken { stage: call.stage, deadline, waiter, request: call.request.take() };
        call.reply = None;
        if matches!(taken.stage, Stage::Unsent) {
            self.unsent_live -= 1;
        }
        self.free(id.index);
        self.clean_queue();
        Some(taken)
    }

    /// Detaches an unsent call: it will be sent, but nobody waits for it (invariant 3).
    pub(super) fn detach(&mut self, id: CallId) -> Option<W> {
        let call = self.find_mut(id)?;
        debug_assert!(matches!(call.stage, Stage::Unsent), "only unsent calls are detached");
        call.detached = true;
        call.waiter.take()
    }

    /// Indices of calls that have no outcome yet.
    pub(super) fn pending(&self) -> impl Iterator<Item = u32> + use<W> {
        let pending: Vec<u32> = (0u32..)
            .zip(&self.calls)
            .filter(|(_, call)| matches!(call.stage, Stage::Unsent | Stage::Sent(_)))
            .map(|(index, _)| index)
            .collect();
        pending.into_iter()
    }

    #[inline]
    fn free(&mut self, index: u32) {
        self.calls[index as usize].free();
        self.free.push(index);
    }

    /// Removes stale ids (invariant 5), at amortised constant cost per call.
    #[inline]
    fn clean_queue(&mut self) {
        if self.unsent.len() > 2 * self.unsent_live + STALE_SLACK {
            let mut queue = std::mem::take(&mut self.unsent);
            queue.retain(|id| self.is_unsent(*id));
            self.unsent = queue;
        }
    }
}

#[cfg(test)]
mod tests {
    use rpc_transport::protocol::config::WhenFull;

    use super::*;
    use crate::session::CopiedTails;
    use crate::wire::CallStreams;

    const HEAD: CallHead = CallHead {
        method: 1,
        method_index: 0,
        signature: 0,
        no_cancel: false,
        streams: CallStreams::NONE,
        copied_tails: CopiedTails::NONE,
    };
    const OPTIONS: CallOptions = CallOptions {
        codec: 0,
        deadline: None,
        until_taken: false,
        is_counted: false,
        when_full: WhenFull::Wait,
        is_nested: false,
        metadata: None,
    };

    #[test]
    fn removed_calls_do_not_gather_in_the_queue() {
        let mut calls: Calls<()> = Calls::new();
        let kept = calls.insert(&HEAD, &OPTIONS, Some(OutBuf::new()), None);
        for _ in 0..1000 {
            let id = calls.insert(&HEAD, &OPTIONS, Some(OutBuf::new()), None);
            assert!(calls.remove(id).is_some());
            assert!(calls.unsent.len() <= 2 * calls.unsent_live + STALE_SLACK + 1);
        }
        assert_eq!(calls.next_unsent().map(|ready| ready.id), Some(kept));
        assert_eq!((calls.len(), calls.unsent_len()), (1, 1));
    }

    #[test]
    fn each_place_keeps_one_request_at_most() {
        let (mut calls, accepted) = (Calls::<()>::new(), AcceptedByPeer::default());
        let mut stale = 0;
        for slot in 0..1000 {
            let ids = [1, 2].map(|generation| {
                let call = calls.insert(&HEAD, &OPTIONS, Some(OutBuf::new()), None);
                let id = WireId { slot, generation };
                let sent = calls.send(call, id, None, &accepted, |_| stale += 1);
                assert!(sent.is_some());
                call
            });
            assert_eq!(calls.kept.len(), 2);
            for id in ids {
                assert!(calls.remove(id).is_some());
            }
        }
        assert_eq!(stale, 1998);
    }

    #[test]
    fn an_old_id_never_finds_a_new_call() {
        let mut calls: Calls<()> = Calls::new();
        let old = calls.insert(&HEAD, &OPTIONS, Some(OutBuf::new()), None);
        calls.remove(old);
        let new = calls.insert(&HEAD, &OPTIONS, Some(OutBuf::new()), None);
        assert_eq!(old.index, new.index);
        assert!(!calls.contains(old) && calls.remove(old).is_none() && calls.contains(new));
        assert_eq!(calls.set_waiter(old, ()), Some(()));
    }

    #[test]
    fn a_partial_scan_of_calls_is_reported() {
        let mut calls: Calls<usize> = Calls::new();
        for number in 0..=LOOKED_AT {
            assert!(calls.looks_at_all());
            let id = calls.insert(&HEAD, &OPTIONS, Some(OutBuf::new()), None);
            assert_eq!(calls.set_waiter(id, number), None);
        }
        assert!(!calls.looks_at_all());
        for number in 0..LOOKED_AT {
            assert_eq!(calls.take_waiter().map(|(_, waiter)| waiter), Some(number));
        }
        assert_eq!(calls.take_waiter(), None);
    }
}
