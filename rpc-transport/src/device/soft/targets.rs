//! Dispatches a packet to the requester or the responder of its queue pair, for all wires alike.
//!
//! Owns that choice. Never reads or writes a wire.

use super::landing::{Landing, Refusal, TakePackets};
use super::packet::{Extension, Flags, Head, Op};
use super::requester::Requester;
use super::responder::Responder;
use super::sink::{Sink, Slots};

/// The parts of a queue pair that packets change.
pub(super) struct PacketTargets<'a, 'b> {
    pub(super) requester: &'a mut Requester,
    pub(super) responder: &'a mut Responder,
    pub(super) sink: &'a mut Sink<'b>,
    pub(super) used: &'a mut Slots,
}

impl TakePackets for PacketTargets<'_, '_> {
    #[inline]
    fn has_room(&self) -> bool {
        self.sink.has_room()
    }

    fn begin(&mut self, head: Head, extension: Extension) -> Result<Landing, Refusal> {
        match head.op {
            Op::ReadResponse => {
                self.requester.read_target(head.payload_bytes()).ok_or(Refusal::Protocol)
            }
            _ => self.responder.begin(head, extension, self.sink),
        }
    }

    fn finish(&mut self, head: Head, extension: Extension) -> Result<(), Refusal> {
        if head.op == Op::ReadResponse {
            let last = head.flags.contains(Flags::LAST);
            let good = self.requester.read_arrived(head.payload_bytes(), last);
            return if good { Ok(()) } else { Err(Refusal::Protocol) };
        }
        self.responder.finish(head, extension, self.sink, self.used);
        Ok(())
    }
}
