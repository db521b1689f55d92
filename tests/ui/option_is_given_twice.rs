#[rpc_core::service(name = "A", name = "B")]
pub trait Mistake {
    #[rpc(spawn)]
    #[rpc(spawn)]
    async fn a(&self);
    #[rpc(version = 1, version = 2)]
    async fn b(&self);
    #[rpc(result, plain)]
    async fn c(&self) -> Result<u8, u8>;
}

fn main() {}
