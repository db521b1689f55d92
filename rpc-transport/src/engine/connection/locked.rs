//! A connection whose ends have not proved yet who they are: it has no link.
//!
//! Owns the frames that arrive until then. Never looks inside them, as cryptography must not run
//! under the shard's lock: the set-up future takes them out. The invariants are those of
//! [`connection`](super), and:
//!
//! 1. Frames before UNLOCKED are bounded in number and bytes, by the bounds of a handshake. Those
//!    behind it are of the link, and take the RECVs of the first window at most.
//! 2. Each frame is copied and its RECV posted again at once, so that a window is whole when its
//!    link is made.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Instant;

use super::ending::closed_by_peer;
use super::queue_pair::Phase;
use super::{Connection, Deferred, FIRST_SEND_BUFFERS};
use crate::device::connection_error::CloseCause;
use crate::device::{CompletionQueue, PeerIdentity};
use crate::engine::upper::UpperLayer;
use crate::message::received::Message;
use crate::protocol::frame::{self, CONTROL_FRAME_MAX_BYTES, Frame, Kind};
use crate::protocol::handshake::Features;
use crate::protocol::link::{Inbound, Link, OnReturn};
use crate::protocol::lock::{MAX_BYTES, MAX_FRAMES, Opener, Sealer};

/// A frame that arrived before there was a link.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) imm: Option<u32>,
    pub(crate) bytes: Vec<u8>,
}

/// Frames that no link has seen.
pub(super) struct Locked {
    inbox: VecDeque<Arrived>,
    frames_left: u32,
    bytes_left: usize,
    /// UNLOCKED has arrived.
    is_unlocking: bool,
    waker: Option<Waker>,
}

impl Locked {
    fn new() -> Self {
        // One more: UNLOCKED, or a Close.
        let frames_left = u32::from(MAX_FRAMES) + 1;
        let bytes_left = MAX_BYTES + frames_left as usize * CONTROL_FRAME_MAX_BYTES;
        Self { inbox: VecDeque::new(), frames_left, bytes_left, is_unlocking: false, waker: None }
    }
}

impl<P: UpperLayer> Connection<P> {
    /// Frames are kept until there is a link.
    pub(crate) fn lock(&mut self) {
        self.locked = Some(Box::new(Locked::new()));
    }

    /// Whether it has no link because its ends have not proved yet who they are.
    pub(crate) fn is_locked(&self) -> bool {
        self.locked.is_some()
    }

    /// A frame has arrived, and there is no link.
    #[cold]
    pub(super) fn on_locked_frame(
        &mut self,
        imm: Option<u32>,
        bytes: &[u8],
    ) -> Result<(), CloseCause> {
        let protocol = |rule: &str| Err(CloseCause::Protocol(rule.into()));
        let (Some(locked), Some(queue_pair)) = (&mut self.locked, &self.queue_pair) else {
            return protocol("a frame arrived before the connection was set up");
        };
        let Some(frames_left) = locked.frames_left.checked_sub(1) else {
            return protocol("too many frames on a locked connection");
        };
        locked.frames_left = frames_left;
        if !locked.is_unlocking {
            let Some(bytes_left) = locked.bytes_left.checked_sub(bytes.len()) else {
                return protocol("too many bytes on a locked connection");
            };
            locked.bytes_left = bytes_left;
            if bytes.first() == Some(&(Kind::Unlocked as u8)) {
                locked.is_unlocking = true;
                locked.frames_left = queue_pair.window_recv;
            }
        }
        locked.inbox.push_back(Arrived { imm, bytes: bytes.to_vec() });
        self.wake_locked();
        Ok(())
    }

    /// Wakes the set-up future, once the lock is released.
    #[cold]
    pub(super) fn wake_locked(&mut self) {
        let waker = self.locked.as_mut().and_then(|locked| locked.waker.take());
        self.deferred.extend(waker.map(Deferred::Wake));
    }

    /// Has `waker` woken when a frame arrives, a send completes or the connection ends. Returns the
    /// one that it replaces, to be dropped without the lock.
    pub(crate) fn set_locked_waker(&mut self, waker: Waker) -> Option<Waker> {
        let Some(locked) = &mut self.locked else { return Some(waker) };
        locked.waker.replace(waker)
    }

    /// The next frame that arrived, also from a connection that has ended since.
    pub(crate) fn take_arrived(&mut self) -> Option<Arrived> {
        self.locked.as_mut()?.inbox.pop_front()
    }

    /// The cause that a Close gives which arrived behind UNLOCKED. `opener`: if frames are sealed.
    pub(crate) fn take_parting(&mut self, mut opener: Option<Opener>) -> Option<CloseCause> {
        let locked = self.locked.as_mut().filter(|locked| locked.is_unlocking)?;
        let mut last = None;
        for mut arrived in locked.inbox.drain(..) {
            if let Some(opener) = &mut opener {
                let len = opener.open(arrived.imm, &mut arrived.bytes).ok()?;
                arrived.bytes.truncate(len);
            }
            last = Some(arrived);
        }
        let last = last?;
        match frame::parse(&last.bytes, last.imm, Features::NONE) {
            Ok((Frame::Close(reason), _)) => Some(closed_by_peer(&reason)),
            _ => None,
        }
    }

