#[rpc_core::service]
pub trait Mistake {
    #[cfg_attr(unix, rpc(idempotent))]
    async fn call(&self);
}

fn main() {}
