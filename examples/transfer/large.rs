//! Large files: blocks, several in flight at once, and resuming where an earlier run stopped.
//!
//! Invariants:
//! 1. A partial file is resumed after the leaves that have equal sums at both sides.
//! 2. A block is requested when the one `in_flight` places before it has arrived. Blocks come in
//!    any order, so after an interruption at most that many are copied again.
//! 3. The digest that a file is checked against is computed from the sums that its source sent with
//!    the blocks, so corruption on the way is detected.
//! 4. When a file is given up, no block of it is in flight: such a block would hold the partial
//!    file against another transfer that is about to finish it.
//! 5. A partial file stays for a later run to resume, except one that has failed twice: another
//!    transfer's blocks may be in it.

use std::cell::Cell;

use futures::stream::{self, StreamExt};
use rpc_core::Status;
use tokio::sync::Notify;

use super::compare::{Summed, common_leaves, covered};
use super::copy::{Attempt, Copy};
use super::plan::Item;
use super::service::{Entry, FileError, Found, Kind, Whole};
use super::side::{Failure, SideError};
use super::small::is_size;
use super::sums::{Sum, digest, leaf_count};

/// Whether a file is given up; its blocks that wait for their turn are notified.
#[derive(Debug, Default)]
struct GivenUp {
    is: Cell<bool>,
    told: Notify,
}

impl GivenUp {
    fn tell(&self) {
        self.is.set(true);
        self.told.notify_waiters();
    }

    /// The awaited value; `None` if the file is given up first.
    async fn or<T>(&self, waiting: impl Future<Output = T>) -> Option<T> {
        // Receives all notifications from here on.
        let told = self.told.notified();
        if self.is.get() {
            return None;
        }
        tokio::select! {
            biased;
            () = told => None,
            done = waiting => Some(done),
        }
    }
}

