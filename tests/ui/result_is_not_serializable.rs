pub struct Handle;

#[rpc_core::service]
pub trait Mistake {
    async fn plain(&self) -> Handle;
    async fn ok(&self) -> Result<Handle, u8>;
    async fn error(&self) -> Result<u8, Handle>;
}

fn main() {}
