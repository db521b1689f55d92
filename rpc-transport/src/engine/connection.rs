//! One connection of a shard: a protocol, its link, and its QP.
//!
//! Owns the QP from its creation to its destruction, and the translation between frames and work
//! requests. Lives under the shard's lock; never blocks.
//!
//! Invariants:
//! 1. Every RECV of the window is posted while the connection is up and no run of its completions
//!    is being handled, and whenever credits are granted. One extra RECV is posted, so that
//!    reposting the last one can wait until the reply has been sent. A buffer is lent to a message
//!    only when another one takes its place.
//! 2. A failed or closed connection goes to ERR once, and its QP is destroyed when all posted WRs
//!    have been flushed, at the latest after `DRAIN_LIMIT`.
//! 3. An orderly close ends: it waits as long as frames are sent or the peer accepts bytes of them,
//!    and gives up after `CLOSE_LIMIT` without either.
//! 4. The end is reported to the protocol exactly once.
//! 5. A peer that breaks a rule is sent the rule's name, as far as that is possible within
//!    `CLOSE_LIMIT`, and nothing more is accepted from it.
//! 6. A pump writes at most one slice of a large message, as a device may copy it synchronously:
//!    small messages, here and on other connections, go between two slices. While this connection
//!    sends small messages, a pump that sends some writes a slice after them, and any other pump
//!    writes none unless it was given a turn.
//! 7. A function that posts a send WR rings its doorbell before it returns: user code that runs
//!    next may take long.
//! 8. User values (bodies, owners, wakers) are never dropped in here: they are [`Deferred`] until
//!    the lock is released.
//! 9. A *fast* connection is up and only carries small messages. Its pump sends the messages of the
//!    protocol and an Ack, collects actions, looks at deadlines, and skips every other check.
//!    Everything else clears the flag: the shard when it marks the connection dirty, a received
//!    frame that is not plain, and a revoked message. A sealed frame is plain once it is opened.

mod deadlines;
mod ending;
mod locked;
mod queue_pair;
mod receiving;
mod recv_buffers;
mod sealing;
mod send_buffers;
mod send_path;
mod staging;
mod window;

use std::fmt;
use std::time::{Duration, Instant};

use self::ending::cause_of;
pub(crate) use self::locked::Arrived;
use self::locked::Locked;
pub(crate) use self::queue_pair::ConnectionQp;
use self::queue_pair::{Phase, split_wr_id};
pub(crate) use self::recv_buffers::{RecvBuffers, first_recvs, most_recvs, with_lendable};
pub(crate) use self::send_buffers::{FIRST as FIRST_SEND_BUFFERS, SendBuffers};
pub(crate) use self::send_path::SendPath;
use self::send_path::ring_for;
use crate::device::connection_error::CloseCause;
use crate::device::{Completion, CompletionQueue, PeerIdentity, QpHandle, Ring, Status};
use crate::engine::deferred::Deferred;
use crate::engine::growth::grow_arena;
use crate::engine::pump_queue::PumpTurn;
use crate::engine::upper::{Revoke, Submission, UpperLayer};
use crate::memory::budget::MemoryBudget;
#[cfg(any(test, feature = "model"))]
use crate::memory::region::BufferPool;
use crate::memory::region::{Buffer, ProtectionDomain};
use crate::protocol::frame::CloseReason;
use crate::protocol::link::{Link, LinkMetrics, OnReturn, Revoked};
use crate::protocol::lock::Opener;

/// An idle ack is sent when at least 1/`IDLE_ACK_FRACTION` of the window is owed.
const IDLE_ACK_FRACTION: u32 = 4;

/// A deadline that may be earlier than the registered one.
#[derive(Debug, Clone, Copy)]
enum Pressing {
    Nothing,
    /// A Ping is due or was sent, and this is the link's deadline. Any frame changes it.
    Ping(Instant),
    /// An orderly close, which must make progress by `until`. `seen` is how far it was when `until`
    /// was set, which has been put off `unproven` times in a row by what anybody can forge.
    Close {
        until: Instant,
        seen: Progress,
        unproven: u32,
    },
}

/// How far an orderly close is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Progress {
    /// WRs posted, modulo 2^31.
    posted: u32,
    /// Bytes that the peer's end has accepted, as its device says.
    accepted: u64,
    /// Frames of the peer that were opened, if frames are sealed.
    opened: Option<u64>,
}

