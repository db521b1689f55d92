#[rpc_core::service]
pub trait Mistake<'a, T: Send, const N: usize>
where
    T: Sync,
{
    async fn call(&self, value: T);
}

fn main() {}
