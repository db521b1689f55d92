//! `transfer send`, `receive` and `verify`: the sides of each, and the paths at either side.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use examples::channel::path;
use examples::units::counted;
use rpc_core::Status;

use super::cli::{Below, CopyArgs, ReceiveArgs, SendArgs, VerifyArgs};
use super::connect::connect;
use super::copy::Copy;
use super::error::CommandError;
use super::files::LocalFiles;
use super::path::{Shown, join, split};
use super::plan::{Plan, Root};
use super::progress::Progress;
use super::side::Side;
use super::tree::Tree;
use super::verify::Verify;

/// Copies to a server.
pub(crate) async fn send(args: &SendArgs) -> Result<(), CommandError> {
    let roots = roots(&args.paths, &args.into)?;
    let here = machine()?;
    let client = connect(&args.connect).await?;
    let here = Side::Here(here.sent_through(client.channel()));
    let path = path(client.channel());
    let there = Side::There(client);
    copy("sent", &here, &there, &roots, &args.copy, &path).await
}

/// Copies from a server.
pub(crate) async fn receive(args: &ReceiveArgs) -> Result<(), CommandError> {
    let to = |below: &Below| Root {
        from: below.0.clone(),
        to: Bytes::copy_from_slice(split(&below.0).1),
    };
    let roots: Vec<Root> = args.paths.iter().map(to).collect();
    no_clashes(&roots)?;
    let client = connect(&args.connect).await?;
    let path = path(client.channel());
    let tree = fs::create_dir_all(&args.to).and_then(|()| Tree::open(&args.to));
    let here = Side::Here(LocalFiles::new(tree.map_err(CommandError::file(&args.to))?));
    let there = Side::There(client);
    copy("received", &there, &here, &roots, &args.copy, &path).await
}

/// Compares with a server.
pub(crate) async fn verify(args: &VerifyArgs) -> Result<(), CommandError> {
    let roots = roots(&args.paths, &args.into)?;
    let theirs: Vec<Root> =
        roots.iter().map(|root| Root { from: root.to.clone(), to: root.to.clone() }).collect();
    let here = Side::Here(machine()?);
    let client = connect(&args.connect).await?;
    let path = path(client.channel());
    let there = Side::There(client);
    let mut progress = Progress::new("verified", args.quiet);
    let plans = tokio::try_join!(Plan::read(&here, &roots), Plan::read(&there, &theirs));
    let (ours, theirs) = plans.map_err(|status| stopped(&progress, status))?;
    progress.total(ours.files.len() as u64, ours.bytes());
    let verify = Verify::new(&here, &there, &progress, args.in_flight);
    let compared = until_signal(&progress, verify.run(ours, theirs)).await;
    progress.end();
    let differences = compared?;
    progress.finish(&path)?;
    match differences {
        0 => Ok(()),
        found => Err(CommandError::Different(counted(found, "difference", "differences"))),
    }
}

async fn copy(
    verb: &'static str,
    source: &Side,
    sink: &Side,
    roots: &[Root],
    args: &CopyArgs,
    path: &str,
) -> Result<(), CommandError> {
    let mut progress = Progress::new(verb, args.quiet);
    let read = Plan::read(source, roots).await;
    let plan = read.map_err(|status| stopped(&progress, status))?;
    progress.total(plan.files.len() as u64, plan.bytes());
    let copy = Copy::new(source, sink, roots, &progress, args.options());
    let work = async { copy.run(plan).await.map_err(|status| stopped(&progress, status)) };
    let copied = until_signal(&progress, work).await;
    progress.end();
    copied?;
    progress.finish(&path)
}

/// Ctrl-C and SIGTERM end it in order: a file that is being written is completed, or resumed next
/// time.
async fn until_signal<T>(
    progress: &Progress,
    work: impl Future<Output = Result<T, CommandError>>,
) -> Result<T, CommandError> {
    let signals = rpc_core::signal::shutdown();
    tokio::select! {
        done = work => done,
        () = signals => Err(CommandError::InterruptedAfter(progress.so_far())),
    }
}

fn stopped(progress: &Progress, status: Status) -> CommandError {
    CommandError::Stopped { done: progress.so_far(), status }
}

/// All files of this machine: paths of the command line may be anywhere.
fn machine() -> Result<LocalFiles, CommandError> {
    let root = Path::new("/");
    Ok(LocalFiles::new(Tree::open(root).map_err(CommandError::file(root))?))
}

/// The places of paths of the command line, and their targets.
fn roots(paths: &[PathBuf], into: &Below) -> Result<Vec<Root>, CommandError> {
    let mut roots = Vec::new();
    for path in paths {
        let whole = whole(path).map_err(CommandError::file(path))?;
        let name = whole.file_name().ok_or_else(|| CommandError::Nameless(path.clone()))?;
        let to = join(&into.0, name.as_bytes()).into();
        let from = whole.as_os_str().as_bytes();
        roots.push(Root {
            from: Bytes::copy_from_slice(from.strip_prefix(b"/").unwrap_or(from)),
            to,
        });
    }
    no_clashes(&roots)?;
    Ok(roots)
}

/// A path without links in its directories. The path itself may name a link, which is copied as
/// one.
fn whole(path: &Path) -> io::Result<PathBuf> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            let whole = fs::canonicalize(parent)?.join(name);
            // Checked now and not after connecting.
            whole.symlink_metadata().map(|_| whole)
        }
        _ => fs::canonicalize(path),
    }
}

fn no_clashes(roots: &[Root]) -> Result<(), CommandError> {
    let mut seen = HashSet::new();
    match roots.iter().find(|root| !seen.insert(&root.to)) {
        Some(root) => Err(CommandError::Clash(Shown(&root.to).to_string())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use examples::testing::Scratch;

    #[test]
    fn paths_keep_their_last_name_and_links() {
        let dir = Scratch::new();
        fs::create_dir_all(dir.path().join("real/d")).unwrap();
        symlink("real", dir.path().join("way")).unwrap();
        symlink("gone", dir.path().join("link")).unwrap();
        let at = fs::canonicalize(dir.path()).unwrap();
        let of = |path: &str, into: &'static str| {
            roots(&[dir.path().join(path)], &Below(into.into())).map(|mut roots| roots.remove(0))
        };
        let from = |path: &str| at.join(path).into_os_string().as_bytes()[1..].to_vec();
        let root = of("way/d/", "a/b").unwrap();
        assert_eq!((&*root.from, &*root.to), (&*from("real/d"), &b"a/b/d"[..]));
        let root = of("link", "").unwrap();
        assert_eq!((&*root.from, &*root.to), (&*from("link"), &b"link"[..]));
        let root = of("real/d/..", "").unwrap();
        assert_eq!(&*root.to, b"real");
        assert!(matches!(of("no", ""), Err(CommandError::File { .. })));
        let root = roots(&["/".into()], &Below(Bytes::new()));
        assert!(matches!(root, Err(CommandError::Nameless(_))));
        let twice = [at.join("real/d"), at.join("real/./d")];
        let clash = roots(&twice, &Below(Bytes::new())).unwrap_err();
        assert!(clash.to_string().contains("become `d`"), "{clash}");
    }
}
