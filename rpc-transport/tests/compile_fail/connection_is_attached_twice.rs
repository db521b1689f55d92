use rpc_transport::provider::{Attach, CompletionQueue};

fn attach(step: Attach, cq: &mut dyn CompletionQueue) {
    step.run(cq).unwrap();
    step.run(cq).unwrap();
}

fn main() {}
