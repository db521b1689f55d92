use rpc_transport::memory::region::Buffer;

fn two(buffer: &Buffer) -> Buffer {
    buffer.clone()
}

fn main() {}
