//! The commands that stream: `kv watch`, `kv load` and `kv sync`.

use std::fs::File;
use std::io::{self, BufRead, Write};
use std::path::Path;

use examples::units::{bytes, counted};
use futures::StreamExt;
use rpc_core::stream::{self, Stream};
use rpc_core::{CallError, Status};

use super::cli::{LoadArgs, SyncArgs, WatchArgs};
use super::commands::read_limited;
use super::connect::{connect, connect_for_ever};
use super::error::CommandError;
use super::key_path::{KeyPath, Printable};
use super::service::{Change, Held, KvError, Loaded, Pair, Update, checksum};
use super::target_dir::TargetDir;
use super::walk::{Found, walk};

/// `kv watch`.
pub(crate) async fn watch(args: &WatchArgs) -> Result<(), CommandError> {
    let client = connect_for_ever(&args.connect).await?;
    let mut changes = client.watch(&args.prefix).await?;
    eprintln!("watching");
    let mut left = args.limit.unwrap_or(u64::MAX);
    while left > 0 {
        let Some(change) = changes.try_next().await.map_err(Status::from)? else { break };
        writeln!(io::stdout(), "{}", line(&change))?;
        left -= 1;
    }
    Ok(())
}

fn line(change: &Change) -> String {
    match change {
        Change::Set { key, version, bytes } => {
            format!("set {version} {bytes} {}", Printable(key))
        }
        Change::Deleted { key, version } => format!("deleted {version} {}", Printable(key)),
        Change::Lagged { missed } => format!("lagged {missed}"),
    }
}

/// `kv load`.
pub(crate) async fn load(args: &LoadArgs) -> Result<(), CommandError> {
    let client = connect(&args.connect).await?;
    let input: Box<dyn BufRead + Send> = match args.file.to_str() {
        Some("-") => Box::new(io::BufReader::new(io::stdin())),
        _ => {
            let file = File::open(&args.file).map_err(CommandError::file(&args.file))?;
            Box::new(io::BufReader::new(file))
        }
    };
    // The thread that waits for lines is not one of the runtime's workers.
    let (pairs, read) = tokio::sync::mpsc::channel(64);
    tokio::task::spawn_blocking(move || {
        for pair in pairs_of(input) {
            if pairs.blocking_send(pair).is_err() {
                return;
            }
        }
    });
    let read = futures::stream::unfold(read, async |mut read| Some((read.recv().await?, read)));
    let loaded = client.load(read).await;
    let Loaded { keys, bytes: total } =
        loaded.map_err(|error| CommandError::call(&args.file.to_string_lossy(), error))?;
    let keys = counted(keys, "key", "keys");
    Ok(writeln!(io::stdout(), "loaded {keys} ({})", bytes(total))?)
}

/// A key and a value for each line, with a tab between.
fn pairs_of(input: impl BufRead) -> impl Iterator<Item = Result<Pair, Status>> {
    (1..).zip(input.lines()).map(|(number, line): (u64, _)| {
        let line = line.map_err(|error| Status::data_loss(format!("line {number}: {error}")))?;
        let Some((key, value)) = line.split_once('\t') else {
            return Err(Status::invalid_argument(format!(
                "line {number} has no tab between a key and a value"
            )));
        };
        Ok(Pair { key: key.to_owned(), value: value.to_owned().into() })
    })
}

