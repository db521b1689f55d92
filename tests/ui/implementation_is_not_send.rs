use std::rc::Rc;

#[rpc_core::service]
pub trait Mistake {
    async fn call(&self, _key: &str) -> u64;
}

struct Local;

impl Mistake for Local {
    async fn call(&self, _key: &str) -> u64 {
        let count = Rc::new(1);
        std::future::ready(()).await;
        *count
    }
}

struct NotSync(std::cell::Cell<u8>);

impl Mistake for NotSync {
    async fn call(&self, _key: &str) -> u64 {
        1
    }
}

fn main() {}
