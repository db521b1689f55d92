pub struct Handle;

#[rpc_core::service]
pub trait Mistake {
    async fn call(&self, ok: u64, handle: Handle);
}

fn main() {}
