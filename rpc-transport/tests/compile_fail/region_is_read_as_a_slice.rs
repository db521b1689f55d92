use rpc_transport::memory::MemoryRegion;

fn look(region: &MemoryRegion) -> &[u8] {
    &region[..]
}

fn main() {}
