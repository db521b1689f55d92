use rpc_transport::device::{CompletionQueue, QpHandle, RemoteSlice, SendOp, SendWr, Source};
use rpc_transport::memory::region::Buffer;

fn look(cq: &mut dyn CompletionQueue, qp: QpHandle, from: RemoteSlice, into: Buffer) -> u8 {
    let op = SendOp::Read { from, into, len: 8 };
    let _ = cq.post_send(qp, &mut [SendWr { wr_id: 0, op, signaled: true, source: Source::Empty }]);
    into[0]
}

fn main() {}
