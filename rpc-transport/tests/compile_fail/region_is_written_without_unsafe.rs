use rpc_transport::memory::MemoryRegion;

fn write(region: &MemoryRegion) {
    region.copy_in(0, b"bytes");
}

fn main() {}
