//! The QP of a connection, its buffers, and the work requests posted on it.
//!
//! Owns the count of work requests and the memory that those in flight read. Decides nothing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::recv_buffers::RecvBuffers;
use super::send_buffers::SendBuffers;
use crate::device::connection_error::CloseCause;
use crate::device::{
    CompletionQueue, PostError, ProviderError, QpHandle, RecvWr, SendOp, SendWr, Source,
};
use crate::engine::deferred::Deferred;
use crate::memory::region::{Buffer, MemoryWindow};
use crate::message::part::OutPart;

/// Low bits of a wr_id that hold the link's token, which is below 2^33. The bits above hold the
/// sequence number of the send WR.
pub(super) const TOKEN_BITS: u32 = 33;

/// Time between two checks whether a connection is quiet. Below the default interval of keep-alive,
/// whose Pings and Pongs would otherwise write to one receive buffer after the other.
const QUIET_INTERVAL: Duration = Duration::from_secs(10);
/// A connection that posts no more send WRs in that time is quiet.
const QUIET_SENDS: u32 = 64;

/// Memory that a WRITE in flight reads.
pub(super) enum InFlight {
    /// The part itself.
    Part(OutPart),
    /// A staged copy.
    Staged { _buffer: Buffer },
}

impl InFlight {
    /// The WRITE has completed: returns memory that must be dropped outside the lock.
    pub(super) fn complete(self) -> Option<Deferred> {
        match self {
            Self::Part(_part) => Some(Deferred::Part { _part }),
            Self::Staged { .. } => None,
        }
    }
}

/// The transport half of a connection, as long as its QP exists.
pub(crate) struct ConnectionQp {
    pub(crate) qp: QpHandle,
    /// The protection domain of its memory.
    pub(crate) domain: u64,
    pub(crate) max_inline_bytes: usize,
    pub(crate) recv_buffers: RecvBuffers,
    pub(super) send_buffers: SendBuffers,
    pub(crate) posted_recv: u32,
    /// RECVs of the window of now: at least so many are posted whenever credits are granted, not
    /// counting the spare (credit rule 2).
    pub(super) window_recv: u32,
    /// The buffer of the RECV that completed last, not reposted yet.
    pub(super) spare: Option<Buffer>,
    // Send WRs posted and retired, modulo 2^31.
    pub(super) posted_send: u32,
    pub(super) retired_send: u32,
    /// The device refuses the drain WR: when the silent WRs are done is known only once the QP is
    /// destroyed.
    pub(super) ends_undrained: bool,
    /// Memory that WRITEs in flight read, by the sequence number of the SEND behind them.
    pub(super) in_flight: VecDeque<(u32, Vec<InFlight>)>,
    pub(super) phase: Phase,
    /// The sequence number of the last bind: there is an SQ slot for one at a time.
    last_bind: Option<u32>,
    quiet_check: QuietCheck,
}

/// The last check whether the connection is quiet.
#[derive(Debug, Clone, Copy, Default)]
struct QuietCheck {
    at: Option<Instant>,
    /// Send WRs posted until then, modulo 2^31.
    posted_send: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Created; RECVs may complete, nothing may be sent yet.
    Setup,
    Up,
    /// The peer has broken a rule and a Close is being sent to it: what it sends is ignored.
    Closing,
    /// In ERR, waiting for the WRs to be flushed.
    Draining {
        until: Instant,
    },
}

impl ConnectionQp {
    pub(crate) fn new(
        qp: QpHandle,
        max_inline_bytes: u32,
        mut recv_buffers: RecvBuffers,
        send_buffers: SendBuffers,
    ) -> Self {
        // Those of a share are posted already.
        let mut posted_recv = 0;
        if let Some(share) = &mut recv_buffers.share {
            share.on_qp();
            posted_recv = recv_buffers.first();
        }
        Self {
            qp,
            domain: recv_buffers.domain(),
            max_inline_bytes: max_inline_bytes as usize,
            window_recv: recv_buffers.first() - 1,
            send_buffers,
            posted_recv,
            spare: None,
            posted_send: 0,
            retired_send: 0,
            ends_undrained: false,
            in_flight: VecDeque::new(),
            phase: Phase::Setup,
            recv_buffers,
            last_bind: None,
            quiet_check: QuietCheck::default(),
        }
    }

