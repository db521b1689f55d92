//! Copies that are interrupted in the middle of a file, and resume there.

use std::ffi::OsStr;
use std::fs;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use tests::example::{LIMIT, Scratch, Serving, command, run};
use tokio::process::Child;

use crate::sample::{assert_same, random_bytes};
use crate::{kill, serve, shm_name, transfer};

/// Size of the interrupted file, and a rate that leaves a middle.
const INTERRUPTED_BYTES: usize = 40 << 20;
const SLOWLY: &str = "16M";
/// Bytes that are there at the interruption. More than the eight blocks that are in flight at once
/// and arrive in any order: the first four are complete then.
const MIDDLE_BYTES: u64 = 12 << 20;

/// A client in the middle of a file of [`INTERRUPTED_BYTES`].
struct Middle {
    from: Scratch,
    to: Scratch,
    server: Serving,
    client: Child,
    is_send: bool,
}

impl Middle {
    /// Starts copying, slowly, and waits until part of the file is there.
    async fn start(address: &str, is_send: bool) -> Self {
        let (from, to) = (Scratch::new(), Scratch::new());
        let tree = from.path().join("tree");
        fs::create_dir(&tree).unwrap();
        for number in 0..300 {
            fs::write(tree.join(number.to_string()), number.to_string()).unwrap();
        }
        fs::write(tree.join("large"), random_bytes(INTERRUPTED_BYTES, 9)).unwrap();
        let dir = if is_send { to.path() } else { from.path() };
        let server = serve(&[address], dir).await;
        let mut slow = Self::command(&server.addresses()[0], &from, &to, is_send);
        slow.args(["--limit", SLOWLY]).stdout(Stdio::null()).stderr(Stdio::piped());
        let client = slow.spawn().unwrap();
        let middle = Self { from, to, server, client, is_send };
        let part = middle.to.path().join("tree/.large.part");
        let appears = async {
            while fs::metadata(&part).map_or(0, |metadata| metadata.len()) < MIDDLE_BYTES {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(LIMIT, appears).await.expect("the file is being written");
        middle
    }

    fn command(
        address: &str,
        from: &Scratch,
        to: &Scratch,
        is_send: bool,
    ) -> tokio::process::Command {
        let tree = from.path().join("tree");
        let words = if is_send {
            vec![OsStr::new("send"), OsStr::new(address), tree.as_os_str()]
        } else {
            let to = to.path().as_os_str();
            vec![OsStr::new("receive"), OsStr::new(address), "tree".as_ref(), "--to".as_ref(), to]
        };
        command("transfer", words)
    }

    /// Repeats the command, and checks the result.
    async fn go_on(&self, address: &str) {
        let ended = run(Self::command(address, &self.from, &self.to, self.is_send)).await;
        let ended = ended.with_code(0);
        // Also of the large file, not only of the small ones.
        let kept = ended.text().split("; ").nth(1).unwrap().to_owned();
        assert!(kept.contains(" MiB already there (300 whole files)"), "{ended:?}");
        assert!(ended.text().contains(" 1 file, 1 directory: "), "{ended:?}");
        assert_same(&self.from.path().join("tree"), &self.to.path().join("tree"));
    }

    fn assert_unfinished(&self) {
        let tree = self.to.path().join("tree");
        assert!(!tree.join("large").exists() && tree.join(".large.part").exists());
    }
}

async fn goes_on_after_the_client_was_killed(address: &str, is_send: bool) {
    let mut middle = Middle::start(address, is_send).await;
    kill(middle.client.id(), Signal::KILL);
    assert!(!middle.client.wait().await.unwrap().success());
    middle.assert_unfinished();
    let address = middle.server.addresses()[0].clone();
    middle.go_on(&address).await;
}

async fn goes_on_after_the_server_was_killed(address: &str, is_send: bool) {
    let middle = Middle::start(address, is_send).await;
    kill(Some(middle.server.id()), Signal::KILL);
    let Middle { from, to, server, client, is_send } = middle;
    let address = server.addresses()[0].clone();
    server.ended().await;
    let client = tokio::time::timeout(LIMIT, client.wait_with_output()).await.expect("it ends");
    let client = client.unwrap();
    let stderr = String::from_utf8_lossy(&client.stderr).into_owned();
    assert_eq!(client.status.code(), Some(1), "{stderr}");
    // On a machine that stalled, a warning comes first.
    let error = stderr.lines().last().unwrap_or_default();
    assert!(error.starts_with("error: stopped, 300 of 301 files "), "{stderr}");
    assert!(error.ends_with("; run the same command again to resume"), "{stderr}");
    let dir = if is_send { to.path() } else { from.path() };
    let server = serve(&[&address], dir).await;
    let client = command("transfer", ["--help"]).stdout(Stdio::null()).spawn().unwrap();
    let middle = Middle { from, to, server, client, is_send };
    middle.assert_unfinished();
    middle.go_on(&address).await;
}

#[tokio::test]
async fn sending_resumes_after_a_client_kill_over_shm() {
    goes_on_after_the_client_was_killed(&shm_name("client"), true).await;
}

#[tokio::test]
async fn receiving_resumes_after_a_client_kill_over_tcp() {
    goes_on_after_the_client_was_killed("tcp://127.0.0.1:0", false).await;
}

#[tokio::test]
async fn sending_resumes_after_a_server_kill_over_tcp() {
    goes_on_after_the_server_was_killed("tcp://127.0.0.1:0", true).await;
}

#[tokio::test]
async fn receiving_resumes_after_a_server_kill_over_shm() {
    goes_on_after_the_server_was_killed(&shm_name("server"), false).await;
}

#[tokio::test]
async fn an_interrupted_client_says_how_to_go_on() {
    let middle = Middle::start(&shm_name("term"), true).await;
    kill(middle.client.id(), Signal::TERM);
    let ended = tokio::time::timeout(LIMIT, middle.client.wait_with_output()).await;
    let ended = ended.expect("it ends").unwrap();
    let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(130), "{stderr}");
    assert!(
        stderr.starts_with("error: interrupted, 300 of 301 files sent; run the same "),
        "{stderr}"
    );
    kill(Some(middle.server.id()), Signal::TERM);
    assert!(middle.server.ended().await.0.success());
}

#[tokio::test]
async fn a_changed_partial_file_is_not_believed() {
    let (from, at) = (Scratch::new(), Scratch::new());
    let server = serve(&[&shm_name("stale")], at.path()).await;
    let bytes = random_bytes(INTERRUPTED_BYTES / 8, 10);
    fs::write(from.path().join("f"), &bytes).unwrap();
    // The first 256 KiB are right, and the rest is not.
    let mut stale = bytes[..3 << 20].to_vec();
    stale[300_000] ^= 1;
    fs::write(at.path().join(".f.part"), stale).unwrap();
    let sent = transfer(&[&"send", &server.addresses()[0], &from.path().join("f")]).await;
    let sent = sent.with_code(0);
    assert!(sent.text().contains("; 256.0 KiB already there (0 whole files)"), "{sent:?}");
    assert!(fs::read(at.path().join("f")).unwrap() == bytes);
    assert_eq!(fs::read_dir(at.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn a_stopped_server_ends_its_clients_regularly() {
    let middle = Middle::start("tcp://127.0.0.1:0", true).await;
    kill(Some(middle.server.id()), Signal::TERM);
    let Middle { server, client, from, to, is_send } = middle;
    let address = server.addresses()[0].clone();
    let ended = tokio::time::timeout(LIMIT, client.wait_with_output()).await.expect("it ends");
    let stderr = String::from_utf8_lossy(&ended.unwrap().stderr).into_owned();
    assert!(stderr.starts_with("error: stopped, 300 of 301 files sent: "), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(server.ended().await.0.success());
    let server = serve(&[&address], to.path()).await;
    let client = command("transfer", ["--help"]).stdout(Stdio::null()).spawn().unwrap();
    let middle = Middle { from, to, server, client, is_send };
    middle.assert_unfinished();
    middle.go_on(&address).await;
}
