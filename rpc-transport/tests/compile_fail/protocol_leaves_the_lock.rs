use rpc_transport::engine::upper::UpperLayer;
use rpc_transport::engine::connection_key::ConnectionKey;
use rpc_transport::engine::shard::Shard;

fn keep<P: UpperLayer>(shard: &Shard<P>, key: ConnectionKey) -> Option<&P> {
    shard.with(key, |protocol| &*protocol)
}

fn main() {}
