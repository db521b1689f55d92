//! Checks a request against its method before its handler is made: codec, types, streams, metadata.
//!
//! Runs nothing.

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
use crate::stream::stream_ref::{OwnedStreamRef, Streams};

/// A request that fits its method.
pub(super) struct RequestCheck {
    pub(super) codec: Codec,
    pub(super) metadata: Metadata,
    pub(super) streams: Option<Box<Streams>>,
}

/// Checks a request that has more than arguments.
///
/// # Errors
/// The status of a request that does not fit.
#[inline(never)]
pub(super) fn check_request(
    route: &Route,
    shard: &Arc<RpcShard>,
    (key, id): (ConnectionKey, IncomingId),
    (signature, codec, streams, metadata): (Option<u64>, u8, CallStreams, &[u8]),
    connection_context: &Arc<ConnectionContext>,
) -> Result<RequestCheck, Status> {
    let codec = route.accept(signature, codec, connection_context)?;
    route.accept_streams(streams)?;
    let ConnectionContext { memory, max_metadata_bytes, .. } = &**connection_context;
    let streams = self::streams(shard, key, id, route.method, memory)?;
    let metadata = self::metadata(route.method, metadata, *max_metadata_bytes)?;
    Ok(RequestCheck { codec, metadata, streams })
}

/// The streams of a call. The window of its arguments is charged to the memory budget, because
/// unread items may take as much.
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
        let text = format!("{name}: no memory for a stream window of {window} bytes: {reason}");
        Status::resource_exhausted(format!("{text}; {RAISE}")).with_retryable(true)
    })?;
    let stream = OwnedStreamRef { shard: Arc::clone(shard), key, id: id.into(), counters: None };
    Ok(Some(Box::new(Streams { stream, _charge: charge })))
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
            "{}: metadata of {} bytes exceeds the server's limit of {max_bytes} bytes: send less, \
             or raise the server's `max_metadata_bytes`",
            method.name,
            encoded.len()
        )));
    }
    Metadata::decode(encoded)
        .map_err(|error| Status::invalid_argument(format!("{}: {error}", method.name)))
}
