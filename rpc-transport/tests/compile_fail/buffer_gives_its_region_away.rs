use rpc_transport::memory::{Buffer, MemoryRegion};

fn around(buffer: &Buffer) -> MemoryRegion {
    buffer.region().clone()
}

fn main() {}
