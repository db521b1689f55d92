//! The link: messages over one QP, as a state machine.
//!
//! **Owns** the decision what one end of a connection may send now, and the meaning of a received
//! frame: credits, lanes, segments, keep-alive and the orderly close.
//!
//! **Never** posts, polls, waits or reads a clock: `on_*` takes an event, `poll_*` says what to
//! post, time is an argument. It does not look inside messages.
//!
//! How to drive it, per connection and under one lock:
//!
//! 1. *Received.* [`Link::on_frame`], in the order of completions, and **before** anything is
//!    transmitted repost the RECVs (credit rule 2: the credits counted here may leave with the next
//!    frame and be spent at once).
//! 2. *Sent.* [`Link::on_send_completion`] for the token of every *signaled* WR that completes.
//! 3. *Transmit.* After any of these, and after [`Link::submit`], [`Link::revoke`], [`Link::close`]
//!    and [`Link::on_timeout`]: call [`Link::poll_transmit`] until it gives `None`. Every
//!    [`Transmit`] **must** be posted, in order, as one SEND: its credit and its slot are spent.
//! 4. *About to sleep.* [`Link::poll_idle_ack`] once, and a timer for [`Link::next_deadline`].
//! 5. *Growth.* Where [`Link::wanted_growth`] names a number after [`Link::on_frame`]: post as many
//!    RECVs **first**, then [`Link::grow_window`] and transmit; or [`Link::decline_growth`].
//!
//! Invariants:
//! 1. A message that was submitted and not revoked is delivered once, whole, and in the order of
//!    its lane; a message revoked with [`Revoked::Whole`] or [`Revoked::Aborted`] is never
//!    delivered, one revoked with [`Revoked::Begun`] once, with a tail that ends early.
//! 2. No frame is longer than either end's receive buffer, and none leaves without its credit.
//! 3. Close leaves once, spends no credit, and is the last frame.
//! 4. What a peer can make this end hold is bounded: one assembly (twice what has arrived), the
//!    arenas within their budget, one Pong, counters.
//! 5. A message that waits for chunks holds no credit and keeps no other lane waiting.
//! 6. Frames sent between two slices of a segment are never of the bulk lane. Once the message of
//!    the segment is revoked, no frame is sent between them, so that a later frame of the session
//!    about that message never overtakes it.
//! 7. A message with a tail, whose memory may be the user's, is never dropped in here: it is handed
//!    back or comes out as [`Freed`].

mod bulk;
mod fast_path;
mod keepalive;
mod lanes;
mod metrics;
mod results;
mod sealed;
#[cfg(test)]
mod tests;
mod transmit;
mod unlocked;

use std::task::Waker;
use std::time::Instant;

use self::bulk::assembly::{Arrived, Assembly, WrittenTo};
use self::bulk::bulk_window::BulkWindow;
use self::bulk::landing_zone::LandingZone;
pub use self::bulk::return_queue::OnReturn;
pub use self::bulk::scheduler::SliceBytes;
use self::bulk::scheduler::{Allowance, BulkScheduler};
use self::bulk::segmenter::Segmenter;
use self::bulk::slots::Slots;
use self::bulk::{SegmentPath, WritePath};
pub(crate) use self::fast_path::Stamped;
pub(crate) use self::keepalive::UNPROVEN;
use self::keepalive::{Due, KeepAlive, Moves};
pub use self::lanes::{Lane, TOGETHER_BYTES, Waiting};
use self::lanes::{Lanes, Queued};
pub use self::metrics::LinkMetrics;
use self::metrics::Shortages;
pub use self::results::{CopiesTail, Freed, Inbound, LinkError, Revoked, SubmitError};
use self::sealed::CLOSED;
pub use self::transmit::{FrameBytes, RemoteWrite, Transmit};
use crate::device::Traffic;
use crate::memory::budget::MemoryBudget;
use crate::message::outgoing::OutBuf;
use crate::protocol::config::LinkConfig;
use crate::protocol::credit::{Credits, SendQueueMark, Stamp, WindowError};
use crate::protocol::error::ProtocolError;
use crate::protocol::frame::{self, CloseReason, Frame, HEADER_BYTES, Kind, SEGMENT_HEADER_BYTES};
use crate::protocol::handshake::{Agreed, Features};

