use rpc_core::stream::{Stream, Streaming};

pub struct Row;
pub struct Entry;

#[rpc_core::service]
pub trait Mistake {
    async fn insert(&self, rows: Streaming<Row>);
    fn list(&self) -> impl Stream<Item = Entry>;
}

fn main() {}
