#[rpc_core::service]
pub trait Mistake {
    async fn call(&self, _key: &str) -> u64;
}

struct Store;

impl Mistake for Store {
    async fn call(&self, _key: String) -> u32 {
        1
    }
}

fn main() {}
