//! `rpcctl gateway`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};

use rpc_core::service::Dispatch;
use rpc_core::{Server, ShutdownHandle};
use serde_json::{Value, json};
use test_kit::Watchdog;

use crate::World;

/// A gateway in a process of its own.
pub(crate) struct Gateway {
    child: Child,
    at: String,
}

/// An answer of HTTP.
#[derive(Debug)]
pub(crate) struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap()
    }

    #[track_caller]
    pub(crate) fn with(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{self:?}");
        self
    }

    /// The text of an error.
    pub(crate) fn message(&self) -> String {
        self.json()["error"]["message"].as_str().unwrap().to_owned()
    }
}

pub(crate) const JSON: &str = "Content-Type: application/json";
const LINES: &str = "Content-Type: application/x-ndjson";

impl Gateway {
    pub(crate) fn start(address: &str, options: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rpcctl"))
            .args(["gateway", address, "--listen", "127.0.0.1:0"])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let at = line.trim().strip_prefix("READY http://").expect("it is ready").to_owned();
        Self { child, at }
    }

    fn send(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.at).unwrap();
        // It may be refused before it is read.
        let _ = stream.write_all(request.as_bytes());
        stream
    }

    pub(crate) fn ask(&self, line: &str, headers: &[&str], body: &str) -> Answer {
        self.ask_as("localhost", line, headers, body)
    }

    fn ask_as(&self, host: &str, line: &str, headers: &[&str], body: &str) -> Answer {
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        let mut stream = self.send(&format!(
            "{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}",
            body.len()
        ));
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let is_chunked = head.to_lowercase().contains("transfer-encoding: chunked");
        let body = if is_chunked { joined(body) } else { body.to_owned() };
        Answer { status, head: head.to_lowercase(), body }
    }

    fn post(&self, path: &str, body: &str) -> Answer {
        self.ask(&format!("POST {path}"), &[JSON], body)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The body without the lengths of its chunks.
fn joined(mut chunks: &str) -> String {
    let mut body = String::new();
    while let Some((len, rest)) = chunks.split_once("\r\n") {
        let len = usize::from_str_radix(len, 16).unwrap();
        body.push_str(&rest[..len]);
        chunks = &rest[len + 2..];
    }
    body
}

#[test]
fn methods_take_and_give_json() {
    let world = World::with_all("tcp");
    let gateway = Gateway::start(&world.address, &[]);
    let item = json!({
        "counts": { "7": 1 }, "data": "text", "huge": 1, "name": "a", "note": null, "ratio": 0.5,
        "shape": { "Box": { "height": 2, "width": 1 } }, "tags": { "3": ["x"] },
    });
    let echoed = gateway.post("/Store/echo", &json!({ "item": item }).to_string()).with(200);
    assert_eq!(echoed.json(), item);
    assert!(echoed.head.contains("content-type: application/json"), "{echoed:?}");
    assert_eq!(gateway.post("/Store/put", r#"{"key":""}"#).with(200).json(), json!(1));
    assert_eq!(gateway.post("/Store/put", r#"[""]"#).with(200).json(), json!(1));
    let failed = gateway.post("/Store/put", r#"{"key":"k"}"#).with(422).json();
    assert_eq!(failed["error"]["value"], json!({ "Full": { "most": 7 } }));
    let tree = gateway.post("/Store/grow", r#"{"tree":"leaf"}"#).with(200).json();
    assert_eq!(tree, json!({ "two-way": { "left": "leaf" } }));
    let list = gateway.ask("GET /", &[], "").with(200).body;
    assert!(list.contains("POST /Store/echo\n") && !list.contains("plant\n"), "{list}");
    assert_eq!(gateway.ask("GET /healthz", &[], "").with(200).body, "ok\n");
}

#[test]
fn streams_are_lines_or_events() {
    let world = World::with_all("shm");
    let gateway = Gateway::start(&world.address, &[]);
    let counted = gateway.post("/Store/count", r#"{"to":2}"#).with(200);
    assert!(counted.head.contains("content-type: application/x-ndjson"), "{counted:?}");
    let lines = |answer: &Answer| -> Vec<Value> {
        answer.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let end = json!({ "result": null });
    assert_eq!(lines(&counted), [json!({ "item": 0 }), json!({ "item": 1 }), end.clone()]);
    let broken = lines(&gateway.post("/Store/count", r#"{"to":9}"#).with(200));
    assert_eq!(broken[3]["error"]["code"], json!("OutOfRange"), "{broken:?}");
    let events = [JSON, "Accept: text/event-stream"];
    let counted = gateway.ask("POST /Store/count", &events, r#"{"to":2}"#).with(200).body;
    assert_eq!(counted, "data: 0\n\ndata: 1\n\nevent: result\ndata: null\n\n");
    let sum = gateway.ask("POST /Store/sum", &[LINES], "{}\n1\n\n-2\n44").with(200).json();
    assert_eq!(sum, json!(43));
    assert_eq!(gateway.ask("POST /Store/sum", &[LINES], "").with(200).json(), json!(0));
    let bad = gateway.ask("POST /Store/sum", &[LINES], "{}\n1\n\"x\"\n").with(400).message();
    assert!(bad.contains("line 3: item") && bad.contains("i64"), "{bad}");
    let twice = gateway.ask("POST /Store/twice", &[LINES], "{}\n\"Point\"\n").with(200);
    let point = |number: u8| json!({ "item": [number, "Point"] });
    assert_eq!(lines(&twice), [point(1), point(2), end]);
}

#[test]
fn bad_requests_are_refused_by_name() {
    let world = World::with_all("tcp");
    let gateway = Gateway::start(&world.address, &["--max-body", "1000"]);
    let cases = [
        ("POST /Store/ecko", JSON, "{}", 404, "did you mean Store.echo?"),
        ("POST /Stores", JSON, "{}", 404, "/Service/method"),
        ("POST /Store/plant", JSON, "{}", 501, "was not called"),
        ("GET /Store/echo", JSON, "", 405, "POST"),
        ("POST /healthz", JSON, "", 404, "/Service/method"),
        ("PUT /healthz", JSON, "", 405, "GET"),
        ("POST /Store/put", "Content-Type: text/plain", "{}", 415, "application/json"),
        ("POST /Store/put", JSON, "{\"key\"", 400, "no JSON"),
        ("POST /Store/put", JSON, "{}", 400, "key: missing"),
        ("POST /Store/put", JSON, "{\"key\":7}", 400, "text"),
    ];
    for (line, header, body, status, text) in cases {
        let said = gateway.ask(line, &[header], body).with(status).message();
        assert!(said.contains(text), "{line}: {said}");
    }
    let long = format!("{{\"key\":\"{}\"}}", "x".repeat(2000));
    assert!(gateway.post("/Store/put", &long).with(413).message().contains("1000 bytes"));
    let long = format!("{{}}\n{}\n", "1".repeat(2000));
    let said = gateway.ask("POST /Store/sum", &[LINES], &long).with(400).message();
    assert!(said.contains("longer than 1000 bytes"), "{said}");
    let bad = gateway.ask("POST /Store/put", &[JSON, "rpc-timeout-ms: soon"], "{}").with(400);
    assert!(bad.message().contains("milliseconds"), "{bad:?}");
    for path in ["localhost:80", "*", "http://localhost", "//", "/a//b", "/Store/"] {
        gateway.ask(&format!("POST {path}"), &[JSON], "{}").with(404);
    }
    for host in ["example.com", "127.0.0.1.example.com:8080", ""] {
        gateway.ask_as(host, "GET /", &[], "").with(403);
    }
    for host in ["LOCALHOST:1", "127.0.0.1", "[::1]:80", "[::1]"] {
        gateway.ask_as(host, "GET /", &[], "").with(200);
    }
}

#[test]
fn headers_carry_metadata_and_deadlines() {
    let world = World::with_all("tcp");
    let gateway = Gateway::start(&world.address, &[]);
    let user = [JSON, "rpc-metadata-user: Ada"];
    let who = gateway.ask("POST /Store/who", &user, "{}").with(200);
    assert_eq!(who.json(), json!("Ada"));
    assert!(who.head.contains("rpc-metadata-served-by: shelf 7"), "{who:?}");
    let limit = [JSON, "rpc-timeout-ms: 20"];
    let late = gateway.ask("POST /Store/never", &limit, "{}").with(504).json();
    assert_eq!(late["error"]["code"], json!("DeadlineExceeded"));
    let bad = gateway.ask("POST /Store/who", &[JSON, "rpc-metadata-rpc-schema: a"], "{}");
    bad.with(400);
    // The time of a call begins before its arguments are there.
    let mut waiting = gateway.send(&format!(
        "POST /Store/sum HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n{LINES}\r\n\
         rpc-timeout-ms: 20\r\nConnection: close\r\n\r\n"
    ));
    let mut late = String::new();
    waiting.read_to_string(&mut late).unwrap();
    assert!(late.starts_with("HTTP/1.1 408 "), "{late}");
}

#[test]
fn a_request_given_up_ends_its_call() {
    let world = World::with_all("tcp");
    let gateway = Gateway::start(&world.address, &["--max-requests", "1"]);
    let head = "POST /Store/never HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n";
    let waiting = gateway.send(&format!("{head}{JSON}\r\n\r\n{{}}"));
    // It is in progress as soon as another one is refused.
    while gateway.post("/Store/who", "{}").status != 503 {}
    waiting.shutdown(Shutdown::Both).unwrap();
    drop(waiting);
    while gateway.post("/Store/who", "{}").status != 200 {}
}

#[test]
fn a_signal_ends_the_gateway_in_order() {
    let world = World::with_all("tcp");
    let mut gateway = Gateway::start(&world.address, &[]);
    let pid = gateway.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(gateway.child.wait().unwrap().success());
}

#[test]
fn requests_in_progress_end_after_the_signal() {
    let world = World::with_all("tcp");
    let mut gateway = Gateway::start(&world.address, &["--max-requests", "1"]);
    let mut waiting = gateway.send(&format!(
        "POST /Store/sum HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n{LINES}\r\n\r\n{{}}\n1\n"
    ));
    while gateway.post("/Store/who", "{}").status != 503 {}
    let pid = gateway.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    // It takes no more connections from now on.
    while TcpStream::connect(&gateway.at).is_ok() {}
    waiting.write_all(b"41\n\n").unwrap();
    let mut text = String::new();
    waiting.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("\r\n\r\n42\n"), "{text}");
    assert!(gateway.child.wait().unwrap().success());
}

#[test]
fn broken_http_harms_nobody() {
    let world = World::with_all("tcp");
    let gateway = Gateway::start(&world.address, &["--max-body", "1000", "--max-requests", "2"]);
    let head = format!("POST /Store/sum HTTP/1.1\r\nHost: localhost\r\n{LINES}\r\n");
    let chunked = format!("{head}Transfer-Encoding: chunked\r\n\r\n");
    let long = format!("{head}X: {}\r\n\r\n", "x".repeat(200_000));
    let many = format!("{head}{}\r\n", "X: y\r\n".repeat(5_000));
    let broken = [
        ("\0\u{1}\u{2}\r\n\r\n", "400"),
        ("POST /Store/sum HTTP/9.9\r\n\r\n", "400"),
        (&long, "431"),
        (&many, "431"),
        (&format!("{head}Content-Length: -1\r\n\r\n"), "400"),
        (&format!("{head}Content-Length: 3\r\nContent-Length: 4\r\n\r\n{{}}\n"), "400"),
        (&format!("{chunked}zz\r\n{{}}\r\n"), "400"),
        (&format!("{chunked}ffffffffffffffff0\r\n{{}}\r\n"), "400"),
        (&format!("{chunked}{:x}\r\n{}\r\n0\r\n\r\n", 4000, "1".repeat(4000)), "400"),
    ];
    for (request, status) in broken {
        let mut stream = gateway.send(request);
        let _ = stream.shutdown(Shutdown::Write);
        let mut text = String::new();
        // It may be reset before all of the request is read.
        let _ = stream.read_to_string(&mut text);
        let expected = format!("HTTP/1.1 {status} ");
        let shown = &request[..request.len().min(200)];
        assert!(text.is_empty() || text.starts_with(&expected), "{shown:?}: {text}");
        assert_eq!(gateway.post("/Store/who", "{}").with(200).json(), json!("nobody"));
    }
    // Heads that never end hold no place of a request.
    let slow: Vec<_> = (0..50).map(|_| gateway.send("POST /Store/sum HTTP/1.1\r\nHost:")).collect();
    assert_eq!(gateway.post("/Store/who", "{}").with(200).json(), json!("nobody"));
    drop(slow);
}

#[test]
fn openapi_describes_all_methods_and_types() {
    let world = World::with_all("tcp");
    let gateway = Gateway::start(&world.address, &[]);
    let document = gateway.ask("GET /openapi.json", &[], "").with(200).json();
    assert_eq!(document["openapi"], json!("3.1.0"));
    let echo = &document["paths"]["/Store/echo"]["post"];
    assert_eq!(echo["description"], json!("Gives back what it is given."));
    let mut references = Vec::new();
    collect(&document, &mut references);
    assert!(references.len() > 20, "{references:?}");
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
    let resolve = |value: &Value| match value["$ref"].as_str() {
        Some(reference) => document.pointer(&reference[1..]).unwrap().clone(),
        None => value.clone(),
    };
    let arguments = &echo["requestBody"]["content"]["application/json"]["schema"];
    assert_eq!(arguments["required"], json!(["item"]));
    let item = resolve(&arguments["properties"]["item"]);
    let required: Vec<_> = item["required"].as_array().unwrap().iter().collect();
    assert!(required.contains(&&json!("name")) && !required.contains(&&json!("note")), "{item}");
    let shape = resolve(&item["properties"]["shape"]);
    assert_eq!(shape["oneOf"][0], json!({ "const": "Point" }));
    let counts = &document["paths"]["/Store/count"]["post"]["responses"]["200"]["content"];
    assert!(counts["application/x-ndjson"]["schema"]["anyOf"].is_array(), "{counts}");
    assert_eq!(counts["text/event-stream"]["schema"]["type"], json!("string"), "{counts}");
    let timeout = resolve(&echo["parameters"][0]);
    assert_eq!(timeout["name"], json!("rpc-timeout-ms"), "{timeout}");
}

fn collect(value: &Value, into: &mut Vec<String>) {
    match value {
        Value::Object(all) => all.iter().for_each(|(name, value)| match value {
            Value::String(text) if name == "$ref" => into.push(text.clone()),
            value => collect(value, into),
        }),
        Value::Array(all) => all.iter().for_each(|value| collect(value, into)),
        _ => {}
    }
}

mod old {
    use rpc_core::serde::{Deserialize, Serialize};

    #[derive(Debug, Serialize, Deserialize)]
    #[serde(crate = "rpc_core::serde")]
    pub(super) struct Item {
        pub(super) id: u64,
    }

    #[rpc_core::service]
    pub(super) trait Stock {
        async fn find(&self, id: u64) -> Item;
    }
}

mod new {
    use rpc_core::serde::{Deserialize, Serialize};

    #[derive(Debug, Serialize, Deserialize)]
    #[serde(crate = "rpc_core::serde")]
    pub(super) struct Item {
        pub(super) size: u8,
        pub(super) id: u64,
    }

    #[rpc_core::service]
    pub(super) trait Stock {
        async fn find(&self, id: u64) -> Item;
        async fn added(&self) -> u8;
    }
}

struct Shelf;

impl old::Stock for Shelf {
    async fn find(&self, id: u64) -> old::Item {
        old::Item { id }
    }
}

impl new::Stock for Shelf {
    async fn find(&self, id: u64) -> new::Item {
        new::Item { size: 9, id }
    }

    async fn added(&self) -> u8 {
        5
    }
}

/// Serves on a thread until the handle stops it.
fn serve(address: &str, service: impl Dispatch) -> (ShutdownHandle, std::thread::JoinHandle<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let builder = Server::builder().add_service(service).reflection();
    let server = runtime.block_on(builder.bind(address)).unwrap();
    let handle = server.shutdown_handle();
    (handle, std::thread::spawn(move || runtime.block_on(server.serve()).unwrap()))
}

#[test]
fn a_server_with_other_types_is_read_anew() {
    let _watchdog = Watchdog::within(Watchdog::LIMIT);
    let address = format!("shm://rpcctl-gateway-{}", std::process::id());
    let (stop, ends) = serve(&address, old::StockServer::new(Shelf));
    let gateway = Gateway::start(&address, &[]);
    let find = || gateway.post("/Stock/find", r#"{"id":3}"#);
    assert_eq!(find().with(200).json(), json!({ "id": 3 }));
    stop.shutdown();
    ends.join().unwrap();
    let (stop, ends) = serve(&address, new::StockServer::new(Shelf));
    let mut found = find();
    let mut refused = 0;
    while found.status != 200 {
        // The server comes back, and refuses one call by the old types.
        assert!(found.status == 503 || found.status == 400, "{found:?}");
        refused += u32::from(found.status == 400);
        found = find();
    }
    assert_eq!(refused, 1);
    assert_eq!(found.with(200).json(), json!({ "id": 3, "size": 9 }));
    assert_eq!(gateway.post("/Stock/added", "{}").with(200).json(), json!(5));
    stop.shutdown();
    ends.join().unwrap();
}
