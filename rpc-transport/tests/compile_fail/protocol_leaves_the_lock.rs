use rpc_transport::protocol::Protocol;
use rpc_transport::shard::{ConnectionKey, Shard};

fn keep<P: Protocol>(shard: &Shard<P>, key: ConnectionKey) -> Option<&P> {
    shard.with(key, |protocol| &*protocol)
}

fn main() {}
