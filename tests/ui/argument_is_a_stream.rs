#[rpc_core::service]
pub trait Mistake {
    async fn upload(&self, items: impl Stream<Item = u8>);
    async fn exchange(&self, items: impl futures::Stream<Item = u8> + Send) -> u64;
}

fn main() {}
