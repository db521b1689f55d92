//! Tests: peers that violate the service's rules.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use clap::Parser;
use parking_lot::Mutex;
use rpc_core::{Address, CallError, Channel, Server};
use tokio::task::AbortHandle;

use super::block::Block;
use super::cli::{Cli, Command};
use super::commands::{receive, send};
use super::error::CommandError;
use super::files::LocalFiles;
use super::path::PathError;
use super::serve::builder;
use super::service::*;
use super::sums::{Sum, digest, leaf_sums};
use super::tree::Tree;
use examples::testing::{Scratch, limited};

const META: Meta = Meta { mode: 0o644, mtime: 7, mtime_nanos: 0 };

type Batch<T> = Result<Vec<Result<T, FileError>>, FileError>;

async fn client(name: &str, dir: &Scratch) -> FilesClient {
    let address = format!("mem://{name}");
    let files = LocalFiles::new(Tree::open(dir.path()).unwrap());
    tokio::spawn(builder(files).bind(&address).await.unwrap().serve());
    FilesClient::new(Channel::connect(&address).await.unwrap())
}

fn whole(path: &Bytes, bytes: &[u8]) -> Whole {
    let digest = digest(&leaf_sums(bytes));
    Whole { path: path.clone(), bytes: bytes.len() as u64, digest, meta: META }
}

/// All methods with a path; the result of each for it.
async fn all_methods(client: &FilesClient, path: &Bytes) -> Vec<Result<(), CallError<FileError>>> {
    fn batch<T>(
        answer: Result<Vec<Result<T, FileError>>, CallError<FileError>>,
    ) -> Result<(), CallError<FileError>> {
        answer?.remove(0).map(|_| ()).map_err(CallError::User)
    }
    let block = || Block::from(b"x".to_vec());
    let dir = ListAsk { dir: path.clone(), after: Bytes::new() };
    let sum = |part| SumAsk { path: path.clone(), part, first: 0, count: 1 };
    let link = Link { path: path.clone(), target: "x".into(), meta: META };
    let small = Small { whole: whole(path, b"x"), at: 0 };
    let smalls = client.read_small(vec![SmallAsk { path: path.clone(), bytes: 1 }]).await;
    vec![
        batch(client.list(vec![dir]).await),
        batch(client.survey(vec![path.clone()]).await),
        batch(client.sums(vec![sum(false)]).await),
        batch(client.sums(vec![sum(true)]).await),
        client.read(path.clone(), 0, 1).await.map(|_| ()),
        batch(smalls.map(|smalls| smalls.files)),
        batch(client.make_dirs(vec![path.clone()]).await),
        batch(client.make_links(vec![link]).await),
        batch(client.put_small(vec![small], block()).await),
        client.begin(path.clone(), 0).await,
        client.write(path.clone(), 0, block()).await,
        client.commit(whole(path, b"x")).await,
        client.abandon(path.clone()).await,
        batch(client.settle(vec![Settle { path: path.clone(), meta: META }]).await),
    ]
}

#[tokio::test]
async fn no_method_takes_a_path_that_leads_out() {
    limited(async {
        let (dir, outside) = (Scratch::new(), Scratch::new());
        fs::write(outside.path().join("x"), "secret").unwrap();
        symlink(outside.path(), dir.path().join("link")).unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        let client = client("transfer-hostile-client", &dir).await;
        let absolute = outside.path().join("x").display().to_string();
        let up = format!("../{}/x", outside.path().file_name().unwrap().display());
        for (path, error) in [
            (up.clone(), PathError::Up),
            (format!("d/../{up}"), PathError::Up),
            (absolute, PathError::Absolute),
            ("d/..".to_owned(), PathError::Up),
            ("d//x".to_owned(), PathError::EmptyComponent),
            ("d\0".to_owned(), PathError::Nul),
        ] {
            for answer in all_methods(&client, &path.clone().into()).await {
                assert_eq!(answer, Err(CallError::User(FileError::Path(error))), "{path:?}");
            }
        }
        for answer in all_methods(&client, &"link/x".into()).await {
            let in_the_way = FileError::NotADirectory("link".into());
            assert_eq!(answer, Err(CallError::User(in_the_way)));
        }
        assert_eq!(fs::read(outside.path().join("x")).unwrap(), b"secret");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    })
    .await;
}

