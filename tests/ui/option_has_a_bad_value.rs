#[rpc_core::service(name = "")]
pub trait Mistake {
    #[rpc(version = 99999999999999999999)]
    async fn a(&self);
    #[rpc(version = "2")]
    async fn b(&self);
    #[rpc(name = "no.dots")]
    async fn c(&self);
    #[rpc(name)]
    async fn d(&self);
    #[rpc(codec = "json")]
    async fn e(&self);
}

#[rpc_core::service(client_trait = "Calls")]
pub trait Quoted {
    async fn a(&self);
}

#[rpc_core::service(client = "Caller")]
pub trait QuotedClient {
    async fn a(&self);
}

#[rpc_core::service(blocking_client = true)]
pub trait TwoClients {
    async fn a(&self);
}

fn main() {}