/// `kv sync`.
pub(crate) async fn sync(args: &SyncArgs) -> Result<(), CommandError> {
    let client = connect(&args.connect).await?;
    let target = TargetDir::open(&args.dir).map_err(CommandError::file(&args.dir))?;
    let dir = args.dir.clone();
    let walked = tokio::task::spawn_blocking(move || walk(&dir)).await;
    let tree = walked.map_err(io::Error::other)?.map_err(CommandError::file(&args.dir))?;
    let prefix = args.prefix.clone();
    let failed = |error| match error {
        CallError::User(error) => CommandError::Refused { key: args.prefix.clone(), error },
        CallError::Status(status) => CommandError::Call(status),
    };
    let mut updates = client.sync(&args.prefix, held(tree.files, prefix)).await?;
    let (mut written, mut gone) = (0_u64, 0_u64);
    while let Some(update) = updates.try_next().await.map_err(failed)? {
        match update {
            Update::Set { key, value } => {
                write(&target, &args.dir, &key[args.prefix.len()..], &value)?;
                println!("written {}", Printable(&key));
                written += 1;
            }
            Update::Gone { key } => {
                println!("not in the store {}", Printable(&key));
                gone += 1;
            }
        }
    }
    let written = counted(written, "file", "files");
    Ok(writeln!(io::stdout(), "wrote {written}, {gone} not in the store")?)
}

fn write(
    target: &TargetDir,
    dir: &Path,
    path: &str,
    value: &rpc_core::Bulk,
) -> Result<(), CommandError> {
    let failed = |error: String| CommandError::file(&dir.join(path))(io::Error::other(error));
    let parsed = KeyPath::parse(path).map_err(|error| failed(error.to_string()))?;
    target.write(&parsed, value).map_err(|error| failed(error.to_string()))
}

/// The contents of a tree, in the order of the keys: read and summed while they are sent.
fn held(mut files: Vec<Found>, prefix: String) -> impl Stream<Item = Result<Held, Status>> {
    files.sort_by(|one, other| one.key.cmp(&other.key));
    stream::iter(files).then(move |file| {
        let key = format!("{prefix}{}", file.key);
        async move {
            let path = file.path.clone();
            let read = move || read_limited(File::open(&file.path)?, 0).map(|it| checksum(&it));
            let sum = tokio::task::spawn_blocking(read).await.map_err(io::Error::other);
            let sum = sum
                .and_then(|sum| sum)
                .map_err(|error| Status::data_loss(format!("{}: {error}", path.display())))?;
            Ok(Held { key, checksum: sum })
        }
    })
}

