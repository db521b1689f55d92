#[rpc_core::service]
pub trait Mistake {
    async fn text(&self) -> &str;
    async fn constant(&self) -> &'static str;
    async fn inside(&self) -> Option<&[u8]>;
    async fn slice(&self) -> [u8];
}

fn main() {}