/// SQ slots of a data frame, WRs.
const FRAME_SLOTS: u16 = 1;
/// Marks the token of the Close frame; the lower 32 bits are a [`SendQueueMark`].
const CLOSE_TOKEN: u64 = 1 << 32;

#[derive(Debug)]
enum Phase {
    Open,
    CloseDue(CloseReason),
    CloseSent,
    CloseCompleted,
}

/// One end of a connection. See the [module](self) for how to drive it.
#[derive(Debug)]
pub struct Link {
    credits: Credits,
    lanes: Lanes,
    segmenter: Segmenter,
    bulk: BulkScheduler,
    /// Data frames sent, modulo 2^32.
    sent: u32,
    keep_alive: KeepAlive,
    assembly: Assembly,
    readers: Vec<Waker>,
    freed: Vec<Freed>,
    /// How large messages are written into the peer's memory, if the handshake agreed on arenas.
    write_path: Option<Box<WritePath>>,
    features: Features,
    phase: Phase,
    /// Bits: why even plain frames are refused.
    refuses_plain: u8,
    /// Acks travel as SEND_WITH_IMM.
    immediates: bool,
    /// Longest frame, bytes.
    frame_bytes: u32,
    /// SQ slots in all, WRs.
    slots: u32,
    /// SQ slots of the largest message, WRs.
    message_slots: u16,
    /// Longest message of one frame, bytes.
    eager_bytes: usize,
    /// Bytes of a head that fit the frame of a segment whose other bytes are sent by WRITE.
    room: usize,
    /// The peer's `max_message_bytes`.
    max_message_bytes: u64,
    shortages: Shortages,
}

/// Where the next frame comes from.
enum Source {
    KeepAlive(Due),
    Whole(OutBuf, Lane),
    Segment(SegmentPath),
    Slice,
    Release,
    Nothing,
}

impl Link {
    /// Starts with the first window of what the peer offers. `config` is this end's configuration,
    /// and must be the one that was offered in the handshake.
    ///
    /// # Errors
    /// [`WindowError`] if a window or the SQ budget is out of range; never for a valid config and
    /// an offer that passed the handshake.
    pub fn new(config: &LinkConfig, agreed: &Agreed, now: Instant) -> Result<Self, WindowError> {
        let remote = &agreed.remote;
        let budget = config.send_queue_budget();
        // The peer's offer must not size this end's send buffers.
        let frame_bytes = remote.receive_buffer_bytes.min(config.receive_buffer());
        let payload_bytes = |header| (frame_bytes as usize).saturating_sub(header);
        let has_arenas = agreed.features.contains(Features::ARENA);
        let largest = if has_arenas { config.arena_segment_bytes } else { 0 };
        let landing = has_arenas.then(|| {
            let has_slots = agreed.features.contains(Features::REPLY_SLOTS);
            LandingZone::new(
                config.arena.clone(),
                Slots::new(has_slots, config.reply_slot_bytes),
                now,
            )
        });
        Ok(Self {
            credits: Credits::new(config.window(), remote.window, budget)?,
            lanes: Lanes::default(),
            segmenter: Segmenter::new(
                payload_bytes(SEGMENT_HEADER_BYTES),
                remote.assembly_bytes,
                has_arenas,
            ),
            bulk: BulkScheduler::new(BulkWindow::new(
                remote.window.first(),
                budget,
                config.bulk_queue_bytes,
                frame_bytes.max(largest),
            )),
            sent: 0,
            keep_alive: KeepAlive::new(config, now),
            assembly: Assembly::new(config.max_message_bytes, config.assembly_bytes, landing),
            readers: Vec::new(),
            freed: Vec::new(),
            write_path: has_arenas.then(|| Box::new(WritePath::new(config, budget))),
            features: agreed.features,
            room: Self::written_room(frame_bytes),
            phase: Phase::Open,
            refuses_plain: 0,
            immediates: agreed.features.contains(Features::ACK_IMMEDIATE),
            frame_bytes,
            message_slots: budget.message_slots,
            slots: u32::from(budget.data_slots) + u32::from(budget.ack_slots),
            eager_bytes: payload_bytes(HEADER_BYTES),
            max_message_bytes: remote.max_message_bytes,
            shortages: Shortages::default(),
        })
    }

