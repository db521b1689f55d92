//! End-to-end tests of `rpc-perf`.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;
use test_kit::Watchdog;
use test_kit::certificates::Authority;

/// All measurements, as short as possible.
const LITTLE: &str = "--duration 4ms --max-size 20K --connections 2";

fn command(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rpc-perf"));
    command.args(arguments.split_whitespace()).stdin(Stdio::null());
    for name in ["CLICOLOR", "CLICOLOR_FORCE", "NO_COLOR", "RUST_LOG"] {
        command.env_remove(name);
    }
    command
}

/// The result of a program.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Ended {
    #[track_caller]
    fn with_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}\n{}", self.stdout, self.stderr);
        self
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap()
    }
}

fn run(arguments: &str) -> Ended {
    Running::start(command(arguments)).end()
}

/// A running program; killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(mut command: Command) -> Self {
        Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// A server and the address that it prints.
    fn serve(arguments: &str) -> (Self, String) {
        let mut server = Self::start(command(&format!("server {arguments}")));
        let line = server.line();
        (server, line.strip_prefix("READY ").expect("READY comes first").trim().to_owned())
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        // The pipe has only the lines written so far, and is not read further.
        BufReader::with_capacity(1, self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        line
    }

    /// An endless run, and the process of its server.
    fn endless() -> (Self, Pid) {
        let mut run = Self::start(command("all --schemes shm --only latency --duration 1h"));
        let id = run.0.id();
        let children = format!("/proc/{id}/task/{id}/children");
        loop {
            let child = fs::read_to_string(&children).unwrap();
            if let Some(pid) = child.split_whitespace().next() {
                return (run, Pid::from_raw(pid.parse().unwrap()).unwrap());
            }
            assert!(run.0.try_wait().unwrap().is_none(), "it ended: {:?}", run.end());
            std::thread::yield_now();
        }
    }

    fn end(mut self) -> Ended {
        let mut stderr = self.0.stderr.take().unwrap();
        let errors = std::thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).map(|_| text)
        });
        let mut stdout = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        let stderr = errors.join().unwrap().unwrap();
        Ended { code: self.0.wait().unwrap().code(), stdout, stderr }
    }
}

/// A file unique to this test; deleted on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("rpc-perf-test-{}-{number}-{name}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.0).unwrap()
    }
}

impl std::fmt::Display for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.display().fmt(f)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Checks that all measurements of one transport are present.
fn check_run(run: &Value, raw: Option<&str>) {
    let positive = |value: &Value| value.as_f64().is_some_and(|value| value > 0.0);
    assert!(positive(&run["latency"]["calls"]), "{run}");
    assert!(positive(&run["latency"]["max_ns"]), "{run}");
    let share = run["latency"]["cdf"].as_array().unwrap().last().unwrap()[1].as_f64();
    assert_eq!(share, Some(1.0), "{run}");
    assert!(positive(&run["open_loop"]["latency"]["calls"]), "{run}");
    let in_flight: Vec<_> = run["rates"].as_array().unwrap().iter().collect();
    assert_eq!(in_flight.iter().map(|it| &it["in_flight"]).collect::<Vec<_>>(), [1, 32, 256]);
    for rate in in_flight {
        for field in ["calls_per_second", "client_cpu_ns", "server_cpu_ns"] {
            assert!(positive(&rate[field]), "{field}: {rate}");
        }
    }
    let sizes: Vec<_> = run["bandwidth"].as_array().unwrap().iter().collect();
    let expected = [64, 256, 1024, 4096, 16_384, 20_480];
    assert_eq!(sizes.iter().map(|it| &it["size"]).collect::<Vec<_>>(), expected);
    for size in sizes {
        for field in ["bytes_up", "bytes_down", "bulk_up", "bulk_down"] {
            assert!(positive(&size[field]), "{field}: {size}");
        }
        assert_eq!(size["raw"]["kind"].as_str(), raw, "{size}");
    }
    assert!(positive(&run["beside"]["latency"]["calls"]), "{run}");
    assert!(positive(&run["beside"]["payloads_rate"]), "{run}");
    assert_eq!(run["idle"]["connections"], 2, "{run}");
    assert!(run["idle"]["both_bytes"].is_number(), "{run}");
    assert!(positive(&run["connect"]["connections_per_second"]), "{run}");
}

