//! The `push` example as people run it: a server, and readers that it calls.

use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use tests::example::{LIMIT, command, run};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

struct Program {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(arguments: &[&str]) -> Self {
        let mut command = command("push", arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it can be started");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { stdin: child.stdin.take(), child, lines }
    }

    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(LIMIT, self.lines.next_line()).await.expect("it is stuck");
        line.expect("it can be read").expect("it has ended")
    }

    async fn write(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("it is open");
        stdin.write_all(format!("{line}\n").as_bytes()).await.expect("it reads");
    }
}

async fn tells_its_readers(address: &str) {
    let mut server = Program::start(&["serve", address]);
    let ready = server.line().await;
    let address = ready.strip_prefix("READY ").expect("READY comes first");
    let [mut ada, mut bob] = ["Ada", "Bob"].map(|name| Program::start(&["read", address, name]));
    assert_eq!(
        (ada.line().await, bob.line().await),
        ("reading as Ada".into(), "reading as Bob".into())
    );
    let mut subscribed = [server.line().await, server.line().await];
    subscribed.sort();
    assert_eq!(subscribed, ["Ada reads", "Bob reads"]);

    let second = run(command("push", ["read", address, "Ada"])).await.with_code(1);
    let taken = "error: another reader is called Ada: choose another name, or stop that reader; if it is \
         gone";
    assert!(second.stderr.starts_with(taken), "{}", second.stderr);

    server.write("rain").await;
    assert_eq!((ada.line().await, bob.line().await), ("rain".into(), "rain".into()));
    assert_eq!(server.line().await, "sent to 2");

    bob.child.kill().await.expect("it lives");
    // Whether or not the server has noticed yet: Bob is not counted, and Ada is notified.
    server.write("sun").await;
    assert_eq!(ada.line().await, "sun");
    assert_eq!(server.line().await, "sent to 1");

    // His name is free again for the next reader.
    let mut bob = Program::start(&["read", address, "Bob"]);
    assert_eq!(bob.line().await, "reading as Bob");
    assert_eq!(server.line().await, "Bob reads");
    server.write("wind").await;
    assert_eq!((ada.line().await, bob.line().await), ("wind".into(), "wind".into()));

    drop(server.stdin.take());
    assert_eq!(server.line().await, "sent to 2");
    let ended = tokio::time::timeout(LIMIT, server.child.wait()).await.expect("it is stuck");
    assert!(ended.expect("it is ours").success());
}

/// A regression: the next article waited until the last one had been read by all, or forgotten.
#[tokio::test]
async fn a_reader_that_hangs_holds_up_nobody_else() {
    let mut server = Program::start(&["serve", "tcp://127.0.0.1:0", "--patience", "3600"]);
    let ready = server.line().await;
    let address = ready.strip_prefix("READY ").expect("READY comes first");
    let [mut ada, mut bob] = ["Ada", "Bob"].map(|name| Program::start(&["read", address, name]));
    ada.line().await;
    bob.line().await;
    let id = bob.child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)).expect("it lives");
    kill_process(id, Signal::STOP).expect("it is ours");
    for article in ["rain", "sun", "wind"] {
        server.write(article).await;
        assert_eq!(ada.line().await, article);
    }
    bob.child.kill().await.expect("it lives");
    let told = [server.line().await, server.line().await];
    assert_eq!(told.map(|line| line.ends_with(" reads")), [true; 2]);
    for _ in 0..3 {
        assert_eq!(server.line().await, "sent to 1");
    }
}

#[tokio::test]
async fn a_server_tells_its_readers_over_shm() {
    tells_its_readers(&format!("shm://push-{}", std::process::id())).await;
}

#[tokio::test]
async fn a_server_tells_its_readers_over_tcp() {
    tells_its_readers("tcp://127.0.0.1:0").await;
}

/// A regression: it printed nothing for as long as there was no server.
#[tokio::test]
async fn a_reader_waits_for_its_server() {
    let address = format!("shm://push-late-{}", std::process::id());
    let mut waits = command("push", ["read", &address, "Ada"]);
    let mut reader = waits.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(reader.stderr.take().unwrap()).lines();
    let line = tokio::time::timeout(LIMIT, said.next_line()).await.expect("it says nothing");
    let line = line.unwrap().expect("it has ended");
    assert!(line.contains("waiting for the server") && line.contains(&address), "{line}");
    let mut server = Program::start(&["serve", &address]);
    assert_eq!(server.line().await, format!("READY {address}"));
    assert_eq!(server.line().await, "Ada reads");
}

#[tokio::test]
async fn wrong_usage_has_its_exit_status() {
    for arguments in [&["serve", "bogus"][..], &["read", "mem://x", "Ada"], &["read"]] {
        let ended = run(command("push", arguments)).await.with_code(2);
        assert!(ended.stderr.starts_with("error: "), "{}", ended.stderr);
    }
    let help = run(command("push", ["--help"])).await.with_code(0).text();
    for part in ["Examples:", "Addresses:", "Exit status:"] {
        assert!(help.contains(part), "{help}");
    }
}
