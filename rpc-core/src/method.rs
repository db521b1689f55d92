//! The description of a method, which both sides have.
//!
//! # Identity
//!
//! A method's id is the FNV-1a hash, 32 bits, of its name `Service.method`; two methods of one
//! service with the same id do not compile. Its signature is a text made of its argument types, its
//! result type and the version given by `#[rpc(version = n)]`; the 64-bit FNV-1a hash of that text
//! travels with calls, so that two sides whose types differ find out. Both are part of the wire
//! format. What travels is mixed with the hash of the types' contents, where they are known: see
//! `schema`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rpc_schema::hash::{method_id, signature_hash};
use rpc_transport::lock::Mutex;

use crate::layout::{OwnTypes, Schema, Tracer, graph};
use crate::session::{CallHead, CallStreams, CopiedTails};

/// Describes a method to both sides. Lives in a `static` of the generated code.
#[derive(Debug)]
#[non_exhaustive]
pub struct MethodDescriptor {
    /// Hash of `name`: the method's identity on the wire.
    pub id: u32,
    /// `Service.method`.
    pub name: &'static str,
    /// The normalised signature: `(str, bytes) -> u64 / KvError #2`.
    pub signature: &'static str,
    /// Hash of `signature`.
    pub signature_hash: u64,
    /// Names of the arguments, for errors.
    pub arguments: &'static [&'static str],
    /// Its documentation.
    pub docs: &'static str,
    /// May be carried out more than once: a failed call may be retried.
    pub idempotent: bool,
    /// Runs to its end even when the caller has gone away.
    pub no_cancel: bool,
    /// Runs as a separate task from the start, because it works long before its first await.
    /// Milliseconds of work still belong in `spawn_blocking`: see `#[service]`.
    pub spawn: bool,
    /// Its calls are in MessagePack, and its types are not compared.
    pub(crate) has_names: bool,
    /// Which streams a call of it has.
    pub(crate) streams: CallStreams,
    /// 0: not assigned yet.
    index: AtomicU32,
    trace: Option<fn(&mut Tracer)>,
    schema: OnceLock<Option<Schema>>,
    graph: OnceLock<Option<rpc_schema::Schema>>,
    own_types: OnceLock<Option<OwnTypes>>,
    /// 0: not known yet.
    hash: AtomicU64,
    head: OnceLock<CallHead>,
    /// What could not be looked into was said.
    is_checked: AtomicBool,
}

/// Most texts about one method that are shown at once.
const MAX_TEXTS: usize = 4;

fn few(texts: &[String]) -> String {
    let shown = texts.iter().take(MAX_TEXTS).map(String::as_str).collect::<Vec<_>>().join("; ");
    match texts.len().saturating_sub(MAX_TEXTS) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}

/// The version at the end of a signature, `#2`, if there is one.
fn version(signature: &str) -> &str {
    let at = signature.rfind(" #").map_or(signature.len(), |at| at + 1);
    &signature[at..]
}

pub(super) static NEXT_INDEX: AtomicU32 = AtomicU32::new(1);

/// The methods in use, by their dense index.
static IN_USE: Mutex<Vec<&MethodDescriptor>> = Mutex::new(Vec::new());

/// The method with that [dense index](MethodDescriptor::dense_index).
#[cold]
pub(crate) fn method_in_use(dense_index: u32) -> Option<&'static MethodDescriptor> {
    IN_USE.lock().get(dense_index as usize).copied()
}

