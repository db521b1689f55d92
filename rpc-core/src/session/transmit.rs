//! The queue of frames for the link, except requests, which wait with their calls.
//!
//! Owns their order: control frames before responses. A frame that is still queued here can be
//! removed without the peer or the link knowing.
//!
//! Invariants:
//! 1. At most one control frame or response is here per slot and direction, with streams at most
//!    five, so a correct peer bounds the queue by the limits in the hellos.

use std::collections::VecDeque;

use rpc_transport::message::outgoing::OutBuf;

use super::call::Transmit;
use crate::wire::{self, Hello, HowRead, WireId};

/// Frames that only head a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Control {
    Hello(Hello),
    Cancel(WireId),
    Cancelled(WireId),
    GoAway {
        drained: bool,
    },
    /// The callee has the request, or has accepted the call.
    Opened {
        id: WireId,
        accepted: bool,
        read: HowRead,
    },
    /// The arguments end abnormally.
    Reset {
        id: WireId,
        code: u8,
    },
    /// A receiver gives up.
    Stop {
        id: WireId,
        results: bool,
        code: u8,
    },
}

/// Who a frame belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Request = 0,
    Response = 1,
}

/// Names a request or response to the link. Unique until the call's proof has arrived, never 0.
#[inline]
pub(super) fn tag(side: Side, id: WireId) -> u64 {
    u64::from(id.generation) << 32 | u64::from(id.slot) << 1 | side as u64
}

/// Names all items of a stream to the link, and the end that follows the request. Never a
/// [`tag`]: slots are below 2^24.
#[inline]
pub(super) fn item_tag(side: Side, id: WireId) -> u64 {
    1 << 31 | tag(side, id)
}

/// The queue.
#[derive(Debug, Default)]
pub(super) struct FrameQueue {
    control: VecDeque<Control>,
    /// What this end says of itself, until its hello has left.
    credentials: Option<Box<[u8]>>,
    responses: VecDeque<(u64, OutBuf)>,
}

impl FrameQueue {
    pub(super) fn push_control(&mut self, control: Control) {
        self.control.push_back(control);
    }

    pub(super) fn push_first(&mut self, control: Control) {
        self.control.push_front(control);
    }

    #[inline]
    pub(super) fn push_response(&mut self, id: WireId, frame: OutBuf) {
        self.responses.push_back((tag(Side::Response, id), frame));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.control.is_empty() && self.responses.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.control.len() + self.responses.len()
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Transmit> {
        if let Some(control) = self.control.pop_front() {
            return Some(self.transmit_control(control));
        }
        let (tag, frame) = self.responses.pop_front()?;
        Some(Transmit { urgent: false, tag, frame })
    }

    /// Sends credentials with the hello.
    pub(super) fn present(&mut self, credentials: &[u8]) {
        self.credentials = Some(credentials.into());
    }

    #[cold]
    fn transmit_control(&mut self, control: Control) -> Transmit {
        match (control, self.credentials.take_if(|_| matches!(control, Control::Hello(_)))) {
            (Control::Hello(mut content), Some(credentials)) => {
                content.features |= wire::FEATURE_CREDENTIALS;
                let mut frame = wire::hello(&content);
                wire::append_credentials(&mut frame, &credentials);
                Transmit { urgent: true, tag: 0, frame }
            }
            _ => transmit_control(control),
        }
    }

    /// Takes a response back, if it is still here.
    pub(super) fn revoke_response(&mut self, id: WireId) -> Option<OutBuf> {
        let tag = tag(Side::Response, id);
        let at = self.responses.iter().rposition(|(queued, _)| *queued == tag)?;
        self.responses.remove(at).map(|(_, frame)| frame)
    }

    /// Empties the queue; gives the responses.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = OutBuf> + use<> {
        self.control.clear();
        std::mem::take(&mut self.responses).into_iter().map(|(_, frame)| frame)
    }
}

#[cold]
fn transmit_control(control: Control) -> Transmit {
    let frame = match control {
        Control::Hello(content) => wire::hello(&content),
        Control::Cancel(id) => wire::cancel(id),
        Control::Cancelled(id) => wire::cancelled(id),
        Control::GoAway { drained } => wire::go_away(drained),
        Control::Opened { id, accepted, read } => wire::opened(id, accepted, read),
        Control::Reset { id, code } => wire::reset(id, code),
        Control::Stop { id, results, code } => wire::stop(id, results, code),
    };
    Transmit { urgent: true, tag: 0, frame }
}