/// A time in which this process did not run although work was due.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnSilence {
    pub(crate) ended: Instant,
    pub(crate) lasted: Duration,
}

/// One connection.
pub(crate) struct Connection<P: UpperLayer> {
    pub(crate) protocol: P,
    send_path: SendPath,
    link: Option<Link>,
    /// What arrives before there is a link, if peers must prove who they are.
    locked: Option<Box<Locked>>,
    /// Opens what arrives, if all frames are sealed.
    opener: Option<Box<Opener>>,
    /// The link of a connection that has ended, kept until its QP is destroyed: it owns the memory
    /// that the peer may write.
    retired_link: Option<Box<Link>>,
    /// The peer's identity, once it is known.
    peer: Option<PeerIdentity>,
    queue_pair: Option<ConnectionQp>,
    cause: Option<CloseCause>,
    /// An orderly close that waits for the link to drain.
    closing: Option<CloseReason>,
    registered_deadline: Option<Instant>,
    pressing: Pressing,
    /// Its turns among the connections of the shard.
    pub(crate) turn: PumpTurn,
    /// Invariant 9.
    is_fast: bool,
    /// Bytes that were written to the peer and not taken since.
    written: u64,
    /// The last report to the protocol said that something waits to be sent.
    reported_waiting: bool,
    /// The memory budget of this peer.
    budget: MemoryBudget,
    /// To be run when the lock is released.
    deferred: Vec<Deferred>,
    pub(crate) generation: u32,
    pub(crate) dirty: bool,
    pub(crate) warm: bool,
    pub(crate) own_silence: Option<OwnSilence>,
    /// How many outside the shard hold its key.
    pub(crate) holders: u32,
}

impl<P: UpperLayer> Connection<P> {
    /// A connection in set-up.
    pub(crate) fn new(
        protocol: P,
        send_path: SendPath,
        queue_pair: ConnectionQp,
        holders: u32,
    ) -> Self {
        Self {
            protocol,
            send_path,
            link: None,
            locked: None,
            opener: None,
            retired_link: None,
            peer: None,
            queue_pair: Some(queue_pair),
            cause: None,
            closing: None,
            registered_deadline: None,
            pressing: Pressing::Nothing,
            turn: PumpTurn::default(),
            is_fast: false,
            written: 0,
            reported_waiting: false,
            budget: MemoryBudget::unlimited(),
            deferred: Vec::new(),
            generation: 0,
            dirty: false,
            warm: false,
            own_silence: None,
            holders,
        }
    }

    /// The peer's offer is known: frames may arrive from now on. `on_return` is called, without the
    /// shard's lock, when enough dropped payloads make a pump worthwhile.
    pub(crate) fn set_link(&mut self, mut link: Link, peer: &PeerIdentity, on_return: OnReturn) {
        link.set_on_return(on_return);
        link.set_slices(self.send_path.slices());
        self.budget = self.protocol.memory_budget();
        link.set_memory_budget(self.budget.clone());
        if let Some(queue_pair) = &mut self.queue_pair {
            queue_pair.send_buffers.set_frame_bytes(link.posted_bytes());
            if self.send_path.stages() {
                link.stage_other_domains(queue_pair.domain);
            }
        }
        self.link = Some(link);
        self.peer = Some(peer.clone());
    }

    /// Set-up is complete: sending may begin.
    pub(crate) fn establish(&mut self) {
        if let Some(queue_pair) = &mut self.queue_pair
            && queue_pair.phase == Phase::Setup
        {
            queue_pair.phase = Phase::Up;
        }
    }

    pub(crate) fn cause(&self) -> Option<&CloseCause> {
        self.cause.as_ref()
    }

    /// The domain of its QP.
    pub(crate) fn domain(&self) -> &ProtectionDomain {
        self.send_path.domain()
    }

    /// Nothing waits to leave.
    pub(crate) fn is_link_idle(&self) -> bool {
        self.link.as_ref().is_none_or(Link::is_idle)
    }

    pub(crate) fn link_metrics(&self) -> Option<LinkMetrics> {
        self.link.as_ref().map(Link::metrics)
    }

    /// Frames whose bytes were copied into a registered buffer.
    pub(crate) fn staged_count(&self) -> u64 {
        self.send_path.staged_count()
    }

    pub(crate) fn has_qp(&self) -> bool {
        self.queue_pair.is_some()
    }

