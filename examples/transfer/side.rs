//! One end of a transfer: this machine or the server. Copying works between any two sides.
//!
//! Owns the kinds of failures: of one file, which is printed while the rest continues, or of the
//! connection.

use std::fmt;

use bytes::Bytes;
use rpc_core::{CallError, Code, Status};

use super::block::Block;
use super::files::LocalFiles;
use super::service::{
    FileError, Files, FilesClient, Found, Link, ListAsk, Page, Piece, Settle, Small, SmallAsk,
    Smalls, SumAsk, Whole,
};
use super::sums::Sum;

/// One end.
#[derive(Debug, Clone)]
pub(crate) enum Side {
    /// A directory of this machine.
    Here(LocalFiles),
    /// The directory of a server.
    There(FilesClient),
}

/// Why an operation failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Only one file, or one batch, failed: the reason, and the side.
    Alone(SideError),
    /// The connection is gone, and with it all the others.
    Fatal(Status),
}

/// A failure and where it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SideError {
    /// Why.
    pub(crate) error: FileError,
    /// Whether it happened at the server.
    pub(crate) there: bool,
}

impl SideError {
    /// Whether it may succeed a little later: others make room, or end.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self.error, FileError::Full(_) | FileError::Busy | FileError::Mismatch)
    }
}

impl fmt::Display for SideError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.there { "on the server" } else { "here" };
        write!(f, "{place}: {}", self.error)
    }
}

/// Answers to a batch.
pub(crate) type Answers<T> = Result<Vec<Result<T, FileError>>, Failure>;

/// One method of the service, at either side.
macro_rules! call {
    ($self:ident.$method:ident($($argument:ident),*)) => {
        match $self {
            Self::Here(files) => {
                files.$method($($argument),*).await.map_err(|error| $self.alone(error))
            }
            Self::There(client) => {
                client.$method($($argument),*).await.map_err(|error| $self.failure(error))
            }
        }
    };
}

impl Side {
    /// A failure of one file at this side.
    pub(crate) fn alone(&self, error: FileError) -> Failure {
        Failure::Alone(self.error(error))
    }

    /// The error of one file at this side, as it is printed.
    pub(crate) fn error(&self, error: FileError) -> SideError {
        SideError { error, there: matches!(self, Self::There(_)) }
    }

    fn failure(&self, error: CallError<FileError>) -> Failure {
        let status = match error {
            CallError::User(error) => return self.alone(error),
            CallError::Status(status) => status,
        };
        // Once the connection has ended, or the server is about to, no other call will succeed.
        let is_over = match self {
            Self::There(client) => client.channel().close_cause().is_some(),
            Self::Here(_) => false,
        };
        if is_over || status.code() == Code::Unavailable {
            return Failure::Fatal(status);
        }
        self.alone(FileError::Io(status.to_string()))
    }

    /// An answer for each item of a batch, or a failure: a shorter answer is invalid.
    pub(crate) fn all<T>(&self, answers: Answers<T>, asked: usize) -> Answers<T> {
        let answers = answers?;
        if answers.len() == asked { Ok(answers) } else { Err(self.senseless()) }
    }

    /// An answer that no correct server gives.
    pub(crate) fn senseless(&self) -> Failure {
        self.alone(FileError::Io(
            "the reply is malformed; check that both ends have the same \
                                  version"
                .to_owned(),
        ))
    }

    /// [`Files::list`].
    pub(crate) async fn list(&self, asks: Vec<ListAsk>) -> Answers<Page> {
        call!(self.list(asks))
    }

    /// [`Files::survey`].
    pub(crate) async fn survey(&self, paths: Vec<Bytes>) -> Answers<Found> {
        let asked = paths.len();
        self.all(call!(self.survey(paths)), asked)
    }

    /// [`Files::sums`]. May answer fewer than asked.
    pub(crate) async fn sums(&self, asks: Vec<SumAsk>) -> Answers<Vec<Sum>> {
        call!(self.sums(asks))
    }

    /// [`Files::read`].
    pub(crate) async fn read(
        &self,
        path: Bytes,
        offset: u64,
        bytes: u64,
    ) -> Result<Piece, Failure> {
        call!(self.read(path, offset, bytes))
    }

    /// [`Files::read_small`].
    pub(crate) async fn read_small(&self, asks: Vec<SmallAsk>) -> Result<Smalls, Failure> {
        let asked = asks.len();
        let smalls: Smalls = call!(self.read_small(asks))?;
        if smalls.files.len() == asked { Ok(smalls) } else { Err(self.senseless()) }
    }

    /// [`Files::make_dirs`].
    pub(crate) async fn make_dirs(&self, paths: Vec<Bytes>) -> Answers<()> {
        let asked = paths.len();
        self.all(call!(self.make_dirs(paths)), asked)
    }

    /// [`Files::make_links`].
    pub(crate) async fn make_links(&self, links: Vec<Link>) -> Answers<()> {
        let asked = links.len();
        self.all(call!(self.make_links(links)), asked)
    }

    /// [`Files::put_small`].
    pub(crate) async fn put_small(&self, files: Vec<Small>, block: Block) -> Answers<()> {
        let asked = files.len();
        self.all(call!(self.put_small(files, block)), asked)
    }

    /// [`Files::begin`].
    pub(crate) async fn begin(&self, path: Bytes, keep: u64) -> Result<(), Failure> {
        call!(self.begin(path, keep))
    }

    /// [`Files::write`].
    pub(crate) async fn write(
        &self,
        path: Bytes,
        offset: u64,
        block: Block,
    ) -> Result<(), Failure> {
        call!(self.write(path, offset, block))
    }

    /// [`Files::commit`].
    pub(crate) async fn commit(&self, file: Whole) -> Result<(), Failure> {
        call!(self.commit(file))
    }

    /// [`Files::abandon`].
    pub(crate) async fn abandon(&self, path: Bytes) -> Result<(), Failure> {
        call!(self.abandon(path))
    }

    /// [`Files::settle`].
    pub(crate) async fn settle(&self, items: Vec<Settle>) -> Answers<()> {
        let asked = items.len();
        self.all(call!(self.settle(items)), asked)
    }
}