    /// Posts frames as far as the SQ has room. Returns whether all were sent.
    ///
    /// # Errors
    /// The device refuses one.
    pub(crate) fn send_locked(
        &mut self,
        cq: &mut dyn CompletionQueue,
        outbox: &mut VecDeque<Vec<u8>>,
    ) -> Result<bool, CloseCause> {
        let Some(queue_pair) = &mut self.queue_pair else { return Ok(false) };
        let before = queue_pair.posted_send;
        // Not too many for any queue and its buffers. A server's flight is of two frames.
        while queue_pair.phase == Phase::Up
            && queue_pair.sends_under_way() < FIRST_SEND_BUFFERS
            && let Some(frame) = outbox.pop_front()
        {
            self.send_path.post_bytes(cq, queue_pair, &frame)?;
        }
        if queue_pair.posted_send != before {
            cq.flush();
        }
        Ok(outbox.is_empty() && queue_pair.posted_send == queue_pair.retired_send)
    }

    /// A server has a link from now on, and sends UNLOCKED as its first frame.
    ///
    /// # Errors
    /// The client sent something before that, or the device refuses the frame.
    pub(crate) fn unlock(
        &mut self,
        cq: &mut dyn CompletionQueue,
        unlocked: &[u8],
        (link, peer, on_return): (Link, &PeerIdentity, OnReturn),
        sealing: Option<(Sealer, Opener)>,
    ) -> Result<(), CloseCause> {
        if self.take_lock().is_some_and(|arrived| !arrived.is_empty()) {
            return Err(CloseCause::Protocol("a frame arrived before the server unlocked".into()));
        }
        self.set_link(link, peer, on_return);
        let (Some(queue_pair), Some(link)) = (&mut self.queue_pair, &mut self.link) else {
            return Ok(());
        };
        let Some(transmit) = link.unlock(unlocked) else { return Ok(()) };
        self.send_path.post(cq, queue_pair, transmit)?;
        cq.flush();
        cq.release_buffers(queue_pair.qp);
        if let Some((sealer, opener)) = sealing {
            self.seal(sealer, opener);
        }
        Ok(())
    }

    /// A client has a link from now on. Returns the frames that came behind UNLOCKED, for
    /// [`Connection::on_late_frames`].
    ///
    /// # Errors
    /// None on a new link.
    pub(crate) fn on_unlocked(
        &mut self,
        cq: &mut dyn CompletionQueue,
        (mut link, peer, on_return): (Link, &PeerIdentity, OnReturn),
        sealing: Option<(Sealer, Opener)>,
    ) -> Result<VecDeque<Arrived>, CloseCause> {
        if let Some(queue_pair) = &self.queue_pair {
            cq.release_buffers(queue_pair.qp);
        }
        let arrived = self.take_lock().unwrap_or_default();
        let taken = link.on_unlocked();
        taken.map_err(|error| CloseCause::Protocol(error.to_string().into()))?;
        self.set_link(link, peer, on_return);
        if let Some((sealer, opener)) = sealing {
            self.seal(sealer, opener);
        }
        Ok(arrived)
    }

    /// Gives frames to the link that arrived before it was made.
    pub(crate) fn on_late_frames(
        &mut self,
        cq: &mut dyn CompletionQueue,
        now: Instant,
        arrived: VecDeque<Arrived>,
    ) {
        for arrived in arrived {
            if let Err(cause) = self.on_late_frame(now, arrived) {
                return self.fail(cq, &cause);
            }
        }
        self.end_run(cq, now, &mut Vec::new());
    }

    fn on_late_frame(
        &mut self,
        now: Instant,
        Arrived { imm, mut bytes }: Arrived,
    ) -> Result<(), CloseCause> {
        let Some(link) = &mut self.link else { return Ok(()) };
        if let Some(opener) = &mut self.opener {
            let opened = opener.open(imm, &mut bytes);
            let len = opened.map_err(|error| CloseCause::Protocol(error.to_string().into()))?;
            bytes.truncate(len);
            link.set_record_keys(opener.record_keys());
        }
        let protocol = &self.protocol;
        let inbound = link.on_any_frame(now, imm, &bytes, &|head| protocol.copies_tail(head));
        let message = match inbound {
            Ok(Inbound::Message { payload_at, slot }) => {
                Message::copied(&bytes[payload_at..]).with_slot(slot)
            }
            Ok(Inbound::Assembled(message)) => message,
            Ok(Inbound::Closed(reason)) => return Err(closed_by_peer(&reason)),
            Ok(Inbound::None) => return Ok(()),
            Err(error) => return Err(CloseCause::Protocol(error.to_string().into())),
        };
        self.on_message(message).map_err(CloseCause::Protocol)
    }

    fn take_lock(&mut self) -> Option<VecDeque<Arrived>> {
        // Its waker may be the user's.
        self.wake_locked();
        self.locked.take().map(|locked| locked.inbox)
    }
}