    /// The WRs up to `sequence` have completed.
    pub(super) fn retire(&mut self, sequence: u32, deferred: &mut Vec<Deferred>) {
        self.retired_send = sequence;
        while let Some((in_flight, _)) = self.in_flight.front()
            && sequence.wrapping_sub(*in_flight) & SEQUENCE_MASK <= SEQUENCE_MASK / 2
        {
            let retired = self.in_flight.pop_front();
            deferred.extend(
                retired
                    .into_iter()
                    .flat_map(|(_, in_flight)| in_flight)
                    .filter_map(InFlight::complete),
            );
        }
    }

    /// Whether a bind may still have its SQ slot: no signaled WR behind it has completed.
    pub(super) fn is_binding(&self) -> bool {
        self.last_bind.is_some_and(|bind| {
            (1..=SEQUENCE_MASK / 2)
                .contains(&(bind.wrapping_sub(self.retired_send) & SEQUENCE_MASK))
        })
    }

    /// Posts the bind of a window, in the SQ slot of the drain WR, which is not posted yet. It is
    /// unsignaled: the link counts none of its slots, and would take its completion for that of a
    /// frame.
    #[cold]
    pub(super) fn bind(
        &mut self,
        cq: &mut dyn CompletionQueue,
        window: MemoryWindow,
    ) -> Result<(), CloseCause> {
        debug_assert!(!self.is_binding(), "one at a time");
        let (op, source) = (SendOp::Bind, Source::Window(window));
        let wr = SendWr { wr_id: wr_id(self, 1), op, signaled: false, source };
        cq.post_send(self.qp, &mut [wr]).map_err(|error| refused(&error))?;
        self.on_posted(1);
        self.last_bind = Some(self.posted_send);
        Ok(())
    }

