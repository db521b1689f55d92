#[rpc_core::service]
pub trait Mistake {
    async fn call(&self, #[allow(unused)] key: u64);
}

fn main() {}
