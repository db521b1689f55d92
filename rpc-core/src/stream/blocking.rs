//! Streams for programs without a runtime.

use std::fmt;
use std::sync::Arc;

use super::end::StreamEnd;
use super::receive::Streaming;
use super::upload::{NoUpload, Pump};
use crate::metadata::Metadata;
use crate::runtime::driver_thread::{DriverThread, refuse_inside_a_runtime};
use crate::status::Status;

/// A stream of results as a blocking iterator. Dropping it cancels the call.
///
/// The types are those of [`Streaming`].
#[must_use = "a stream that is dropped is stopped"]
pub struct BlockingStreaming<T, R = (), E = Status, U = NoUpload> {
    // Dropped first: the driver ends with its last handle.
    stream: Streaming<T, R, E, U>,
    driver: Arc<DriverThread>,
}

impl<T, R, E, U> BlockingStreaming<T, R, E, U> {
    pub(crate) fn new(stream: Streaming<T, R, E, U>, driver: Arc<DriverThread>) -> Self {
        Self { stream, driver }
    }

    /// How the stream ended; `None` until its last item has been read.
    #[must_use]
    pub fn end(&self) -> Option<StreamEnd> {
        self.stream.end()
    }

    /// As [`Streaming::metadata`].
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        self.stream.metadata()
    }
}

impl<T, R, E: From<Status>, U: Pump> BlockingStreaming<T, R, E, U> {
    /// As [`Streaming::initial_metadata`]: waits for it.
    ///
    /// # Panics
    /// On a thread that drives asynchronous tasks.
    pub fn initial_metadata(&mut self) -> &Metadata {
        refuse_inside_a_runtime();
        let Self { stream, driver } = self;
        driver.wait(stream.initial_metadata())
    }

    /// As [`Streaming::finish`].
    ///
    /// # Errors
    /// Why the stream ended before its end.
    ///
    /// # Panics
    /// On a thread that drives asynchronous tasks.
    pub fn finish(self) -> Result<R, E> {
        refuse_inside_a_runtime();
        let Self { stream, driver } = self;
        driver.wait(stream.finish())
    }
}

/// Waits for each item. After an error there is nothing more.
///
/// # Panics
/// On a thread that drives asynchronous tasks.
impl<T, R, E: From<Status>, U: Pump> Iterator for BlockingStreaming<T, R, E, U> {
    type Item = Result<T, E>;

    fn next(&mut self) -> Option<Result<T, E>> {
        refuse_inside_a_runtime();
        self.driver.wait(self.stream.next())
    }
}

impl<T, R, E, U> fmt::Debug for BlockingStreaming<T, R, E, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stream.fmt(f)
    }
}
