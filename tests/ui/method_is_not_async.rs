#[rpc_core::service]
pub trait Mistake {
    fn get(&self) -> u64;
    fn future(&self) -> impl Future<Output = u64>;
}

fn main() {}
