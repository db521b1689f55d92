#[rpc_core::service]
pub trait Mistake {
    fn list(&self) -> impl Stream<Item = u64>;
    async fn checked(&self) -> Result<impl Stream<Item = u64>, u8>;
    async fn delayed(&self) -> impl futures::Stream<Item = u64>;
}

fn main() {}
