#[rpc_core::service]
pub trait Mistake {
    async fn call(&self, a: Box<dyn Send>, b: fn(u8), c: *const u8, d: Vec<_>, e: &Self);
}

fn main() {}
