//! The `transfer` example as a person runs it: a server process, and commands against it.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod interrupted;
mod sample;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use tests::example::{Ended, Scratch, Serving, command, run};

use crate::sample::{LARGE_BYTES, assert_same, random_bytes, write_sample};

async fn serve(addresses: &[&str], dir: &Path) -> Serving {
    let words = addresses.iter().map(OsStr::new);
    let arguments = [OsStr::new("serve")].into_iter().chain(words).chain([dir.as_os_str()]);
    Serving::start(command("transfer", arguments), addresses.len()).await
}

async fn transfer(arguments: &[&dyn AsRef<OsStr>]) -> Ended {
    run(command("transfer", arguments.iter().map(|argument| argument.as_ref()))).await
}

fn shm_name(test: &str) -> String {
    format!("shm://transfer-tree-{test}-{}", std::process::id())
}

fn kill(pid: Option<u32>, signal: Signal) {
    let pid = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw).unwrap();
    kill_process(pid, signal).unwrap();
}

async fn there_and_back(address: &str, small_files: usize, options: &[&str]) {
    let (from, at, to) = (Scratch::new(), Scratch::new(), Scratch::new());
    let tree = from.path().join("tree");
    write_sample(&tree, small_files);
    let server = serve(&[address], at.path()).await;
    let address = &server.addresses()[0];
    let words = |words: &[&dyn AsRef<OsStr>]| {
        let options = options.iter().map(OsStr::new);
        let all = words.iter().map(|word| word.as_ref()).chain(options).map(ToOwned::to_owned);
        run(command("transfer", all.collect::<Vec<_>>()))
    };

    let sent = words(&[&"send", address, &tree, &"--into", &"a/b"]).await.with_code(0);
    assert!(sent.text().starts_with("sent "), "{sent:?}");
    assert_eq!((sent.text().lines().count(), &*sent.stderr), (1, ""), "{sent:?}");
    assert_same(&tree, &at.path().join("a/b/tree"));
    let received = words(&[&"receive", address, &"a/b/tree", &"--to", &to.path().join("new")]);
    assert!(received.await.with_code(0).text().starts_with("received "));
    assert_same(&tree, &to.path().join("new/tree"));

    // Once more: there is nothing to do.
    let again = words(&[&"send", address, &tree, &"--into", &"a/b"]).await.with_code(0);
    assert!(again.text().starts_with("sent 0 files, "), "{again:?}");
    assert!(again.text().contains(": 0 B in ") && again.text().contains(" already there"));
    assert_same(&tree, &at.path().join("a/b/tree"));
    let same = transfer(&[&"verify", address, &tree, &"--into", &"a/b"]).await.with_code(0);
    assert!(same.text().starts_with("verified "), "{same:?}");
}

#[tokio::test]
async fn a_tree_comes_back_over_shm() {
    there_and_back(&shm_name("whole"), 1100, &[]).await;
}

#[tokio::test]
async fn a_tree_comes_back_over_tcp() {
    there_and_back("tcp://127.0.0.1:0", 50, &["--block", "512K", "--in-flight", "3"]).await;
}

#[tokio::test]
async fn a_tree_comes_back_over_auto() {
    there_and_back("auto://127.0.0.1:0", 50, &["--codec", "postcard"]).await;
}

#[tokio::test]
async fn a_tree_returns_one_call_at_a_time() {
    there_and_back(&shm_name("slow"), 50, &["--in-flight", "1", "--block", "256K"]).await;
}

