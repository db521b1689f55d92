use rpc_transport::device::{CompletionQueue, QpHandle, SendOp, SendWr, Source};

fn post(cq: &mut dyn CompletionQueue, qp: QpHandle, source: Source<'_>) {
    let first = SendWr { wr_id: 0, op: SendOp::Send, signaled: true, source };
    let second = SendWr { wr_id: 1, op: SendOp::Send, signaled: true, source };
    let _ = cq.post_send(qp, &mut [first, second]);
}

fn main() {}
