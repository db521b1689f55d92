//! Checks a request against its method before its handler is made: codec, types, streams, metadata.
//!
//! Runs nothing but, once for each method whose types differ, what looks at its types.

use std::sync::Arc;

use rpc_transport::engine::connection_key::ConnectionKey;
use rpc_transport::memory::budget::MemoryBudget;
use rpc_transport::message::received::Message;

use super::router::Route;
use crate::codec::Codec;
use crate::endpoint::RpcShard;
use crate::endpoint::connection_context::ConnectionContext;
use crate::metadata::{Metadata, SCHEMA};
use crate::resolution::{Decoding, Planned, Resolution};
use crate::service::MethodDescriptor;
use crate::session::{CallStreams, IncomingId, RAISE, StreamLimits};
use crate::status::Status;
use crate::stream::stream_ref::{OwnedStreamRef, Streams};

/// A request that fits its method.
pub(super) struct RequestCheck {
    pub(super) codec: Codec,
    pub(super) decoding: Decoding,
    pub(super) metadata: Metadata,
    pub(super) streams: Option<Box<Streams>>,
}

/// Checks a request that has more than arguments. How its arguments are read is noted with its call
/// before any handler can answer it, so that each answer says it.
///
/// # Errors
/// The status of a request that does not fit.
#[inline(never)]
pub(super) fn check_request(
    route: &Route,
    shard: &Arc<RpcShard>,
    (key, id): (ConnectionKey, IncomingId),
    (signature, codec, streams, metadata_bytes): (Option<u64>, u8, CallStreams, usize),
    message: &Message,
    connection_context: &Arc<ConnectionContext>,
) -> Result<RequestCheck, Status> {
    let codec = route.accept(signature, codec, connection_context)?;
    let ConnectionContext { memory, max_metadata_bytes, .. } = &**connection_context;
    let metadata = &message[..metadata_bytes];
    if let Some(theirs) = signature.filter(|theirs| !route.method.accepts(*theirs)) {
        let mut metadata = decoded(route.method, metadata)?;
        let resolves = || shard.look(key, |peer| peer.session.peer_resolves()) == Some(true);
        let plan = resolve(route, theirs, &mut metadata, resolves, connection_context)?;
        let decoding = Decoding::Planned(Planned(plan));
        route.accept_streams(streams)?;
        check_length(route.method, metadata.encoded_bytes(), *max_metadata_bytes)?;
        let streams = self::streams(shard, key, id, route.method, &decoding, memory)?;
        shard.with(key, |peer| peer.session.accept_by_schema(id));
        return Ok(RequestCheck { codec, decoding, metadata, streams });
    }
    route.accept_streams(streams)?;
    let decoding = Decoding::OwnTypes;
    let streams = self::streams(shard, key, id, route.method, &decoding, memory)?;
    let metadata = self::metadata(route.method, metadata, *max_metadata_bytes)?;
    if signature.is_some() {
        shard.with(key, |peer| peer.session.accept_same(id, route.method.copied_tails()));
    }
    Ok(RequestCheck { codec, decoding, metadata, streams })
}

/// How the arguments of a caller are read whose types differ: by the schema that came with the
/// call, or else with an earlier one. The schema is taken out of the metadata.
#[cold]
fn resolve(
    route: &Route,
    theirs: u64,
    metadata: &mut Metadata,
    resolves: impl FnOnce() -> bool,
    connection_context: &ConnectionContext,
) -> Result<Arc<Resolution>, Status> {
    let (method, schemas) = (route.method, &connection_context.schemas);
    let Some(schema) = metadata.remove(SCHEMA) else {
        let known = schemas.lock().find(method.id, theirs);
        return known.ok_or_else(|| route.types_differ(resolves()));
    };
    let text = std::str::from_utf8(&schema).unwrap_or_default();
    let made = Resolution::at_callee(method, text).map_err(|why| {
        let name = method.name;
        Status::failed_precondition(format!("{name}: its types differ on the server: {why}"))
    })?;
    schemas.lock().insert(method.id, theirs, Arc::clone(&made));
    Ok(made)
}

/// The streams of a call. The window of its arguments is charged to the memory budget, because
/// unread items may take as much.
fn streams(
    shard: &Arc<RpcShard>,
    key: ConnectionKey,
    id: IncomingId,
    method: &MethodDescriptor,
    decoding: &Decoding,
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
    Ok(Some(Box::new(Streams { stream, decoding: decoding.clone(), _charge: charge })))
}

fn metadata(
    method: &MethodDescriptor,
    encoded: &[u8],
    max_bytes: usize,
) -> Result<Metadata, Status> {
    if encoded.is_empty() {
        return Ok(Metadata::default());
    }
    check_length(method, encoded.len(), max_bytes)?;
    decoded(method, encoded)
}

fn decoded(method: &MethodDescriptor, encoded: &[u8]) -> Result<Metadata, Status> {
    Metadata::decode(encoded)
        .map_err(|error| Status::invalid_argument(format!("{}: {error}", method.name)))
}

fn check_length(method: &MethodDescriptor, bytes: usize, max_bytes: usize) -> Result<(), Status> {
    if bytes <= max_bytes {
        return Ok(());
    }
    Err(Status::resource_exhausted(format!(
        "{}: metadata of {bytes} bytes exceeds the server's limit of {max_bytes} bytes: send less, \
         or raise the server's `max_metadata_bytes`",
        method.name
    )))
}
