//! The end of a connection: an orderly close, a failure, or a peer that broke a rule.
//!
//! Owns all steps from the first sign of the end to the destroyed QP. The invariants are those of
//! [`connection`](super).

use std::time::{Duration, Instant};

use super::queue_pair::{ConnectionQp, InFlight, Phase, post_drain_wr};
use super::{Connection, OwnSilence, Pressing, Progress, take_wakes_and_freed};
use crate::device::connection_error::{CloseCause, VendorError};
use crate::device::{Completion, CompletionKind, CompletionQueue, Status};
use crate::engine::clock;
use crate::engine::deferred::Deferred;
use crate::engine::upper::UpperLayer;
use crate::log_limit::LogLimit;
use crate::protocol::frame::{CloseCode, CloseReason};
use crate::protocol::link::{Revoked, UNPROVEN};
use crate::protocol::lock::Opener;
use crate::text::printable;
use crate::user_code::logged;

/// Longest time that a connection waits for its flushed work requests before its QP is destroyed.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// Longest time that an orderly close waits without anything being sent.
const CLOSE_LIMIT: Duration = DRAIN_LIMIT;
/// Time after this process did not run in which a lost peer is put down to that.
const BLAMED_FOR: Duration = Duration::from_secs(1);

// One for the whole process: a peer may come back on any connection of any shard.
static BROKEN_RULES: LogLimit = LogLimit::new("peers that broke the protocol");
static SLOW_FLUSHES: LogLimit = LogLimit::new("queue pairs that did not flush in time");

impl<P: UpperLayer> Connection<P> {
    /// Starts an orderly close: the reason is sent after what is queued.
    pub(crate) fn close(&mut self, reason: CloseReason) {
        self.closing.get_or_insert(reason);
    }

    /// Ends the connection: notifies the protocol, and a peer that broke a rule, and moves the QP
    /// to ERR (invariants 2, 4 and 5).
    #[cold]
    #[inline(never)]
    pub(crate) fn fail(&mut self, cq: &mut dyn CompletionQueue, cause: &CloseCause) {
        self.leave_fast_path();
        let Some(queue_pair) = &mut self.queue_pair else { return };
        if matches!(queue_pair.phase, Phase::Draining { .. }) {
            return;
        }
        // The peer's Close is the last that it sends.
        if matches!(cause, CloseCause::Accused(_) | CloseCause::Peer(_))
            && let Some(share) = &mut queue_pair.recv_buffers.share
        {
            share.on_close();
        }
        let parting = matches!(cause, CloseCause::Protocol(rule) if self.part(cq, rule));
        if !parting {
            self.drain(cq);
        }
        if self.cause.is_none() {
            // The peer may have given up because of this end's silence.
            let cause = match self.own_silence {
                Some(OwnSilence { ended, lasted })
                    if matches!(cause, CloseCause::Disconnected)
                        && clock::now().saturating_duration_since(ended) < BLAMED_FOR =>
                {
                    let whole_ms = lasted.as_secs() * 1000 + u64::from(lasted.subsec_millis());
                    CloseCause::OwnSilence(Duration::from_millis(whole_ms))
                }
                _ => cause.clone(),
            };
            self.cause = Some(cause.clone());
            self.notify_closed(&cause);
            self.wake_locked();
        }
        if !parting {
            self.retire_link();
        }
    }

    /// Notifies the protocol of the end, and returns the messages that were never sent.
    fn notify_closed(&mut self, cause: &CloseCause) {
        let (link, mut whole) = (&mut self.link, Vec::new());
        self.protocol.on_closed(cause, &mut |tag| match link {
            Some(link) => link.revoke(tag).without_message(|message| whole.push((tag, message))),
            None => Revoked::TooLate,
        });
        for (tag, message) in whole {
            if let Some(body) = self.protocol.on_given_back(tag, message) {
                self.deferred.push(Deferred::Body { _body: Box::new(body) });
            }
        }
    }

