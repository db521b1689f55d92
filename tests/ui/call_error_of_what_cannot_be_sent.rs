use rpc_core::CallError;

pub struct Handle;

#[rpc_core::service]
pub trait Mistake {
    async fn handle(&self) -> Result<u8, CallError<Handle>>;
}

fn main() {}