    /// The sequence number of the WR that is `ahead` WRs from now (1: the next one).
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "an SQ is far shorter than 2^31")]
    pub(super) fn sequence(&self, ahead: usize) -> u32 {
        self.posted_send.wrapping_add(ahead as u32) & SEQUENCE_MASK
    }

    /// Posts one RECV.
    #[inline]
    pub(super) fn post_recv(
        &mut self,
        cq: &mut dyn CompletionQueue,
        buffer: Buffer,
    ) -> Result<(), CloseCause> {
        let wr = RecvWr { wr_id: 0, buffer };
        let posted = match self.recv_buffers.share {
            None => cq.post_recv(self.qp, wr),
            Some(_) => cq.post_srq_recv(wr),
        };
        posted.map_err(|(error, _)| refused(&error))?;
        self.posted_recv += 1;
        Ok(())
    }

    /// Posts a list of RECVs.
    #[inline]
    pub(super) fn post_recvs(
        &mut self,
        cq: &mut dyn CompletionQueue,
        wrs: &mut Vec<RecvWr>,
    ) -> Result<(), CloseCause> {
        if self.recv_buffers.share.is_some() {
            return self.post_shared(cq, wrs);
        }
        let count = wrs.len();
        let posted = cq.post_recvs(self.qp, wrs);
        self.posted_recv += u32::try_from(count - wrs.len()).unwrap_or(u32::MAX);
        posted.map_err(|error| refused(&error))
    }

    /// Posts a list of RECVs that connections share. Whatever happens to this connection, the
    /// others need all of them.
    #[cold]
    fn post_shared(
        &mut self,
        cq: &mut dyn CompletionQueue,
        wrs: &mut Vec<RecvWr>,
    ) -> Result<(), CloseCause> {
        let mut posted = Ok(());
        for wr in wrs.drain(..) {
            posted = posted.and(self.post_recv(cq, wr.buffer));
        }
        posted
    }

    /// A RECV has been taken that `reposts` does not have yet: all of the window are posted, or
    /// about to be.
    #[inline]
    pub(super) fn check_window(&self, reposts: &[RecvWr]) {
        let kept = reposts.len() + self.spare.iter().count() + 1;
        debug_assert!(
            self.posted_recv as usize + kept > self.window_recv as usize,
            "a RECV of the window is neither posted nor about to be"
        );
    }

    /// `count` WRs have been posted.
    #[inline]
    pub(super) fn on_posted(&mut self, count: usize) {
        self.posted_send = self.sequence(count);
    }

    /// A timer has fired. Returns true if [`QUIET_INTERVAL`] has passed since the last check and
    /// the connection was quiet meanwhile.
    pub(super) fn is_found_quiet(&mut self, now: Instant) -> bool {
        let QuietCheck { at, posted_send } = self.quiet_check;
        if at.is_some_and(|at| now.saturating_duration_since(at) < QUIET_INTERVAL) {
            return false;
        }
        self.quiet_check = QuietCheck { at: Some(now), posted_send: self.posted_send };
        self.posted_send.wrapping_sub(posted_send) & SEQUENCE_MASK <= QUIET_SENDS
    }

    /// Send WRs that have not completed, as far as is known.
    pub(super) fn sends_under_way(&self) -> u32 {
        self.posted_send.wrapping_sub(self.retired_send) & SEQUENCE_MASK
    }

    /// Whether all WRs of a QP in ERR have completed.
    pub(super) fn is_drained(&self, cq: &mut dyn CompletionQueue) -> bool {
        let sends_done = self.ends_undrained || self.posted_send == self.retired_send;
        let recvs_done = match self.recv_buffers.share {
            None => self.posted_recv == 0,
            Some(_) => cq.has_drained(self.qp),
        };
        sends_done && recvs_done
    }
}

/// The device took no WR.
#[cold]
pub(super) fn refused(error: &PostError) -> CloseCause {
    CloseCause::Device(error.to_string().into())
}

/// There is no memory for a WR.
#[cold]
pub(super) fn failed(error: &ProviderError) -> CloseCause {
    CloseCause::Device(error.to_string().into())
}

/// The id of the WR that is `ahead` WRs from now (1: the next one); it is counted once it is
/// posted.
#[inline]
pub(super) fn wr_id(queue_pair: &ConnectionQp, ahead: usize) -> u64 {
    u64::from(queue_pair.sequence(ahead)) << TOKEN_BITS
}

/// Posts the drain WR. Unsignaled WRs that have succeeded give no flush completion, so a signaled
/// WR goes last, in an SQ slot reserved for it: when it is flushed, no earlier one is left. If a
/// bind still has that slot, and all others are taken, it is refused.
pub(super) fn post_drain_wr(cq: &mut dyn CompletionQueue, queue_pair: &mut ConnectionQp) {
    if queue_pair.posted_send == queue_pair.retired_send {
        return;
    }
    let sequence = queue_pair.sequence(1);
    let wr_id = u64::from(sequence) << TOKEN_BITS;
    let wr = SendWr { wr_id, op: SendOp::Send, signaled: true, source: Source::Empty };
    match cq.post_send(queue_pair.qp, &mut [wr]) {
        Ok(()) => queue_pair.on_posted(1),
        Err(_) => queue_pair.ends_undrained = true,
    }
}

pub(super) const SEQUENCE_MASK: u32 = (1 << (64 - TOKEN_BITS)) - 1;

#[allow(clippy::cast_possible_truncation, reason = "31 bits are left above the token")]
pub(super) fn split_wr_id(wr_id: u64) -> (u32, u64) {
    ((wr_id >> TOKEN_BITS) as u32, wr_id & ((1 << TOKEN_BITS) - 1))
}
