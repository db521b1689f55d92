//! Failures of calls.
//!
//! Owns the codes, the status of a failed call, and the error type of methods with their own
//! errors. Knows neither codecs nor the wire: the session writes code, text and details.
//!
//! Invariants:
//! 1. The encoded size is bounded: the text is cut to [`MAX_MESSAGE_BYTES`], details longer than
//!    [`MAX_DETAILS_BYTES`] are not sent.
//! 2. A status without text and details allocates nothing and is 16 bytes.
//! 3. A status that a handler passes on from one of its own calls keeps code and details, and its
//!    text names that call. It stays retryable only if the handler's method is idempotent, or the
//!    handler says so.

mod code;
mod missing_metadata;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

pub use self::code::Code;
use crate::metadata::Metadata;
use crate::method::{MethodDescriptor, method_in_use};
use crate::text::printable;
use crate::wire::refusal::RETRY_AFTER;
use rpc_transport::user_code::logged;

/// Longest text of a status on the wire, bytes. Longer ones are cut at a character boundary.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024;
/// Longest details of a status on the wire, bytes. Longer ones are not sent.
pub const MAX_DETAILS_BYTES: usize = 64 * 1024;

/// Why a call failed: a code, a text for people, and details for programs.
///
/// Cheap to clone. A method that returns `Result<T, Status>` can end a call with any status; the
/// caller sees [`CallError::Status`], as for any other status.
///
/// Its `Display` is one line with at most [`MAX_MESSAGE_BYTES`] of the text, without control,
/// format and invisible characters, so a status of any peer can be logged and printed: see
/// [`text`](crate::text).
///
/// # Example
/// ```
/// use rpc_core::{Code, Status};
///
/// let status = Status::not_found("no key \"a\"").with_details(vec![7]);
/// assert_eq!(status.code(), Code::NotFound);
/// assert_eq!(status.to_string(), "not found: no key \"a\"");
/// assert!(!status.is_retryable());
/// ```
#[derive(Clone)]
pub struct Status {
    code: Code,
    retryable: bool,
    /// Whether `retryable` was set at this end, instead of received with the call in `call`.
    own_word: bool,
    /// The dense index, plus one, of the method whose call ended with this status; 0: created here.
    /// A number, not a reference, so that it fits into the padding.
    call: u32,
    rest: Option<Arc<Rest>>,
}

#[derive(Clone, Default)]
struct Rest {
    message: Cow<'static, str>,
    details: Bytes,
    retry_after: Option<Duration>,
    source: Option<Arc<dyn Error + Send + Sync>>,
    metadata: Metadata,
    /// Whether the metadata was set at this end, instead of received with the status.
    own_metadata: bool,
}

static NO_METADATA: Metadata = Metadata::new();

macro_rules! constructors {
    ($($name:ident => $code:ident),* $(,)?) => {$(
        #[doc = concat!("A status with [`Code::", stringify!($code), "`].")]
        #[must_use]
        pub fn $name(message: impl Into<Cow<'static, str>>) -> Self {
            Self::new(Code::$code, message)
        }
    )*};
}

