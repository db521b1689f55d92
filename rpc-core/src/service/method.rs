//! The description of a method, which both sides have.
//!
//! # Identity
//!
//! A method's id is the FNV-1a hash, 32 bits, of its name `Service.method`; two methods of one
//! service with the same id do not compile. Its signature is a text made of its argument types,
//! its result type and the version given by `#[rpc(version = n)]`; the 64-bit FNV-1a hash of that
//! text travels with calls, so that two sides whose types differ find out. Both are part of the
//! wire format. What travels is mixed with the hash of the types' contents, where they are known: see
//! `schema`.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::hash::{method_id, signature_hash};
use super::schema::{Schema, Tracer};
use crate::session::{CallHead, CallStreams};

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
    /// Which streams a call of it has.
    pub(crate) streams: CallStreams,
    /// 0: not assigned yet.
    index: AtomicU32,
    trace: Option<fn(&mut Tracer)>,
    schema: OnceLock<Option<Schema>>,
    /// 0: not known yet.
    hash: AtomicU64,
    head: OnceLock<CallHead>,
}

pub(super) static NEXT_INDEX: AtomicU32 = AtomicU32::new(1);

/// The methods in use, by their dense index.
static IN_USE: parking_lot::Mutex<Vec<&MethodDescriptor>> = parking_lot::Mutex::new(Vec::new());

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
            streams: CallStreams::NONE,
            index: AtomicU32::new(0),
            trace: None,
            schema: OnceLock::new(),
            hash: AtomicU64::new(0),
            head: OnceLock::new(),
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

    /// The hash that goes with the first call on a connection: of the signature, and of what its
    /// types look like in a message. The first use in a process finds that out.
    #[inline]
    pub(crate) fn checked_hash(&'static self) -> u64 {
        match self.hash.load(Ordering::Relaxed) {
            0 => self.find_hash(),
            hash => hash,
        }
    }

    /// What the headers of its calls have in common.
    #[inline]
    pub(crate) fn call_head(&'static self) -> &'static CallHead {
        self.head.get_or_init(|| CallHead {
            method: self.id,
            method_index: self.dense_index(),
            signature: self.checked_hash(),
            no_cancel: self.no_cancel,
            streams: self.streams,
        })
    }

    /// Whether a caller with this hash may call. A caller that knows no contents of types, such as one
    /// of an earlier version, sends the hash of the signature alone.
    pub(crate) fn accepts(&'static self, theirs: u64) -> bool {
        theirs == self.checked_hash() || theirs == self.signature_hash
    }

    #[cold]
    fn find_hash(&'static self) -> u64 {
        let schema = self.schema().map_or(0, Schema::hash);
        // A method without a schema has the hash of its signature.
        let hash = (self.signature_hash ^ schema.rotate_left(1)).max(1);
        self.hash.store(hash, Ordering::Relaxed);
        hash
    }

    /// What its types look like in a message, if that is known.
    pub(crate) fn schema(&'static self) -> Option<&'static Schema> {
        self.schema.get_or_init(|| self.trace.and_then(Schema::of)).as_ref()
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
