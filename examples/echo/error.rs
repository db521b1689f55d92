//! How a run fails, in one line: what, where, what to do.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use rpc_core::{ConnectError, ListenError, Status};

/// How a run fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EchoError {
    /// The server cannot listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The client cannot connect.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A call failed.
    #[error("a call failed: {0}")]
    Call(#[from] Status),
    /// A reply is not what was sent.
    #[error("the reply has {got} bytes, but {sent} bytes were sent")]
    WrongReply {
        /// Bytes of the argument.
        sent: usize,
        /// Bytes of the reply.
        got: usize,
    },
    /// The server's process ended before it was ready. It has said why on stderr.
    #[error("cannot start the server process ({0})")]
    NotStarted(ExitStatus),
    /// The server's process printed nothing.
    #[error("the server process was not ready within {0:?}")]
    StartTimeout(Duration),
    /// The server's process ended while it was called.
    #[error("the server process ended during the run ({0})")]
    ServerEnded(ExitStatus),
    /// A task panicked.
    #[error("a task failed: {0}")]
    Task(#[from] tokio::task::JoinError),
    /// Ctrl-C or SIGTERM.
    #[error("interrupted")]
    Interrupted,
    /// The system refused something.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl EchoError {
    /// The exit status: 1, and 130 after Ctrl-C, as shells have it.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Interrupted => 130,
            _ => 1,
        }
    }
}
