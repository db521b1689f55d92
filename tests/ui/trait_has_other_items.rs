#[rpc_core::service]
pub trait Mistake {
    const LIMIT: usize;
    type Value;
    std::println!();
    async fn call(&self);
}

fn main() {}
