#[rpc_core::service]
pub trait Mistake {
    async fn connect(&self) -> u32;
    async fn new(&self) -> u32;
    async fn channel(&self) -> u32;
    #[rpc(name = "connect")]
    async fn connect_line(&self) -> u32;
}

fn main() {}
