//! End-to-end tests of `rpcctl`, with servers over shm and tcp.

#![allow(missing_docs, clippy::unwrap_used, reason = "a service of tests")]

mod certificates;
mod gateway;
mod mixed;
mod reflections;
mod schemas;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rpc_core::health::{HealthReporter, ServingStatus};
use rpc_core::identity::Verified;
use rpc_core::reflect::ReflectServer;
use rpc_core::serde::{Deserialize, Serialize};
use rpc_core::stream::{self, Stream, Streaming};
use rpc_core::text::is_printable;
use rpc_core::{Bulk, Context, Server, ServerBuilder, ShutdownHandle, Status};
use test_kit::Watchdog;

use self::reflections::{Hostile, Silent};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(crate = "rpc_core::serde")]
enum Shape {
    Point,
    #[serde(alias = "Arc", alias = "Round")]
    Circle(f32),
    Box {
        #[serde(alias = "wide")]
        width: u32,
        height: u32,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(crate = "rpc_core::serde")]
struct Item {
    /// Aliases are not taken for other fields, wherever they are sorted.
    #[serde(alias = "called", alias = "title")]
    name: String,
    #[serde(alias = "form")]
    shape: Shape,
    tags: BTreeMap<u8, Vec<String>>,
    note: Option<(i64, char)>,
    data: Bulk,
    huge: u128,
    ratio: f64,
    counts: BTreeMap<u128, i8>,
}

/// The name of a variant is not a Rust identifier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(crate = "rpc_core::serde", rename_all = "kebab-case")]
enum Tree {
    Leaf,
    TwoWay { left: Option<Box<Tree>> },
}

/// Takes no made-up value, so what stands behind it is unknown.
#[derive(Debug)]
struct Hidden;

impl Serialize for Hidden {
    fn serialize<S: rpc_core::serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str("hidden")
    }
}

impl<'de> Deserialize<'de> for Hidden {
    fn deserialize<D: rpc_core::serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        match String::deserialize(from)?.as_str() {
            "hidden" => Ok(Self),
            _ => Err(rpc_core::serde::de::Error::custom("found")),
        }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(crate = "rpc_core::serde")]
enum StoreError {
    Full { most: u32 },
}

/// Keeps nothing.
#[rpc_core::service]
trait Store {
    /// Gives back what it is given.
    #[rpc(idempotent)]
    async fn echo(&self, item: Item) -> Item;
    async fn put(&self, key: &str) -> Result<u64, StoreError>;
    async fn who(&self) -> String;
    async fn never(&self);
    fn count(&self, to: u32) -> impl Stream<Item = Result<u32, Status>>;
    async fn sum(&self, numbers: Streaming<i64>) -> Result<i64, Status>;
    fn twice(&self, shapes: Streaming<Shape>) -> impl Stream<Item = (u8, Shape)>;
    async fn large(&self, data: Bulk) -> Bulk;
    async fn grow(&self, tree: Tree) -> Tree;
    async fn plant(&self) -> (Hidden, u8);
    async fn planted(&self) -> u32;
}

#[derive(Default)]
struct Empty {
    planted: AtomicU32,
}

impl Store for Empty {
    async fn echo(&self, item: Item) -> Item {
        item
    }

    async fn put(&self, key: &str) -> Result<u64, StoreError> {
        if key.is_empty() { Ok(1) } else { Err(StoreError::Full { most: 7 }) }
    }

    async fn who(&self) -> String {
        Context::set_reply_metadata("served-by", "shelf 7").unwrap();
        Context::current().metadata().text("user").unwrap_or("nobody").to_owned()
    }

    async fn never(&self) {
        std::future::pending().await
    }

    fn count(&self, to: u32) -> impl Stream<Item = Result<u32, Status>> {
        let end = (to > 3).then(|| Err(Status::out_of_range("three at most")));
        stream::iter((0..to.min(3)).map(Ok).chain(end))
    }

    async fn sum(&self, mut numbers: Streaming<i64>) -> Result<i64, Status> {
        let mut sum = 0;
        while let Some(number) = numbers.try_next().await? {
            sum += number;
        }
        Ok(sum)
    }

