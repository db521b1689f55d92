use rpc_transport::device::{Attach, CompletionQueue};

fn attach(step: Attach, cq: &mut dyn CompletionQueue) {
    step.run(cq).unwrap();
    step.run(cq).unwrap();
}

fn main() {}