/// The differences of two ordered listings: the store's contents, and the client's.
pub(crate) fn compare(
    store: &super::store::Store,
    prefix: &str,
    mut theirs: stream::Streaming<Held>,
) -> impl Stream<Item = Result<Update, CallError<KvError>>> {
    stream::try_stream(async move |mut out| {
        let mut ours = store.keys(prefix).peekable();
        let mut before: Option<String> = None;
        while let Some(Held { key, checksum: theirs }) = theirs.try_next().await? {
            if before.is_some_and(|before| before >= key) {
                return Err(Status::invalid_argument("the keys are not in order").into());
            }
            while let Some(listed) = ours.next_if(|listed| **listed < *key)
                && let Ok(value) = store.get(&listed)
            {
                out.send(Update::Set { key: listed, value: value.bytes }).await?;
            }
            ours.next_if(|listed| **listed == *key);
            match store.get(&key) {
                Ok(value) if checksum(&value.bytes.to_bytes()?) == theirs => {}
                Ok(value) => {
                    let update = Update::Set { key: key.clone(), value: value.bytes };
                    out.send(update).await?;
                }
                Err(_) => {
                    out.send(Update::Gone { key: key.clone() }).await?;
                }
            }
            before = Some(key);
        }
        for listed in ours {
            if let Ok(value) = store.get(&listed) {
                out.send(Update::Set { key: listed, value: value.bytes }).await?;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use examples::testing::limited;
    use rpc_core::Channel;

    use super::super::serve::builder;
    use super::super::service::KvClient;
    use super::super::store::Store;
    use super::*;

    async fn client(name: &str) -> KvClient {
        let address = format!("mem://{name}");
        let server = builder(&Arc::new(Store::new(Some(1 << 20)))).bind(&address).await.unwrap();
        tokio::spawn(server.serve());
        KvClient::new(Channel::connect(&address).await.unwrap())
    }

    fn pair(key: &str, value: &str) -> Pair {
        Pair { key: key.to_owned(), value: value.to_owned().into() }
    }

    fn held(key: &str, value: &str) -> Held {
        Held { key: key.to_owned(), checksum: checksum(value.as_bytes()) }
    }

    #[tokio::test]
    async fn watcher_sees_every_change_since_acceptance() {
        limited(async {
            let kv = client("kv-watch").await;
            let mut changes = kv.watch("a/").await.unwrap();
            kv.put("b", "no".into()).await.unwrap();
            let first = kv.put("a/1", "yes".into()).await.unwrap();
            kv.delete("a/1").await.unwrap();
            let set = Change::Set { key: "a/1".to_owned(), version: first, bytes: 3 };
            assert_eq!(changes.next().await, Some(Ok(set)));
            let deleted = Change::Deleted { key: "a/1".to_owned(), version: first };
            assert_eq!(changes.next().await, Some(Ok(deleted)));
        })
        .await;
    }

    #[tokio::test]
    async fn a_watcher_that_lags_is_told() {
        limited(async {
            let kv = client("kv-lag").await;
            let mut changes = kv.watch("").await.unwrap();
            let pairs = (0..10_000).map(|number| pair(&(number % 7).to_string(), "x"));
            assert_eq!(kv.load(stream::iter(pairs)).await.unwrap().keys, 10_000);
            let (mut seen, mut lagged) = (0, 0);
            while seen + lagged < 10_000 {
                match changes.next().await.unwrap().unwrap() {
                    Change::Lagged { missed } => lagged += missed,
                    _ => seen += 1,
                }
            }
            assert_eq!(seen + lagged, 10_000);
            assert!(lagged > 0);
        })
        .await;
    }

    #[tokio::test]
    async fn load_ends_with_the_first_refusal() {
        limited(async {
            let kv = client("kv-load").await;
            let loaded = kv.load(stream::iter([pair("a", "1"), pair("b", "22")])).await.unwrap();
            assert_eq!(loaded, Loaded { keys: 2, bytes: 5 });
            let refused = kv.load(stream::iter([pair("c", "3"), pair("", "4")])).await;
            let bad = KvError::BadKey { bytes: 0, max: 4096 };
            assert_eq!(refused, Err(CallError::User(bad)));
            assert_eq!(kv.get("c").await.unwrap().bytes, *b"3");
        })
        .await;
    }

    #[tokio::test]
    async fn a_sync_gives_what_differs() {
        limited(async {
            let kv = client("kv-sync").await;
            let pairs = ["a", "b", "c", "d"].map(|key| pair(key, key));
            kv.load(stream::iter(pairs)).await.unwrap();
            let theirs = [held("b", "b"), held("bb", "?"), held("c", "old")];
            let updates = kv.sync("", stream::iter(theirs)).await.unwrap();
            let updates: Vec<_> = updates.map(Result::unwrap).collect().await;
            let set = |key: &str| Update::Set { key: key.to_owned(), value: key.to_owned().into() };
            let gone = Update::Gone { key: "bb".to_owned() };
            assert_eq!(updates, [set("a"), gone, set("c"), set("d")]);
            let mut refused =
                kv.sync("", stream::iter([held("b", ""), held("a", "")])).await.unwrap();
            let error = loop {
                if let Err(error) = refused.next().await.expect("no clean end") {
                    break error;
                }
            };
            assert!(error.to_string().contains("order"), "{error}");
        })
        .await;
    }

    #[test]
    fn a_line_has_a_tab() {
        let lines: Vec<_> = pairs_of(&b"a\t1\nb\t2\t3\nc\n"[..]).collect();
        assert_eq!(lines[0], Ok(pair("a", "1")));
        assert_eq!(lines[1], Ok(pair("b", "2\t3")));
        assert!(lines[2].as_ref().unwrap_err().message().contains("line 3"));
    }
}
