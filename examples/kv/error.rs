//! How a command fails, in one line: what, where, what to do.

use std::io;
use std::path::{Path, PathBuf};

use examples::serving::ServeError;
use rpc_core::{CallError, Code, ConnectError, ListenError, Status};

use super::key_path::Shortened;
use super::service::KvError;

/// How a command fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// The server cannot listen.
    #[error(transparent)]
    Listen(ListenError),
    /// No connection.
    #[error(transparent)]
    Connect(ConnectError),
    /// The store refused.
    #[error("{}: {error}", Shortened(.key))]
    Refused {
        /// The key.
        key: String,
        /// Why.
        error: KvError,
    },
    /// A call failed.
    #[error("the call failed: {0}{advice}", advice = advice(.0))]
    Call(#[from] Status),
    /// A server that lists keys out of order, or other keys.
    #[error(
        "the server's listing is malformed: its keys are out of order, or not the requested \
             ones"
    )]
    BadListing,
    /// A file or directory of the command line.
    #[error("{}: {error}", path.display())]
    File {
        /// Where.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Nobody reads what is printed any more (`kv list | head`).
    #[error("the output was closed")]
    OutputClosed,
    /// Ctrl-C or SIGTERM, for the second time.
    #[error("interrupted")]
    Interrupted,
    /// Ctrl-C or SIGTERM in the middle of many calls.
    #[error("interrupted, {0}")]
    InterruptedAfter(String),
    /// Some files failed; each has been named.
    #[error("{0} failed, see above")]
    SomeFailed(String),
    /// The connection ended in the middle of many calls.
    #[error("stopped, {done}: {status}")]
    Stopped {
        /// How much was done.
        done: String,
        /// Why.
        status: Status,
    },
    /// The system refused something.
    #[error(transparent)]
    Io(io::Error),
}

/// Advice about a call that failed.
fn advice(status: &Status) -> &'static str {
    match status.code() {
        Code::Unavailable => "; check that the server is running, and try again",
        _ => "",
    }
}

impl CommandError {
    /// A failed call about a key.
    pub(crate) fn call(key: &str, error: CallError<KvError>) -> Self {
        match error {
            CallError::User(error) => Self::Refused { key: key.to_owned(), error },
            CallError::Status(status) => Self::Call(status),
        }
    }

    /// A failure at a path.
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |error| Self::File { path: path.to_owned(), error }
    }

    /// The exit status.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::OutputClosed => 0,
            Self::Interrupted | Self::InterruptedAfter(_) => 130,
            _ => 1,
        }
    }
}

impl From<ServeError> for CommandError {
    fn from(error: ServeError) -> Self {
        match error {
            ServeError::Listen(error) => Self::Listen(error),
            ServeError::Io(error) => error.into(),
            ServeError::Interrupted => Self::Interrupted,
        }
    }
}

impl From<io::Error> for CommandError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::Io(error),
        }
    }
}
