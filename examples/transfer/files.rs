//! The service behind a directory: a server's answers, and a client's operations at its own end.
//!
//! Owns the limits of a call, and the hand-over from the runtime to threads that may block.

use std::sync::Arc;

use bytes::Bytes;
use rpc_core::{BulkPool, Channel, Context};

use super::block::{Block, BlockBuf};
use super::part;
use super::service::{
    FileError, Files, Found, Link, ListAsk, MAX_BATCH, MAX_BLOCK_BYTES, MAX_LISTED, MAX_SUMS, Page,
    Piece, SMALL_BYTES, Settle, Small, SmallAsk, Smalls, SumAsk, Whole,
};
use super::sums::{LEAF_BYTES, Sum, digest, file_sums};
use super::tree::{Cursor, Tree};

type Batch<T> = Result<Vec<Result<T, FileError>>, FileError>;

/// Files below a directory of this machine.
#[derive(Debug, Clone)]
pub(crate) struct LocalFiles {
    tree: Arc<Tree>,
    /// Memory for blocks that will go through a channel of this process.
    pool: Option<BulkPool>,
}

impl LocalFiles {
    /// The files of a directory.
    pub(crate) fn new(tree: Tree) -> Self {
        Self { tree: Arc::new(tree), pool: None }
    }

    /// Reads blocks into memory that a channel sends from.
    pub(crate) fn sent_through(self, channel: &Channel) -> Self {
        Self { pool: Some(channel.bulk_pool().clone()), ..self }
    }

    /// Memory for blocks: of the connection that asks, or of the channel that they are for.
    fn pool(&self) -> Option<BulkPool> {
        let context = Context::try_current();
        context.and_then(|context| context.bulk_pool().cloned()).or_else(|| self.pool.clone())
    }

    /// Runs an operation that may block. Once begun it runs to its end, even if the caller is gone.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Tree) -> Result<T, FileError> + Send + 'static,
    ) -> Result<T, FileError> {
        let tree = Arc::clone(&self.tree);
        let done = tokio::task::spawn_blocking(move || work(&tree)).await;
        done.map_err(|error| FileError::Io(error.to_string()))?
    }

    /// Runs such an operation on every item of a batch.
    async fn each<T: Send + 'static, U: Send + 'static>(
        &self,
        items: Vec<T>,
        work: impl Fn(&mut Cursor<'_>, &T) -> Result<U, FileError> + Send + 'static,
    ) -> Batch<U> {
        check("a batch", items.len(), MAX_BATCH)?;
        self.blocking(move |tree| {
            let mut at = tree.cursor();
            Ok(items.iter().map(|item| work(&mut at, item)).collect())
        })
        .await
    }

    async fn one<U: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Cursor<'_>) -> Result<U, FileError> + Send + 'static,
    ) -> Result<U, FileError> {
        self.blocking(move |tree| work(&mut tree.cursor())).await
    }
}

impl Files for LocalFiles {
    async fn list(&self, asks: Vec<ListAsk>) -> Batch<Page> {
        check("a batch", asks.len(), MAX_BATCH)?;
        self.blocking(move |tree| Ok(list(&mut tree.cursor(), &asks))).await
    }

    async fn survey(&self, paths: Vec<Bytes>) -> Batch<Found> {
        self.each(paths, |at, path| at.survey(path)).await
    }

    async fn sums(&self, asks: Vec<SumAsk>) -> Batch<Vec<Sum>> {
        check("a batch", asks.len(), MAX_BATCH)?;
        self.blocking(move |tree| Ok(sums(&mut tree.cursor(), &asks))).await
    }

