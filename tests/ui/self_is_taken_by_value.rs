#[rpc_core::service]
pub trait Mistake {
    async fn call(self);
    async fn change(&mut self);
    async fn shared(self: std::sync::Arc<Self>);
    async fn none(key: u64);
    async fn nothing();
    async fn named(&'static self);
}

fn main() {}