impl Copy<'_> {
    /// Copies a file of any size.
    pub(super) async fn large_file(&self, file: Item<u64>, attempt: Attempt) -> Result<(), Status> {
        let mut counted = 0;
        let error = match self.try_large(&file, &mut counted).await {
            Ok(()) => return Ok(()),
            Err(Failure::Fatal(status)) => return Err(status),
            Err(Failure::Alone(error)) => error,
        };
        if attempt == Attempt::First {
            self.progress.given_up(file.what.saturating_sub(counted));
        }
        self.clear_away(&file, &error, attempt).await?;
        self.file_failed(&file, &error, attempt);
        Ok(())
    }

    /// Removes the partial file of a file without room, so that it takes no room from others, and
    /// of a file that may be a mixture.
    async fn clear_away(
        &self,
        file: &Item<u64>,
        error: &SideError,
        attempt: Attempt,
    ) -> Result<(), Status> {
        match error.error {
            FileError::Full(_) => {}
            FileError::Busy => return Ok(()),
            _ if attempt == Attempt::Last => {}
            _ => return Ok(()),
        }
        match self.sink.abandon(file.to.clone()).await {
            Err(Failure::Fatal(status)) => Err(status),
            // The file's failure is printed anyway.
            Err(Failure::Alone(_)) | Ok(()) => Ok(()),
        }
    }

    async fn try_large(&self, file: &Item<u64>, counted: &mut u64) -> Result<(), Failure> {
        let mut found = self.sink.survey(vec![file.to.clone()]).await?;
        let found = found.pop().unwrap_or(Err(FileError::NotFound));
        let found = found.map_err(|error| self.sink.alone(error))?;
        if is_size(&found, file.what)
            && self.common(file, false).await?.len() as u64 == leaf_count(file.what)
        {
            *counted = file.what;
            self.file_kept(file, found.entry.is_some_and(|entry| entry.meta == file.meta));
            return Ok(());
        }
        let mut sums = match found.part_bytes {
            Some(1..) => self.common(file, true).await?,
            _ => Vec::new(),
        };
        let keep = covered(sums.len(), file.what);
        self.sink.begin(file.to.clone(), keep).await?;
        self.progress.kept(keep);
        *counted = keep;
        self.blocks(file, keep, &mut sums, counted).await?;
        self.check_source(file).await?;
        let (path, meta) = (file.to.clone(), file.meta);
        let whole = Whole { path, bytes: file.what, digest: digest(&sums), meta };
        self.sink.commit(whole).await?;
        self.progress.file();
        Ok(())
    }

    /// The leaves that source and sink have in common; none if one of them cannot be read. The
    /// sink's may have belonged to another transfer, which has ended. A failure of the source is
    /// printed later.
    async fn common(&self, file: &Item<u64>, part: bool) -> Result<Vec<Sum>, Failure> {
        let source = Summed { side: self.source, path: &file.from, part: false };
        let sink = Summed { side: self.sink, path: &file.to, part };
        match common_leaves(source, sink, file.what).await {
            Err(Failure::Alone(_)) => Ok(Vec::new()),
            common => common,
        }
    }

    /// Copies the blocks from `keep` on, and adds the sums of their leaves.
    async fn blocks(
        &self,
        file: &Item<u64>,
        keep: u64,
        sums: &mut Vec<Sum>,
        counted: &mut u64,
    ) -> Result<(), Failure> {
        let given_up = GivenUp::default();
        let offsets = (keep..file.what).step_by(self.options.block_bytes);
        let wanted = offsets.take_while(|_| !given_up.is.get());
        let blocks = wanted.map(|offset| self.block(file, offset, &given_up));
        let mut blocks = stream::iter(blocks).buffered(self.options.in_flight);
        let mut failed = None;
        while let Some(block) = blocks.next().await {
            match block {
                Ok((bytes, more)) => {
                    *counted += bytes;
                    sums.extend(more);
                }
                Err(failure) => failed = failed.or(Some(failure)),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Copies a block, unless the file is given up before the block is in flight; gives up the file
    /// if that fails.
    async fn block(
        &self,
        file: &Item<u64>,
        offset: u64,
        given_up: &GivenUp,
    ) -> Result<(u64, Vec<Sum>), Failure> {
        let copied = self.try_block(file, offset, given_up).await;
        if copied.is_err() {
            given_up.tell();
        }
        Ok(copied?.unwrap_or_default())
    }

    async fn try_block(
        &self,
        file: &Item<u64>,
        offset: u64,
        given_up: &GivenUp,
    ) -> Result<Option<(u64, Vec<Sum>)>, Failure> {
        // Never closed, so this only waits.
        let Some(_permit) = given_up.or(self.blocks.acquire()).await else { return Ok(None) };
        let bytes = (file.what - offset).min(self.options.block_bytes as u64);
        let piece = self.source.read(file.from.clone(), offset, bytes).await?;
        if piece.block.len() < bytes {
            return Err(self.source.alone(FileError::Changed));
        }
        if piece.block.len() > bytes || piece.sums.len() as u64 != leaf_count(bytes) {
            return Err(self.source.senseless());
        }
        if given_up.or(self.pace(bytes)).await.is_none() {
            return Ok(None);
        }
        self.sink.write(file.to.clone(), offset, piece.block).await?;
        self.progress.moved(bytes);
        Ok(Some((bytes, piece.sums)))
    }

    /// A file that has changed since it was listed may be a mixture of old and new.
    async fn check_source(&self, file: &Item<u64>) -> Result<(), Failure> {
        let mut found = self.source.survey(vec![file.from.clone()]).await?;
        let same = match found.pop() {
            Some(Ok(Found { entry: Some(Entry { kind: Kind::File { bytes }, meta }), .. })) => {
                bytes == file.what
                    && (meta.mtime, meta.mtime_nanos) == (file.meta.mtime, file.meta.mtime_nanos)
            }
            _ => false,
        };
        if same { Ok(()) } else { Err(self.source.alone(FileError::Changed)) }
    }
}