impl Status {
    /// A status with a code and a text.
    #[must_use]
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        let mut status = Self::from(code);
        let message = message.into();
        if !message.is_empty() {
            status.rest_mut().message = message;
        }
        status
    }

    constructors! {
        cancelled => Cancelled,
        unknown => Unknown,
        invalid_argument => InvalidArgument,
        deadline_exceeded => DeadlineExceeded,
        not_found => NotFound,
        already_exists => AlreadyExists,
        permission_denied => PermissionDenied,
        resource_exhausted => ResourceExhausted,
        failed_precondition => FailedPrecondition,
        aborted => Aborted,
        out_of_range => OutOfRange,
        unimplemented => Unimplemented,
        internal => Internal,
        unavailable => Unavailable,
        data_loss => DataLoss,
        unauthenticated => Unauthenticated,
    }

    /// Adds details for programs; they are sent only up to [`MAX_DETAILS_BYTES`].
    #[must_use]
    pub fn with_details(mut self, details: impl Into<Bytes>) -> Self {
        self.rest_mut().details = details.into();
        self
    }

    /// Sets whether the same call may succeed if it is retried later.
    ///
    /// A handler that passes on a status from one of its own calls must set this again if it should
    /// hold for its own caller: see [`CallError`].
    #[must_use]
    pub fn with_retryable(mut self, retryable: bool) -> Self {
        (self.retryable, self.own_word) = (retryable, true);
        self
    }

    /// Marks the status as retryable after `delay`. Clients that
    /// [retry](crate::client::RetryPolicy) idempotent methods honour it, up to a minute. It is sent
    /// in milliseconds.
    #[must_use]
    pub fn with_retry_after(mut self, delay: Duration) -> Self {
        self.rest_mut().retry_after = Some(delay);
        self.with_retryable(true)
    }

    /// Sets the metadata sent with it. It only goes to the direct caller: a handler that passes on
    /// a status from one of its own calls does not pass on its metadata.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        if !metadata.is_empty() || self.rest.is_some() {
            let rest = self.rest_mut();
            (rest.metadata, rest.own_metadata) = (metadata, true);
        }
        self
    }

    /// The metadata received, or to be sent, with it.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        self.rest.as_ref().map_or(&NO_METADATA, |rest| &rest.metadata)
    }

    /// The metadata set at this end.
    pub(crate) fn own_metadata(&self) -> &Metadata {
        match &self.rest {
            Some(rest) if rest.own_metadata => &rest.metadata,
            _ => &NO_METADATA,
        }
    }

    /// Adds the cause, which stays in this process.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Arc<dyn Error + Send + Sync>>) -> Self {
        self.rest_mut().source = Some(source.into());
        self
    }

    /// The code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// The text as received; may be empty. It is chosen by the peer, so print the status itself,
    /// which shows [`printable`] text.
    #[must_use]
    pub fn message(&self) -> &str {
        self.rest.as_ref().map_or("", |rest| &rest.message)
    }

    /// The details; may be empty.
    #[must_use]
    pub fn details(&self) -> &[u8] {
        self.rest.as_ref().map_or(&[], |rest| &rest.details)
    }

    /// Whether the same call may succeed if it is retried later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }

    /// Prepends to the text.
    #[must_use]
    pub(crate) fn with_prefix(mut self, text: fmt::Arguments<'_>) -> Self {
        let rest = self.rest_mut();
        rest.message = format!("{text}{}", rest.message).into();
        self
    }

    /// Appends to the text.
    #[must_use]
    pub(crate) fn with_more(mut self, text: fmt::Arguments<'_>) -> Self {
        let rest = self.rest_mut();
        rest.message = format!("{}{text}", rest.message).into();
        self
    }

    /// The delay before a retry, if the server has set one.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.rest.as_ref()?.retry_after.filter(|_| self.retryable)
    }

    fn rest_mut(&mut self) -> &mut Rest {
        Arc::make_mut(self.rest.get_or_insert_default())
    }

    /// Marks this as the end of a call to `method`.
    pub(crate) fn of_call(mut self, method: &'static MethodDescriptor) -> Self {
        (self.call, self.own_word) = (method.dense_index() + 1, false);
        if !self.metadata().is_empty() {
            self.rest_mut().own_metadata = false;
        }
        self
    }

    /// The method whose call ended with this status; `None` if it was created here.
    fn called(&self) -> Option<&'static MethodDescriptor> {
        method_in_use(self.call.checked_sub(1)?)
    }

    /// The status for the caller of `method`, whose handler ends with this one.
    pub(crate) fn passed_on(&self, method: Option<&MethodDescriptor>) -> Cow<'_, Self> {
        let Some(called) = self.called() else { return Cow::Borrowed(self) };
        let mut status = self.clone();
        let text = self.message();
        if text.is_empty() {
            status.rest_mut().message = Cow::Borrowed(called.name);
        } else if !text.starts_with(called.name) {
            status.rest_mut().message = Cow::Owned(format!("{}: {text}", called.name));
        }
        if !self.metadata().is_empty() && self.own_metadata().is_empty() {
            status.rest_mut().metadata = Metadata::new();
        }
        status.retryable &= self.own_word || method.is_some_and(|method| method.idempotent);
        status.call = 0;
        Cow::Owned(status)
    }

    /// Text and details to send in `room` bytes: the text is cut to [`MAX_MESSAGE_BYTES`] at a
    /// character boundary; details are dropped if they exceed [`MAX_DETAILS_BYTES`] or do not fit
    /// beside the text.
    #[must_use]
    pub(crate) fn sent_within(&self, room: usize) -> (&str, Cow<'_, [u8]>) {
        let text = cut(self.message(), room.min(MAX_MESSAGE_BYTES));
        let room = MAX_DETAILS_BYTES.min(room - text.len());
        let details: Cow<'_, [u8]> = match self.retry_after() {
            None => self.details().into(),
            Some(delay) => [&*retry_mark(delay), self.details()].concat().into(),
        };
        if details.len() <= room {
            return (text, details);
        }
        let bytes = details.len();
        logged(move || tracing::warn!(bytes, "details of a status are too long to be sent"));
        match self.retry_after().map(retry_mark) {
            Some(mark) if mark.len() <= room => (text, mark.into()),
            _ => (text, Cow::Borrowed(&[])),
        }
    }

    /// A received status.
    pub(crate) fn received(code: Code, text: &str, details: &[u8], retryable: bool) -> Self {
        let status = Self::new(code, text.to_owned()).with_retryable(retryable);
        let marked = details.strip_prefix(RETRY_AFTER).filter(|_| retryable);
        match marked.and_then(|marked| marked.split_first_chunk::<8>()) {
            Some((millis, details)) => {
                let delay = Duration::from_millis(u64::from_le_bytes(*millis));
                status.with_retry_after(delay).with_details(Bytes::copy_from_slice(details))
            }
            None if details.is_empty() => status,
            None => status.with_details(Bytes::copy_from_slice(details)),
        }
    }
}

