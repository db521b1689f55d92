#[rpc_core::service]
pub trait Mistake {
    async fn call(&self, key: &'static str);
}

fn main() {}
