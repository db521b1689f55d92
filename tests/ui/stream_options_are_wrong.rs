#[rpc_core::service]
pub trait Mistake {
    #[rpc(stream_deadline = "call")]
    fn list(&self) -> impl Stream<Item = u64>;
    #[rpc(stream_deadline = "idle")]
    async fn get(&self) -> u64;
    #[rpc(no_cancel)]
    async fn insert(&self, rows: Streaming<u64>);
    #[rpc(idempotent)]
    fn scan(&self) -> impl Stream<Item = u64>;
    #[rpc(result)]
    fn results(&self) -> impl Stream<Item = u64>;
    #[rpc(stream_deadline)]
    fn watch(&self) -> impl Stream<Item = u64>;
}

fn main() {}
