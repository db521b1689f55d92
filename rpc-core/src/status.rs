//! How a call fails.
//!
//! Owns the codes, the status that a failed call ends with, its bytes on the wire, and the error
//! type of methods that have errors of their own. Never knows a codec.
//!
//! # The body of a status message
//!
//! | bytes | what |
//! |---|---|
//! | 1 | flags: bit 0 = retryable; the others are zero |
//! | 4 | length of the text, little endian |
//! | n | the text, UTF-8 |
//! | rest | details |
//!
//! Invariants:
//! 1. A body is parsed to its last byte; the text is at most [`MAX_MESSAGE_BYTES`] long, the
//!    details at most [`MAX_DETAILS_BYTES`]; a sender cuts the text and drops longer details.
//! 2. A status without text and details allocates nothing and is 16 bytes.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use rpc_transport::outbound::OutBuf;

/// Longest text of a status on the wire, bytes. Longer ones are cut at a character.
pub const MAX_MESSAGE_BYTES: usize = 4 * 1024;
/// Longest details of a status on the wire, bytes. Longer ones are not sent.
pub const MAX_DETAILS_BYTES: usize = 64 * 1024;

const HEADER_BYTES: usize = 5;
const RETRYABLE: u8 = 1;

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal, $text:literal;)*) => {
        /// Why a call failed: the codes of gRPC, with the same numbers.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Code {
            $($(#[doc = $doc])+ $name = $number,)*
        }

        impl Code {
            /// All codes, in the order of their numbers.
            pub const ALL: [Self; 17] = [$(Self::$name),*];

            /// The number on the wire.
            #[must_use]
            pub const fn number(self) -> u8 {
                self as u8
            }

            /// The code with that number, if there is one.
            #[must_use]
            pub const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// What it means, in a few words.
            #[must_use]
            pub const fn description(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

codes! {
    /// No failure.
    Ok = 0, "ok";
    /// The call was cancelled, usually by the caller.
    Cancelled = 1, "cancelled";
    /// No better code fits.
    Unknown = 2, "unknown error";
    /// The arguments are wrong whatever the state of the service.
    InvalidArgument = 3, "invalid argument";
    /// The deadline passed. The call may have been carried out.
    DeadlineExceeded = 4, "deadline exceeded";
    /// What was asked for does not exist.
    NotFound = 5, "not found";
    /// What should be created exists.
    AlreadyExists = 6, "already exists";
    /// The caller may not do this.
    PermissionDenied = 7, "permission denied";
    /// Something has run out: memory, quota, queue.
    ResourceExhausted = 8, "resource exhausted";
    /// The service is not in the state that the call needs.
    FailedPrecondition = 9, "failed precondition";
    /// A conflict; the caller may start over.
    Aborted = 10, "aborted";
    /// Past the end.
    OutOfRange = 11, "out of range";
    /// There is no such service or method, or not in this form.
    Unimplemented = 12, "unimplemented";
    /// Something that must not happen did.
    Internal = 13, "internal error";
    /// The service cannot be reached now.
    Unavailable = 14, "unavailable";
    /// Data is lost or corrupt.
    DataLoss = 15, "data loss";
    /// The caller is not known.
    Unauthenticated = 16, "unauthenticated";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.description())
    }
}

/// Why a call failed: a code, a text for people, details for programs.
///
/// Cheap to clone. Handlers of methods without an error type of their own cannot fail otherwise
/// than by panicking; those with one put a [`CallError`] or an error of their own into the result.
#[derive(Clone)]
pub struct Status {
    code: Code,
    retryable: bool,
    rest: Option<Arc<Rest>>,
}

#[derive(Clone, Default)]
struct Rest {
    message: Cow<'static, str>,
    details: Bytes,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

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
    /// A status with a text.
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

    /// Adds details for programs; at most [`MAX_DETAILS_BYTES`] travel.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<Bytes>) -> Self {
        self.rest_mut().details = details.into();
        self
    }

    /// Says whether the same call may succeed when it is made again, later.
    #[must_use]
    pub fn with_retryable(mut self, retryable: bool) -> Self {
        self.retryable = retryable;
        self
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

    /// The text; may be empty.
    #[must_use]
    pub fn message(&self) -> &str {
        self.rest.as_ref().map_or("", |rest| &rest.message)
    }

    /// The details; may be empty.
    #[must_use]
    pub fn details(&self) -> &[u8] {
        self.rest.as_ref().map_or(&[], |rest| &rest.details)
    }

    /// Whether the same call may succeed when it is made again, later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }

    fn rest_mut(&mut self) -> &mut Rest {
        Arc::make_mut(self.rest.get_or_insert_default())
    }

    /// Appends the body of a status message. The code travels in the header.
    pub fn encode_body(&self, out: &mut OutBuf) {
        let message = cut(self.message());
        let mut details = self.details();
        if details.len() > MAX_DETAILS_BYTES {
            tracing::warn!(bytes = details.len(), "details of a status are too long to be sent");
            details = &[];
        }
        out.extend_from_slice(&[if self.retryable { RETRYABLE } else { 0 }]);
        let length = u32::try_from(message.len()).unwrap_or(0); // at most MAX_MESSAGE_BYTES
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(message.as_bytes());
        out.extend_from_slice(details);
    }

    /// Parses the body of a status message.
    ///
    /// # Errors
    /// [`StatusBodyError`] names the rule that the bytes break.
    pub fn decode_body(code: Code, body: &[u8]) -> Result<Self, StatusBodyError> {
        let Some((&[flags, l0, l1, l2, l3], rest)) = body.split_first_chunk::<HEADER_BYTES>()
        else {
            return Err(StatusBodyError::Truncated);
        };
        if flags & !RETRYABLE != 0 {
            return Err(StatusBodyError::UnknownFlags(flags));
        }
        let length = usize::try_from(u32::from_le_bytes([l0, l1, l2, l3]))
            .map_err(|_| StatusBodyError::MessageTooLong)?;
        if length > MAX_MESSAGE_BYTES {
            return Err(StatusBodyError::MessageTooLong);
        }
        let (message, details) = rest.split_at_checked(length).ok_or(StatusBodyError::Truncated)?;
        let message = std::str::from_utf8(message).map_err(|_| StatusBodyError::NotUtf8)?;
        if details.len() > MAX_DETAILS_BYTES {
            return Err(StatusBodyError::DetailsTooLong);
        }
        let mut status = Self::new(code, message.to_owned());
        status.retryable = flags & RETRYABLE != 0;
        if !details.is_empty() {
            status.rest_mut().details = Bytes::copy_from_slice(details);
        }
        Ok(status)
    }
}

/// Cuts a text to what may travel, at a character.
fn cut(message: &str) -> &str {
    let mut end = message.len().min(MAX_MESSAGE_BYTES);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}

/// A status message whose body breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StatusBodyError {
    /// It ends too early.
    #[error("the body of a status ends too early")]
    Truncated,
    /// A reserved flag is set.
    #[error("the body of a status has unknown flags {0:#04x}")]
    UnknownFlags(u8),
    /// The text is longer than [`MAX_MESSAGE_BYTES`].
    #[error("the text of a status is longer than {MAX_MESSAGE_BYTES} bytes")]
    MessageTooLong,
    /// The details are longer than [`MAX_DETAILS_BYTES`].
    #[error("the details of a status are longer than {MAX_DETAILS_BYTES} bytes")]
    DetailsTooLong,
    /// The text is not UTF-8.
    #[error("the text of a status is not UTF-8")]
    NotUtf8,
}

impl From<Code> for Status {
    fn from(code: Code) -> Self {
        Self { code, retryable: false, rest: None }
    }
}

/// Compares what travels: code, text, details, retryable.
impl PartialEq for Status {
    fn eq(&self, other: &Self) -> bool {
        self.code == other.code
            && self.retryable == other.retryable
            && self.message() == other.message()
            && self.details() == other.details()
    }
}

impl Eq for Status {}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.message() {
            "" => write!(f, "{}", self.code),
            message => write!(f, "{}: {message}", self.code),
        }
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Status");
        debug.field("code", &self.code).field("message", &self.message());
        if !self.details().is_empty() {
            debug.field("details", &self.details().len());
        }
        debug.field("retryable", &self.retryable);
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

/// How a call to a method with an error type of its own fails.
///
/// `?` turns a [`Status`] into it; for `?` on the method's own error, see [`CallError::user`].
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
}

impl<E> From<Status> for CallError<E> {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl<E: fmt::Display> fmt::Display for CallError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(error) => error.fmt(f),
            Self::Status(status) => status.fmt(f),
        }
    }
}

impl<E: Error + 'static> Error for CallError<E> {
    /// The error itself is shown by `Display`, so its source comes next.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::User(error) => error.source(),
            Self::Status(status) => status.source(),
        }
    }
}