fn retry_mark(delay: Duration) -> Vec<u8> {
    let millis = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
    [RETRY_AFTER.as_slice(), &millis.to_le_bytes()].concat()
}

/// The start of a text, at most `max` bytes, cut at a character boundary.
fn cut(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl From<Code> for Status {
    fn from(code: Code) -> Self {
        Self { code, retryable: false, own_word: false, call: 0, rest: None }
    }
}

/// Compares the parts that are sent: code, text, details, retryable, metadata.
impl PartialEq for Status {
    fn eq(&self, other: &Self) -> bool {
        self.code == other.code
            && self.retryable == other.retryable
            && self.message() == other.message()
            && self.details() == other.details()
            && self.retry_after() == other.retry_after()
            && self.metadata() == other.metadata()
    }
}

impl Eq for Status {}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.message() {
            "" => write!(f, "{}", self.code),
            message => write!(f, "{}: {}", self.code, printable(message)),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Status");
        debug.field("code", &self.code).field("message", &printable(self.message()));
        if !self.details().is_empty() {
            debug.field("details", &self.details().len());
        }
        if !self.metadata().is_empty() {
            debug.field("metadata", self.metadata());
        }
        debug.field("retryable", &self.retryable);
        if let Some(called) = self.called() {
            debug.field("call", &called.name);
        }
        if let Some(source) = self.source() {
            debug.field("source", &source);
        }
        debug.finish()
    }
}

