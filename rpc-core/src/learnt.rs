//! Descriptors of methods that a program learns while it runs.
//!
//! Descriptors live as long as the process. So equal ones are made once, and their number and
//! memory are bounded, whatever the servers describe that a program meets.

use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;

use rpc_transport::lock::Mutex;

use crate::method::MethodDescriptor;

/// Most learnt methods.
const MAX_METHODS: usize = 8192;
/// Most memory of all of them, bytes.
const MAX_BYTES: usize = 32 << 20;

static LEARNT: LazyLock<Mutex<Learnt>> =
    LazyLock::new(|| Mutex::new(Learnt::bounded(MAX_METHODS, MAX_BYTES)));

/// A method that is known from the description of its server, or that a program without the macro
/// serves.
///
/// ```
/// use rpc_core::service::{LearntMethod, LearntTypes};
///
/// let types = LearntTypes::Lines(vec!["0: u32".into(), "result: u64".into()]);
/// let mut method = LearntMethod::new("Stock.count", "(u32) -> u64", types);
/// method.arguments = vec!["shelf".into()];
/// let descriptor = method.descriptor()?;
/// assert!(std::ptr::eq(descriptor, method.descriptor()?));
/// # Ok::<(), rpc_core::service::TooManyMethods>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct LearntMethod {
    /// `Service.method`.
    pub name: String,
    /// The normalised signature.
    pub signature: String,
    /// The names of its arguments, without a stream.
    pub arguments: Vec<String>,
    /// What is compared with the types of a peer.
    pub types: LearntTypes,
    /// May be carried out more than once.
    pub idempotent: bool,
    /// Runs to its end even when the caller has gone away.
    pub no_cancel: bool,
    /// Its last argument is a stream.
    pub streams_arguments: bool,
    /// Its result is a stream.
    pub streams_results: bool,
    /// A call's deadline starts anew with each item.
    pub idle_deadline: bool,
}

/// What is compared with the types of a peer before a call is answered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LearntTypes {
    /// The lines that describe the types. A peer whose lines differ refuses calls.
    Lines(Vec<String>),
    /// The signatures alone: for methods that their server does not describe. If types of one name
    /// have other contents at the peer, values are read wrong.
    SignatureAlone,
}

/// This process has learnt as many methods as it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyMethods(());

impl fmt::Display for TooManyMethods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "this process has learnt {MAX_METHODS} methods, or {MAX_BYTES} bytes of their types, \
             and takes no more: restart it"
        )
    }
}

impl std::error::Error for TooManyMethods {}

impl LearntMethod {
    /// A method without arguments and options.
    #[must_use]
    pub fn new(name: impl Into<String>, signature: impl Into<String>, types: LearntTypes) -> Self {
        Self {
            name: name.into(),
            signature: signature.into(),
            arguments: Vec::new(),
            types,
            idempotent: false,
            no_cancel: false,
            streams_arguments: false,
            streams_results: false,
            idle_deadline: false,
        }
    }

    fn lines(&self) -> &[String] {
        match &self.types {
            LearntTypes::Lines(lines) => lines,
            LearntTypes::SignatureAlone => &[],
        }
    }

    /// Its descriptor, which is the same for equal methods. A peer whose types are not those of
    /// [`LearntTypes::Lines`] refuses its calls.
    ///
    /// # Errors
    /// There are too many already.
    pub fn descriptor(&self) -> Result<&'static MethodDescriptor, TooManyMethods> {
        LEARNT.lock().find_or_add(self)
    }

    fn bytes(&self) -> usize {
        let texts = self.arguments.iter().chain(self.lines()).map(|it| size_of_val(it) + it.len());
        let texts: usize = texts.sum();
        let own = size_of::<Self>() + self.name.len() + self.signature.len();
        // The lines are there twice.
        own + 2 * texts + size_of::<MethodDescriptor>()
    }

    fn leak(&self) -> (&'static Self, &'static MethodDescriptor) {
        let learnt: &'static Self = Box::leak(Box::new(self.clone()));
        let arguments: Vec<&'static str> = learnt.arguments.iter().map(String::as_str).collect();
        let mut method = MethodDescriptor::new(&learnt.name, &learnt.signature, arguments.leak());
        method.idempotent = learnt.idempotent;
        method.no_cancel = learnt.no_cancel;
        method.streams.arguments = learnt.streams_arguments;
        method.streams.results = learnt.streams_results;
        method.streams.idle_deadline = learnt.idle_deadline;
        if let LearntTypes::Lines(lines) = &learnt.types {
            method = method.described_by(lines);
        }
        (learnt, Box::leak(Box::new(method)))
    }
}

#[derive(Debug)]
struct Learnt {
    known: HashMap<&'static LearntMethod, &'static MethodDescriptor>,
    bytes: usize,
    most: (usize, usize),
}

impl Learnt {
    fn bounded(methods: usize, bytes: usize) -> Self {
        Self { known: HashMap::new(), bytes: 0, most: (methods, bytes) }
    }

    fn find_or_add(
        &mut self,
        method: &LearntMethod,
    ) -> Result<&'static MethodDescriptor, TooManyMethods> {
        if let Some(found) = self.known.get(method) {
            return Ok(found);
        }
        let bytes = self.bytes + method.bytes();
        if self.known.len() >= self.most.0 || bytes > self.most.1 {
            return Err(TooManyMethods(()));
        }
        let (learnt, descriptor) = method.leak();
        self.bytes = bytes;
        self.known.insert(learnt, descriptor);
        Ok(descriptor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn method(number: usize) -> LearntMethod {
        let lines = vec!["0: u32".to_owned(), format!("result: struct {{ f{number} }}")];
        let types = LearntTypes::Lines(lines);
        let mut method = LearntMethod::new("Stock.count", "(u32) -> u64", types);
        method.arguments = vec!["shelf".to_owned()];
        method
    }

    #[test]
    fn ten_thousand_schemas_take_bounded_memory() {
        for most in [(1000, usize::MAX), (usize::MAX, 1000 * method(1).bytes())] {
            let mut learnt = Learnt::bounded(most.0, most.1);
            let added = (0..10_000).filter(|at| learnt.find_or_add(&method(*at)).is_ok()).count();
            assert!((900..=1000).contains(&added), "{added}");
            assert_eq!(learnt.known.len(), added);
            assert!(learnt.bytes <= most.1);
            // Those that are known still are.
            assert!(learnt.find_or_add(&method(0)).is_ok());
            assert!(learnt.find_or_add(&method(9999)).is_err());
        }
    }

    #[test]
    fn equal_methods_have_one_descriptor() {
        let (first, same) = (method(1).descriptor().unwrap(), method(1).descriptor().unwrap());
        assert!(std::ptr::eq(first, same));
        let other = method(2).descriptor().unwrap();
        assert_ne!(first.checked_hash(), other.checked_hash());
        assert_eq!(first.schema().unwrap().text(), "0: u32\nresult: struct { f1 }\n");
        assert!(first.call_head().is_some());
        assert_eq!(first.types().unwrap().arguments().count(), 1);
    }
}