#[tokio::test]
async fn single_files_and_the_whole_directory() {
    let (from, at, to) = (Scratch::new(), Scratch::new(), Scratch::new());
    let server = serve(&[&shm_name("single"), "tcp://127.0.0.1:0"], at.path()).await;
    let [shm, tcp] = server.addresses() else { panic!("{:?}", server.addresses()) };
    let one = from.path().join("one");
    fs::write(&one, "1").unwrap();
    symlink("one", from.path().join("link")).unwrap();
    transfer(&[&"send", shm, &one, &from.path().join("link")]).await.with_code(0);
    fs::write(&one, "changed").unwrap();
    transfer(&[&"send", tcp, &one, &"--into", &"sub"]).await.with_code(0);
    transfer(&[&"send", tcp, &one]).await.with_code(0);
    assert_eq!(fs::read(at.path().join("one")).unwrap(), b"changed");
    transfer(&[&"receive", tcp, &".", &"--to", &to.path()]).await.with_code(0);
    assert_eq!(fs::read(to.path().join("sub/one")).unwrap(), b"changed");
    assert_eq!(fs::read_link(to.path().join("link")).unwrap(), Path::new("one"));
    let quiet = transfer(&[&"receive", shm, &"sub/one", &"--to", &to.path(), &"-q"]).await;
    assert_eq!(quiet.with_code(0).text(), "");
    assert_eq!(fs::read(to.path().join("one")).unwrap(), b"changed");
    // A change of only the mode is also copied.
    fs::set_permissions(&one, fs::Permissions::from_mode(0o600)).unwrap();
    transfer(&[&"send", shm, &one]).await.with_code(0);
    assert_eq!(fs::metadata(at.path().join("one")).unwrap().mode() & 0o7777, 0o600);
}

