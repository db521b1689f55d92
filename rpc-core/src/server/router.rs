//! The methods of a server: finds the one that a call is to, and checks that the call fits it.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use crate::codec::{Codec, CodecError};
use crate::endpoint::connection_context::ConnectionContext;
use crate::interceptor::server::Chain;
use crate::server::allow::Allow;
use crate::server::poll_watch::PollWatch;
use crate::service::{Dispatch, MethodDescriptor};
use crate::session::CallStreams;
use crate::status::Status;
use crate::wire::refusal::{SCHEMA_FOLLOWS, SIGNATURES_DIFFER, UNKNOWN_METHOD};

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
    /// Its calls are tasks of their own from the start.
    pub(super) is_task: bool,
    pub(super) watch: PollWatch,
    /// `None`: everybody may call it.
    rules: Option<Allow>,
}

/// The methods of a server.
#[derive(Default)]
pub(crate) struct Router {
    pub(super) routes: Vec<Route>,
    /// From method id to index in `routes`.
    by_id: HashMap<u32, usize, BuildHasherDefault<IdHasher>>,
    rules: Option<Allow>,
    #[cfg(feature = "rules")]
    _watch: Option<super::allow_file::FileWatch>,
}

impl Router {
    /// Adds a service, and the interceptors of its calls.
    ///
    /// # Errors
    /// Two methods have the same id: their names. A type cannot be sent: where it is, and what to
    /// do.
    pub(crate) fn add(
        &mut self,
        service: Arc<dyn Dispatch>,
        interceptors: Option<&Chain>,
    ) -> Result<(), String> {
        for (position, method) in service.descriptor().methods.iter().enumerate() {
            let (service, interceptors) = (Arc::clone(&service), interceptors.cloned());
            // Found out now, not in the driver when the first call comes.
            method.checked_hash();
            method.check_types()?;
            let (is_task, watch) = (method.spawn, PollWatch::default());
            let rules = None;
            let route = Route { interceptors, service, position, method, is_task, watch, rules };
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

    /// Has the callers of all methods looked at.
    pub(super) fn with_rules(mut self, rules: Option<&Allow>) -> Self {
        self.routes.iter_mut().for_each(|route| route.rules = rules.cloned());
        self.rules = rules.cloned();
        #[cfg(feature = "rules")]
        (self._watch = rules.and_then(Allow::watch_file));
        self
    }

    /// Why a call is refused, as far as its caller may know.
    #[cold]
    pub(super) fn refusal(&self, id: u32, status: Status, caller: &ConnectionContext) -> Status {
        match &self.rules {
            Some(rules) if !self.by_id.contains_key(&id) => rules.unknown(id, status, caller),
            _ => status,
        }
    }

    /// Has the calls of a service, or of one method (`Service.method`), be tasks of their own.
    ///
    /// # Errors
    /// There is none of that name.
    pub(super) fn spawn_calls_to(&mut self, name: &str) -> Result<(), String> {
        let mut found = false;
        for route in &mut self.routes {
            if route.method.name == name || route.service.descriptor().name == name {
                (route.is_task, found) = (true, true);
            }
        }
        if found {
            return Ok(());
        }
        let there = self.methods().map(|method| method.name).collect::<Vec<_>>().join(", ");
        Err(format!(
            "`spawn_calls_to`: there is no {name} here; pass the name of a service, or of one of \
             the methods: {there}"
        ))
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
            "the server has no method with id {id:#010x}; its services are: {offered}"
        ))
        .with_details(UNKNOWN_METHOD)
    }
}

impl Route {
    /// The codec of a call, after a check of its caller if the call carries a signature.
    pub(super) fn accept(
        &self,
        signature: Option<u64>,
        codec: u8,
        caller: &Arc<ConnectionContext>,
    ) -> Result<Codec, Status> {
        if let (Some(rules), Some(_)) = (&self.rules, signature) {
            rules.check(self.method, caller)?;
        }
        self.codec(codec)
    }

    /// The refusal of a call whose types differ. A caller that `resolves` gets what it needs to
    /// send the call again with its schema, if calls of the method can be resolved.
    #[cold]
    pub(super) fn types_differ(&self, resolves: bool) -> Status {
        let MethodDescriptor { name, signature, .. } = self.method;
        let mut details = SIGNATURES_DIFFER.to_vec();
        if let Some(schema) = self.method.schema() {
            details.push(b'\n');
            details.extend_from_slice(schema.text().as_bytes());
        }
        if resolves && let Some(own) = self.method.own_types() {
            details.push(SCHEMA_FOLLOWS);
            details.extend_from_slice(own.text.as_bytes());
        }
        let text = format!("{name}: signatures differ; the server has `{signature}`");
        Status::failed_precondition(text).with_details(details)
    }

