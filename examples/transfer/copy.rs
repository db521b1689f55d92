//! Copying from one side to the other: the order of steps.
//!
//! Owns the order (directories, links, small files, large files, modes and times of directories),
//! the bounds of what is in flight at once, and the handling of failures. How files are copied is
//! in `small.rs` and `large.rs`.
//!
//! Invariants:
//! 1. An isolated failure is printed once and counted once, and the rest continues. Only the end of
//!    the connection ends the whole copy.
//! 2. No file is copied at the same time as one that could have its partial file's name
//!    ([`part_rank`]).
//! 3. At most `in_flight` batches or blocks are in flight, each of at most `block_bytes`.

use std::collections::{BTreeMap, HashSet};
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use rpc_core::Status;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};

use super::path::{Shown, join, part_rank, split};
use super::plan::{Item, Plan, Root};
use super::progress::Progress;
use super::service::{Link, SMALL_BYTES, Settle, Special};
use super::side::{Answers, Failure, Side, SideError};

/// Items of one call.
pub(crate) const BATCH: usize = 256;
/// Large files at once.
const LARGE_FILES: usize = 4;

/// How to copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    /// Bytes of a block; a multiple of a leaf.
    pub(crate) block_bytes: usize,
    /// Blocks or batches in flight at once.
    pub(crate) in_flight: usize,
    /// Most bytes a second.
    pub(crate) limit: Option<u64>,
}

/// A copy from one side to another.
#[derive(Debug)]
pub(crate) struct Copy<'a> {
    pub(super) source: &'a Side,
    pub(super) sink: &'a Side,
    roots: &'a [Root],
    pub(super) progress: &'a Progress,
    pub(super) options: Options,
    pub(super) blocks: Semaphore,
    /// When the next byte may be sent.
    pace: Mutex<Option<Instant>>,
    /// Files that failed, to be tried once more.
    again: Mutex<Vec<Item<u64>>>,
    /// Files that are complete, but lack their mode and time.
    unsettled: Mutex<Vec<Settle>>,
}

/// Whether a file that failed may be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    First,
    Last,
}

impl<'a> Copy<'a> {
    /// A copy that has not begun.
    pub(crate) fn new(
        source: &'a Side,
        sink: &'a Side,
        roots: &'a [Root],
        progress: &'a Progress,
        options: Options,
    ) -> Self {
        Self {
            source,
            sink,
            roots,
            progress,
            options,
            blocks: Semaphore::new(options.in_flight),
            pace: Mutex::default(),
            again: Mutex::default(),
            unsettled: Mutex::default(),
        }
    }

    /// Copies everything in a plan.
    ///
    /// # Errors
    /// When the connection ends. Everything else is printed and counted.
    pub(crate) async fn run(&self, mut plan: Plan) -> Result<(), Status> {
        for (path, error) in &plan.failed {
            self.progress.fail(&format_args!("{}: {error}", self.shown(path)));
        }
        for item in &plan.special {
            let word = special_word(item.what);
            self.progress.skip(&format_args!("{}: a {word}", self.shown(&item.from)));
        }
        let missing = self.make_dirs(&plan.dirs).await?;
        if !missing.is_empty() {
            self.leave_out(&mut plan, &missing);
        }
        self.make_links(&plan.links).await?;
        for files in by_rank(std::mem::take(&mut plan.files)).into_values() {
            let (small, large): (Vec<_>, Vec<_>) =
                files.into_iter().partition(|file| file.what <= SMALL_BYTES);
            self.small_files(small).await?;
            self.each(large, LARGE_FILES, |file| self.large_file(file, Attempt::First)).await?;
            self.once_more().await?;
        }
        let unsettled = std::mem::take(&mut *self.unsettled.lock());
        self.settle(unsettled, self.options.in_flight).await?;
        // A directory's time changes when entries are added to it, and an unwritable directory must
        // be closed last: lower directories come first, one batch after the other.
        let dirs = plan.dirs.iter().rev();
        let dirs = dirs.map(|dir| Settle { path: dir.to.clone(), meta: dir.meta }).collect();
        self.settle(dirs, 1).await
    }

    /// Processes every item, `at_once` at a time.
    pub(super) async fn each<T, F>(
        &self,
        items: impl IntoIterator<Item = T>,
        at_once: usize,
        work: impl Fn(T) -> F,
    ) -> Result<(), Status>
    where
        F: Future<Output = Result<(), Status>>,
    {
        stream::iter(items).map(Ok).try_for_each_concurrent(at_once, work).await
    }

    /// Returns the directories that could not be created.
    async fn make_dirs(&self, dirs: &[Item<()>]) -> Result<HashSet<Bytes>, Status> {
        let missing = Mutex::new(HashSet::new());
        let batch = async |batch: &[Item<()>]| {
            let answers = self.sink.make_dirs(batch.iter().map(|dir| dir.to.clone()).collect());
            let failed = |dir: &Item<()>, error| {
                let mut missing = missing.lock();
                // If its parent is missing so is this one, and that has been printed.
                if !above(&dir.to).any(|path| missing.contains(path)) {
                    let shown = self.shown(&dir.from);
                    self.progress
                        .fail(&format_args!("{shown}: {error}; nothing below it is copied"));
                }
                missing.insert(dir.to.clone());
            };
            self.answered(answers.await, batch, |_| self.progress.dir(), failed)
        };
        // Parents come first, so batches wait for each other.
        for dirs in dirs.chunks(BATCH) {
            batch(dirs).await?;
        }
        Ok(missing.into_inner())
    }

