#[rpc_core::service]
pub trait Mistake {
    #[rpc(result)]
    async fn call(&self) -> Option<u64>;
}

fn main() {}
