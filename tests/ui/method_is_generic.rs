#[rpc_core::service]
pub trait Mistake {
    async fn by_type<T>(&self, value: T);
    async fn by_count<const N: usize>(&self, value: [u8; N]);
    async fn by_lifetime<'a>(&self, value: &'a str);
    async fn bounded(&self)
    where
        Self: Sized;
}

fn main() {}