    /// Longest message that is sent as one frame, bytes; longer ones take the bulk lane.
    #[must_use]
    pub fn eager_bytes(&self) -> usize {
        self.eager_bytes
    }

    /// Queues a message. `tag` identifies it for [`Link::revoke`]; of equal tags the first is
    /// revoked. A message longer than [`Link::eager_bytes`], or with a tail, always goes to the
    /// bulk lane: messages that must arrive after it have to take the bulk lane too.
    ///
    /// # Errors
    /// [`SubmitError::TooLarge`], [`SubmitError::Closed`]; a message with a tail then comes out as
    /// [`Freed`].
    #[inline]
    pub fn submit(&mut self, lane: Lane, tag: u64, message: OutBuf) -> Result<(), SubmitError> {
        if self.is_closing() {
            self.throw_away(message);
            return Err(SubmitError::Closed);
        }
        let mut lane = lane;
        if !self.is_eager(&message) {
            let len = message.total_len();
            if len > self.max_message_bytes {
                self.throw_away(message);
                return Err(SubmitError::TooLarge { len, max: self.max_message_bytes });
            }
            lane = Lane::Bulk;
        }
        self.lanes.push(lane, Queued { tag, message });
        Ok(())
    }

    /// Takes a message back, if that is still possible. Then transmit: an abort may be due. May
    /// also be called after [`Link::close`], to learn which messages were never sent.
    pub fn revoke(&mut self, tag: u64) -> Revoked {
        self.bulk.on_revoked(tag);
        if self.segmenter.current_tag() == Some(tag) {
            return self.revoke_current();
        }
        self.lanes.remove(tag).map_or(Revoked::TooLate, Revoked::Whole)
    }

