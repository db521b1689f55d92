#[rpc_core::service]
pub trait Named {
    async fn read(&self);
    #[rpc(name = "read")]
    async fn load(&self);
}

// FNV-1a gives both names 0x42e5_3b49.
#[rpc_core::service]
pub trait Clash {
    async fn count_pop_price(&self);
    async fn start_poll_list(&self);
}

// Methods under `cfg` may exclude each other; these do not.
#[rpc_core::service]
pub trait Conditional {
    #[cfg(all())]
    async fn read(&self);
    #[cfg(all())]
    #[rpc(name = "read")]
    async fn load(&self);
}

fn main() {}
