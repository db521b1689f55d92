use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub struct Size {
    wide: u8,
}

#[rpc_core::service]
pub trait Mistake {
    async fn call(&self, #[rpc(default)] size: Size);
    async fn lent(&self, #[rpc(default)] size: &Size);
}

fn main() {}
