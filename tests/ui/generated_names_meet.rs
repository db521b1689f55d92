#[rpc_core::service(client = KvServer)]
pub trait Kv {
    async fn get(&self) -> u8;
}

#[rpc_core::service(server = Table, client_trait = TableBlockingClient)]
pub trait Table {
    async fn get(&self) -> u8;
}

fn main() {}
