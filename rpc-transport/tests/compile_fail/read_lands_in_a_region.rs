use rpc_transport::device::{RemoteSlice, SendOp};
use rpc_transport::memory::region::MemoryRegion;

fn anybody_may_look_at_it_meanwhile(from: RemoteSlice, region: MemoryRegion) -> SendOp {
    SendOp::Read { from, into: region, len: 8 }
}

fn main() {}
