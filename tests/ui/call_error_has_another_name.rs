use rpc_core::CallError as Failure;

#[rpc_core::service]
pub trait Mistake {
    async fn renamed(&self) -> Result<u8, Failure<String>>;
}

fn main() {}
