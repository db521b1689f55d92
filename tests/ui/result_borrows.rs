pub struct Foo<'a>(&'a str);

#[rpc_core::service]
pub trait Mistake {
    async fn elided(&self) -> Foo<'_>;
    async fn inside(&self) -> Result<Vec<Foo<'_>>, u8>;
}

fn main() {}