    /// Stops sending and receiving. Memory that the peer could write is kept until the QP is
    /// destroyed.
    pub(super) fn retire_link(&mut self) {
        let Some(mut link) = self.link.take() else { return };
        link.abandon_messages();
        // Readers of what came in the same run as the end, too: a stream has given its reader away.
        take_wakes_and_freed(&mut link, &mut self.deferred);
        let unfinished = link.take_unfinished();
        self.deferred.extend(unfinished.map(|_message| Deferred::Message { _message }));
        self.retired_link = Some(Box::new(link));
    }

    /// Moves the QP to ERR and waits for its flush.
    pub(super) fn drain(&mut self, cq: &mut dyn CompletionQueue) {
        let Some(queue_pair) = &mut self.queue_pair else { return };
        queue_pair.phase = Phase::Draining { until: clock::now() + DRAIN_LIMIT };
        let spare = queue_pair.spare.take();
        self.return_recv(cq, spare);
        let Some(queue_pair) = &mut self.queue_pair else { return };
        // Fails only for a QP that is destroyed already, which has nothing to flush.
        let _ = cq.modify_to_error(queue_pair.qp);
        post_drain_wr(cq, queue_pair);
        cq.flush();
    }

    /// Sends the peer the rule that it broke. False if that is impossible: then there is nothing to
    /// wait for.
    #[cold]
    pub(super) fn part(&mut self, cq: &mut dyn CompletionQueue, rule: &str) -> bool {
        BROKEN_RULES.fault(Instant::now(), || {
            let (peer, rule) = (self.peer.clone(), rule.to_owned());
            logged(move || {
                let peer = peer.as_ref().map(tracing::field::display);
                tracing::warn!(peer, rule, "the peer broke the protocol");
            });
        });
        let (Some(queue_pair), Some(link)) = (&mut self.queue_pair, &mut self.link) else {
            return false;
        };
        if queue_pair.phase != Phase::Up {
            return false;
        }
        queue_pair.phase = Phase::Closing;
        link.close(CloseReason::new(CloseCode::Protocol, rule));
        while let Some(transmit) = link.poll_transmit() {
            if self.send_path.post(cq, queue_pair, transmit).is_err() {
                return false;
            }
        }
        cq.flush();
        let seen = Progress { posted: queue_pair.posted_send, ..Progress::default() };
        self.pressing = Pressing::Close { until: clock::now() + CLOSE_LIMIT, seen, unproven: 0 };
        true
    }

    /// Gives the QP up without waiting for its flush: nobody will poll any more.
    pub(crate) fn abandon(&mut self, cq: &mut dyn CompletionQueue) {
        if let Some(queue_pair) = self.queue_pair.take() {
            let _ = cq.destroy_qp(queue_pair.qp);
            let in_flight = queue_pair.in_flight.into_iter().flat_map(|(_, in_flight)| in_flight);
            self.deferred.extend(in_flight.filter_map(InFlight::complete));
            let link = self.link.take().map(Box::new).or_else(|| self.retired_link.take());
            self.deferred.extend(link.map(|_link| Deferred::Link { _link }));
            self.protocol.on_released();
        }
    }

    #[cold]
    pub(super) fn advance_close(&mut self, cq: &mut dyn CompletionQueue) -> Result<(), CloseCause> {
        let (Some(queue_pair), Some(link)) = (&mut self.queue_pair, &mut self.link) else {
            return Ok(());
        };
        if !matches!(self.pressing, Pressing::Close { .. }) {
            let (until, opener) = (clock::now() + CLOSE_LIMIT, self.opener.as_deref());
            let seen = Progress::of(cq, queue_pair, opener);
            self.pressing = Pressing::Close { until, seen, unproven: 0 };
        }
        if !link.is_idle() {
            return Ok(());
        }
        if let Some(reason) = self.closing.take() {
            link.close(reason);
        }
        while !queue_pair.send_buffers.are_out()
            && let Some(transmit) = link.poll_transmit()
        {
            self.send_path.post(cq, queue_pair, transmit)?;
        }
        cq.flush();
        Ok(())
    }

