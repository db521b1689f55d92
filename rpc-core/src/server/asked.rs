//! What a request asks for beyond its method: whether it fits that, its metadata and its streams.
//!
//! Owns the looks at a request before its handler is made. Runs nothing.

use std::sync::Arc;

use rpc_transport::engine::connection_key::ConnectionKey;
use rpc_transport::memory::budget::MemoryBudget;

use super::router::Route;
use crate::codec::Codec;
use crate::endpoint::RpcShard;
use crate::endpoint::connection_context::ConnectionContext;
use crate::metadata::Metadata;
use crate::service::MethodDescriptor;
use crate::session::{CallStreams, IncomingId, RAISE, StreamLimits};
use crate::status::Status;
use crate::stream::line::{Line, Streams};

/// What a request asks for, once it is found to fit its method.
pub(super) struct Asked {
    pub(super) codec: Codec,
    pub(super) metadata: Metadata,
    pub(super) streams: Option<Box<Streams>>,
}

/// The same of a request that has more than arguments.
#[inline(never)]
pub(super) fn ask(
    route: &Route,
    shard: &Arc<RpcShard>,
    (key, id): (ConnectionKey, IncomingId),
    (signature, codec, streams, metadata): (Option<u64>, u8, CallStreams, &[u8]),
    connection_context: &ConnectionContext,
) -> Result<Asked, Status> {
    let codec = route.accept(signature, codec)?;
    route.accept_streams(streams)?;
    let ConnectionContext { memory, max_metadata_bytes, .. } = connection_context;
    let streams = self::streams(shard, key, id, route.method, memory)?;
    let metadata = self::metadata(route.method, metadata, *max_metadata_bytes)?;
    Ok(Asked { codec, metadata, streams })
}

/// Where the streams of a call are; the window of its arguments is charged to the memory budget, as
/// that is what items may take that nobody reads.
fn streams(
    shard: &Arc<RpcShard>,
    key: ConnectionKey,
    id: IncomingId,
    method: &MethodDescriptor,
    memory: &MemoryBudget,
) -> Result<Option<Box<Streams>>, Status> {
    if !method.has_streams() {
        return Ok(None);
    }
    let window = u64::from(StreamLimits::default().bytes);
    let window = if method.streams.arguments { window } else { 0 };
    let charge = memory.reserve(window).map_err(|reason| {
        let name = method.name;
        let text = format!("{name}: no memory for a stream's window of {window} bytes: {reason}");
        Status::resource_exhausted(format!("{text}; {RAISE}")).with_retryable(true)
    })?;
    let line = Line { shard: Arc::clone(shard), key, id: id.into(), counters: None };
    Ok(Some(Box::new(Streams { line, _charge: charge })))
}

fn metadata(
    method: &MethodDescriptor,
    encoded: &[u8],
    max_bytes: usize,
) -> Result<Metadata, Status> {
    if encoded.is_empty() {
        return Ok(Metadata::default());
    }
    if encoded.len() > max_bytes {
        return Err(Status::resource_exhausted(format!(
            "{}: metadata of {} bytes is longer than the {max_bytes} bytes that the server takes: send \
             less, or raise its `max_metadata_bytes`",
            method.name,
            encoded.len()
        )));
    }
    Metadata::decode(encoded)
        .map_err(|error| Status::invalid_argument(format!("{}: {error}", method.name)))
}
