#[derive(rpc_core::serde::Serialize)]
#[serde(crate = "rpc_core::serde")]
pub struct Half(u8);

#[rpc_core::service]
pub trait Mistake {
    async fn call(&self, half: Half);
}

fn main() {}