#[tokio::test]
async fn out_of_range_numbers_are_refused_connection_lives() {
    limited(async {
        let dir = Scratch::new();
        fs::write(dir.path().join("f"), "12").unwrap();
        let client = client("transfer-hostile-numbers", &dir).await;
        let path = Bytes::from("f");
        assert!(client.read(path.clone(), 0, u64::MAX).await.is_err());
        let piece = client.read(path.clone(), u64::MAX, 1).await.unwrap();
        assert_eq!((piece.block.len(), piece.sums.len()), (0, 0));
        client.begin(path.clone(), u64::MAX).await.unwrap();
        assert!(client.write(path.clone(), u64::MAX, b"x".to_vec().into()).await.is_err());
        let commit = Whole { bytes: u64::MAX, ..whole(&path, b"") };
        assert_eq!(client.commit(commit).await, Err(CallError::User(FileError::Mismatch)));
        let small = Small { whole: Whole { bytes: 2, ..whole(&path, b"") }, at: u64::MAX };
        let put = client.put_small(vec![small], b"x".to_vec().into()).await.unwrap();
        assert_eq!(put, [Err(FileError::Mismatch)]);
        let meta = Meta { mode: u32::MAX, mtime: i64::MAX, mtime_nanos: u32::MAX };
        // The file system limits the range of times.
        let _ = client.settle(vec![Settle { path: path.clone(), meta }]).await.unwrap();
        let found = client.survey(vec![path]).await.unwrap().remove(0).unwrap().entry.unwrap();
        assert_eq!((found.kind, found.meta.mode & !MODE_BITS), (Kind::File { bytes: 2 }, 0));
    })
    .await;
}

/// A server that lists arbitrary entries, sends other bytes than it announces, and is busy with the
/// first writes.
#[derive(Default)]
struct Hostile {
    listed: Vec<(&'static str, Kind)>,
    asked: Arc<Mutex<Vec<Bytes>>>,
    /// Blocks that are being written.
    writes: Arc<AtomicUsize>,
    /// The number of these, each time that a file was begun.
    beside: Arc<Mutex<Vec<usize>>>,
    serving: Arc<OnceLock<AbortHandle>>,
    /// Its serving ends when a block comes.
    dies: bool,
}

impl Files for Hostile {
    async fn list(&self, asks: Vec<ListAsk>) -> Batch<Page> {
        self.asked.lock().extend(asks.iter().map(|ask| ask.dir.clone()));
        let entry = |(name, kind): &(&'static str, Kind)| {
            ((*name).into(), Ok(Entry { kind: kind.clone(), meta: META }))
        };
        let page = |ask: &ListAsk| {
            let is_top = ask.dir.iter().all(|byte| *byte != b'/');
            let listed = if is_top { &self.listed[..] } else { &[] };
            Ok(Page { entries: listed.iter().map(entry).collect(), more: false })
        };
        Ok(asks.iter().map(page).collect())
    }

    async fn survey(&self, paths: Vec<Bytes>) -> Batch<Found> {
        let dir = Entry { kind: Kind::Dir, meta: META };
        let found = Found { entry: Some(dir), part_bytes: None };
        Ok(paths.iter().map(|_| Ok(found.clone())).collect())
    }

    async fn sums(&self, _: Vec<SumAsk>) -> Batch<Vec<Sum>> {
        Ok(Vec::new())
    }

    async fn read(&self, _: Bytes, _: u64, bytes: u64) -> Result<Piece, FileError> {
        Ok(Piece { block: vec![0; usize::try_from(bytes).unwrap()].into(), sums: vec![7, 7] })
    }

    async fn read_small(&self, asks: Vec<SmallAsk>) -> Result<Smalls, FileError> {
        // The right sizes, the wrong bytes.
        let files = asks.iter().map(|ask| Ok((ask.bytes, 7))).collect();
        Ok(Smalls { files, block: b"x".to_vec().into() })
    }

    async fn make_dirs(&self, _: Vec<Bytes>) -> Batch<()> {
        Ok(Vec::new())
    }

    async fn make_links(&self, _: Vec<Link>) -> Batch<()> {
        Ok(Vec::new())
    }

    async fn put_small(&self, _: Vec<Small>, _: Block) -> Batch<()> {
        Ok(Vec::new())
    }

    async fn begin(&self, _: Bytes, _: u64) -> Result<(), FileError> {
        self.beside.lock().push(self.writes.load(Ordering::SeqCst));
        Ok(())
    }

    async fn write(&self, _: Bytes, offset: u64, _: Block) -> Result<(), FileError> {
        if self.dies {
            self.serving.get().unwrap().abort();
        }
        if offset == 0 || self.dies {
            return Err(FileError::Busy);
        }
        self.writes.fetch_add(1, Ordering::SeqCst);
        let writes = Arc::clone(&self.writes);
        // Runs to its end, even if the caller is gone.
        let writing = tokio::spawn(async move {
            for _ in 0..1000 {
                tokio::task::yield_now().await;
            }
            writes.fetch_sub(1, Ordering::SeqCst);
        });
        writing.await.unwrap();
        Ok(())
    }

    async fn commit(&self, _: Whole) -> Result<(), FileError> {
        Ok(())
    }

    async fn abandon(&self, _: Bytes) -> Result<(), FileError> {
        Ok(())
    }

