use rpc_transport::memory::Buffer;

fn two(buffer: &Buffer) -> Buffer {
    buffer.clone()
}

fn main() {}
