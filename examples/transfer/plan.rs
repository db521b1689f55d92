//! The entries to copy: the requested trees, as lists.
//!
//! Owns reading a side's directories, many at once, and the check that a server's listing is valid.
//! Never touches the other side.
//!
//! Invariants:
//! 1. Every path in a plan is one of the roots or below it, whatever a server answers: names from a
//!    listing are single names.
//! 2. A listing ends: names come in order, so every page makes progress.

use std::collections::VecDeque;

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use rpc_core::Status;

use super::path::{join, names};
use super::service::{Entry, FileError, Kind, ListAsk, Meta, Page, Special};
use super::side::{Failure, Side, SideError};

/// Directories of one call.
const DIRS_PER_CALL: usize = 64;
/// Calls at once.
const CALLS: usize = 4;

/// A path to copy, and its target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Root {
    /// Its path at the source.
    pub(crate) from: Bytes,
    /// Its path at the target.
    pub(crate) to: Bytes,
}

/// An entry to copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Item<T> {
    /// Its path at the source.
    pub(crate) from: Bytes,
    /// Its path at the target.
    pub(crate) to: Bytes,
    /// Mode and time.
    pub(crate) meta: Meta,
    /// A file's size, a link's target.
    pub(crate) what: T,
}

/// All entries below some roots, each list in the order of its paths.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Directories; parents come before their children.
    pub(crate) dirs: Vec<Item<()>>,
    /// Regular files.
    pub(crate) files: Vec<Item<u64>>,
    /// Symbolic links.
    pub(crate) links: Vec<Item<Bytes>>,
    /// Entries that are not copied.
    pub(crate) special: Vec<Item<Special>>,
    /// Entries that could not be read.
    pub(crate) failed: Vec<(Bytes, SideError)>,
}

impl Plan {
    /// Reads the trees of a side.
    ///
    /// # Errors
    /// When the connection ends. Other failures are in [`Plan::failed`].
    pub(crate) async fn read(side: &Side, roots: &[Root]) -> Result<Self, Status> {
        let mut plan = Self::default();
        let mut pending = VecDeque::new();
        for root in roots {
            match side.survey(vec![root.from.clone()]).await {
                Err(Failure::Fatal(status)) => return Err(status),
                Err(Failure::Alone(error)) => plan.failed.push((root.from.clone(), error)),
                Ok(mut answers) => {
                    let entry = answers.pop().unwrap_or(Err(FileError::NotFound));
                    let entry = entry.and_then(|found| found.entry.ok_or(FileError::NotFound));
                    plan.add(side, root.clone(), entry, &mut pending);
                }
            }
        }
        plan.walk(side, pending).await?;
        plan.dirs.sort_unstable_by(|one, other| one.to.cmp(&other.to));
        plan.files.sort_unstable_by(|one, other| one.to.cmp(&other.to));
        plan.links.sort_unstable_by(|one, other| one.to.cmp(&other.to));
        Ok(plan)
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.what).fold(0, u64::saturating_add)
    }

    async fn walk(&mut self, side: &Side, mut pending: VecDeque<Dir>) -> Result<(), Status> {
        let mut calls = FuturesUnordered::new();
        loop {
            while calls.len() < CALLS && !pending.is_empty() {
                let dirs: Vec<Dir> = pending.drain(..pending.len().min(DIRS_PER_CALL)).collect();
                calls.push(list(side, dirs));
            }
            let Some((dirs, answer)) = calls.next().await else { return Ok(()) };
            let pages = match answer {
                Ok(pages) => pages,
                Err(Failure::Fatal(status)) => return Err(status),
                Err(Failure::Alone(error)) => {
                    let failed = dirs.into_iter().map(|dir| (dir.root.from, error.clone()));
                    self.failed.extend(failed);
                    continue;
                }
            };
            let answered = pages.len();
            // Requests that did not fit into the answer are sent again.
            pending.extend(dirs[answered..].iter().cloned());
            for (dir, page) in dirs.into_iter().zip(pages) {
                match page {
                    Ok(page) => self.add_page(side, dir, page, &mut pending),
                    Err(error) => self.failed.push((dir.root.from, side.error(error))),
                }
            }
        }
    }

    fn add_page(&mut self, side: &Side, dir: Dir, page: Page, pending: &mut VecDeque<Dir>) {
        let last = page.entries.last().map(|(name, _)| name.clone());
        if !is_in_order(&dir.after, &page) {
            let error = FileError::Io("its listing is out of order, or has bad names".to_owned());
            self.failed.push((dir.root.from, side.error(error)));
            return;
        }
        for (name, entry) in page.entries {
            let root = Root {
                from: join(&dir.root.from, &name).into(),
                to: join(&dir.root.to, &name).into(),
            };
            self.add(side, root, entry, pending);
        }
        if let Some(after) = last.filter(|_| page.more) {
            pending.push_front(Dir { root: dir.root, after });
        }
    }

    fn add(
        &mut self,
        side: &Side,
        root: Root,
        entry: Result<Entry, FileError>,
        pending: &mut VecDeque<Dir>,
    ) {
        let Entry { kind, meta } = match entry {
            Ok(entry) => entry,
            Err(error) => return self.failed.push((root.from, side.error(error))),
        };
        let Root { from, to } = root;
        match kind {
            Kind::File { bytes } => self.files.push(Item { from, to, meta, what: bytes }),
            Kind::Link { target } => self.links.push(Item { from, to, meta, what: target }),
            Kind::Other(special) => self.special.push(Item { from, to, meta, what: special }),
            Kind::Dir => {
                let root = Root { from: from.clone(), to: to.clone() };
                pending.push_back(Dir { root, after: Bytes::new() });
                // The directory at the other side's root exists, and is not to be changed.
                if !to.is_empty() {
                    self.dirs.push(Item { from, to, meta, what: () });
                }
            }
        }
    }
}

