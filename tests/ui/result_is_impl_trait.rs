#[rpc_core::service]
pub trait Mistake {
    async fn items(&self) -> impl Iterator<Item = u64>;
    async fn never(&self) -> !;
    async fn own(&self) -> Option<Self>;
}

fn main() {}
