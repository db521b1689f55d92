#[rpc_core::service]
pub trait Mistake {
    async fn call(&self, items: Option<&u64>, nested: &&u64);
}

fn main() {}
