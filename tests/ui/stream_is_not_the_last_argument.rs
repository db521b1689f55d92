#[rpc_core::service]
pub trait Mistake {
    async fn first(&self, rows: Streaming<u64>, table: &str);
    async fn two(&self, rows: Streaming<u64>, others: Streaming<u64>);
    async fn lent(&self, rows: &Streaming<u64>);
    async fn inside(&self, rows: Option<Streaming<u64>>);
    async fn of_what(&self, rows: Streaming);
    async fn with_an_end(&self, rows: Streaming<u64, u8>);
}

fn main() {}