    /// Ends a close that makes no progress: the peer accepts nothing more, or its device does not
    /// acknowledge the Close. Where frames are sealed, progress that no opened frame proves puts
    /// the end off [`UNPROVEN`] times.
    pub(super) fn check_close_timeout(&mut self, cq: &mut dyn CompletionQueue, now: Instant) {
        let (Pressing::Close { until, seen, unproven }, Some(queue_pair)) =
            (&mut self.pressing, &self.queue_pair)
        else {
            return;
        };
        let before = *seen;
        if queue_pair.phase == Phase::Up {
            *seen = Progress::of(cq, queue_pair, self.opener.as_deref());
        } else {
            seen.posted = queue_pair.posted_send;
        }
        let is_proven = before.opened.is_none() || before.opened != seen.opened;
        *unproven = if is_proven { 0 } else { *unproven + 1 };
        if before == *seen || *unproven > UNPROVEN {
            self.fail(cq, &CloseCause::Local);
        } else {
            *until = now + CLOSE_LIMIT;
        }
    }

    pub(super) fn finish_drain(
        &mut self,
        cq: &mut dyn CompletionQueue,
        now: Instant,
    ) -> Option<bool> {
        let queue_pair = self.queue_pair.as_mut()?;
        let Phase::Draining { until } = queue_pair.phase else { return None };
        let drained = queue_pair.is_drained(cq);
        if !drained {
            if now < until {
                return None;
            }
            let qp = queue_pair.qp;
            let text = "queue pair did not flush in time, destroying it";
            SLOW_FLUSHES.fault(Instant::now(), || logged(move || tracing::warn!(?qp, "{text}")));
        }
        if drained && let Some(share) = &mut queue_pair.recv_buffers.share {
            share.on_drained();
        }
        self.abandon(cq);
        Some(drained)
    }
}

impl Progress {
    fn of(
        cq: &mut dyn CompletionQueue,
        queue_pair: &ConnectionQp,
        opener: Option<&Opener>,
    ) -> Self {
        let accepted = cq.traffic(queue_pair.qp).unwrap_or_default().accepted;
        Self { posted: queue_pair.posted_send, accepted, opened: opener.map(Opener::opened) }
    }
}

pub(super) fn closed_by_peer(reason: &CloseReason) -> CloseCause {
    match reason.code {
        CloseCode::Protocol => CloseCause::Accused(printable(&reason.text).to_string().into()),
        _ => CloseCause::Peer(reason.to_string().into()),
    }
}

/// What the first failed completion of a QP means. `has_remote_errors`: see
/// [`SendPath::has_remote_errors`](super::SendPath).
#[cold]
pub(super) fn cause_of(
    completion: &Completion,
    vendor_error: u32,
    has_remote_errors: bool,
) -> CloseCause {
    let is_send = completion.kind == CompletionKind::Send;
    match completion.status {
        // The device moved the QP to ERR: the peer went away.
        Status::FlushError | Status::RetryExceeded => CloseCause::Disconnected,
        // It went while this was being sent (see `Capabilities::REMOTE_ERRORS`).
        Status::LocalQpOperation if is_send && !has_remote_errors => CloseCause::Disconnected,
        status => CloseCause::WorkRequest(status, VendorError(vendor_error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::is_printable;

    /// A peer forged lines of the log by the text of its Close.
    #[test]
    fn the_text_of_a_close_is_printable() {
        let text = "bye\n2026-01-01 ERROR forged \u{1b}[2J\u{202e}";
        for code in [0, 1, 2, 3, 99] {
            let reason = CloseReason::new(CloseCode::from_wire(code), text);
            assert!(is_printable(&reason.to_string()), "{reason}");
            let cause = closed_by_peer(&reason);
            assert!(is_printable(&cause.to_string()), "{cause}");
            assert!(cause.to_string().contains(r"bye\n2026"), "{cause}");
        }
    }
}
