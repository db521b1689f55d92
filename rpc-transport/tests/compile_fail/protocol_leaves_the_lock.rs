use rpc_transport::engine::upper::Protocol;
use rpc_transport::engine::connection_key::ConnectionKey;
use rpc_transport::engine::shard::Shard;

fn keep<P: Protocol>(shard: &Shard<P>, key: ConnectionKey) -> Option<&P> {
    shard.with(key, |protocol| &*protocol)
}

fn main() {}
