use rpc_transport::memory::region::MemoryRegion;

fn write(region: &MemoryRegion) {
    region.copy_in(0, b"bytes");
}

fn main() {}