    /// The next frame to post now, if any. Call it until it gives `None`.
    pub fn poll_transmit(&mut self) -> Option<Transmit<'_>> {
        if let Some(sent) = self.segmenter.reap() {
            self.freed.push(Freed::Message(sent));
        }
        if self.is_closing() {
            return self.poll_close();
        }
        if self.has_nothing_queued() {
            return self.credits.poll_ack().map(|stamp| self.ack(stamp));
        }
        self.shortages.look(&self.credits.counters());
        match self.next_source() {
            Source::Whole(message, lane) => self.send_whole(message, lane),
            Source::Segment(path) => self.send_segment(path),
            Source::Slice => self.send_slice(),
            Source::Release => self.send_release(),
            Source::KeepAlive(due) => self.send_keep_alive(due),
            // Credit rule 5: messages first, as their headers carry grants at no cost.
            Source::Nothing => self.credits.poll_ack().map(|stamp| self.ack(stamp)),
        }
    }

    /// Credit rule 6: an Ack below its threshold. Call it when this end is about to sleep with
    /// nothing left to transmit.
    pub fn poll_idle_ack(&mut self) -> Option<Transmit<'_>> {
        if self.is_closing() {
            return None;
        }
        self.credits.poll_idle_ack().map(|stamp| self.ack(stamp))
    }

    /// RECVs to post, in WRs, so that the peer may have more messages in flight, as it asks; a
    /// window starts with those of [`LinkConfig::first_window`].
    #[inline]
    #[must_use]
    pub const fn wanted_growth(&self) -> Option<u16> {
        self.credits.wanted_growth()
    }

    /// The RECVs of [`Link::wanted_growth`] **are posted** (credit rule 9). Then transmit.
    pub fn grow_window(&mut self) {
        self.credits.grow();
    }

    /// There are no RECVs for [`Link::wanted_growth`]; the peer may ask again.
    pub const fn decline_growth(&mut self) {
        self.credits.decline_growth();
    }

    /// A signaled WR completed: frees its slot and those before it. Then transmit.
    #[inline]
    pub fn on_send_completion(&mut self, token: u64) {
        if token & CLOSE_TOKEN != 0 && matches!(self.phase, Phase::CloseSent) {
            self.phase = Phase::CloseCompleted;
        }
        #[expect(clippy::cast_possible_truncation, reason = "the lower half is the mark")]
        let mark = SendQueueMark::from_bits(token as u32);
        self.credits.on_send_completion(mark);
        self.bulk.window_mut().on_send_completion(mark);
    }

    /// A frame was received. `imm` is the immediate of its completion. Then transmit, once its RECV
    /// **has been reposted**.
    ///
    /// # Errors
    /// [`ProtocolError`]: the peer broke a rule; close the connection.
    #[inline]
    pub fn on_frame(
        &mut self,
        now: Instant,
        imm: Option<u32>,
        bytes: &[u8],
    ) -> Result<Inbound, ProtocolError> {
        self.on_frame_with(now, imm, bytes, &|_| false)
    }

    /// [`Link::on_frame`], with an answer about large messages: whether the reader of the message
    /// with that head will copy its tail out. If so, the tail may be copied while it arrives. Both
    /// answers are correct; a wrong one costs a copy, or the time for one.
    ///
    /// # Errors
    /// Those of [`Link::on_frame`].
    #[inline]
    pub fn on_frame_with(
        &mut self,
        now: Instant,
        imm: Option<u32>,
        bytes: &[u8],
        copies_tail: CopiesTail<'_>,
    ) -> Result<Inbound, ProtocolError> {
        if self.on_plain_frame(imm, bytes) {
            self.on_plain_frames(now);
            return Ok(Inbound::Message { payload_at: HEADER_BYTES, slot: None });
        }
        self.on_any_frame(now, imm, bytes, copies_tail)
    }

    /// [`Link::on_frame_with`] without a try whether [`Link::on_plain_frame`] takes it.
    ///
    /// # Errors
    /// Those of [`Link::on_frame`].
    #[inline(never)]
    pub(crate) fn on_any_frame(
        &mut self,
        now: Instant,
        imm: Option<u32>,
        bytes: &[u8],
        copies_tail: CopiesTail<'_>,
    ) -> Result<Inbound, ProtocolError> {
        let (frame, payload_at) = frame::parse(bytes, imm, self.features)?;
        if self.refuses_plain & CLOSED != 0 {
            return Err(ProtocolError::AfterClose(frame.kind()));
        }
        self.keep_alive.on_received(now);
        match frame {
            Frame::Data(grant) => {
                self.credits.on_data(grant)?;
                return Ok(Inbound::Message { payload_at, slot: None });
            }
            Frame::Release(grant, blocks) => {
                self.credits.on_data(grant)?;
                let _none = self.on_blocks(now, &blocks, bytes, payload_at, copies_tail)?;
            }
            Frame::Blocks(grant, blocks) => {
                self.credits.on_data(grant)?;
                return self.on_blocks(now, &blocks, bytes, payload_at, copies_tail);
            }
            Frame::Segment(grant, segment) => {
                self.credits.on_data(grant)?;
                let (payload, written) = (&bytes[payload_at..], WrittenTo::Nowhere);
                let arrived = Arrived { segment, payload, written, slot: None };
                return self.on_segment(now, arrived, copies_tail);
            }
            Frame::Ack(grant) => self.credits.on_ack(grant)?,
            Frame::Ping(grant) => {
                self.credits.on_data(grant)?;
                self.keep_alive.on_ping()?;
            }
            Frame::Pong(grant) => {
                self.credits.on_data(grant)?;
                self.keep_alive.on_pong()?;
            }
            Frame::Close(reason) => {
                self.refuses_plain |= CLOSED;
                return Ok(Inbound::Closed(reason));
            }
        }
        Ok(Inbound::None)
    }

    /// When to call [`Link::on_timeout`]; each received frame moves it later.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.is_closing() { None } else { self.keep_alive.next_deadline() }
    }

    /// Handles timers. Then transmit: a Ping may be due. Poll and process received frames first:
    /// after a pause of this process they are the proof that the peer is alive. `traffic` is the
    /// device's traffic counters of this connection, if it has them.
    ///
    /// # Errors
    /// [`LinkError::PingTimeout`]: the peer is considered dead; end the connection.
    pub fn on_timeout(&mut self, now: Instant, traffic: Option<Traffic>) -> Result<(), LinkError> {
        if self.is_closing() {
            return Ok(());
        }
        if let Some(landing) = self.assembly.landing_mut() {
            landing.on_timeout(now);
        }
        let moves = Moves { device: traffic, completed: self.completed() };
        self.keep_alive.on_timeout(now, moves)
    }

    /// Ends this direction: Close is the next and last frame. Queued messages are not sent and can
    /// be revoked; to have them sent, wait for [`Link::is_idle`] first. Only the first reason
    /// counts.
    pub fn close(&mut self, reason: CloseReason) {
        if !self.is_closing() {
            self.phase = Phase::CloseDue(reason);
        }
    }

    /// Whether [`Link::close`] was called.
    #[inline]
    #[must_use]
    pub fn is_closing(&self) -> bool {
        !matches!(self.phase, Phase::Open)
    }

    /// Whether the Close frame has completed, so that the peer's device has it.
    #[must_use]
    pub fn is_close_completed(&self) -> bool {
        matches!(self.phase, Phase::CloseCompleted)
    }

    /// Number of messages that wait to be sent, without the one being sent in segments.
    #[inline]
    #[must_use]
    pub fn queued_count(&self) -> usize {
        self.lanes.count(Lane::Urgent)
            + self.lanes.count(Lane::Small)
            + self.lanes.count(Lane::Bulk)
    }

    /// Bytes that wait to be sent.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        let [urgent, small, large] =
            [Lane::Urgent, Lane::Small, Lane::Bulk].map(|lane| self.lanes.bytes(lane));
        let begun = self.segmenter.held_bytes() + self.bulk.unsent_bytes();
        Waiting {
            small_bytes: urgent + small,
            large_bytes: large + begun,
            together_bytes: self.lanes.together_bytes(),
            longest_small: self.eager_bytes,
        }
    }

    /// From now on, memory for messages that arrive is reserved from this budget.
    pub fn set_memory_budget(&mut self, budget: MemoryBudget) {
        self.assembly.set_budget(budget);
    }

    /// Whether every submitted message has been handed out for posting.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.lanes.is_empty()
            && !self.segmenter.has_work()
            && !self.bulk.has_begun()
            && !self.keep_alive.is_pong_due()
    }

    /// SQ slots posted and not known to be complete, WRs. Unsignaled WRs at the tail stay in
    /// flight until a later signaled one completes; Close is always signaled.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        let free = self.credits.counters();
        self.slots - u32::from(free.data_slots) - u32::from(free.ack_slots)
    }

    /// SQ slots completed, modulo 2^16.
    #[allow(clippy::cast_possible_truncation, reason = "modulo 2^16")]
    fn completed(&self) -> u16 {
        slots_of(self.credits.counters().posted).wrapping_sub(self.in_flight() as u16)
    }

    #[inline]
    fn next_source(&mut self) -> Source {
        if !self.credits.can_send(FRAME_SLOTS) {
            return Source::Nothing;
        }
        if let Some(due) = self.keep_alive.take_due() {
            return Source::KeepAlive(due);
        }
        loop {
            if self.collect_releases() {
                return Source::Release;
            }
            match self.choose_lane() {
                None => return Source::Nothing,
                Some(Lane::Bulk) => {
                    // `None`: it waits for chunks. A Release frame may be due to ask for some.
                    if let Some(source) = self.next_bulk() {
                        return source;
                    }
                }
                Some(lane) => {
                    let queued = self.lanes.pop(lane);
                    return queued
                        .map_or(Source::Nothing, |queued| Source::Whole(queued.message, lane));
                }
            }
        }
    }

    #[inline]
    fn choose_lane(&mut self) -> Option<Lane> {
        let (counters, remote) = (self.credits.counters(), self.credits.remote());
        let out = remote.data - counters.data_credits;
        let allowance = Allowance {
            has_slots: self.credits.can_send(self.message_slots),
            returned: self.sent.wrapping_sub(u32::from(out)),
            remote,
        };
        self.bulk.choose_lane(&mut self.lanes, self.segmenter.has_work(), allowance)
    }

    /// Spends the credit of a data frame; `next_source` has checked that there is one.
    #[inline]
    fn spend(&mut self) -> Option<Stamp> {
        let stamp = self.credits.send(FRAME_SLOTS)?;
        self.sent = self.sent.wrapping_add(1);
        Some(stamp)
    }

    #[inline]
    fn send_whole(&mut self, mut message: OutBuf, lane: Lane) -> Option<Transmit<'_>> {
        let number = self.sent;
        let mut stamp = self.spend()?;
        self.prepend_header(&mut message, &stamp);
        if lane == Lane::Bulk {
            let bytes = message.len() as u64;
            stamp.signaled |=
                self.bulk.window_mut().on_sent(number, stamp.mark, FRAME_SLOTS, bytes);
        } else {
            self.bulk.on_small();
        }
        Some(Transmit::data(FrameBytes::Message(message), stamp))
    }

    /// Prepends the header to a whole message, with releases if any wait and there is room.
    #[inline]
    fn prepend_header(&mut self, message: &mut OutBuf, stamp: &Stamp) {
        match self.assembly.landing_mut() {
            Some(landing) if landing.has_releases() || message.offer().is_some() => {
                landing.prepend_blocks(message, stamp, self.frame_bytes as usize);
            }
            _ => message.prepend(&frame::header(Kind::Data, stamp.grant)),
        }
    }

    fn send_keep_alive(&mut self, due: Due) -> Option<Transmit<'_>> {
        let mut stamp = self.spend()?;
        let kind = match due {
            Due::Pong => Kind::Pong,
            Due::Ping => {
                self.keep_alive.on_ping_sent(slots_of(stamp.mark));
                stamp.signaled = true;
                Kind::Ping
            }
        };
        Some(Transmit::data(FrameBytes::Control(frame::header(kind, stamp.grant)), stamp))
    }

    fn ack(&self, stamp: Stamp) -> Transmit<'static> {
        let frame = FrameBytes::Control(frame::header(Kind::Ack, stamp.grant));
        let imm = self.immediates.then_some(stamp.grant.to_imm());
        Transmit { imm, ..Transmit::data(frame, stamp) }
    }

    #[cold]
    fn poll_close(&mut self) -> Option<Transmit<'_>> {
        let Phase::CloseDue(reason) = &self.phase else {
            return None;
        };
        let frame = FrameBytes::Message(frame::close_frame(reason));
        self.phase = Phase::CloseSent;
        // Posted after everything else, so its completion frees all slots.
        let token = CLOSE_TOKEN | u64::from(self.credits.counters().posted.to_bits());
        Some(Transmit { writes: Vec::new(), frame, imm: None, signaled: true, token })
    }
}

/// SQ slots posted up to a mark, modulo 2^16.
fn slots_of(mark: SendQueueMark) -> u16 {
    mark.data.wrapping_add(mark.ack)
}
