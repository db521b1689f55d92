//! The `kv` example as a person runs it: a server process, and commands against it.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use tests::example::{Ended, Scratch, Serving, command, run};
use tokio::io::AsyncWriteExt;

/// Size of the large file: many segments, and no multiple of anything.
const LARGE_BYTES: usize = 3_000_001;

async fn serve(addresses: &[&str], options: &[&str]) -> Serving {
    let arguments = ["serve"].iter().chain(addresses).chain(options);
    Serving::start(command("kv", arguments), addresses.len()).await
}

async fn kv(arguments: &[&dyn AsRef<OsStr>]) -> Ended {
    run(command("kv", arguments.iter().map(|argument| argument.as_ref()))).await
}

fn shm_name(test: &str) -> String {
    format!("shm://kv-tree-{test}-{}", std::process::id())
}

/// A file of a tree: its bytes; a directory: `None`.
type Tree = BTreeMap<String, Option<Vec<u8>>>;

/// A tree of all kinds of names and sizes, and `small_files` more small files.
fn sample(small_files: usize) -> Tree {
    let mut random: u64 = 0x9e37_79b9_7f4a_7c15;
    let large = (0..LARGE_BYTES).map(|_| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random.to_le_bytes()[3]
    });
    let long_name = format!("deep/{}", "n".repeat(255));
    let mut files = vec![
        ("large.bin", large.collect()),
        ("empty", Vec::new()),
        ("one", vec![0]),
        ("deep/er/and/deeper/still", b"bottom".to_vec()),
        ("deep/er/beside", b"\xff\xfe\0\n".to_vec()),
        (" leading and trailing ", b"spaces".to_vec()),
        ("line\nfeed\ttab", b"control characters".to_vec()),
        ("-rf", b"like an option".to_vec()),
        (".hidden/...", b"dots".to_vec()),
        ("back\\slash%2Fpercent", b"no separators".to_vec()),
        ("größe/日本語/🦀", b"not ASCII".to_vec()),
        ("CASE/case", b"lower".to_vec()),
        ("case/CASE", b"upper".to_vec()),
        (&long_name, b"a long name".to_vec()),
    ];
    let many: Vec<String> =
        (0..small_files).map(|number| format!("many/{}/{number}", number % 7)).collect();
    files.extend(many.iter().map(|name| (&**name, name.clone().into_bytes())));
    let mut tree: Tree =
        files.into_iter().map(|(path, bytes)| (path.to_owned(), Some(bytes))).collect();
    tree.insert("nothing/in/here".to_owned(), None);
    tree
}

fn write(tree: &Tree, root: &Path) {
    for (path, content) in tree {
        let path = root.join(path);
        match content {
            None => fs::create_dir_all(path).unwrap(),
            Some(bytes) => {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, bytes).unwrap();
            }
        }
    }
}

/// All files, and the empty directories.
fn read(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut pending = vec![root.to_owned()];
    while let Some(dir) = pending.pop() {
        let key = |path: &Path| path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        let before = tree.len() + pending.len();
        for entry in fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let path = entry.path();
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => pending.push(path),
                kind if kind.is_file() => {
                    tree.insert(key(&path), Some(fs::read(&path).unwrap()));
                }
                kind => panic!("{path:?} is a {kind:?}"),
            }
        }
        if tree.len() + pending.len() == before {
            tree.insert(key(&dir), None);
        }
    }
    tree
}

/// A count as `kv` prints it; these sizes have at most one comma.
fn grouped(count: usize) -> String {
    let thousands = count / 1000;
    if thousands == 0 { count.to_string() } else { format!("{thousands},{:03}", count % 1000) }
}

/// Compares file by file, so that a difference can be read.
fn assert_same(expected: &Tree, found: &Tree) {
    let paths = |tree: &Tree| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(paths(expected), paths(found));
    for (path, content) in expected {
        assert!(found[path] == *content, "{path:?} differs");
    }
}

