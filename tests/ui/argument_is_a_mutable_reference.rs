#[rpc_core::service]
pub trait Mistake {
    async fn call(&self, text: &mut String);
}

fn main() {}
