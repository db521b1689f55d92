use rpc_transport::memory::region::{Buffer, MemoryRegion};

fn around(buffer: &Buffer) -> MemoryRegion {
    buffer.region().clone()
}

fn main() {}