impl MethodDescriptor {
    /// A method without options.
    #[must_use]
    pub const fn new(
        name: &'static str,
        signature: &'static str,
        arguments: &'static [&'static str],
    ) -> Self {
        Self {
            id: method_id(name),
            name,
            signature,
            signature_hash: signature_hash(signature),
            arguments,
            docs: "",
            idempotent: false,
            no_cancel: false,
            spawn: false,
            has_names: false,
            streams: CallStreams::NONE,
            index: AtomicU32::new(0),
            trace: None,
            schema: OnceLock::new(),
            graph: OnceLock::new(),
            own_types: OnceLock::new(),
            hash: AtomicU64::new(0),
            head: OnceLock::new(),
            is_checked: AtomicBool::new(false),
        }
    }

    /// Sets [`MethodDescriptor::docs`].
    #[must_use]
    pub const fn documented(mut self, docs: &'static str) -> Self {
        self.docs = docs;
        self
    }

    /// Sets [`MethodDescriptor::idempotent`].
    #[must_use]
    pub const fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// Sets [`MethodDescriptor::no_cancel`].
    #[must_use]
    pub const fn no_cancel(mut self) -> Self {
        self.no_cancel = true;
        self
    }

    /// Sets [`MethodDescriptor::spawn`].
    #[must_use]
    pub const fn spawn(mut self) -> Self {
        self.spawn = true;
        self
    }

    /// Its calls are in MessagePack, and its types are not compared.
    #[must_use]
    pub const fn in_msgpack(mut self) -> Self {
        self.has_names = true;
        self
    }

    /// Its last argument is a stream.
    #[must_use]
    pub const fn streams_arguments(mut self) -> Self {
        self.streams.arguments = true;
        self
    }

    /// Its result is a stream.
    #[must_use]
    pub const fn streams_results(mut self) -> Self {
        self.streams.results = true;
        self
    }

    /// A call's deadline starts anew with each item.
    #[must_use]
    pub const fn idle_deadline(mut self) -> Self {
        self.streams.idle_deadline = true;
        self
    }

    /// Whether items go in either direction.
    #[inline]
    #[must_use]
    pub const fn has_streams(&self) -> bool {
        self.streams.arguments || self.streams.results
    }

    /// Sets what shows the contents of its types.
    #[doc(hidden)]
    #[must_use]
    pub const fn traced(mut self, trace: fn(&mut Tracer)) -> Self {
        self.trace = Some(trace);
        self
    }

    /// Compares its types by these lines, as reflection gives them: an end whose types are others
    /// is refused.
    pub(crate) fn described_by(mut self, lines: &[String]) -> Self {
        let schema = Schema::of_lines(lines.to_vec());
        self.hash = AtomicU64::new(self.mixed_with(schema.hash()));
        self.schema = OnceLock::from(Some(schema));
        self
    }

    /// The hash of signature and schema; never 0.
    fn mixed_with(&self, schema: u64) -> u64 {
        let signature = match self.has_names {
            true => signature_hash(&format!("msgpack {}", version(self.signature))),
            false => self.signature_hash,
        };
        (signature ^ schema.rotate_left(1)).max(1)
    }

    /// The hash that goes with the first call on a connection: of the signature, and of what its
    /// types look like in a message. The first use in a process finds that out.
    #[inline]
    pub(crate) fn checked_hash(&'static self) -> u64 {
        match self.hash.load(Ordering::Relaxed) {
            0 => self.find_hash(),
            hash => hash,
        }
    }

    /// What the headers of its calls have in common. `None`: its types cannot be sent.
    #[inline]
    pub(crate) fn call_head(&'static self) -> Option<&'static CallHead> {
        match self.head.get() {
            Some(head) => Some(head),
            None => self.find_head(),
        }
    }

    #[cold]
    fn find_head(&'static self) -> Option<&'static CallHead> {
        self.check_types().ok()?;
        Some(self.head.get_or_init(|| CallHead {
            method: self.id,
            method_index: self.dense_index(),
            signature: self.checked_hash(),
            no_cancel: self.no_cancel,
            streams: self.streams,
            copied_tails: self.copied_tails(),
        }))
    }

    /// Whether its types can be sent. The first use in a process looks at them, and warns of what
    /// it could not look into.
    ///
    /// # Errors
    /// What cannot be sent, and what to do.
    #[cold]
    pub(crate) fn check_types(&'static self) -> Result<(), String> {
        let name = self.name;
        if self.has_names {
            return match cfg!(feature = "msgpack") {
                true => Ok(()),
                false => Err(format!(
                    "{name}: codec msgpack is not compiled in; enable the cargo feature `msgpack` \
                     of rpc-over-rdma"
                )),
            };
        }
        let schema = self.schema();
        let is_first = !self.is_checked.swap(true, Ordering::Relaxed);
        let Some(schema) = schema else {
            if is_first && self.compared().is_some() {
                tracing::warn!(
                    "{name}: one of its types panics when it is deserialized from made-up values; \
                     its types are not compared"
                );
            }
            return Ok(());
        };
        if is_first && !schema.unseen.is_empty() {
            tracing::warn!("{name}: {}", few(&schema.unseen));
        }
        match schema.refusals.is_empty() {
            true => Ok(()),
            false => Err(format!("{name}: {}", few(&schema.refusals))),
        }
    }

    /// Whether its types were compared whole when the first call was accepted.
    #[cold]
    pub(crate) fn is_compared_whole(&'static self) -> bool {
        self.schema().is_some_and(|schema| schema.unseen.is_empty())
    }

    /// Whether a caller with this hash may call. A caller that knows no contents of types, such as
    /// one of an earlier version, sends the hash of the signature alone.
    pub(crate) fn accepts(&'static self, theirs: u64) -> bool {
        theirs == self.checked_hash() || theirs == self.signature_hash
    }

    #[cold]
    fn find_hash(&'static self) -> u64 {
        // A method without a schema has the hash of its signature.
        let hash = self.mixed_with(self.schema().map_or(0, Schema::hash));
        self.hash.store(hash, Ordering::Relaxed);
        hash
    }

    /// What its types look like in a message, if that is known.
    pub(crate) fn schema(&'static self) -> Option<&'static Schema> {
        self.schema
            .get_or_init(|| self.compared().and_then(|trace| Schema::of(trace, self.arguments)))
            .as_ref()
    }

    /// Its types as a graph; `None` for a method that is not described, and for types that panic
    /// when they are looked at or have no finite value. They are looked at once for each process.
    #[must_use]
    pub fn types(&'static self) -> Option<&'static rpc_schema::Schema> {
        let find = || match self.compared() {
            Some(trace) => graph(trace, self.arguments),
            None => {
                let lines = self.schema.get()?.as_ref()?.lines();
                Some(rpc_schema::Schema::from_lines(lines, self.arguments))
            }
        };
        self.graph.get_or_init(find).as_ref()
    }

    /// Shows its types, unless the codec makes it needless to compare them.
    fn compared(&self) -> Option<fn(&mut Tracer)> {
        self.trace.filter(|_| !self.has_names)
    }

    /// Its types, to be compared with those of a peer; `None` if they cannot be. They are traced
    /// when a peer's differ for the first time.
    #[cold]
    pub(crate) fn own_types(&'static self) -> Option<&'static OwnTypes> {
        let find = || {
            let types = self.compared().and_then(|_| self.types())?;
            OwnTypes::new(types, self.signature, self.arguments.len())
        };
        self.own_types.get_or_init(find).as_ref()
    }

    /// Which of its messages have tails that their readers copy out, as far as its types were
    /// looked at. It never looks at them itself, which would run code of the user.
    pub(crate) fn copied_tails(&self) -> CopiedTails {
        let schema = self.schema.get().and_then(Option::as_ref);
        schema.map_or(CopiedTails::NONE, |schema| schema.copied_tails)
    }

    /// A small number of this method, unique in this process and assigned on first use: for
    /// tables of per-method state. The methods in use number from 0 without gaps.
    #[must_use]
    pub fn dense_index(&'static self) -> u32 {
        let mut index = self.index.load(Ordering::Acquire);
        if index == 0 {
            index = self.assign_index();
        }
        index - 1
    }

    #[cold]
    fn assign_index(&'static self) -> u32 {
        let mut in_use = IN_USE.lock();
        let assigned = self.index.load(Ordering::Acquire);
        if assigned != 0 {
            return assigned;
        }
        in_use.push(self);
        let index = NEXT_INDEX.fetch_add(1, Ordering::Relaxed);
        self.index.store(index, Ordering::Release);
        index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_ignore_types_but_not_versions() {
        static ONE: MethodDescriptor = MethodDescriptor::new("S.a", "(A) -> B", &[]).in_msgpack();
        static TWO: MethodDescriptor = MethodDescriptor::new("S.a", "(C) -> D", &[]).in_msgpack();
        static NEXT: MethodDescriptor =
            MethodDescriptor::new("S.a", "(C) -> D #2", &[]).in_msgpack();
        static PLAIN: MethodDescriptor = MethodDescriptor::new("S.a", "(C) -> D", &[]);
        assert_eq!(version("(A) -> B / E #17"), "#17");
        assert_eq!(version("(A) -> B / E"), "");
        assert_eq!(TWO.checked_hash(), ONE.checked_hash());
        assert_ne!(TWO.checked_hash(), NEXT.checked_hash());
        assert_ne!(TWO.checked_hash(), PLAIN.checked_hash());
    }
}
