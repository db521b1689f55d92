//! How a command fails, in one line: what, where, what to do.

use std::io;
use std::path::{Path, PathBuf};

use examples::serving::ServeError;
use rpc_core::{ConnectError, ListenError, Status};

/// How a command fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// The server cannot listen.
    #[error(transparent)]
    Listen(ListenError),
    /// No connection.
    #[error(transparent)]
    Connect(ConnectError),
    /// A file or directory of the command line.
    #[error("{}: {error}", path.display())]
    File {
        /// Where.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A directory to serve that is not there.
    #[error("{}: no such directory; correct the path, or add --create to create it", .0.display())]
    NoDirectory(PathBuf),
    /// A path of the command line that has no name of its own.
    #[error("{}: it has no name to be stored under; pass its contents instead", .0.display())]
    Nameless(PathBuf),
    /// Two paths of the command line have the same name.
    #[error("two of the paths would become `{0}`; copy them separately, to different places")]
    Clash(String),
    /// Nobody reads what is printed any more.
    #[error("the output was closed")]
    OutputClosed,
    /// Ctrl-C or SIGTERM, for the second time.
    #[error("interrupted")]
    Interrupted,
    /// Ctrl-C or SIGTERM in the middle.
    #[error("interrupted, {0}; run the same command again to resume")]
    InterruptedAfter(String),
    /// Some files failed; each has been named.
    #[error("{0} failed, see above")]
    SomeFailed(String),
    /// The sides differ; each difference has been printed.
    #[error("{0}, see above")]
    Different(String),
    /// The connection ended in the middle.
    #[error("stopped, {done}: {status}; run the same command again to resume")]
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

impl CommandError {
    /// A failure at a path.
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        |error| Self::File { path: path.to_owned(), error }
    }

    /// The exit status.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::OutputClosed => 0,
            Self::Nameless(_) | Self::Clash(_) => 2,
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