    fn twice(&self, mut shapes: Streaming<Shape>) -> impl Stream<Item = (u8, Shape)> {
        stream::stream(async move |mut out| {
            while let Ok(Some(shape)) = shapes.try_next().await {
                out.send((1, shape.clone())).await?;
                out.send((2, shape)).await?;
            }
            Ok(())
        })
    }

    async fn large(&self, data: Bulk) -> Bulk {
        data
    }

    async fn grow(&self, tree: Tree) -> Tree {
        Tree::TwoWay { left: Some(Box::new(tree)) }
    }

    async fn plant(&self) -> (Hidden, u8) {
        self.planted.fetch_add(1, Ordering::Relaxed);
        (Hidden, 0)
    }

    async fn planted(&self) -> u32 {
        self.planted.load(Ordering::Relaxed)
    }
}

/// A server on a thread of its own.
struct World {
    address: String,
    shutdown: ShutdownHandle,
    thread: Option<std::thread::JoinHandle<()>>,
    _watchdog: Watchdog,
}

impl World {
    fn start(scheme: &str, configure: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let watchdog = Watchdog::within(Watchdog::LIMIT);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let listen = match scheme {
            "tcp" => "tcp://127.0.0.1:0".to_owned(),
            _ => format!("shm://rpcctl-{}-{number}", std::process::id()),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let builder = configure(Server::builder().add_service(StoreServer::new(Empty::default())));
        let server = runtime.block_on(builder.bind(listen)).unwrap();
        let (address, shutdown) = (server.local_address().to_string(), server.shutdown_handle());
        let thread = std::thread::spawn(move || runtime.block_on(server.serve()).unwrap());
        Self { address, shutdown, thread: Some(thread), _watchdog: watchdog }
    }

    fn with_all(scheme: &str) -> Self {
        Self::start(scheme, |builder| builder.reflection().health(&HealthReporter::new()))
    }

    /// Runs `rpcctl COMMAND ADDRESS ARGUMENTS`: whether it succeeded, and what it wrote.
    fn run(&self, command: &str, arguments: &[&str], stdin: &str) -> (bool, String, String) {
        run(command, &self.address, arguments, stdin)
    }

    #[track_caller]
    fn good(&self, command: &str, arguments: &[&str], stdin: &str) -> String {
        let (is_good, stdout, stderr) = self.run(command, arguments, stdin);
        assert!(is_good, "{command} {arguments:?}: {stdout}\n{stderr}");
        stdout
    }

    #[track_caller]
    fn bad(&self, command: &str, arguments: &[&str], stdin: &str, expected: &[&str]) {
        let (is_good, stdout, stderr) = self.run(command, arguments, stdin);
        assert!(!is_good, "{command} {arguments:?}: {stdout}");
        for text in expected {
            assert!(stderr.contains(text), "no `{text}` in: {stderr}");
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.shutdown.shutdown();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(command: &str, address: &str, arguments: &[&str], stdin: &str) -> (bool, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_rpcctl"))
        .args([command, address])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may have ended without reading.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

macro_rules! on_shm_and_tcp {
    ($($name:ident),* $(,)?) => {
        mod shm { $( #[test] fn $name() { super::$name("shm"); } )* }
        mod tcp { $( #[test] fn $name() { super::$name("tcp"); } )* }
    };
}

on_shm_and_tcp! {
    services_and_methods_are_shown,
    values_of_all_kinds_go_there_and_back,
    misfitting_json_names_path_and_type,
    errors_and_metadata_and_timeouts,
    streams_go_both_ways,
    health_ping_and_top,
    what_is_missing_is_said,
    a_type_inside_itself_goes_there_and_back,
    a_method_with_unknown_result_is_not_called,
    a_silent_server_times_out,
    a_hostile_server_is_shown_on_printable_lines,
    tokens_come_from_variables_and_files,
    credentials_come_from_variables_and_files,
}

fn services_and_methods_are_shown(scheme: &str) {
    let world = World::with_all(scheme);
    let list = world.good("list", &[], "");
    assert!(list.contains("Store") && list.contains("Keeps nothing."), "{list}");
    assert!(list.contains("rpc.Health") && list.contains("rpc.Reflect"), "{list}");
    assert_eq!(world.good("list", &["--output", "json"], "").lines().count(), 4);
    let all = world.good("describe", &["Store"], "");
    assert!(all.contains("/// Gives back what it is given.\n    #[rpc(idempotent)]"), "{all}");
    assert!(all.contains("echo(item: Item) -> Item"), "{all}");
    let one = world.good("describe", &["Store.echo"], "");
    assert!(one.contains("item.shape::Box") && one.contains("rpcctl call"), "{one}");
    let health = world.good("describe", &["rpc.Health.check"], "");
    assert!(health.contains("check(service: str)"), "{health}");
    // The shown example works.
    let example = one.split("--json '").nth(1).and_then(|it| it.split('\'').next()).unwrap();
    let echoed = world.good("call", &["Store.echo", "--json", example], "");
    assert!(echoed.contains("\"shape\":\"Point\""), "{echoed}");
    // With either codec, including streams.
    for codec in ["bincode", "postcard"] {
        let arguments = ["Store.echo", "--codec", codec, "--json", example];
        assert_eq!(world.good("call", &arguments, ""), echoed);
        let counted = world.good("call", &["Store.count", "--codec", codec, "--json", "[3]"], "");
        assert_eq!(counted, "0\n1\n2\n");
    }
    world.bad("call", &["Store.echo", "--codec", "json"], "", &["--codec <CODEC>", "postcard"]);
}

fn values_of_all_kinds_go_there_and_back(scheme: &str) {
    let world = World::with_all(scheme);
    for value in [
        r#"{"counts":{"170141183460469231731687303715884105728":-1,"7":1},"data":"text","huge":"340282366920938463463374607431768211455","name":"a","note":[-5,"ß"],"ratio":31.245270191439438,"shape":{"Circle":0.1},"tags":{"7":["x","y"]}}"#,
        r#"{"counts":{},"data":{"hex":"00ff10"},"huge":1,"name":"","note":null,"ratio":"NaN","shape":{"Box":{"height":2,"width":1}},"tags":{}}"#,
        r#"{"counts":{},"data":"","huge":0,"name":"c","note":null,"ratio":1.0,"shape":"Point","tags":{"0":[],"1":["z"]}}"#,
    ] {
        let arguments = format!(r#"{{"item":{value}}}"#);
        let echoed = world.good("call", &["Store.echo", "--json", &arguments], "");
        assert_eq!(echoed.trim_end(), value);
        let piped = world.good("call", &["Store.echo", "--json", "-"], &arguments);
        assert_eq!(piped, echoed);
    }
    // Large enough to be sent beside the message, both ways.
    let text = "0123456789".repeat(20_000);
    let large = world.good("call", &["Store.large", "--json", "-"], &format!("[{text:?}]"));
    assert!(large.trim_end() == format!("{text:?}"), "{} bytes", large.len());
}

fn misfitting_json_names_path_and_type(scheme: &str) {
    let world = World::with_all(scheme);
    let item = |shape: &str, tags: &str| {
        format!(
            r#"{{"item":{{"counts":{{}},"data":"","huge":0,"name":"c","ratio":1,"shape":{shape},"tags":{tags}}}}}"#
        )
    };
    for (json, expected) in [
        ("{}".to_owned(), &["item", "missing", "an object with name, shape"][..]),
        (item("{\"Circle\":\"big\"}", "{}"), &["item.shape::Circle", "a number", "\"big\""]),
        (item("{\"Circle\":1e39}", "{}"), &["item.shape::Circle", "a number", "1e+39"]),
        (item("\"Line\"", "{}"), &["item.shape", "Point, Circle, Box", "\"Line\""]),
        (item("{\"Box\":{\"width\":-1,\"height\":1}}", "{}"), &["Box.width", "u32", "-1"]),
        (item("\"Point\"", "{\"300\":[]}"), &["the key item.tags[\"300\"]", "u8", "300"]),
        (item("\"Point\"", "{\"3\":[1]}"), &["item.tags[\"3\"][0]", "text", "found 1"]),
        (r#"{"itme":1}"#.to_owned(), &["itme", "the names are item"]),
        ("7".to_owned(), &["the arguments as an object", "item"]),
        ("{".to_owned(), &["--json", "line 1"]),
    ] {
        world.bad("call", &["Store.echo", "--json", &json], "", expected);
    }
}

fn errors_and_metadata_and_timeouts(scheme: &str) {
    let world = World::with_all(scheme);
    assert_eq!(world.good("call", &["Store.put", "--json", r#"{"key":""}"#], ""), "1\n");
    let own = [r#"own error: {"Full":{"most":7}}"#];
    world.bad("call", &["Store.put", "--json", r#"{"key":"a"}"#], "", &own);
    assert_eq!(world.good("call", &["Store.who"], ""), "\"nobody\"\n");
    assert_eq!(world.good("call", &["Store.who", "--metadata", "user=ada"], ""), "\"ada\"\n");
    world.bad("call", &["Store.who", "--metadata", "No Good=1"], "", &["--metadata"]);
    world.bad("call", &["Store.never", "--timeout", "5"], "", &["deadline exceeded"]);
}

fn streams_go_both_ways(scheme: &str) {
    let world = World::with_all(scheme);
    assert_eq!(world.good("call", &["Store.count", "--json", "[3]"], ""), "0\n1\n2\n");
    let (is_good, stdout, stderr) = world.run("call", &["Store.count", "--json", "[4]"], "");
    assert!(!is_good && stdout == "0\n1\n2\n" && stderr.contains("three at most"), "{stderr}");
    assert_eq!(world.good("call", &["Store.sum"], "1\n\n2\n-10\n"), "-7\n");
    assert_eq!(world.good("call", &["Store.sum"], ""), "0\n");
    world.bad("call", &["Store.sum"], "1\n\"two\"\n", &["line 2 of stdin", "i64", "\"two\""]);
    let twice = world.good("call", &["Store.twice"], "\"Point\"\n{\"Circle\":2.5}\n");
    assert_eq!(twice, "[1,\"Point\"]\n[2,\"Point\"]\n[1,{\"Circle\":2.5}]\n[2,{\"Circle\":2.5}]\n");
}

fn health_ping_and_top(scheme: &str) {
    let reporter = HealthReporter::new();
    let world = World::start(scheme, |builder| builder.reflection().health(&reporter));
    assert_eq!(world.good("health", &[], ""), "serving\n");
    let json = world.good("health", &["Store", "--output", "json"], "");
    assert_eq!(json, "{\"service\":\"Store\",\"status\":\"Serving\"}\n");
    reporter.set("Store", ServingStatus::NotServing);
    let (is_good, stdout, _) = world.run("health", &["Store"], "");
    assert!(!is_good && stdout == "not serving\n", "{stdout}");
    reporter.set("Store", ServingStatus::Draining);
    let (is_good, stdout, _) = world.run("health", &["Store"], "");
    assert!(!is_good && stdout == "draining\n", "{stdout}");
    world.bad("health", &["Shop"], "", &["\"Shop\""]);
    let ping = world.good("ping", &["-c", "3", "-i", "0"], "");
    assert!(ping.contains("3 round trips") && ping.contains("p99"), "{ping}");
    let ping = world.good("ping", &["-c", "2", "-i", "0", "--output", "json"], "");
    assert!(ping.contains("\"count\":2"), "{ping}");
    let top = world.good("top", &["-n", "2", "-i", "0"], "");
    assert!(top.contains("rpc.Health.check") && top.contains("CREDITS"), "{top}");
    assert!(top.lines().all(|line| line.chars().count() <= 100), "{top}");
    let peer = if scheme == "shm" { "pid " } else { "127.0.0.1:" };
    assert!(top.lines().any(|line| line.starts_with(peer)), "{peer} is not there: {top}");
    world.good("top", &["-n", "1", "--output", "json"], "");
    world.shutdown.shutdown();
}

fn what_is_missing_is_said(scheme: &str) {
    let world = World::with_all(scheme);
    world.bad("call", &["Store.ecko"], "", &["no method Store.ecko", "did you mean Store.echo?"]);
    world.bad("describe", &["Stor"], "", &["no service Stor", "did you mean Store?"]);
    world.bad("call", &["echo"], "", &["SERVICE.METHOD"]);
    let bare = World::start(scheme, |builder| builder);
    for command in ["list", "describe", "top"] {
        bare.bad(
            command,
            &[],
            "",
            &["does not offer this service", "Server::builder().reflection()", "rpc."],
        );
    }
    bare.bad("call", &["Store.who"], "", &["Server::builder().reflection()"]);
    bare.bad(
        "health",
        &[],
        "",
        &["does not offer this service", "Server::builder().health(&reporter)"],
    );
    // An error is a round trip, too.
    bare.good("ping", &["-c", "1"], "");
}

/// Regression: the lines of a schema do not say which type is inside itself, so the method could
/// not be called.
fn a_type_inside_itself_goes_there_and_back(scheme: &str) {
    let world = World::with_all(scheme);
    let tree = r#"{"tree": {"two-way": {"left": {"two-way": {"left": null}}}}}"#;
    let grown = world.good("call", &["Store.grow", "--json", tree], "");
    let expected = r#"{"two-way":{"left":{"two-way":{"left":{"two-way":{"left":null}}}}}}"#;
    assert_eq!(grown.trim(), expected);
}

fn a_method_with_unknown_result_is_not_called(scheme: &str) {
    let world = World::with_all(scheme);
    let words = ["result of Store.plant cannot be shown", "could not be looked into"];
    world.bad("call", &["Store.plant"], "", &words);
    assert_eq!(world.good("call", &["Store.planted"], ""), "0\n");
}

fn a_silent_server_times_out(scheme: &str) {
    let world = World::start(scheme, |builder| builder.add_service(ReflectServer::new(Silent)));
    for (command, arguments) in [
        ("list", &["--timeout", "2"][..]),
        ("describe", &["--timeout", "2"]),
        ("call", &["Store.who", "--timeout", "2"]),
    ] {
        world.bad(command, arguments, "", &["deadline exceeded"]);
    }
}

/// Regression: a name of 65,536 characters panicked, docs with unclosed links took forever, line
/// feeds forged lines.
fn a_hostile_server_is_shown_on_printable_lines(scheme: &str) {
    let world =
        World::start(scheme, |builder| builder.add_service(ReflectServer::new(Hostile::default())));
    let list = world.good("list", &[], "");
    assert_eq!(list.lines().count(), 4, "{list}");
    assert!(list.contains(r"Store\nerror: forged\u{1b}[2J\u{202e}"), "{list}");
    let mut shown = vec![list];
    for (command, arguments) in [
        ("list", &["--output", "json"][..]),
        ("describe", &[]),
        ("describe", &["--output", "json"]),
        ("describe", &["Store.who", "--output", "json"]),
    ] {
        shown.push(world.good(command, arguments, ""));
    }
    for (command, arguments) in [
        ("describe", &["refused.x"][..]),
        ("describe", &["Other"]),
        ("call", &["Store.who", "--json", "[\"a\"]"]),
        ("call", &["Store.who", "--json", "[\"a\"]"]),
        ("call", &["Store.who", "--json", "[\"a\"]"]),
    ] {
        let (is_good, _, stderr) = world.run(command, arguments, "");
        assert!(!is_good && stderr.len() < 8192, "{command} {arguments:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
        shown.push(stderr);
    }
    for text in shown {
        for line in text.lines() {
            assert!(is_printable(line), "{line:?}");
            assert!(!line.starts_with("error: forged"), "{text}");
        }
    }
}

fn tokens_come_from_variables_and_files(scheme: &str) {
    let world = World::with_all(scheme);
    let file = std::env::temp_dir().join(format!("rpcctl-token-{}-{scheme}", std::process::id()));
    std::fs::write(&file, "ada\n").unwrap();
    let argument = format!("user={}", file.display());
    let who = world.good("call", &["Store.who", "--metadata-file", &argument], "");
    std::fs::remove_file(&file).unwrap();
    assert_eq!(who, "\"ada\"\n");
    world.bad("call", &["Store.who", "--metadata-file", &argument], "", &["No such file"]);
    let package = env!("CARGO_PKG_NAME");
    let who = world.good("call", &["Store.who", "--metadata-env", "user=CARGO_PKG_NAME"], "");
    assert_eq!(who, format!("\"{package}\"\n"));
    world.bad("call", &["Store.who", "--metadata-env", "user=NO_SUCH"], "", &["NO_SUCH"]);
}

fn credentials_come_from_variables_and_files(scheme: &str) {
    let world = World::start(scheme, |builder| {
        builder.reflection().authenticate(|credentials, _| async move {
            match credentials.as_text() {
                Some("rpcctl") => Ok(Verified::named("ada")),
                _ => Err("this token is not known here"),
            }
        })
    });
    world.bad("list", &[], "", &["Channel::builder().credentials(..)"]);
    let file = std::env::temp_dir().join(format!("rpcctl-who-{}-{scheme}", std::process::id()));
    std::fs::write(&file, "rpcctl\n").unwrap();
    let path = file.display().to_string();
    let clear: &[&str] = if scheme == "tcp" { &["--allow-clear-credentials"] } else { &[] };
    for given in [["--credentials-file", &path], ["--credentials-env", "CARGO_PKG_NAME"]] {
        assert!(world.good("list", &[&given[..], clear].concat(), "").contains("Store"));
        if scheme == "tcp" {
            world.bad("list", &given, "", &["unencrypted"]);
        }
    }
    std::fs::write(&file, "guess").unwrap();
    let guess = [&["--credentials-file", &path], clear].concat();
    world.bad("list", &guess, "", &["this token is not known here"]);
    std::fs::remove_file(&file).unwrap();
    world.bad("list", &["--credentials-file", &path], "", &["No such file"]);
}

#[test]
fn an_address_where_nobody_listens_is_named() {
    let (is_good, _, stderr) = run("list", "shm://rpcctl-nobody-is-here", &[], "");
    assert!(!is_good && stderr.contains("cannot connect to shm://rpcctl-nobody"), "{stderr}");
    let (is_good, _, stderr) = run("list", "carrier-pigeon", &[], "");
    assert!(!is_good && stderr.contains("carrier-pigeon"), "{stderr}");
}

/// Regression: they returned 1, and called the server before checking the rest of the line.
#[test]
fn a_wrong_command_line_fails_before_connecting() {
    let nobody = "shm://rpcctl-nobody-is-here";
    for (arguments, expected) in [
        (&["list", "carrier-pigeon"][..], "a scheme is missing"),
        (&["list", "mem://store"], "listen at shm:// or auto://"),
        (&["list", "etcd://a"], "the prefix of the keys is missing"),
        (&["resolve", "kv"], "write etcd://"),
        (&["call", nobody, "echo"], "SERVICE.METHOD"),
        (&["call", nobody, "Store."], "SERVICE.METHOD"),
        (&["call", nobody, "Store.echo", "--json", "{"], "line 1"),
        (&["list", nobody, "--metadata", "a\n=b"], "--metadata"),
    ] {
        let ended = Command::new(env!("CARGO_BIN_EXE_rpcctl")).args(arguments).output().unwrap();
        let stderr = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
    let ended = Command::new(env!("CARGO_BIN_EXE_rpcctl")).args(["list", nobody]).output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
}

#[test]
fn the_servers_of_a_name_are_shown() {
    let world = World::with_all("tcp");
    let path = std::env::temp_dir().join(format!("rpcctl-servers-{}", std::process::id()));
    let address = &world.address;
    let text = format!("{address} weight=7 zone=a\ntcp://10.9.9.9:7 priority=2 draining\n");
    std::fs::write(&path, text).unwrap();
    let name = format!("file://{}", path.display());
    let (is_good, stdout, stderr) = run("resolve", &name, &[], "");
    assert!(is_good, "{stderr}");
    let lines: Vec<_> = stdout.lines().collect();
    assert_eq!(
        lines,
        [
            &*format!("{address}  ready  weight 7  priority 0  zone a  for 0 s"),
            "tcp://10.9.9.9:7  draining  weight 100  priority 2  zone -  for 0 s",
        ]
    );
    let (_, stdout, _) = run("resolve", &name, &["--output", "json"], "");
    assert!(stdout.lines().next().unwrap().contains(r#""weight":7"#), "{stdout}");
    // A name is taken wherever an address is: the server that drains gets no call.
    let (is_good, stdout, stderr) = run("list", &name, &[], "");
    assert!(is_good && stdout.contains("Store"), "{stdout}{stderr}");
    std::fs::remove_file(&path).unwrap();
    let (is_good, _, stderr) = run("resolve", &name, &[], "");
    assert!(!is_good && stderr.contains("check that it exists"), "{stderr}");
    let (is_good, _, stderr) = run("list", &name, &["--timeout", "5"], "");
    assert!(!is_good && stderr.contains("check that it exists"), "{stderr}");
}
