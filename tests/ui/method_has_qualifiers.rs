#[rpc_core::service]
pub trait Mistake {
    async unsafe fn dangerous(&self);
    async extern "C" fn foreign(&self);
}

fn main() {}