    /// Removes from a plan the missing directories and everything below them.
    fn leave_out(&self, plan: &mut Plan, missing: &HashSet<Bytes>) {
        let there = |path: &Bytes| {
            !missing.contains(path) && !above(path).any(|above| missing.contains(above))
        };
        plan.dirs.retain(|dir| there(&dir.to));
        plan.links.retain(|link| there(&link.to));
        plan.files.retain(|file| {
            let there = there(&file.to);
            if !there {
                self.progress.given_up(file.what);
            }
            there
        });
    }

    async fn make_links(&self, links: &[Item<Bytes>]) -> Result<(), Status> {
        self.each(links.chunks(BATCH), self.options.in_flight, async |batch| {
            let link = |item: &Item<Bytes>| Link {
                path: item.to.clone(),
                target: item.what.clone(),
                meta: item.meta,
            };
            let answers = self.sink.make_links(batch.iter().map(link).collect()).await;
            self.answered(
                answers,
                batch,
                |_| self.progress.link(),
                |item, error| {
                    self.fail(&item.from, &error);
                },
            )
        })
        .await
    }

    /// Sets mode and time of existing entries.
    async fn settle(&self, items: Vec<Settle>, at_once: usize) -> Result<(), Status> {
        self.each(items.chunks(BATCH), at_once, async |batch| {
            let answers = self.sink.settle(batch.to_vec()).await;
            self.answered(
                answers,
                batch,
                |_| {},
                |item, error| {
                    let shown = Shown(&item.path);
                    self.progress.fail(&format_args!("mode and time of {shown}: {error}"));
                },
            )
        })
        .await
    }

    /// Handles the answers to a batch, or their absence.
    pub(super) fn answered<T, U>(
        &self,
        answers: Answers<U>,
        batch: &[T],
        mut done: impl FnMut(&T),
        mut failed: impl FnMut(&T, SideError),
    ) -> Result<(), Status> {
        match answers {
            Err(Failure::Fatal(status)) => return Err(status),
            Err(Failure::Alone(error)) => batch.iter().for_each(|item| failed(item, error.clone())),
            Ok(answers) => {
                for (item, answer) in batch.iter().zip(answers) {
                    match answer {
                        Ok(_) => done(item),
                        Err(error) => failed(item, self.sink.error(error)),
                    }
                }
            }
        }
        Ok(())
    }

    /// Retries, one by one, files for which there was no room: other failed ones have made some.
    /// And files that another transfer wrote at the same time: it may have ended.
    async fn once_more(&self) -> Result<(), Status> {
        let mut files = std::mem::take(&mut *self.again.lock());
        files.sort_unstable_by_key(|file| file.what);
        for file in files {
            self.large_file(file, Attempt::Last).await?;
        }
        Ok(())
    }

    /// A file that was not copied.
    pub(super) fn file_failed(&self, file: &Item<u64>, error: &SideError, attempt: Attempt) {
        if attempt == Attempt::First && error.may_pass() {
            self.again.lock().push(file.clone());
        } else {
            self.fail(&file.from, error);
        }
    }

    /// A file that is there already. `is_settled`: it also has its mode and time.
    pub(super) fn file_kept(&self, file: &Item<u64>, is_settled: bool) {
        if !is_settled {
            self.unsettled.lock().push(Settle { path: file.to.clone(), meta: file.meta });
        }
        self.progress.kept(file.what);
        self.progress.kept_file();
    }

    fn fail(&self, path: &[u8], error: &SideError) {
        self.progress.fail(&format_args!("{}: {error}", self.shown(path)));
    }

    /// A path of the source as every command prints it: as at the server.
    pub(super) fn shown(&self, path: &[u8]) -> String {
        let below = |root: &Root| match path.strip_prefix(&*root.from)? {
            b"" => Some(root.to.to_vec()),
            rest if root.from.is_empty() => Some(join(&root.to, rest)),
            rest => Some(join(&root.to, rest.strip_prefix(b"/")?)),
        };
        let sent = matches!(self.source, Side::Here(_));
        let at_server = if sent { self.roots.iter().find_map(below) } else { None };
        Shown(at_server.as_deref().unwrap_or(path)).to_string()
    }

    /// Waits until this many more bytes may be sent.
    pub(super) async fn pace(&self, bytes: u64) {
        let Some(limit) = self.options.limit else { return };
        let takes = Duration::from_secs_f64(bytes as f64 / limit as f64);
        let begin = {
            let mut pace = self.pace.lock();
            let now = Instant::now();
            let begin = pace.map_or(now, |next| next.max(now));
            *pace = Some(begin + takes);
            begin
        };
        sleep_until(begin).await;
    }
}

/// The directories that a path is in, innermost first, without the root.
fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    fn parent<'a>(path: &&'a [u8]) -> Option<&'a [u8]> {
        Some(split(path).0).filter(|dir| !dir.is_empty())
    }
    std::iter::successors(Some(path), parent).skip(1)
}

fn by_rank(files: Vec<Item<u64>>) -> BTreeMap<usize, Vec<Item<u64>>> {
    let mut ranks: BTreeMap<usize, Vec<_>> = BTreeMap::new();
    for file in files {
        ranks.entry(part_rank(&file.to)).or_default().push(file);
    }
    ranks
}

/// The word for an entry that is not copied.
pub(crate) fn special_word(special: Special) -> &'static str {
    match special {
        Special::Pipe => "named pipe",
        Special::Socket => "socket",
        Special::Device => "device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directories_above_a_path() {
        assert_eq!(above(b"a/b/c").collect::<Vec<_>>(), [&b"a/b"[..], b"a"]);
        assert_eq!(above(b"a").count(), 0);
    }
}