    async fn read(&self, path: Bytes, offset: u64, bytes: u64) -> Result<Piece, FileError> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        check("a block", bytes, MAX_BLOCK_BYTES)?;
        let pool = self.pool();
        self.blocking(move |tree| {
            let (file, _) = tree.cursor().file(&path)?;
            let mut block = BlockBuf::new(pool.as_ref(), bytes);
            block.read_from(&file, offset, bytes)?;
            Ok(Piece { sums: block.sums(), block: block.freeze() })
        })
        .await
    }

    async fn read_small(&self, asks: Vec<SmallAsk>) -> Result<Smalls, FileError> {
        check("a batch", asks.len(), MAX_BATCH)?;
        let bytes = asks.iter().map(|ask| ask.bytes).fold(0, u64::saturating_add);
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        check("a block", bytes, MAX_BLOCK_BYTES)?;
        let block = BlockBuf::new(self.pool().as_ref(), bytes);
        self.blocking(move |tree| Ok(read_small(tree, &asks, block))).await
    }

    async fn make_dirs(&self, paths: Vec<Bytes>) -> Batch<()> {
        self.each(paths, |at, path| at.make_dir(path)).await
    }

    async fn make_links(&self, links: Vec<Link>) -> Batch<()> {
        self.each(links, |at, link| at.make_link(link)).await
    }

    async fn put_small(&self, files: Vec<Small>, block: Block) -> Batch<()> {
        self.each(files, move |at, small| {
            check("a small file", small.whole.bytes, SMALL_BYTES)?;
            part::put_small(at, small, &block)
        })
        .await
    }

    async fn begin(&self, path: Bytes, keep: u64) -> Result<(), FileError> {
        self.one(move |at| part::begin(at, &path, keep)).await
    }

    async fn write(&self, path: Bytes, offset: u64, block: Block) -> Result<(), FileError> {
        self.one(move |at| part::write(at, &path, offset, &block)).await
    }

    async fn commit(&self, file: Whole) -> Result<(), FileError> {
        self.one(move |at| part::commit(at, &file)).await
    }

    async fn abandon(&self, path: Bytes) -> Result<(), FileError> {
        self.one(move |at| part::abandon(at, &path)).await
    }

    async fn settle(&self, items: Vec<Settle>) -> Batch<()> {
        self.each(items, |at, item| at.settle(item)).await
    }
}

fn check<T: PartialOrd + std::fmt::Display + Copy>(
    what: &str,
    asked: T,
    limit: T,
) -> Result<(), FileError>
where
    u64: TryFrom<T>,
{
    if asked <= limit {
        return Ok(());
    }
    let limit = u64::try_from(limit).unwrap_or(u64::MAX);
    Err(FileError::TooMuch { what: format!("{what} of {asked}"), limit })
}

fn list(at: &mut Cursor<'_>, asks: &[ListAsk]) -> Vec<Result<Page, FileError>> {
    let mut left = MAX_LISTED;
    let mut pages = Vec::new();
    for ask in asks {
        // An empty page would look like the end of the directory.
        if left == 0 {
            break;
        }
        let page = at.list(&ask.dir, &ask.after, left);
        left -= page.as_ref().map_or(0, |page| page.entries.len());
        pages.push(page);
    }
    pages
}

fn sums(at: &mut Cursor<'_>, asks: &[SumAsk]) -> Vec<Result<Vec<Sum>, FileError>> {
    let mut left = MAX_SUMS;
    let mut all = Vec::new();
    for ask in asks {
        if left == 0 {
            break;
        }
        let count = usize::try_from(ask.count).unwrap_or(left).min(left);
        let summed = sum_one(at, ask, count);
        // Opening a file has a cost too, so no request is free.
        left -= summed.as_ref().map_or(1, |sums| sums.len().max(1));
        all.push(summed);
    }
    all
}

fn sum_one(at: &mut Cursor<'_>, ask: &SumAsk, count: usize) -> Result<Vec<Sum>, FileError> {
    let (file, _) = if ask.part { at.part_file(&ask.path)? } else { at.file(&ask.path)? };
    Ok(file_sums(&file, ask.first, count)?)
}

