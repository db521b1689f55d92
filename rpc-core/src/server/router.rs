//! The methods of a server: finds the one that a call is to, and checks that the call fits it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use crate::codec::Codec;
use crate::interceptor::server::Chain;
use crate::server::poll_watch::PollWatch;
use crate::service::{Dispatch, MethodDescriptor};
use crate::session::CallStreams;
use crate::status::Status;
use crate::wire::refusal::{SIGNATURES_DIFFER, UNKNOWN_METHOD};

/// Hasher for method ids, which are FNV-1a hashes already.
#[derive(Default)]
pub(crate) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u32(&mut self, id: u32) {
        // Spread over the upper bits too, which the map uses for its tags.
        self.0 = u64::from(id).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

pub(super) struct Route {
    /// Those outside of all layers.
    pub(super) interceptors: Option<Chain>,
    pub(super) service: Arc<dyn Dispatch>,
    pub(super) position: usize,
    pub(super) method: &'static MethodDescriptor,
    pub(super) watch: PollWatch,
}

/// The methods of a server.
#[derive(Default)]
pub(crate) struct Router {
    pub(super) routes: Vec<Route>,
    /// From method id to index in `routes`.
    by_id: HashMap<u32, usize, BuildHasherDefault<IdHasher>>,
}

impl Router {
    /// Adds a service, and the interceptors of its calls.
    ///
    /// # Errors
    /// Two methods have the same id: their names.
    pub(crate) fn add(
        &mut self,
        service: Arc<dyn Dispatch>,
        interceptors: Option<&Chain>,
    ) -> Result<(), String> {
        for (position, method) in service.descriptor().methods.iter().enumerate() {
            let (service, interceptors) = (Arc::clone(&service), interceptors.cloned());
            // Found out now, not in the driver when the first call comes.
            method.checked_hash();
            let watch = PollWatch::default();
            let route = Route { interceptors, service, position, method, watch };
            if let Some(other) = self.by_id.insert(method.id, self.routes.len()) {
                let other = &self.routes[other];
                return Err(format!(
                    "{} and {} have the same id {:#x}; add each service once, or give one method \
                     another name on the wire with #[rpc(name = \"...\")]",
                    other.method.name, method.name, method.id
                ));
            }
            self.routes.push(route);
        }
        Ok(())
    }

    /// Its methods, in the order of the routes.
    pub(super) fn methods(&self) -> impl Iterator<Item = &'static MethodDescriptor> {
        self.routes.iter().map(|route| route.method)
    }

    /// Looks a method up by id. `last` caches the previous result, because most callers call one
    /// method many times in a row.
    #[inline]
    pub(super) fn find(&self, id: u32, last: &mut usize) -> Result<&Route, Status> {
        if let Some(route) = self.routes.get(*last).filter(|route| route.method.id == id) {
            return Ok(route);
        }
        let at = self.by_id.get(&id).ok_or_else(|| self.unknown_method(id))?;
        *last = *at;
        Ok(&self.routes[*at])
    }

    #[cold]
    fn unknown_method(&self, id: u32) -> Status {
        let mut services: Vec<&str> =
            self.routes.iter().map(|route| route.service.descriptor().name).collect();
        services.sort_unstable();
        services.dedup();
        let offered = if services.is_empty() { "none".to_owned() } else { services.join(", ") };
        Status::unimplemented(format!(
            "no method with id {id:#010x} here; the services here are: {offered}"
        ))
        .with_details(UNKNOWN_METHOD)
    }
}

impl Route {
    /// The codec of a call, after a check of the signature if the call carries one.
    #[inline]
    pub(super) fn accept(&self, signature: Option<u64>, codec: u8) -> Result<Codec, Status> {
        if signature.is_some_and(|theirs| !self.method.accepts(theirs)) {
            return Err(signatures_differ(self.method));
        }
        self.codec(codec)
    }

    /// Checks that the call has the streams of the method.
    #[inline]
    pub(super) fn accept_streams(&self, streams: CallStreams) -> Result<(), Status> {
        let CallStreams { arguments, results, .. } = self.method.streams;
        if streams.arguments != arguments || streams.results != results {
            return Err(streams_differ(self.method));
        }
        Ok(())
    }

    #[inline]
    pub(super) fn codec(&self, codec: u8) -> Result<Codec, Status> {
        Codec::from_id(codec)
            .map_err(|error| Status::unimplemented(format!("{}: {error}", self.method.name)))
    }
}

#[cold]
fn streams_differ(method: &MethodDescriptor) -> Status {
    Status::failed_precondition(format!(
        "{}: the call has other streams than the method; the server has `{}`",
        method.name, method.signature
    ))
}

#[cold]
fn signatures_differ(method: &'static MethodDescriptor) -> Status {
    let mut details = SIGNATURES_DIFFER.to_vec();
    if let Some(schema) = method.schema() {
        details.push(b'\n');
        details.extend_from_slice(schema.text().as_bytes());
    }
    Status::failed_precondition(format!(
        "{}: signatures differ; the server has `{}`",
        method.name, method.signature
    ))
    .with_details(details)
}