/// A directory to list, starting after a name.
#[derive(Debug, Clone)]
struct Dir {
    root: Root,
    after: Bytes,
}

async fn list(
    side: &Side,
    dirs: Vec<Dir>,
) -> (Vec<Dir>, Result<Vec<Result<Page, FileError>>, Failure>) {
    let ask = |dir: &Dir| ListAsk { dir: dir.root.from.clone(), after: dir.after.clone() };
    let answer = side.list(dirs.iter().map(ask).collect()).await;
    let answer = match answer {
        Ok(pages) if pages.is_empty() || pages.len() > dirs.len() => Err(side.senseless()),
        answer => answer,
    };
    (dirs, answer)
}

fn is_in_order(after: &Bytes, page: &Page) -> bool {
    let mut last = after;
    for (name, _) in &page.entries {
        if name <= last || name.contains(&b'/') || names(name).is_err() {
            return false;
        }
        last = name;
    }
    !(page.more && page.entries.is_empty())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::super::files::LocalFiles;
    use super::super::tree::Tree;
    use super::*;
    use examples::testing::Scratch;

    fn root(from: &'static str, to: &'static str) -> Root {
        Root { from: from.into(), to: to.into() }
    }

    #[tokio::test]
    async fn plan_lists_all_files_with_target_names() {
        let dir = Scratch::new();
        fs::create_dir_all(dir.path().join("t/a/empty")).unwrap();
        fs::write(dir.path().join("t/a/f"), "xyz").unwrap();
        fs::write(dir.path().join("t/z"), "").unwrap();
        fs::write(dir.path().join("single"), "12").unwrap();
        symlink("..", dir.path().join("t/l")).unwrap();
        let side = Side::Here(LocalFiles::new(Tree::open(dir.path()).unwrap()));
        let roots = [root("t", "x/t"), root("single", "x/single"), root("gone", "x/gone")];
        let plan = Plan::read(&side, &roots).await.unwrap();
        let dirs: Vec<_> = plan.dirs.iter().map(|item| &*item.to).collect();
        assert_eq!(dirs, [&b"x/t"[..], b"x/t/a", b"x/t/a/empty"]);
        let files: Vec<_> = plan.files.iter().map(|item| (&*item.from, item.what)).collect();
        assert_eq!(files, [(&b"single"[..], 2), (b"t/a/f", 3), (b"t/z", 0)]);
        assert_eq!((plan.links.len(), &*plan.links[0].what, plan.bytes()), (1, &b".."[..], 5));
        assert_eq!(plan.failed, [("gone".into(), side.error(FileError::NotFound))]);
        let all = Plan::read(&side, &[root("", "")]).await.unwrap();
        assert_eq!((all.dirs.len(), all.files.len()), (3, 3));
    }

    #[test]
    fn what_is_no_listing_is_refused() {
        let entry = Entry { kind: Kind::Dir, meta: Meta { mode: 0, mtime: 0, mtime_nanos: 0 } };
        let page = |listed: &[&'static str], more| Page {
            entries: listed.iter().map(|name| ((*name).into(), Ok(entry.clone()))).collect(),
            more,
        };
        let after = Bytes::from("b");
        for (listed, more) in [
            (&["b"][..], false),
            (&["c", "c"], false),
            (&["d", "c"], false),
            (&[".."], false),
            (&["c/d"], false),
            (&["c/../../d"], false),
            (&["/etc"], false),
            (&["c\0"], false),
            (&[], true),
        ] {
            assert!(!is_in_order(&after, &page(listed, more)), "{listed:?}");
        }
        assert!(is_in_order(&after, &page(&["c", "d"], true)));
        assert!(!is_in_order(&Bytes::new(), &page(&["", "c"], false)));
        assert!(!is_in_order(&Bytes::new(), &page(&["."], false)));
    }
}