/// Raw transfers need a CPU for each end.
fn raw(kind: &'static str) -> Option<&'static str> {
    let cpus = std::thread::available_parallelism().unwrap().get();
    (cpus > 1).then_some(kind)
}

#[test]
fn all_measures_every_transport_spin() {
    let _watchdog = Watchdog::start("all");
    let picture = Scratch::new("all.svg");
    let ended = run(&format!("all {LITTLE} --rate 1000 --json - --plot {picture}")).with_code(0);
    assert_eq!(ended.stderr, "");
    let report = ended.json();
    assert_eq!(report["version"], 1);
    let runs = report["runs"].as_array().unwrap();
    let schemes: Vec<_> = runs.iter().map(|run| run["scheme"].as_str().unwrap()).collect();
    assert_eq!(schemes[..3], ["mem", "shm", "tcp"]);
    check_run(&runs[0], raw("memory"));
    check_run(&runs[1], raw("memory"));
    check_run(&runs[2], raw("tcp"));
    assert!(runs[1]["idle"]["server_bytes"].is_number(), "it is a process of its own");
    let picture = picture.text();
    let picture = roxmltree::Document::parse(&picture).unwrap();
    assert_eq!(picture.root_element().tag_name().name(), "svg");
    let texts: Vec<_> =
        picture.descendants().filter_map(|node| node.text()).map(str::trim).collect();
    for title in ["Payloads over mem, 4 in flight", "Payloads over tcp, 4 in flight"] {
        assert!(texts.contains(&title), "{title}: {texts:?}");
    }
}

#[test]
fn the_two_ends_by_hand_busy() {
    let _watchdog = Watchdog::start("by hand");
    let shm = format!("shm://rpc-perf-test-{}", std::process::id());
    for (address, scheme) in [(&*shm, "shm"), ("tcp://127.0.0.1:0", "tcp")] {
        let (server, address) = Running::serve(address);
        let only = "--only latency,idle,connect --connections 2 --duration 4ms";
        let ended = run(&format!("client {address} {only} --json -")).with_code(0);
        let run = &ended.json()["runs"][0];
        assert_eq!(run["scheme"], scheme);
        for count in [&run["latency"]["calls"], &run["connect"]["latency"]["calls"]] {
            assert!(count.as_u64().is_some_and(|count| count > 0), "{run}");
        }
        assert!(run["idle"]["server_bytes"].is_number(), "the server reports its own: {run}");
        assert_eq!(run["rates"].as_array().map(Vec::len), Some(0), "not asked for: {run}");
        kill_process(server.pid(), Signal::INT).unwrap();
        let ended = server.end().with_code(0);
        assert_eq!(ended.stderr, "");
    }
}

#[test]
fn a_client_without_a_server_gets_advice() {
    let _watchdog = Watchdog::start("no server");
    let ended = run("client shm://rpc-perf-test-nobody").with_code(1);
    assert!(
        ended.stderr.ends_with("start the server there, or correct the address\n"),
        "{ended:?}"
    );
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    assert_eq!(ended.stdout, "", "nothing is measured before there is a server");
}

#[test]
fn a_run_is_kept_shown_and_compared() {
    let _watchdog = Watchdog::start("show");
    let (kept, picture, again) =
        (Scratch::new("a.json"), Scratch::new("a.svg"), Scratch::new("b.json"));
    let measured = format!("all --schemes tcp --only latency,bandwidth {LITTLE} --json {kept}");
    let measured = run(&measured).with_code(0);
    let shown =
        run(&format!("show {kept} --compare {kept} --plot {picture} --json {again}")).with_code(0);
    // `show` prints the same as the measurement, and then the rest.
    let (tables, _) = measured.stdout.split_once("\njson ").unwrap_or((&measured.stdout, ""));
    for line in tables.lines().filter(|line| !line.starts_with("left out")) {
        assert!(shown.stdout.lines().any(|shown| shown == line), "{line}: {}", shown.stdout);
    }
    assert!(shown.stdout.contains("GB/s, Bulk down, 64 B"), "{}", shown.stdout);
    for line in shown.stdout.lines().filter(|line| line.starts_with("GB/s, B")) {
        assert!(line.ends_with(" 1.00"), "{line}");
    }
    assert_eq!(kept.text(), again.text());
    assert!(roxmltree::Document::parse(&picture.text()).is_ok());
    assert!(!shown.stdout.contains('\u{1b}'), "colours in a pipe: {:?}", shown.stdout);
    let mut forced = command(&format!("show {kept}"));
    forced.env("CLICOLOR_FORCE", "1");
    assert!(Running::start(forced).end().stdout.contains('\u{1b}'));
}

#[test]
fn mistakes_are_found_before_anything_is_measured() {
    let _watchdog = Watchdog::start("mistakes");
    let other = Scratch::new("other.json");
    fs::write(&other.0, "{\"version\": 77}").unwrap();
    // Each of these would take an hour.
    for (arguments, code, part) in [
        ("all --compare /nonexistent/old.json".to_owned(), 1, "cannot read /nonexistent/old.json"),
        (format!("all --compare {other}"), 1, "its schema has version 77"),
        ("all --json /nonexistent/new.json".to_owned(), 1, "an existing directory"),
        ("all --plot /".to_owned(), 1, "an existing directory"),
        ("all --schemes carrier-pigeon".to_owned(), 2, "possible values: mem, shm, tcp, rdma"),
        ("client 127.0.0.1:1".to_owned(), 2, "a scheme is missing"),
        ("client tcp://127.0.0.1:1 --cpu 100000".to_owned(), 1, "CPU 100000 cannot be used"),
    ] {
        let hour = if code == 1 { "--duration 1h" } else { "" };
        let ended = run(&format!("{arguments} {hour}")).with_code(code);
        assert!(ended.stderr.starts_with("error: ") && ended.stderr.contains(part), "{ended:?}");
        assert_eq!(ended.stdout.lines().filter(|line| line.starts_with("--")).count(), 0);
    }
    let ended = run("server tcp://127.0.0.1:0 --cpu 100000").with_code(1);
    assert!(ended.stderr.contains("CPU 100000 cannot be used"), "{ended:?}");
    let ended = run("show /nonexistent/old.json").with_code(1);
    assert!(ended.stderr.contains("cannot read /nonexistent/old.json"), "{ended:?}");
}

#[test]
fn rdma_without_a_device_says_why() {
    let _watchdog = Watchdog::start("rdma");
    if fs::read_dir("/sys/class/infiniband").is_ok_and(|devices| devices.count() > 0) {
        return;
    }
    let ended = run("all --schemes rdma --duration 1h").with_code(1);
    let expected = "error: measuring rdma: ";
    assert!(
        ended.stderr.starts_with(expected) && ended.stderr.contains("no RDMA device"),
        "{ended:?}"
    );
}

/// A process file descriptor is readable once its process has ended.
fn wait_for_the_end_of(process: &impl std::os::fd::AsFd) {
    let mut ended = [PollFd::new(process, PollFlags::IN)];
    let limit = Timespec::try_from(Watchdog::LIMIT).unwrap();
    assert_eq!(poll(&mut ended, Some(&limit)).unwrap(), 1, "the server did not end by itself");
}

#[test]
fn ctrl_c_ends_both_busy_processes() {
    let _watchdog = Watchdog::start("ctrl-c");
    let (run, server) = Running::endless();
    let gone = pidfd_open(server, PidfdFlags::empty()).unwrap();
    kill_process(run.pid(), Signal::INT).unwrap();
    let ended = run.end().with_code(130);
    assert_eq!(ended.stderr, "error: interrupted\n");
    wait_for_the_end_of(&gone);
}

#[test]
fn a_killed_busy_run_leaves_no_server() {
    let _watchdog = Watchdog::start("killed");
    let (mut run, server) = Running::endless();
    let gone = pidfd_open(server, PidfdFlags::empty()).unwrap();
    run.0.kill().unwrap();
    wait_for_the_end_of(&gone);
}

#[test]
fn a_dead_busy_server_is_named() {
    let _watchdog = Watchdog::start("server dies");
    let (mut run, server) = Running::endless();
    // The connecting side maps the shared memory, once the server is ready.
    let maps = format!("/proc/{}/maps", run.0.id());
    while !fs::read_to_string(&maps).unwrap().contains("memfd:") {
        assert!(run.0.try_wait().unwrap().is_none(), "it ended: {:?}", run.end());
        std::thread::yield_now();
    }
    kill_process(server, Signal::KILL).unwrap();
    let ended = run.end().with_code(1);
    let expected = "error: measuring shm: the server process ended during the run (";
    assert!(ended.stderr.starts_with(expected), "{ended:?}");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
}

#[test]
fn both_ends_are_measured_with_tls() {
    let _watchdog = Watchdog::start("rpc-perf --tls");
    let directory = Scratch::new("certificates");
    fs::create_dir(&directory.0).unwrap();
    let authority = Authority::new("ca");
    fs::write(directory.0.join("ca.pem"), authority.pem()).unwrap();
    for role in ["server", "client"] {
        let leaf = authority.issue(&[&format!("spiffe://dev.local/{role}")]);
        fs::write(directory.0.join(format!("{role}.pem")), leaf.cert).unwrap();
        fs::write(directory.0.join(format!("{role}-key.pem")), leaf.key).unwrap();
    }
    let measured = run(&format!("all --schemes tcp,mem {LITTLE} --json - --tls {directory}"));
    let runs = measured.with_code(0).json()["runs"].clone();
    let path = runs[0]["path"].as_str().unwrap();
    assert!(path.contains("Encrypt"), "{path}");
    assert!(runs[1]["latency"]["calls"].as_u64() > Some(0), "{runs}");
    let stranger =
        format!("all --schemes tcp {LITTLE} --tls {directory} --expect-peer spiffe://a/b");
    let refused = run(&stranger).with_code(1);
    assert!(refused.stderr.contains("spiffe://dev.local/server"), "{}", refused.stderr);
    fs::remove_dir_all(&directory.0).unwrap();
}