/// Reads the files that still have the requested size, into a block that has room for all.
fn read_small(tree: &Tree, asks: &[SmallAsk], mut block: BlockBuf) -> Smalls {
    let mut at = tree.cursor();
    let mut read_one = |ask: &SmallAsk| {
        check("a small file", ask.bytes, SMALL_BYTES)?;
        let (file, size) = at.file(&ask.path)?;
        if size != ask.bytes {
            return Err(FileError::Changed);
        }
        let (begin, wanted) = (block.len(), usize::try_from(size).unwrap_or(LEAF_BYTES));
        if block.read_from(&file, 0, wanted)? < wanted {
            block.truncate(begin);
            return Err(FileError::Changed);
        }
        let leaf = (size > 0).then(|| block.sum(begin));
        Ok((size, digest(leaf.as_slice())))
    };
    let files = asks.iter().map(&mut read_one).collect();
    Smalls { files, block: block.freeze() }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::sums::leaf_sums;
    use super::*;
    use examples::testing::Scratch;

    fn local(dir: &Scratch) -> LocalFiles {
        LocalFiles::new(Tree::open(dir.path()).unwrap())
    }

    #[tokio::test]
    async fn small_files_share_a_block_with_digests() {
        let dir = Scratch::new();
        for (name, bytes) in [("a", "one"), ("b", ""), ("c", "three"), ("grown", "12")] {
            fs::write(dir.path().join(name), bytes).unwrap();
        }
        let asks = [("a", 3), ("b", 0), ("no", 1), ("grown", 1), ("c", 5)];
        let asks = asks.map(|(path, bytes)| SmallAsk { path: path.into(), bytes }).to_vec();
        let smalls = local(&dir).read_small(asks).await.unwrap();
        let of = |bytes: &str| Ok((bytes.len() as u64, digest(&leaf_sums(bytes.as_bytes()))));
        let expected =
            [of("one"), of(""), Err(FileError::NotFound), Err(FileError::Changed), of("three")];
        assert_eq!(smalls.files, expected);
        assert_eq!(smalls.block, b"onethree".to_vec().into());
    }

    fn too_much(error: &FileError, part: &str) -> bool {
        matches!(error, FileError::TooMuch { what, .. } if what.contains(part))
    }

    #[tokio::test]
    async fn no_call_asks_for_more_than_the_limits() {
        let dir = Scratch::new();
        let files = local(&dir);
        let many = vec![Bytes::new(); MAX_BATCH + 1];
        assert!(files.survey(many).await.is_err_and(|error| too_much(&error, "a batch of 1025")));
        assert!(
            files
                .read("f".into(), 0, u64::MAX)
                .await
                .is_err_and(|error| too_much(&error, "a block"))
        );
        let ask = SmallAsk { path: "f".into(), bytes: u64::MAX };
        assert!(
            files
                .read_small(vec![ask.clone(), ask])
                .await
                .is_err_and(|error| too_much(&error, "a block"))
        );
        let ask = SmallAsk { path: "f".into(), bytes: SMALL_BYTES + 1 };
        let mut smalls = files.read_small(vec![ask]).await.unwrap();
        assert!(smalls.files.remove(0).is_err_and(|error| too_much(&error, "a small file")));
    }

    #[tokio::test]
    async fn sums_and_listings_resume_at_their_limit() {
        let dir = Scratch::new();
        let sparse = fs::File::create(dir.path().join("f")).unwrap();
        sparse.set_len((MAX_SUMS * LEAF_BYTES) as u64 + 1).unwrap();
        let files = local(&dir);
        let ask = |first| SumAsk { path: "f".into(), part: false, first, count: u64::MAX };
        let sums = files.sums(vec![ask(0), ask(1)]).await.unwrap();
        assert_eq!((sums.len(), sums[0].as_ref().unwrap().len()), (1, MAX_SUMS));
        let sums = files.sums(vec![ask(MAX_SUMS as u64), ask(u64::MAX)]).await.unwrap();
        assert_eq!(sums, [Ok(leaf_sums(&[0])), Ok(Vec::new())]);
        for number in 0..MAX_LISTED {
            fs::write(dir.path().join(number.to_string()), "").unwrap();
        }
        let ask = ListAsk { dir: Bytes::new(), after: Bytes::new() };
        let pages = files.list(vec![ask.clone(), ask]).await.unwrap();
        assert_eq!(pages.len(), 1);
        assert!(pages[0].as_ref().is_ok_and(|page| page.more && page.entries.len() == MAX_LISTED));
    }
}
