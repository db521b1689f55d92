use rpc_transport::memory::region::MemoryRegion;

fn look(region: &MemoryRegion) -> &[u8] {
    &region[..]
}

fn main() {}