    pub(crate) fn is_on(&self, qp: QpHandle) -> bool {
        self.queue_pair.as_ref().is_some_and(|queue_pair| queue_pair.qp == qp)
    }

    pub(crate) fn is_removable(&self) -> bool {
        self.queue_pair.is_none() && self.holders == 0
    }

    #[cfg(any(test, feature = "model"))]
    pub(crate) fn pools(&self) -> Vec<BufferPool> {
        let mut pools = self.send_path.staging().to_vec();
        if let Some(queue_pair) = &self.queue_pair {
            pools.extend_from_slice(queue_pair.recv_buffers.pools());
            pools.extend_from_slice(queue_pair.send_buffers.pools());
        }
        pools
    }

    #[inline]
    pub(crate) fn with_revoke<R>(&mut self, step: impl FnOnce(&mut P, Revoke<'_>) -> R) -> R {
        let (link, deferred) = (&mut self.link, &mut self.deferred);
        self.is_fast = false;
        step(&mut self.protocol, &mut |tag| revoke(link, deferred, tag))
    }

    /// Posts one RECV.
    #[inline]
    pub(crate) fn post_recv(
        &mut self,
        cq: &mut dyn CompletionQueue,
        buffer: Buffer,
    ) -> Result<(), CloseCause> {
        let Some(queue_pair) = &mut self.queue_pair else { return Ok(()) };
        queue_pair.post_recv(cq, buffer)
    }

    pub(crate) fn on_send_completion(
        &mut self,
        cq: &mut dyn CompletionQueue,
        completion: &Completion,
    ) {
        let Some(queue_pair) = &mut self.queue_pair else { return };
        let (sequence, token) = split_wr_id(completion.wr_id);
        queue_pair.retire(sequence, &mut self.deferred);
        self.is_fast &= self.deferred.is_empty();
        if matches!(queue_pair.phase, Phase::Draining { .. }) {
            return;
        }
        if completion.status != Status::Success {
            let vendor_error = cq.vendor_error(completion.qp);
            let cause = cause_of(completion, vendor_error, self.send_path.has_remote_errors());
            self.fail(cq, &cause);
            return;
        }
        let Some(link) = &mut self.link else { return self.wake_locked() };
        link.on_send_completion(token);
        if link.is_close_completed() {
            self.fail(cq, &CloseCause::Local);
        }
    }

    /// Sends all that may be sent now, with doorbells by `ring`. Unless it is fast afterwards, call
    /// [`Connection::end_pump`] next.
    #[inline]
    pub(crate) fn pump(&mut self, cq: &mut dyn CompletionQueue, ring: Ring) {
        if let Err(cause) = self.try_transmit(cq, ring) {
            self.fail(cq, &cause);
        }
    }

    /// What follows a pump. `Some` if the QP was destroyed: whether all its WRs had been flushed.
    pub(crate) fn end_pump(&mut self, cq: &mut dyn CompletionQueue, now: Instant) -> Option<bool> {
        if let Some(link) = &mut self.link {
            take_freed(link, &mut self.deferred);
        }
        self.finish_drain(cq, now)
    }

    /// The next pump makes every check (invariant 9).
    #[inline]
    pub(crate) fn leave_fast_path(&mut self) {
        self.is_fast = false;
    }

    #[inline]
    pub(crate) fn is_fast(&self) -> bool {
        self.is_fast
    }

    /// Re-evaluates the fast-path flag, after a pump whose results the shard has taken.
    #[inline(never)]
    pub(crate) fn update_fast(&mut self) {
        self.is_fast = self.may_be_fast();
    }

    /// Whether it only carries small messages (invariant 9).
    fn may_be_fast(&self) -> bool {
        let (Some(queue_pair), Some(link)) = (&self.queue_pair, &self.link) else {
            return false;
        };
        queue_pair.phase == Phase::Up
            && self.closing.is_none()
            && link.has_nothing_due()
            && !self.reported_waiting
            && !self.turn.is_unfinished()
            && !self.turn.has_turn()
            && self.written == 0
            && self.deferred.is_empty()
    }

    /// Whether a received message needs no pump, only its actions to be run. Most need none.
    #[inline]
    pub(crate) fn needs_no_pump(&mut self) -> bool {
        self.is_fast
            && !self.protocol.may_transmit()
            && !self.protocol.wants_waiting()
            && self.link.as_ref().is_some_and(|link| !link.has_returns() && !link.is_ack_due())
            && (self.warm || !self.owes_idle_ack())
            && self.is_deadline_registered()
    }

    /// Work to be run after the lock is released.
    #[inline]
    pub(crate) fn deferred(&mut self) -> &mut Vec<Deferred> {
        &mut self.deferred
    }

    /// Bytes that pumps have written to the peer since the last call.
    #[inline]
    pub(crate) fn take_written(&mut self) -> u64 {
        std::mem::take(&mut self.written)
    }

    #[inline]
    fn try_transmit(&mut self, cq: &mut dyn CompletionQueue, ring: Ring) -> Result<(), CloseCause> {
        debug_assert!(!self.is_fast || self.may_be_fast(), "invariant 9");
        if !self.is_fast && !self.begin_pump(cq)? {
            return Ok(());
        }
        let (Some(queue_pair), Some(link)) = (&mut self.queue_pair, &mut self.link) else {
            return Ok(());
        };
        // Whether a message was queued, one was posted, and one whose doorbell is left to the next.
        let (mut queued, mut sent_small, mut unrung) = (false, false, false);
        let mut is_clear = (self.is_fast && !link.has_returns()) || link.is_clear();
        let mut has_more = self.protocol.may_transmit();
        while has_more
            && let Some(Submission { lane, tag, mut frame }) = self.protocol.poll_transmit()
        {
            has_more = self.protocol.may_transmit();
            is_clear &= !queue_pair.send_buffers.are_out();
            if is_clear && let Some(stamped) = link.stamp_now(lane, &mut frame) {
                let ring = if has_more { Ring::WithNext } else { ring };
                self.send_path.post_whole(cq, queue_pair, &frame, stamped, ring)?;
                (sent_small, unrung) = (true, has_more);
                continue;
            }
            is_clear = false;
            match link.submit(lane, tag, frame) {
                Ok(()) => queued = true,
                Err(error) => {
                    self.protocol.on_refused(tag, &error);
                    has_more = self.protocol.may_transmit();
                }
            }
        }
        self.is_fast &= is_clear;
        if !is_clear || link.is_ack_due() {
            unrung |= self.transmit_rest(cq, sent_small)?;
            // This has collected returned chunks, and there may be no credit for their release.
            self.is_fast = self.is_fast && self.link.as_ref().is_some_and(Link::has_nothing_due);
        }
        if unrung {
            // The rest of this visit need not delay the doorbell.
            ring_for(cq, ring);
        }
        if !self.is_fast || self.protocol.wants_waiting() {
            self.end_transmit(cq, queued)?;
        }
        debug_assert!(
            self.reported_waiting || !self.protocol.wants_waiting(),
            "where nothing waits, a report gives all room back"
        );
        Ok(())
    }

    /// Begins a pump that makes every check. Returns whether the connection is up.
    #[inline(never)]
    fn begin_pump(&mut self, cq: &mut dyn CompletionQueue) -> Result<bool, CloseCause> {
        self.turn.begin();
        let (Some(queue_pair), Some(link)) = (&mut self.queue_pair, &mut self.link) else {
            return Ok(false);
        };
        if queue_pair.phase != Phase::Up {
            return Ok(false);
        }
        if self.opener.is_some() && link.has_forged_record() {
            return Err(forged());
        }
        let in_window = self.send_path.binds_windows();
        if let Some(bytes) = link.wanted_arena()
            && !(in_window && queue_pair.is_binding())
        {
            let domain = self.send_path.domain();
            if let Some(window) = grow_arena(link, domain, &self.budget, bytes, in_window)? {
                queue_pair.bind(cq, window)?;
                cq.flush();
            }
        }
        Ok(true)
    }

    /// Ends a pump that makes every check.
    #[inline(never)]
    fn end_transmit(
        &mut self,
        cq: &mut dyn CompletionQueue,
        queued: bool,
    ) -> Result<(), CloseCause> {
        self.turn.end();
        if queued || self.reported_waiting || self.protocol.wants_waiting() {
            self.report_waiting(queued)?;
        }
        if self.closing.is_some() {
            self.advance_close(cq)?;
        }
        Ok(())
    }

    /// Sends what the link has queued, and an Ack that is due. Returns whether anything was posted.
    // Apart, as most messages are posted as they come, and the loop over these is short.
    #[inline(never)]
    fn transmit_rest(
        &mut self,
        cq: &mut dyn CompletionQueue,
        mut sent_small: bool,
    ) -> Result<bool, CloseCause> {
        let (Some(queue_pair), Some(link)) = (&mut self.queue_pair, &mut self.link) else {
            return Ok(false);
        };
        let (mut posted, mut has_turn) = (false, self.turn.has_turn());
        while !queue_pair.send_buffers.are_out() {
            link.set_turn(has_turn);
            let Some(transmit) = link.poll_transmit() else {
                if let Some(bytes) = link.wanted_staging()
                    && let Some(room) = self.send_path.staging_room(queue_pair, bytes)
                {
                    link.set_staging_room(room);
                    continue;
                }
                // A slice now delays nothing: the answer to the small messages takes as long as
                // writing it.
                if sent_small && !std::mem::replace(&mut has_turn, true) && link.awaits_turn() {
                    cq.flush();
                    continue;
                }
                break;
            };
            let is_written = !transmit.writes.is_empty();
            if is_written {
                self.written += transmit.writes.iter().map(|write| write.part.len()).sum::<u64>();
            }
            self.send_path.post(cq, queue_pair, transmit)?;
            posted = true;
            if is_written && link.has_large() {
                self.turn.stop();
                break;
            }
            sent_small |= !is_written;
        }
        if link.awaits_turn() {
            self.turn.stop();
        }
        Ok(posted)
    }

    /// Reports to the protocol what waits to be sent.
    ///
    /// # Errors
    /// The peer makes this end queue more than the protocol allows.
    fn report_waiting(&mut self, queued: bool) -> Result<(), CloseCause> {
        let Some(link) = &self.link else { return Ok(()) };
        let waiting = link.waiting();
        self.reported_waiting = waiting.total_bytes() > 0;
        if self.protocol.on_waiting(waiting) {
            // What was held back until now needs another pump, which no event may bring.
            self.turn.stop();
        }
        self.is_fast &= !self.reported_waiting && !self.turn.is_unfinished();
        if queued && link.queued_count() > self.protocol.most_queued() {
            let text = "it does not read the replies to its requests";
            return Err(CloseCause::Protocol(text.into()));
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn owes_idle_ack(&self) -> bool {
        self.link.as_ref().is_some_and(|link| {
            u32::from(link.owed_data()) * IDLE_ACK_FRACTION >= u32::from(link.window_data())
        })
    }

    pub(crate) fn send_idle_ack(&mut self, cq: &mut dyn CompletionQueue) {
        let (Some(queue_pair), Some(link)) = (&mut self.queue_pair, &mut self.link) else { return };
        if queue_pair.phase != Phase::Up || queue_pair.send_buffers.are_out() {
            return;
        }
        let Some(transmit) = link.poll_idle_ack() else { return };
        let posted = self.send_path.post(cq, queue_pair, transmit);
        cq.flush();
        if let Err(cause) = posted {
            self.fail(cq, &cause);
        }
    }
}

impl<P: UpperLayer> fmt::Debug for Connection<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = self.queue_pair.as_ref().map(|queue_pair| queue_pair.phase);
        f.debug_struct("Connection").field("phase", &phase).finish_non_exhaustive()
    }
}

/// A reader has found a record that somebody else wrote.
#[cold]
#[inline(never)]
fn forged() -> CloseCause {
    CloseCause::Protocol("a record failed its check".into())
}

/// Takes a message back, as far as that is possible. It is dropped once the lock is released.
fn revoke(link: &mut Option<Link>, deferred: &mut Vec<Deferred>, tag: u64) -> Revoked<()> {
    match link {
        Some(link) => link.revoke(tag).without_message(&mut |body| {
            deferred.push(Deferred::Body { _body: Box::new(body) });
        }),
        None => Revoked::TooLate,
    }
}

/// Has readers of streams woken, and what the link no longer needs dropped, once the lock is
/// released.
#[inline]
fn take_wakes_and_freed(link: &mut Link, deferred: &mut Vec<Deferred>) {
    while let Some(reader) = link.take_reader() {
        deferred.push(Deferred::Wake(reader));
    }
    take_freed(link, deferred);
}

/// Defers dropping what the link no longer needs until the lock is released.
#[inline]
fn take_freed(link: &mut Link, deferred: &mut Vec<Deferred>) {
    while let Some(_freed) = link.take_freed() {
        deferred.push(Deferred::Freed { _freed });
    }
}