async fn there_and_back(address: &str, small_files: usize) {
    let server = serve(&[address], &[]).await;
    let address = &server.addresses()[0];
    let (from, to) = (Scratch::new(), Scratch::new());
    let tree = sample(small_files);
    write(&tree, from.path());

    let imported = kv(&[&"import", address, &from.path(), &"--prefix", &"p/"]).await.with_code(0);
    let files = tree.values().flatten().count();
    let files = format!("{} files and 1 empty directory", grouped(files));
    assert!(imported.text().starts_with(&format!("imported {files} from ")), "{imported:?}");
    assert_eq!(imported.stderr, "");
    let listed = kv(&[&"list", address, &"--null"]).await.with_code(0);
    let keys = listed.stdout.split(|byte| *byte == 0).filter(|key| !key.is_empty());
    let mut expected: Vec<String> = tree
        .iter()
        .map(|(path, content)| format!("p/{path}{}", if content.is_some() { "" } else { "/" }))
        .collect();
    expected.sort();
    assert_eq!(keys.map(String::from_utf8_lossy).collect::<Vec<_>>(), expected);

    let target = to.path().join("not/there/yet");
    let exported = kv(&[&"export", address, &target, &"--prefix", &"p/"]).await.with_code(0);
    assert!(exported.text().starts_with(&format!("exported {files} to ")), "{exported:?}");
    assert_same(&tree, &read(&target));
    // Once more, over the existing files.
    kv(&[&"export", address, &target, &"--prefix", &"p/", &"--in-flight", &"1"]).await.with_code(0);
    assert_same(&tree, &read(&target));
}

#[tokio::test]
async fn a_tree_comes_back_over_shm() {
    // More than one page of a listing.
    there_and_back(&shm_name("whole"), 1100).await;
}

#[tokio::test]
async fn a_tree_comes_back_over_a_socket_file() {
    let dir = Scratch::new();
    there_and_back(&format!("shm://{}", dir.path().join("kv.sock").display()), 50).await;
}

#[tokio::test]
async fn a_tree_comes_back_over_tcp() {
    there_and_back("tcp://127.0.0.1:0", 50).await;
}

#[tokio::test]
async fn a_tree_comes_back_over_auto() {
    there_and_back("auto://127.0.0.1:0", 50).await;
}

#[tokio::test]
async fn single_keys_from_the_command_line() {
    let server = serve(&[&shm_name("keys"), "tcp://127.0.0.1:0"], &["--max-bytes", "1K"]).await;
    let [shm, tcp] = server.addresses() else { panic!("{:?}", server.addresses()) };
    let file = Scratch::new();
    let path = file.path().join("value");

    assert_eq!(kv(&[&"put", shm, &"k", &"v"]).await.with_code(0).text(), "version 1\n");
    assert_eq!(kv(&[&"get", tcp, &"k"]).await.with_code(0).stdout, b"v");
    let with_version = kv(&[&"get", tcp, &"k", &"--show-version"]).await.with_code(0);
    assert_eq!((&*with_version.stdout, &*with_version.stderr), (&b"v"[..], "version 1\n"));
    fs::write(&path, b"\0\xff\n").unwrap();
    kv(&[&"cas", tcp, &"k", &"1", &"--file", &path]).await.with_code(0);
    kv(&[&"get", shm, &"k", &"--output", &path.with_extension("out")]).await.with_code(0);
    assert_eq!(fs::read(path.with_extension("out")).unwrap(), b"\0\xff\n");

    let mut from_stdin = command("kv", ["put", shm, "in", "-"]);
    from_stdin.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = from_stdin.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"from stdin").await.unwrap();
    drop(stdin);
    assert!(child.wait().await.unwrap().success());
    assert_eq!(kv(&[&"get", shm, &"in"]).await.with_code(0).stdout, b"from stdin");

    let stale = kv(&[&"cas", shm, &"k", &"1", &"x"]).await.with_code(1);
    assert_eq!(stale.stderr, "error: k: the key has version 2 now\n");
    let present = kv(&[&"cas", shm, &"k", &"absent", &"x"]).await.with_code(1);
    assert_eq!(present.stderr, "error: k: the key has version 2 now\n");
    let full = kv(&[&"put", shm, &"big", &"x".repeat(1021)]).await.with_code(1);
    assert!(full.stderr.starts_with("error: big: the store is full: "), "{full:?}");
    let listed = kv(&[&"list", shm]).await.with_code(0);
    assert_eq!(listed.text(), "in\nk\n");
    assert_eq!(kv(&[&"list", shm, &"-n", &"1"]).await.with_code(0).text(), "in\n");
    kv(&[&"del", shm, &"k"]).await.with_code(0);
    assert_eq!(kv(&[&"get", shm, &"k"]).await.with_code(1).stderr, "error: k: no such key\n");
    let stats = kv(&[&"stats", shm]).await.with_code(0).text();
    assert!(stats.contains("\nkeys      1\nbytes     12 (12 B of at most 1.0 KiB)\n"), "{stats}");
}