    async fn settle(&self, _: Vec<Settle>) -> Batch<()> {
        Ok(Vec::new())
    }
}

impl Hostile {
    async fn serve(self, name: &str) -> Address {
        let address = format!("mem://{name}");
        let serving = Arc::clone(&self.serving);
        let server = Server::builder().add_service(FilesServer::new(self));
        let task = tokio::spawn(server.bind(&address).await.unwrap().serve());
        serving.set(task.abort_handle()).unwrap();
        address.parse().unwrap()
    }
}

/// Receives `tree` from a hostile server into a new directory.
async fn receive_from(
    name: &str,
    listed: Vec<(&'static str, Kind)>,
) -> (Scratch, Vec<Bytes>, Result<(), CommandError>) {
    let (dir, asked) = (Scratch::new(), Arc::default());
    let hostile = Hostile { listed, asked: Arc::clone(&asked), ..Hostile::default() };
    let address = hostile.serve(name).await;
    let to = dir.path().join("to");
    let line = ["transfer", "receive", "shm://replaced", "tree", "--to"];
    let line = line.iter().map(Into::into).chain([to.into_os_string()]);
    let Command::Receive(mut args) = Cli::parse_from(line).command else { panic!() };
    args.connect.address = address;
    let received = receive(&args).await;
    let asked = asked.lock().clone();
    (dir, asked, received)
}

#[tokio::test]
async fn a_server_cannot_make_a_client_write_elsewhere() {
    limited(async {
        for (number, name) in ["..", "../x", "/etc/x", "a/b", "", "a\0"].into_iter().enumerate() {
            let listed = vec![(name, Kind::File { bytes: 1 })];
            let name = format!("transfer-hostile-names-{number}");
            let (dir, _, received) = receive_from(&name, listed).await;
            assert_eq!(received.unwrap_err().to_string(), "1 entry failed, see above");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
            assert_eq!(fs::read_dir(dir.path().join("to/tree")).unwrap().count(), 0);
        }
        // A link, and a file below it: only one of the two can be had.
        let up = Kind::Link { target: "../..".into() };
        let (dir, asked, received) =
            receive_from("transfer-hostile-link", vec![("l", up), ("l2", Kind::Dir)]).await;
        received.unwrap();
        assert_eq!(asked, ["tree", "tree/l2"]);
        assert_eq!(fs::read_link(dir.path().join("to/tree/l")).unwrap().as_os_str(), "../..");
    })
    .await;
}

#[tokio::test]
async fn bytes_with_a_wrong_sum_get_no_name() {
    limited(async {
        let large = Kind::File { bytes: SMALL_BYTES * 2 };
        let listed = vec![("large", large), ("small", Kind::File { bytes: 1 })];
        let (dir, _, received) = receive_from("transfer-hostile-bytes", listed).await;
        assert_eq!(received.unwrap_err().to_string(), "2 entries failed, see above");
        let tree = dir.path().join("to/tree");
        assert!(!tree.join("large").exists() && !tree.join("small").exists());
        assert!(!tree.join(".small.part").exists());
    })
    .await;
}

/// Sends a file of eight blocks to a hostile server, with these further arguments.
async fn send_to(name: &str, hostile: Hostile, more: &[&str]) -> Result<(), CommandError> {
    let dir = Scratch::new();
    let file = dir.path().join("large");
    fs::write(&file, vec![7; 2 << 20]).unwrap();
    let address = hostile.serve(name).await;
    let line = ["transfer", "send", "shm://replaced", "--block", "256K"];
    let line = line.iter().chain(more).map(Into::into).chain([file.into_os_string()]);
    let Command::Send(mut args) = Cli::parse_from(line).command else { panic!() };
    args.connect.address = address;
    send(&args).await
}

/// A regression: a block in flight, when another one had failed, held the file's lock against the
/// other transfer that was about to finish it; that one gave up, and left its partial file.
#[tokio::test]
async fn abandoned_file_has_no_block_in_flight() {
    limited(async {
        let hostile = Hostile::default();
        let (writes, beside) = (Arc::clone(&hostile.writes), Arc::clone(&hostile.beside));
        let sent = send_to("transfer-hostile-busy", hostile, &[]).await;
        assert_eq!(sent.unwrap_err().to_string(), "1 entry failed, see above");
        assert_eq!((&beside.lock()[..], writes.load(Ordering::SeqCst)), (&[0, 0][..], 0));
    })
    .await;
}

/// All blocks but one have to wait for days.
#[tokio::test]
async fn connection_end_is_reported_despite_waiting_blocks() {
    limited(async {
        let hostile = Hostile { dies: true, ..Hostile::default() };
        let sent = send_to("transfer-hostile-dies", hostile, &["--limit", "1"]).await;
        let error = sent.unwrap_err();
        assert!(matches!(error, CommandError::Stopped { .. }), "{error}");
    })
    .await;
}
