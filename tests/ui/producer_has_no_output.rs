#[rpc_core::service]
pub trait Mistake {
    fn count(&self) -> impl Producer<Item = u64>;
    fn fails(&self) -> impl Producer<Item = Result<u64, u8>, Output = u64>;
}

fn main() {}