#[tokio::test]
async fn keys_never_lead_out_of_the_directory() {
    let server = serve(&[&shm_name("escape")], &[]).await;
    let address = &server.addresses()[0];
    let dir = Scratch::new();
    let absolute = dir.path().join("absolute").display().to_string();
    let bad = ["../up", "a/../../up", "a/..", &absolute, "a//b", "./a", "d/"];
    for key in bad.into_iter().chain(["good", "file", "file/and/dir"]) {
        kv(&[&"put", address, &key, &"x"]).await.with_code(0);
    }
    let target = dir.path().join("target");
    fs::create_dir(&target).unwrap();
    // A link that was planted in the target is not followed either.
    kv(&[&"put", address, &"link/below", &"x"]).await.with_code(0);
    symlink("..", target.join("link")).unwrap();

    let exported = kv(&[&"export", address, &target]).await.with_code(1);
    let lines: Vec<&str> = exported.stderr.lines().collect();
    assert_eq!(lines.len(), bad.len() + 3, "{exported:?}");
    for key in bad {
        assert!(
            lines.iter().any(|line| line.starts_with(&format!("error: {key}: "))),
            "{exported:?}"
        );
    }
    let conflict = "error: file: cannot be a file: other keys need the directory `file/`";
    assert!(lines.contains(&conflict), "{exported:?}");
    let link = "error: link/below: `link` is a file or a symbolic link, not a directory";
    assert!(lines.contains(&link), "{exported:?}");
    assert_eq!(lines.last(), Some(&"error: 9 entries failed, see above"));

    fs::remove_file(target.join("link")).unwrap();
    let expected =
        ["target/file/and/dir", "target/good"].map(|path| (path.to_owned(), Some(b"x".to_vec())));
    assert_same(&Tree::from(expected), &read(dir.path()));
}

#[tokio::test]
async fn invalid_keys_are_named_others_stored() {
    let server = serve(&[&shm_name("odd")], &[]).await;
    let address = &server.addresses()[0];
    let dir = Scratch::new();
    fs::write(dir.path().join("good"), "x").unwrap();
    symlink("good", dir.path().join("link")).unwrap();
    fs::write(dir.path().join(OsStr::from_bytes(b"\xff")), "x").unwrap();
    let imported = kv(&[&"import", address, &dir.path()]).await.with_code(1);
    let summary = imported.text();
    assert!(
        summary.starts_with("imported 1 file from ")
            && summary.ends_with("; 1 skipped; 1 failed\n")
    );
    assert!(
        imported.stderr.contains("skipped: ")
            && imported.stderr.contains("/link: a symbolic link\n")
    );
    assert!(imported.stderr.contains("its name is not UTF-8"), "{imported:?}");
    assert!(imported.stderr.ends_with("error: 1 entry failed, see above\n"), "{imported:?}");
    assert_eq!(kv(&[&"list", address]).await.with_code(0).text(), "good\n");
}

#[tokio::test]
async fn failures_say_what_where_and_what_to_do() {
    let nobody = shm_name("nobody");
    let refused = kv(&[&"get", &nobody, &"k"]).await.with_code(1);
    assert!(
        refused.stderr.starts_with("error: ") && refused.stderr.contains(&nobody),
        "{refused:?}"
    );
    assert!(
        refused.stderr.ends_with("; start the server there, or correct the address\n"),
        "{refused:?}"
    );
    assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");

    let server = serve(&["tcp://127.0.0.1:0"], &[]).await;
    let taken = kv(&[&"serve", &server.addresses()[0]]).await.with_code(1);
    assert!(taken.stderr.contains("in use"), "{taken:?}");
    let missing = kv(&[&"import", &server.addresses()[0], &"/no/such/dir"]).await.with_code(1);
    assert!(missing.stderr.starts_with("error: /no/such/dir: "), "{missing:?}");

    assert!(kv(&[&"get", &"kv.example:7471", &"k"]).await.with_code(2).stderr.contains("scheme"));
    assert!(kv(&[&"frobnicate"]).await.with_code(2).stderr.contains("frobnicate"));
}

