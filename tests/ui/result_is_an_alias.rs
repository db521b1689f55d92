#[rpc_core::service]
pub trait Mistake {
    async fn unmarked(&self) -> std::io::Result<u64>;
}

fn main() {}
