//! Headless Chromium, driven through a pipe in its own protocol (CDP).

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

/// Names of its executable, and the variable that overrides them.
const NAMES: [&str; 5] =
    ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome"];
const VARIABLE: &str = "CHROMIUM";

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    profile: PathBuf,
    session: Option<String>,
    next: u64,
    /// Errors on the page, and the addresses that it requested.
    pub(crate) complaints: Vec<String>,
    pub(crate) requests: Vec<String>,
}

impl Browser {
    pub(crate) fn start() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("chromium-{}-{count}", std::process::id());
        let profile = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        // Chromium reads from descriptor 3 and writes to 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>&2"])
            .arg(program())
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        let to = child.stdin.take().expect("it is piped");
        let from = BufReader::new(child.stdout.take().expect("it is piped"));
        let (complaints, requests) = (Vec::new(), Vec::new());
        let mut it =
            Self { child, to, from, profile, session: None, next: 0, complaints, requests };
        let target = it.ask("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = it.ask("Target.attachToTarget", attach);
        it.session = Some(session["sessionId"].as_str().expect("a session").to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            it.ask(&format!("{domain}.enable"), json!({}));
        }
        it
    }

    /// Runs a command and returns its result.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Value {
        self.next += 1;
        let mut command = json!({ "id": self.next, "method": method, "params": params });
        if let Some(session) = &self.session {
            command["sessionId"] = session.clone().into();
        }
        self.to.write_all(format!("{command}\0").as_bytes()).expect("the browser reads");
        loop {
            let mut message = Vec::new();
            self.from.read_until(0, &mut message).expect("the browser writes");
            assert_eq!(message.pop(), Some(0), "the browser has ended: is it installed whole?");
            let mut message: Value = serde_json::from_slice(&message).expect("JSON");
            if message["id"] == self.next {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].take();
            }
            self.on_event(&message);
        }
    }

    fn on_event(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.complaints.push(params.to_string()),
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => {
                self.complaints.push(params.to_string());
            }
            Some("Network.requestWillBeSent") => {
                self.requests.push(params["request"]["url"].as_str().unwrap_or("").to_owned());
            }
            _ => {}
        }
    }

    /// Evaluates an expression; awaits a promise.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let params =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let mut result = self.ask("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].take()
    }

    /// Waits until an expression is true.
    pub(crate) fn until(&mut self, expression: &str) {
        self.value(&format!(
            "new Promise(done => {{ const look = () => ({expression}) ? done(true) : setTimeout(look, 20); look(); }})"
        ));
    }

    pub(crate) fn open(&mut self, url: &str, width: u32, scheme: &str) {
        let size =
            json!({ "width": width, "height": 1400, "deviceScaleFactor": 1, "mobile": false });
        self.ask("Emulation.setDeviceMetricsOverride", size);
        let scheme = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.ask("Emulation.setEmulatedMedia", scheme);
        let opened = self.ask("Page.navigate", json!({ "url": url }));
        assert!(opened["errorText"].is_null(), "{url}: {opened}");
        self.until(&format!("location.href === '{url}' && document.readyState === 'complete'"));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}

fn program() -> PathBuf {
    if let Some(named) = env::var_os(VARIABLE) {
        return named.into();
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    let found = NAMES.iter().find_map(|name| {
        env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
    });
    found.unwrap_or_else(|| {
        panic!("no Chromium in PATH: apt-get install chromium-headless-shell, or name one in {VARIABLE}")
    })
}
