#[rpc_core::service]
pub trait Mistake {
    fn checked(&self) -> Result<impl Stream<Item = u64>, u8>;
    async fn maybe(&self) -> Option<impl Stream<Item = u64>>;
    async fn received(&self) -> Streaming<u64>;
    fn of_what(&self) -> impl Stream;
    async fn aliased(&self) -> Result<impl Stream<Item = u64>>;
    fn items_aliased(&self) -> impl Stream<Item = Result<u64>>;
    fn of_streams(&self) -> impl Stream<Item = impl Stream<Item = u64>>;
}

fn main() {}
