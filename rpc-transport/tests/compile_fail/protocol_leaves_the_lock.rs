use rpc_transport::engine::upper::Protocol;
use rpc_transport::engine::shard::{ConnectionKey, Shard};

fn keep<P: Protocol>(shard: &Shard<P>, key: ConnectionKey) -> Option<&P> {
    shard.with(key, |protocol| &*protocol)
}

fn main() {}
