#[rpc_core::service]
pub unsafe trait Mistake {
    async fn call(&self);
}

fn main() {}