#[tokio::test]
async fn a_full_disk_keeps_the_old_file() {
    let server = serve(&[&shm_name("disk")], &[]).await;
    let address = &server.addresses()[0];
    let (from, at) = (Scratch::new(), Scratch::new());
    let value = from.path().join("value");
    fs::write(&value, vec![7; 2 << 20]).unwrap();
    kv(&[&"put", address, &"k", &"--file", &value]).await.with_code(0);
    // A file system of 1 MiB that is private to the test.
    let script =
        "mount -t tmpfs -o size=1m none \"$1\" && cd \"$1\" && printf old > file || exit 99
        \"$0\" get \"$2\" k -o file; code=$?; ls -A; cat file; exit $code";
    let example = command("kv", [""; 0]);
    let mut shell = tokio::process::Command::new("unshare");
    shell.args(["-rm", "sh", "-c", script]).arg(example.as_std().get_program());
    shell.arg(at.path()).arg(address).stdin(Stdio::null()).kill_on_drop(true);
    let got = run(shell).await.with_code(1);
    assert_eq!(got.stderr, "error: file: No space left on device (os error 28)\n");
    assert_eq!(got.text(), "file\nold", "the old one, and nothing beside it");
}

#[tokio::test]
async fn a_long_key_is_not_echoed_whole() {
    let server = serve(&[&shm_name("long-key")], &[]).await;
    let long = "x".repeat(20_000);
    let refused = kv(&[&"get", &server.addresses()[0], &long]).await.with_code(1);
    assert!(refused.stderr.len() < 300 && refused.stderr.contains("xxx...: "), "{refused:?}");
    for program in ["kv", "transfer", "doctor"] {
        let version = run(command(program, ["--version"])).await.with_code(0).text();
        assert_eq!(version, format!("{program} {}\n", env!("CARGO_PKG_VERSION")));
    }
}

#[tokio::test]
async fn a_server_ends_in_order_at_sigterm() {
    let server = serve(&[&shm_name("term")], &[]).await;
    kv(&[&"put", &server.addresses()[0], &"k", &"v"]).await.with_code(0);
    let pid = i32::try_from(server.id()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let (status, stderr) = server.ended().await;
    assert!(status.success(), "{status}");
    assert!(stderr.ends_with("stopped after 1 request, with 1 key (2 B)\n"), "{stderr}");
}

/// A regression: one of them had an option that does not exist.
#[tokio::test]
async fn the_commands_of_the_readme_work() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/kv/README.md");
    let readme = fs::read_to_string(path).unwrap();
    let commands = readme.lines().filter_map(|line| {
        let line = line.strip_prefix("./target/release/examples/kv ")?;
        Some(line.split('#').next().unwrap().trim_end_matches([' ', '&']))
    });
    let commands: Vec<Vec<&str>> = commands.map(|line| line.split_whitespace().collect()).collect();
    let (from, to) = (Scratch::new(), Scratch::new());
    write(&Tree::from([("src/lib.rs".to_owned(), Some(b"//".to_vec()))]), from.path());
    let (from_path, to_path) = (from.path(), to.path());
    let shm = shm_name("readme");
    let [serving, using @ ..] = &commands[..] else { panic!("no commands in the README") };
    assert_eq!(serving[..], ["serve", "tcp://127.0.0.1:7480", "shm://kv"]);
    let server = serve(&["tcp://127.0.0.1:0", &shm], &[]).await;
    assert_eq!(using.len(), 5, "{using:?}");
    let mut watching = None;
    for words in using {
        let arguments: Vec<&dyn AsRef<OsStr>> = words
            .iter()
            .map(|word| -> &dyn AsRef<OsStr> {
                match word {
                    &"tcp://127.0.0.1:7480" => &server.addresses()[0],
                    &"shm://kv" => &server.addresses()[1],
                    &"./some/tree" => &from_path,
                    &"./copy" => &to_path,
                    word => word,
                }
            })
            .collect();
        if words[0] == "watch" {
            // Until its first change: the command of the README runs until it is stopped.
            let until: [&dyn AsRef<OsStr>; 2] = [&"-n", &"1"];
            let arguments = arguments.iter().chain(&until).map(|argument| argument.as_ref());
            watching = Some(tokio::spawn(run(command("kv", arguments))));
        } else {
            kv(&arguments).await.with_code(0);
        }
    }
    assert_same(&read(from.path()), &read(to.path()));
    let watching = watching.expect("a command that watches");
    while !watching.is_finished() {
        kv(&[&"put", &server.addresses()[1], &"src/new", &"x"]).await.with_code(0);
    }
    let seen = watching.await.unwrap().with_code(0).text();
    assert!(seen.starts_with("set ") && seen.ends_with(" src/new\n"), "{seen}");
}
