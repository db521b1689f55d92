#[rpc_core::service(versoin = 1)]
pub trait Mistake {
    #[rpc(idempotnet)]
    async fn a(&self);
    #[rpc(spawn = true)]
    async fn b(&self);
    #[rpc(path::idempotent)]
    async fn c(&self);
    #[rpc]
    async fn d(&self);
}

fn main() {}
