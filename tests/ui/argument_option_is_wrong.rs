#[rpc_core::service]
pub trait Mistake {
    async fn other(&self, #[rpc(optional)] key: u64);
    async fn value(&self, #[rpc(default = 3)] key: u64);
    async fn twice(&self, #[rpc(default, default)] key: u64);
    async fn on_self(#[rpc(default)] &self);
    async fn stream(&self, #[rpc(default)] keys: rpc_core::stream::Streaming<u64>);
    #[rpc(codec = "msgpack")]
    async fn in_order(&self, #[rpc(default)] key: u64);
}

fn main() {}
