#[rpc_core::service]
pub struct Mistake;

fn main() {}