impl Error for Status {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.rest.as_ref()?.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

/// The error of a call to a method with its own error type.
///
/// # In handlers
/// A handler can use it too: a method `async fn f(&self) -> Result<T, CallError<E>>` ends with its
/// own error or with a status. Its callers see the same as for `Result<T, E>`, so a method can be
/// changed from one to the other at any time.
///
/// | the call inside gives | the handler ends with | how |
/// |---|---|---|
/// | `Status` | `Status` or `CallError<E>` | `?` |
/// | `E` | `CallError<E>` | `.map_err(CallError::User)?` |
/// | `CallError<E>` | `CallError<E>` | `?` |
/// | `CallError<E>` | `Status`, where `Status: From<E>` | `?` |
/// | `CallError<E>` | `CallError<F>`, where `F: From<E>` | `.map_err(CallError::user_into)?` |
/// | `CallError<E>` | `CallError<F>`, by a function | `.map_err(\|e\| e.map_user(convert))?` |
/// | `CallError<E>` | `CallError<F>`, where `Status: From<E>` | `.map_err(Status::from)?` |
///
/// A status passed on like this keeps its code and details, and its text names the call it comes
/// from: a customer reads `Orders.place: Stock.reserve: the shelf is full`. It is no longer
/// [retryable](Status::is_retryable), since this handler has begun, unless its method is
/// `#[rpc(idempotent)]` or the handler sets [`Status::with_retryable`].
///
/// ```
/// use rpc_core::serde::{Deserialize, Serialize};
/// use rpc_core::{CallError, Status};
///
/// #[derive(Debug, Serialize, Deserialize)]
/// #[serde(crate = "rpc_core::serde")]
/// pub struct Empty;
///
/// #[rpc_core::service]
/// pub trait Stock {
///     async fn reserve(&self, article: &str) -> Result<u32, CallError<Empty>>;
/// }
///
/// #[rpc_core::service]
/// pub trait Orders {
///     async fn place(&self, article: &str) -> Result<u32, CallError<Empty>>;
/// }
///
/// struct Shelves;
/// impl Stock for Shelves {
///     async fn reserve(&self, article: &str) -> Result<u32, CallError<Empty>> {
///         match article {
///             "apple" => Ok(7),
///             "pear" => Err(CallError::User(Empty)),
///             _ => Err(Status::unavailable("closed"))?,
///         }
///     }
/// }
///
/// struct Desk(StockClient);
/// impl Orders for Desk {
///     async fn place(&self, article: &str) -> Result<u32, CallError<Empty>> {
///         Ok(self.0.reserve(article).await? + 1)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let builder = rpc_core::Server::builder().add_service(StockServer::new(Shelves));
/// # let server = builder.bind("mem://chain-of-two-a").await?;
/// # tokio::spawn(server.serve());
/// # let stock = StockClient::connect("mem://chain-of-two-a").await?;
/// # let builder = rpc_core::Server::builder().add_service(OrdersServer::new(Desk(stock)));
/// # let server = builder.bind("mem://chain-of-two-b").await?;
/// # tokio::spawn(server.serve());
/// # let orders = OrdersClient::connect("mem://chain-of-two-b").await?;
/// assert!(matches!(orders.place("apple").await, Ok(8)));
/// assert!(matches!(orders.place("pear").await, Err(CallError::User(Empty))));
/// let Err(CallError::Status(status)) = orders.place("fig").await else { panic!() };
/// assert_eq!(status.to_string(), "unavailable: Stock.reserve: closed");
/// # Ok(()) }
/// ```
///
/// # Example
/// ```
/// use rpc_core::{CallError, Status};
///
/// #[derive(Debug, PartialEq)]
/// struct Full;
///
/// fn explain(error: CallError<Full>) -> String {
///     match error {
///         CallError::User(Full) => "the store is full".into(),
///         CallError::Status(status) => format!("the call failed: {status}"),
///     }
/// }
/// assert_eq!(explain(CallError::User(Full)), "the store is full");
/// assert_eq!(
///     explain(Status::unavailable("gone").into()),
///     "the call failed: unavailable: gone",
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError<E> {
    /// The method ran and returned its own error.
    User(E),
    /// The call failed.
    Status(Status),
}

impl<E> CallError<E> {
    /// The method's own error, if it is one.
    #[must_use]
    pub fn user(self) -> Option<E> {
        match self {
            Self::User(error) => Some(error),
            Self::Status(_) => None,
        }
    }

    /// The status, if the call itself failed.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::User(_) => None,
            Self::Status(status) => Some(status),
        }
    }

    /// Converts the method's own error.
    pub fn map_user<F>(self, convert: impl FnOnce(E) -> F) -> CallError<F> {
        match self {
            Self::User(error) => CallError::User(convert(error)),
            Self::Status(status) => CallError::Status(status),
        }
    }

    /// Converts the method's own error by `From`, for `?` in a method with another error type:
    /// `.map_err(CallError::user_into)?`.
    pub fn user_into<F: From<E>>(self) -> CallError<F> {
        self.map_user(F::from)
    }
}

impl<E> From<Status> for CallError<E> {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// For `Err(Code::NotFound.into())`, in a handler or in a fake of one.
impl<E> From<Code> for CallError<E> {
    fn from(code: Code) -> Self {
        Self::Status(code.into())
    }
}

/// For `?` in a method that ends with a [`Status`]: the called method's own error is converted by
/// `impl From<E> for Status`.
impl<E: Into<Status>> From<CallError<E>> for Status {
    fn from(error: CallError<E>) -> Self {
        match error {
            CallError::User(error) => error.into(),
            CallError::Status(status) => status,
        }
    }
}

/// Shows a status as [`Status`] does, and the method's own error as `Debug` does, on one line, so
/// that it needs no `Display`: `OutOfStock { left: 3 }`. If it is an [`Error`], its text is that of
/// the [source](Error::source).
impl<E: fmt::Debug> fmt::Display for CallError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(error) => write!(f, "{error:?}"),
            Self::Status(status) => status.fmt(f),
        }
    }
}

impl<E: Error + 'static> Error for CallError<E> {
    /// The method's own error, or the source of the status.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::User(error) => Some(error),
            Self::Status(status) => status.source(),
        }
    }
}
