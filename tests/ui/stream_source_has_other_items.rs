use rpc_core::stream::{self, Streaming};

#[rpc_core::service]
pub trait Table {
    async fn insert(&self, rows: Streaming<String>) -> u64;
}

fn call(table: TableClient) {
    let _ = table.insert(stream::iter(["a".to_owned()]));
    let _ = table.insert(stream::iter([1_u8, 2]));
}

fn main() {}
