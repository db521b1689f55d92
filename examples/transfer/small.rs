//! Small files: in batches, many to a call.
//!
//! A batch takes three or four calls whatever it holds: which files are there, which of them are
//! equal, read the others, write them. Several batches are in flight at once.

use bytes::Bytes;
use rpc_core::Status;

use super::copy::{Attempt, BATCH, Copy};
use super::plan::Item;
use super::service::{Entry, Found, Kind, Small, SmallAsk, Smalls, SumAsk, Whole};
use super::side::{Failure, Side};
use super::sums::Sum;

impl Copy<'_> {
    /// Copies small files.
    pub(super) async fn small_files(&self, files: Vec<Item<u64>>) -> Result<(), Status> {
        let batches = batches(files, self.options.block_bytes as u64);
        self.each(batches, self.options.in_flight, |batch| self.small_batch(batch)).await
    }

    async fn small_batch(&self, batch: Vec<Item<u64>>) -> Result<(), Status> {
        let paths = batch.iter().map(|file| file.to.clone()).collect();
        let Some(found) = self.of_batch(self.sink.survey(paths).await, &batch)? else {
            return Ok(());
        };
        let (mut send, mut same_size) = (Vec::new(), Vec::new());
        for (file, found) in batch.into_iter().zip(found) {
            match found {
                Ok(found) if is_size(&found, file.what) => same_size.push((file, found)),
                Ok(_) => send.push(file),
                Err(error) => self.small_failed(&file, self.sink.alone(error))?,
            }
        }
        if !same_size.is_empty() {
            send.extend(self.changed(same_size).await?);
        }
        if send.is_empty() {
            return Ok(());
        }
        self.send_batch(send).await
    }

    /// The files with different bytes, among existing files of equal size.
    async fn changed(&self, files: Vec<(Item<u64>, Found)>) -> Result<Vec<Item<u64>>, Status> {
        let asked = files.len();
        let sums = async |side: &Side, path: fn(&Item<u64>) -> &Bytes| {
            let ask = |(file, _): &(Item<u64>, Found)| SumAsk {
                path: path(file).clone(),
                part: false,
                first: 0,
                count: 1,
            };
            side.all(side.sums(files.iter().map(ask).collect()).await, asked)
        };
        let (ours, theirs) =
            tokio::join!(sums(self.source, |file| &file.from), sums(self.sink, |file| &file.to));
        let sums = match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => ours.into_iter().zip(theirs),
            (Err(Failure::Fatal(status)), _) | (_, Err(Failure::Fatal(status))) => {
                return Err(status);
            }
            // Then they are copied, or fail like the others.
            _ => return Ok(files.into_iter().map(|(file, _)| file).collect()),
        };
        let mut changed = Vec::new();
        for ((file, found), (ours, theirs)) in files.into_iter().zip(sums) {
            if ours.is_ok() && ours == theirs {
                let is_settled = found.entry.is_some_and(|entry| entry.meta == file.meta);
                self.file_kept(&file, is_settled);
            } else {
                changed.push(file);
            }
        }
        Ok(changed)
    }

    async fn send_batch(&self, batch: Vec<Item<u64>>) -> Result<(), Status> {
        let ask = |file: &Item<u64>| SmallAsk { path: file.from.clone(), bytes: file.what };
        let read = self.source.read_small(batch.iter().map(ask).collect()).await;
        let Some(Smalls { files: answers, block }) = self.of_batch(read, &batch)? else {
            return Ok(());
        };
        let (mut read, mut smalls, mut at) = (Vec::new(), Vec::new(), 0_u64);
        for (file, answer) in batch.into_iter().zip(answers) {
            match answer {
                Ok((bytes, digest)) if bytes == file.what => {
                    smalls.push(small(&file, digest, at));
                    at += bytes;
                    read.push(file);
                }
                Ok(_) => self.small_failed(&file, self.source.senseless())?,
                Err(error) => self.small_failed(&file, self.source.alone(error))?,
            }
        }
        if read.is_empty() {
            return Ok(());
        }
        self.pace(block.len()).await;
        let answers = self.sink.put_small(smalls, block).await;
        let done = |file: &Item<u64>| {
            self.progress.moved(file.what);
            self.progress.file();
        };
        self.answered(answers, &read, done, |file, error| {
            self.progress.given_up(file.what);
            self.file_failed(file, &error, Attempt::First);
        })
    }

    /// The answer about a whole batch; `None` if there is none, which has been printed then.
    fn of_batch<T>(
        &self,
        answer: Result<T, Failure>,
        batch: &[Item<u64>],
    ) -> Result<Option<T>, Status> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(Failure::Fatal(status)) => Err(status),
            Err(Failure::Alone(error)) => {
                for file in batch {
                    self.progress.given_up(file.what);
                    self.file_failed(file, &error, Attempt::Last);
                }
                Ok(None)
            }
        }
    }

    fn small_failed(&self, file: &Item<u64>, failure: Failure) -> Result<(), Status> {
        self.of_batch::<()>(Err(failure), std::slice::from_ref(file)).map(|_| ())
    }
}

fn small(file: &Item<u64>, digest: Sum, at: u64) -> Small {
    let (path, bytes) = (file.to.clone(), file.what);
    Small { whole: Whole { path, bytes, digest, meta: file.meta }, at }
}

/// Whether a file of this size is there.
pub(super) fn is_size(found: &Found, wanted: u64) -> bool {
    matches!(found.entry, Some(Entry { kind: Kind::File { bytes }, .. }) if bytes == wanted)
}

/// Cuts files into batches of at most `max_bytes` bytes, if none is larger.
fn batches(files: Vec<Item<u64>>, max_bytes: u64) -> Vec<Vec<Item<u64>>> {
    let mut batches: Vec<Vec<_>> = Vec::new();
    let mut bytes = 0;
    for file in files {
        match batches.last_mut() {
            Some(last) if last.len() < BATCH && bytes + file.what <= max_bytes => {
                bytes += file.what;
                last.push(file);
            }
            _ => {
                bytes = file.what;
                batches.push(vec![file]);
            }
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::super::service::Meta;
    use super::*;

    #[test]
    fn batches_are_bounded_in_files_and_bytes() {
        let file = |bytes| Item {
            from: Bytes::new(),
            to: Bytes::new(),
            meta: Meta { mode: 0, mtime: 0, mtime_nanos: 0 },
            what: bytes,
        };
        let lengths = |sizes: Vec<u64>| {
            let batches = batches(sizes.into_iter().map(file).collect(), 10);
            batches.iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(lengths(vec![4, 6, 1, 10, 9]), [2, 1, 1, 1]);
        assert_eq!(lengths(vec![0; BATCH + 1]), [BATCH, 1]);
        assert_eq!(lengths(vec![]), [0; 0]);
    }
}
