use rpc_transport::device::{CompletionQueue, QpHandle, SendOp, SendWr, Source};

fn post(cq: &mut dyn CompletionQueue, qp: QpHandle) {
    let mut wr = SendWr { wr_id: 0, op: SendOp::Send, signaled: true, source: Source::Empty };
    {
        let bytes = vec![1, 2, 3];
        wr.source = Source::Inline(&bytes);
    }
    let _ = cq.post_send(qp, &mut [wr]);
}

fn main() {}
