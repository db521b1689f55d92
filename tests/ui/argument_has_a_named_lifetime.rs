pub struct Foo<'a>(&'a str);

#[rpc_core::service]
pub trait Mistake {
    async fn call<'a>(&self, key: &'a str, other: Foo<'a>);
}

fn main() {}
