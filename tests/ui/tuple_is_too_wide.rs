type Wide = u8;

#[rpc_core::service]
pub trait Kv {
    async fn put(&self, row: (u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, Wide));
    async fn get(&self) -> Option<((), (u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8))>;
    async fn fits(&self, row: (u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8, u8));
}

fn main() {}
