#[rpc_core::service]
pub trait Mistake {
    async fn insert(&self, rows: Streaming<&str>);
    async fn load(&self, rows: Streaming<Row<'_>>);
    fn list(&self) -> impl Stream<Item = &str>;
    fn slices(&self) -> impl Stream<Item = [u8]>;
    fn scan(&self) -> impl Stream<Item = Result<u64, &str>>;
}

fn main() {}
