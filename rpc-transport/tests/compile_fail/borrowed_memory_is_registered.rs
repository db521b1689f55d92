use rpc_transport::memory::region::{Access, MemoryRegion, ProtectionDomain};

fn register(domain: &ProtectionDomain, bytes: &mut [u8]) -> MemoryRegion {
    domain.register(bytes, Access::LOCAL).unwrap()
}

fn main() {}
