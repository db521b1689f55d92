#[rpc_core::service]
pub trait Kv {
    async fn put(&self, bytes: [u8; 33], numbers: [u64; 33]) -> Vec<[u64; 33]>;
}

fn main() {}
