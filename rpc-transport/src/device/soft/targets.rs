//! Dispatches a packet to the requester or the responder of its queue pair, the same for all wires.
//!
//! Owns that choice. Never reads or writes a wire.

use super::packet::{Extension, Flags, Head, Op};
use super::requester::Requester;
use super::responder::{Landing, Refusal, Responder};
use super::sink::{Sink, Slots};

/// The parts of a queue pair that packets change.
pub(super) struct PacketTargets<'a, 'b> {
    pub(super) requester: &'a mut Requester,
    pub(super) responder: &'a mut Responder,
    pub(super) sink: &'a mut Sink<'b>,
    pub(super) used: &'a mut Slots,
}

impl PacketTargets<'_, '_> {
    /// Whether the poll's caller accepts more completions.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.sink.has_room()
    }

    /// Starts a packet: checks it and says where its payload goes. The landing is valid for the
    /// packet's payload until the packet is finished or the QP is flushed.
    pub(super) fn begin(&mut self, head: Head, extension: Extension) -> Result<Landing, Refusal> {
        match head.op {
            Op::ReadResponse => {
                self.requester.read_target(head.payload_bytes()).ok_or(Refusal::Protocol)
            }
            _ => self.responder.begin(head, extension),
        }
    }

    /// Finishes a packet whose payload has arrived.
    pub(super) fn finish(&mut self, head: Head, extension: Extension) -> Result<(), Refusal> {
        if head.op == Op::ReadResponse {
            let last = head.flags.contains(Flags::LAST);
            let good = self.requester.read_arrived(head.payload_bytes(), last);
            return if good { Ok(()) } else { Err(Refusal::Protocol) };
        }
        self.responder.finish(head, extension, self.sink, self.used);
        Ok(())
    }
}