#[tokio::test]
async fn verify_names_what_differs() {
    let (from, at) = (Scratch::new(), Scratch::new());
    let tree = from.path().join("tree");
    write_sample(&tree, 10);
    let server = serve(&[&shm_name("verify")], at.path()).await;
    let address = &server.addresses()[0];
    transfer(&[&"send", address, &tree]).await.with_code(0);
    let there = at.path().join("tree");

    // One bit, keeping the time.
    let flip = |name: &str, offset: u64| {
        let file = File::options().read(true).write(true).open(there.join(name)).unwrap();
        let time = file.metadata().unwrap().modified().unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], offset).unwrap();
        file.set_modified(time).unwrap();
    };
    flip("even.bin", 1_900_000);
    flip("deep/er/and/deeper/still", 5);
    let found = transfer(&[&"verify", address, &tree]).await.with_code(1);
    let text = found.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "tree/deep/er/and/deeper/still: other content", "{found:?}");
    assert_eq!(lines[1], "tree/even.bin: contents differ, first in bytes 1835008 to 2097152");
    assert!(lines.len() == 3 && lines[2].starts_with("verified "), "{found:?}");
    assert_eq!(found.stderr, "error: 2 differences, see above\n");
    // Differing blocks are sent again, and only those.
    let sent = transfer(&[&"send", address, &tree]).await.with_code(0);
    assert!(sent.text().starts_with("sent 2 files, "), "{sent:?}");
    assert_same(&tree, &there);

    fs::remove_file(there.join("one")).unwrap();
    fs::write(there.join("more"), "").unwrap();
    fs::set_permissions(there.join("empty"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::remove_file(there.join("absolute")).unwrap();
    symlink("/usr", there.join("absolute")).unwrap();
    let found = transfer(&[&"verify", address, &tree]).await.with_code(1);
    for line in [
        "tree/one: only here",
        "tree/more: only on the server",
        "tree/empty: mode 400 here, 644 on the server",
        "tree/absolute: a link to `/etc` here, a link to `/usr` on the server",
        "tree: modification times differ",
    ] {
        assert!(found.text().lines().any(|found| found == line), "{line}: {found:?}");
    }
    assert_eq!(found.stderr, "error: 5 differences, see above\n");
}

#[tokio::test]
async fn nothing_leads_out_of_the_directory() {
    let (outside, at, from) = (Scratch::new(), Scratch::new(), Scratch::new());
    fs::write(outside.path().join("secret"), "untouched").unwrap();
    symlink(outside.path(), at.path().join("link")).unwrap();
    symlink(outside.path().join("secret"), at.path().join("secret")).unwrap();
    let server = serve(&[&shm_name("escape")], at.path()).await;
    let address = &server.addresses()[0];

    for path in ["../x", "/etc/passwd", "a/../../x"] {
        let refused = transfer(&[&"receive", address, &path]).await.with_code(2);
        assert!(refused.stderr.contains("not a path below the server's directory"), "{refused:?}");
    }
    // Links are copied as links, and nothing is read through them.
    let refused = transfer(&[&"receive", address, &"link/secret", &"--to", &from.path()]).await;
    let named = "error: link/secret: on the server: `link` is a file or a symbolic link";
    assert!(refused.with_code(1).stderr.starts_with(named));
    transfer(&[&"receive", address, &"secret", &"--to", &from.path()]).await.with_code(0);
    assert_eq!(fs::read_link(from.path().join("secret")).unwrap(), outside.path().join("secret"));

    // Nothing is written through them either: an entry with the name of a link replaces it.
    let tree = from.path().join("link");
    fs::create_dir_all(tree.join("d")).unwrap();
    fs::write(tree.join("d/f"), "x").unwrap();
    fs::write(from.path().join("good"), "x").unwrap();
    fs::remove_file(from.path().join("secret")).unwrap();
    fs::write(from.path().join("secret"), "mine").unwrap();
    let all = [&tree, &from.path().join("good"), &from.path().join("secret")];
    let sent = transfer(&[&"send", address, all[0], all[1], all[2]]).await.with_code(1);
    let in_the_way = "error: link: on the server: `link` is a file or a symbolic link, not a \
                      directory; move it away; nothing below it is copied\nerror: 1 entry failed, \
                      see above\n";
    assert_eq!(sent.stderr, in_the_way);
    assert_eq!(fs::read(at.path().join("good")).unwrap(), b"x");
    assert_eq!(fs::read(at.path().join("secret")).unwrap(), b"mine");
    assert_eq!(fs::read(outside.path().join("secret")).unwrap(), b"untouched");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn unwritable_files_are_named_others_copied() {
    let (from, at) = (Scratch::new(), Scratch::new());
    let tree = from.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for name in ["a", "file", "z"] {
        fs::write(tree.join(name), name).unwrap();
    }
    fs::write(tree.join("large"), random_bytes(LARGE_BYTES, 11)).unwrap();
    mknodat(CWD, tree.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    // Directories occupy the places of files.
    fs::create_dir_all(at.path().join("tree/file")).unwrap();
    fs::create_dir_all(at.path().join("tree/large")).unwrap();
    let server = serve(&[&shm_name("in-the-way")], at.path()).await;
    let sent = transfer(&[&"send", &server.addresses()[0], &tree]).await.with_code(1);
    assert!(sent.text().starts_with("sent 2 files, 1 directory: "), "{sent:?}");
    assert!(sent.text().ends_with("; 1 skipped; 2 failed\n"), "{sent:?}");
    for name in ["file", "large"] {
        let line = format!(
            "error: tree/{name}: on the server: a directory of that name exists; \
                            move it away"
        );
        assert!(sent.stderr.lines().any(|found| found == line), "{sent:?}");
    }
    assert!(sent.stderr.contains("skipped: tree/pipe: a named pipe\n"), "{sent:?}");
    assert_eq!(fs::read(at.path().join("tree/z")).unwrap(), b"z");
}

#[tokio::test]
async fn a_full_disk_is_named_others_copied() {
    let (from, at) = (Scratch::new(), Scratch::new());
    let tree = from.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..20 {
        fs::write(tree.join(format!("small-{number}")), random_bytes(1000, number)).unwrap();
    }
    // Only the last of these has room, and only when nothing of the others is left.
    for (name, bytes) in [("a", 7 << 20), ("b", 5 << 20), ("c", 3 << 20)] {
        fs::write(tree.join(name), random_bytes(bytes, bytes as u64)).unwrap();
    }
    // A file system of 4 MiB that is private to the test.
    let script = "mount -t tmpfs -o size=4m none \"$1\" && exec \"$0\" serve \"$2\" \"$1\"";
    let example = command("transfer", [""; 0]);
    let mut server = tokio::process::Command::new("unshare");
    server.args(["-rm", "sh", "-c", script]).arg(example.as_std().get_program());
    server.arg(at.path()).arg(shm_name("full")).stdin(Stdio::null()).kill_on_drop(true);
    let server = Serving::start(server, 1).await;
    let address = &server.addresses()[0];
    let sent = transfer(&[&"send", address, &tree]).await.with_code(1);
    for name in ["a", "b"] {
        let line = format!(
            "error: tree/{name}: on the server: No space left on device (os error 28); free some \
             space and run the same command again"
        );
        assert!(sent.stderr.lines().any(|found| found == line), "{sent:?}");
    }
    assert!(sent.text().starts_with("sent 21 files, 1 directory: "), "{sent:?}");
    assert!(sent.text().ends_with("; 2 failed\n"), "{sent:?}");
    let to = Scratch::new();
    transfer(&[&"receive", address, &".", &"--to", &to.path()]).await.with_code(0);
    assert!(fs::read(to.path().join("tree/c")).unwrap() == fs::read(tree.join("c")).unwrap());
    assert_eq!(fs::read_dir(to.path().join("tree")).unwrap().count(), 21);
}

#[tokio::test]
async fn failures_say_what_where_and_what_to_do() {
    let nobody = shm_name("nobody");
    let refused = transfer(&[&"receive", &nobody, &"x"]).await.with_code(1);
    assert!(refused.stderr.starts_with("error: ") && refused.stderr.contains(&nobody));
    assert!(
        refused.stderr.ends_with("; start the server there, or correct the address\n"),
        "{refused:?}"
    );

    let at = Scratch::new();
    let server = serve(&["tcp://127.0.0.1:0"], at.path()).await;
    let address = &server.addresses()[0];
    let taken = transfer(&[&"serve", address, &at.path()]).await.with_code(1);
    assert!(taken.stderr.contains("in use"), "{taken:?}");
    let missing = transfer(&[&"send", address, &"/no/such/dir"]).await.with_code(1);
    assert!(missing.stderr.starts_with("error: /no/such/dir: "), "{missing:?}");
    let missing = transfer(&[&"receive", address, &"gone", &"--to", &at.path()]).await.with_code(1);
    assert!(missing.stderr.starts_with("error: gone: on the server: no such file"), "{missing:?}");
    assert!(transfer(&[&"send", &"host:1", &"x"]).await.with_code(2).stderr.contains("scheme"));
    let root = transfer(&[&"send", address, &"/"]).await.with_code(2);
    assert!(root.stderr.contains("no name to be stored under"), "{root:?}");
}

#[tokio::test]
async fn a_missing_directory_needs_create() {
    let at = Scratch::new();
    let typo = at.path().join("no/such");
    let refused = transfer(&[&"serve", &"tcp://127.0.0.1:0", &typo]).await.with_code(1);
    let expected = format!(
        "error: {}: no such directory; correct the path, or add --create to create it\n",
        typo.display()
    );
    assert_eq!(refused.stderr, expected);
    assert!(!at.path().join("no").exists());
    let arguments: [&OsStr; 4] =
        ["serve".as_ref(), "tcp://127.0.0.1:0".as_ref(), typo.as_ref(), "--create".as_ref()];
    let _server = Serving::start(command("transfer", arguments), 1).await;
    assert!(typo.is_dir());
}

#[tokio::test]
async fn two_at_once_never_mix_their_files() {
    let (one, other, at) = (Scratch::new(), Scratch::new(), Scratch::new());
    let mut contents = BTreeMap::new();
    for number in 0..40 {
        // The last ones are large.
        let bytes = if number < 36 { 5000 } else { 3 << 20 };
        let name = format!("{number:02}");
        let pair = [number * 2, number * 2 + 1].map(|seed| random_bytes(bytes, seed + 100));
        for (dir, content) in [&one, &other].into_iter().zip(&pair) {
            fs::create_dir_all(dir.path().join("tree")).unwrap();
            fs::write(dir.path().join("tree").join(&name), content).unwrap();
        }
        contents.insert(name, pair);
    }
    let server = serve(&[&shm_name("two")], at.path()).await;
    let address = &server.addresses()[0];
    let trees = [one.path().join("tree"), other.path().join("tree")];
    // Slow enough for both to copy the same file at once.
    let send = |tree| async move {
        transfer(&[&"send", address, tree, &"--block", &"256K", &"--limit", &"20M"]).await
    };
    for ended in <[Ended; 2]>::from(tokio::join!(send(&trees[0]), send(&trees[1]))) {
        // The second one may receive an error.
        let lines: Vec<&str> = ended.stderr.lines().collect();
        let told = |line: &&str| {
            line.contains(": on the server: another transfer is writing it; ")
                || line.contains(": on the server: the file differs from the one sent")
                || line.ends_with("failed, see above")
        };
        assert!(lines.iter().all(told), "{ended:?}");
    }
    for (name, pair) in &contents {
        if let Ok(found) = fs::read(at.path().join("tree").join(name)) {
            assert!(pair.contains(&found), "{name} is a mixture");
        }
    }
    assert_eq!(partial_files(&at.path().join("tree")), [""; 0]);
    // Afterwards each one succeeds.
    for tree in &trees {
        transfer(&[&"send", address, tree]).await.with_code(0);
        for name in contents.keys() {
            let there = fs::read(at.path().join("tree").join(name)).unwrap();
            assert!(there == fs::read(tree.join(name)).unwrap(), "{name} differs");
        }
    }
}

/// Names of partial files.
fn partial_files(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.into_string().unwrap());
    names.filter(|name| name.ends_with(".part")).collect()
}

#[tokio::test]
async fn one_file_sent_by_several_is_whole() {
    let (from, at) = (Scratch::new(), Scratch::new());
    let tree = from.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("large"), random_bytes(12 << 20, 7)).unwrap();
    let server = serve(&[&shm_name("several")], at.path()).await;
    let address = &server.addresses()[0];
    let send = || async {
        transfer(&[&"send", address, &tree, &"--block", &"256K", &"--limit", &"40M"]).await
    };
    let mut done = 0;
    for round in 0..4 {
        let ended = futures::future::join_all((0..3).map(|_| send())).await;
        let there = fs::read(at.path().join("tree/large"));
        let is_whole = there.is_ok_and(|bytes| bytes == fs::read(tree.join("large")).unwrap());
        // A process that reports the file as complete is right; one that was disturbed twice
        // reports that.
        let says_done = ended.iter().filter(|ended| ended.code == Some(0)).count();
        assert!(is_whole || says_done == 0, "round {round}: {ended:?}");
        done += says_done;
        assert_eq!(partial_files(&at.path().join("tree")), [""; 0], "round {round}: {ended:?}");
        let _ = fs::remove_file(at.path().join("tree/large"));
    }
    // Not only the first of each round: the others find it complete when they check again.
    assert!(done > 4, "{done} of 12 were done");
    send().await.with_code(0);
    assert_same(&tree, &at.path().join("tree"));
}

#[tokio::test]
async fn the_commands_of_the_readme_work() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/transfer/README.md");
    let readme = fs::read_to_string(path).unwrap();
    let commands = readme.lines().filter_map(|line| {
        let line = line.strip_prefix("./target/release/examples/transfer ")?;
        Some(line.split('#').next().unwrap().trim_end_matches([' ', '&']))
    });
    let commands: Vec<Vec<&str>> = commands.map(|line| line.split_whitespace().collect()).collect();
    let [serving, using @ ..] = &commands[..] else { panic!("no commands in the README") };
    assert_eq!(serving[..], ["serve", "auto://0.0.0.0:7481", "./files", "--create"]);
    assert_eq!(using.len(), 3, "{using:?}");
    let (from, at, to) = (Scratch::new(), Scratch::new(), Scratch::new());
    let (tree, copy) = (from.path().join("tree"), to.path());
    write_sample(&tree, 5);
    let server = serve(&["auto://127.0.0.1:0"], at.path()).await;
    for command in using {
        let arguments: Vec<&dyn AsRef<OsStr>> = command
            .iter()
            .map(|word| -> &dyn AsRef<OsStr> {
                match word {
                    &"auto://127.0.0.1:7481" => &server.addresses()[0],
                    &"./some/tree" => &tree,
                    &"./copy" => &copy,
                    word => word,
                }
            })
            .collect();
        transfer(&arguments).await.with_code(0);
    }
    assert_same(&tree, &to.path().join("tree"));
}