    /// Checks that the call has the streams of the method.
    pub(super) fn accept_streams(&self, streams: CallStreams) -> Result<(), Status> {
        let CallStreams { arguments, results, .. } = self.method.streams;
        if streams.arguments != arguments || streams.results != results {
            let MethodDescriptor { name, signature, .. } = self.method;
            return Err(Status::failed_precondition(format!(
                "{name}: the call and the method have different streams; the server has `{signature}`"
            )));
        }
        Ok(())
    }

    #[inline]
    pub(super) fn codec(&self, codec: u8) -> Result<Codec, Status> {
        match Codec::from_id(codec) {
            Ok(codec) if (codec == Codec::MsgPack) == self.method.has_names => Ok(codec),
            found => Err(self.wrong_codec(found)),
        }
    }

    #[cold]
    fn wrong_codec(&self, found: Result<Codec, CodecError>) -> Status {
        let name = self.method.name;
        match found {
            Ok(codec) => Status::failed_precondition(format!(
                "{name}: the call is in {}, and the server expects {}; both ends need the same \
                 `codec` in the trait",
                codec.name(),
                Codec::default().of_calls(self.method).name(),
            )),
            Err(error) => Status::unimplemented(format!("{name}: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use rpc_transport::message::outgoing::OutBuf;

    use super::*;
    use crate::codec::shape::{Plain, seed};
    use crate::layout::Tracer;
    use crate::metadata::Metadata;
    use crate::service::{Handler, Reply, Request, ServiceDescriptor};

    static METHOD: MethodDescriptor =
        MethodDescriptor::new("Store.put", "(u64) -> str #2", &["id"]).traced(trace);
    static SERVICE: ServiceDescriptor = ServiceDescriptor::new("Store", &[&METHOD]);

    fn trace(tracer: &mut Tracer) {
        tracer.argument(seed::<u64, _>(Plain), Plain);
        tracer.result(seed::<String, _>(Plain), Plain);
    }

    struct Store;

    impl Dispatch for Store {
        fn descriptor(&self) -> &'static ServiceDescriptor {
            &SERVICE
        }

        fn dispatch(&self, _: usize, _: Request) -> Handler {
            Handler::ready(Reply::Status(Status::unimplemented("only its types count")))
        }
    }

    /// The graph of the method's types, as in `docs/wire-format.md`.
    const GRAPH: &str = "version 2\nargument id: #0\nresult: #1\n#0 u64\n#1 str\n";

    #[test]
    fn only_callers_that_resolve_get_the_graph() {
        let mut router = Router::default();
        router.add(Arc::new(Store), None).unwrap();
        let route = router.find(METHOD.id, &mut 0).unwrap();
        // As peers of before this feature know it.
        let lines = "signature\n0: u64\nresult: str\n";
        let status = route.types_differ(false);
        assert_eq!(status.code(), crate::status::Code::FailedPrecondition);
        assert_eq!(status.details(), lines.as_bytes());
        let with_graph = route.types_differ(true);
        assert_eq!(with_graph.message(), status.message());
        assert_eq!(with_graph.details(), format!("{lines}\0{GRAPH}").as_bytes());
    }

    #[test]
    fn only_methods_with_names_take_messages_with_names() {
        static NAMED: MethodDescriptor = MethodDescriptor::new("Store.get", "()", &[]).in_msgpack();
        let mut router = Router::default();
        router.add(Arc::new(Store), None).unwrap();
        let mut route = router.routes.pop().unwrap();
        let refusal = |found: Result<Codec, Status>| found.unwrap_err().message().to_owned();
        assert_eq!(route.codec(1).unwrap(), Codec::Bincode);
        assert!(refusal(route.codec(3)).contains("is in msgpack, and the server expects bincode"));
        route.method = &NAMED;
        assert_eq!(route.codec(3).unwrap(), Codec::MsgPack);
        assert!(refusal(route.codec(1)).contains("is in bincode, and the server expects msgpack"));
    }

    #[test]
    fn the_schema_is_an_entry_of_the_metadata() {
        let own = METHOD.own_types().unwrap();
        assert_eq!(own.text, GRAPH);
        let mut metadata = Metadata::new();
        metadata.set_schema(&own.text).unwrap();
        let mut encoded = OutBuf::new();
        metadata.encode(&mut encoded);
        let len = u8::try_from(GRAPH.len()).unwrap();
        let expected = [&b"\x01\x0arpc-schema"[..], &[len, 0], GRAPH.as_bytes()].concat();
        assert_eq!(encoded.to_vec(), expected);
    }
}
