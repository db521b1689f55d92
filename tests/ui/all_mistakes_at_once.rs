#[rpc_core::service]
pub trait Mistake {
    type Value;
    fn blocking(&self) -> u64;
    async fn borrowed(&mut self, key: &'a str) -> &str;
    #[rpc(fast)]
    async fn ok(&self, key: &str) -> String;
}

fn main() {}
