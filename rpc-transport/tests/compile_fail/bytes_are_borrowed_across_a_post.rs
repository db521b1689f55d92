use rpc_transport::memory::region::Buffer;
use rpc_transport::device::{CompletionQueue, QpHandle, RecvWr};

fn post(cq: &mut dyn CompletionQueue, qp: QpHandle, buffer: Buffer) -> u8 {
    let bytes = &buffer[..];
    let _ = cq.post_recv(qp, RecvWr { wr_id: 0, buffer });
    bytes[0]
}

fn main() {}
