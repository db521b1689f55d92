use rpc_transport::memory::region::Buffer;
use rpc_transport::device::{CompletionQueue, QpHandle, SendOp, SendWr, Source};

fn post(cq: &mut dyn CompletionQueue, qp: QpHandle, mut buffer: Buffer) {
    let source = Source::Buffer { buffer, start: 0, len: 64 };
    let _ = cq.post_send(qp, &mut [SendWr { wr_id: 0, op: SendOp::Send, signaled: true, source }]);
    buffer[0] = 1;
}

fn main() {}
