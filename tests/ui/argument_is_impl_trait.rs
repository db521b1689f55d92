#[rpc_core::service]
pub trait Mistake {
    async fn call(&self, items: impl Iterator<Item = u8>);
}

fn main() {}
