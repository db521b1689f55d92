#[rpc_core::service]
pub trait Mistake {
    async fn call(&self, (a, b): (u8, u8), mut c: u8, ref d: u8, _: u8, e @ 1: u8);
}

fn main() {}
