//! Environments that refuse what shared memory needs: sandboxes, and limits of a process. `auto://`
//! uses tcp there and reports why, `shm://` reports the refusal, and no process dies.

use std::sync::mpsc;
use std::time::Duration;

use rpc_core::client::Path;
use rpc_core::{Channel, PollMode};
use tests::journal::Journal;
use tests::limit;
use tests::probe::{ProbeClient, ProbeServer};
use tests::scheme::Scheme;
use tests::service::{ProbeService, pattern};
use tests::world::World;
use tokio::process::Command;

use crate::SERVER;

/// The effect of a refused system call on a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// No visible effect.
    GoesOn,
    /// There is no shared memory; tcp is used.
    TakesTcp,
    /// There is shared memory, but no tcp.
    TakesShm,
    /// There is no server, or no connection: an error.
    Fails,
}

use Then::{Fails, GoesOn, TakesShm, TakesTcp};

/// The system calls that the library makes itself, and their effect when refused: to a client, to a
/// server. Calls that every program needs (memory, reading, writing, epoll, clocks) are left out.
const CALLS: [(&str, Then, Then); 17] = [
    ("accept4", GoesOn, Fails),
    ("fcntl", TakesTcp, TakesTcp),
    ("flock", GoesOn, GoesOn),
    ("fstat", TakesTcp, TakesTcp),
    ("ftruncate", TakesTcp, TakesTcp),
    ("getsockopt", Fails, TakesTcp),
    ("ioctl", GoesOn, GoesOn),
    ("madvise", GoesOn, GoesOn),
    ("memfd_create", TakesTcp, TakesTcp),
    ("munmap", GoesOn, GoesOn),
    ("prlimit64", GoesOn, GoesOn),
    ("recvmmsg", GoesOn, GoesOn),
    ("recvmsg", TakesTcp, TakesTcp),
    ("sched_getaffinity", GoesOn, GoesOn),
    ("sched_yield", GoesOn, GoesOn),
    ("sendmsg", TakesTcp, TakesTcp),
    ("setsockopt", GoesOn, TakesShm),
];

const SCHEMES: [Scheme; 3] = [Scheme::Auto, Scheme::ShmName, Scheme::Tcp];

/// The result of a client: the path it took, or an error.
type Seen = Result<Path, String>;

/// Runs on a thread of its own, to which the call is refused.
fn in_sandbox<T: Send>(refused: Option<(&str, i32)>, body: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if let Some((call, errno)) = refused {
                test_kit::sandbox::refuse(call, errno);
            }
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            limit::block_on(&runtime.enable_all().build().expect("a runtime"), body)
        });
        thread.join().expect("no panic")
    })
}

/// Small and large calls, more than fit the room for doorbells at once.
async fn call(address: &str, then: Then) -> Seen {
    let builder = Channel::builder().poll_mode(PollMode::Adaptive);
    // A timeout is a failure too, so it may be short where a failure is expected.
    let time = if then == Fails { 300 } else { 10_000 };
    let builder = builder.connect_timeout(limit::paced(Duration::from_millis(time)));
    let channel = builder.connect(address).await.map_err(|error| error.to_string())?;
    let path = channel.path().expect("connected");
    let client = ProbeClient::new(channel);
    for number in 0..100 {
        let sum = client.add(number, 1).await.map_err(|error| error.to_string())?;
        assert_eq!(sum, number + 1);
    }
    let data = pattern(300_000, 1);
    let echo = client.echo(&data).await.map_err(|error| error.to_string())?;
    assert!(echo == data, "other bytes came back");
    Ok(path)
}

/// The results of a client and a server, each of which may be in a sandbox.
fn meet(
    scheme: Scheme,
    then: Then,
    client: Option<(&str, i32)>,
    server: Option<(&str, i32)>,
) -> Seen {
    std::thread::scope(|scope| {
        let (listens, address) = mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        scope.spawn(move || {
            in_sandbox(server, async {
                let service = ProbeService::new(Journal::default().into(), None);
                let builder = tests::device::server().add_service(ProbeServer::new(service));
                let bound = builder.bind(scheme.fresh_address()).await;
                match bound {
                    Err(error) => drop(listens.send(Err(error.to_string()))),
                    Ok(server) => {
                        let _ = listens.send(Ok(server.local_address().to_string()));
                        let stopped = async { drop(stopped.await) };
                        server.serve_until(stopped).await.expect("the listener lives");
                    }
                }
            });
        });
        let address = address.recv().expect("the server's thread lives")?;
        let seen = in_sandbox(client, call(&address, then));
        drop(stop);
        seen
    })
}

/// The difference between a client's result and the expected one.
fn wrong(scheme: Scheme, then: Then, seen: &Seen, call: &str) -> Option<String> {
    let is_right = match (then, scheme, seen) {
        (Fails, _, seen) => seen.is_err(),
        (TakesTcp, Scheme::ShmName, Err(error)) => {
            error.contains(call) && error.contains("use tcp://")
        }
        (TakesTcp, Scheme::Auto, Ok(path)) => {
            path.device.contains("tcp") && path.reason.contains(call)
        }
        (GoesOn, Scheme::Auto, Ok(path)) | (GoesOn | TakesShm, Scheme::ShmName, Ok(path)) => {
            path.device.contains("shm")
        }
        (TakesShm, Scheme::Auto | Scheme::Tcp, seen) => seen.is_err(),
        (GoesOn | TakesTcp, Scheme::Tcp, Ok(path)) => path.device.contains("tcp"),
        _ => false,
    };
    let seen = seen.as_ref().map(ToString::to_string);
    (!is_right).then(|| format!("{scheme:?} and {call}, {then:?}: {seen:?}\n"))
}

/// Refuses each call, once with each errno, to the side that `meet` runs with it.
fn refuse_each(meet: impl Fn(Scheme, Then, (&str, i32)) -> Seen, then: impl Fn([Then; 2]) -> Then) {
    let mut all = String::new();
    for (call, client, server) in CALLS {
        let then = then([client, server]);
        for errno in [libc::EPERM, libc::ENOSYS] {
            // There musl calls accept(2) instead.
            if cfg!(target_env = "musl") && (call, errno) == ("accept4", libc::ENOSYS) {
                continue;
            }
            for scheme in SCHEMES {
                let seen = meet(scheme, then, (call, errno));
                all.extend(wrong(scheme, then, &seen, call));
            }
        }
    }
    assert!(all.is_empty(), "{all}");
}

#[test]
fn a_refused_system_call_ends_no_client() {
    refuse_each(|scheme, then, call| meet(scheme, then, Some(call), None), |[client, _]| client);
}

#[test]
fn a_refused_system_call_ends_no_server() {
    refuse_each(|scheme, then, call| meet(scheme, then, None, Some(call)), |[_, server]| server);
}

/// Larger than a ring, smaller than the region that a large message takes.
const ROOM_FOR_RINGS: u64 = 128 << 10;
/// Smaller than a ring.
const NO_ROOM: u64 = 16 << 10;

/// A regression: a peer that merely connected killed the process, by SIGXFSZ.
#[test]
fn a_server_survives_a_file_size_limit() {
    limit::run(async {
        for (bytes, then) in [(NO_ROOM, TakesTcp), (ROOM_FOR_RINGS, GoesOn)] {
            for scheme in SCHEMES {
                let options = ["--file-size", &bytes.to_string()];
                if (then, scheme) == (TakesTcp, Scheme::ShmName) {
                    continue;
                }
                let world = World::start_with(SERVER, scheme, &options).await;
                let seen = call(&world.address, then).await;
                assert_eq!(wrong(scheme, then, &seen, "ulimit -f"), None);
            }
        }
    });
}

/// Gives a child process its limit on file size, and the server's address.
const LIMITED: &str = "RPC_E2E_FILE_SIZE";

#[test]
fn a_client_survives_a_file_size_limit() {
    limit::run(async {
        for (bytes, then) in [(NO_ROOM, TakesTcp), (ROOM_FOR_RINGS, GoesOn)] {
            for scheme in SCHEMES {
                let world = World::start(SERVER, scheme).await;
                let mut child = Command::new(std::env::current_exe().expect("a program"));
                child.args(["--exact", "places::limited_client", "--nocapture"]);
                child.env(LIMITED, format!("{bytes} {then:?} {scheme:?} {}", world.address));
                let status = child.kill_on_drop(true).status().await.expect("it starts");
                assert!(status.success(), "{status}: {bytes} bytes, {scheme:?}");
            }
        }
    });
}

/// Not a test: a client with a limit on file size.
#[test]
fn limited_client() {
    let Ok(text) = std::env::var(LIMITED) else { return };
    let words: Vec<&str> = text.split(' ').collect();
    tests::resources::limit_file_size(words[0].parse().expect("a number"));
    let then = if words[1] == "GoesOn" { GoesOn } else { TakesTcp };
    let scheme = SCHEMES.into_iter().find(|it| format!("{it:?}") == words[2]).expect("a scheme");
    limit::run(async {
        let seen = call(words[3], then).await;
        assert_eq!(wrong(scheme, then, &seen, "ulimit -f"), None);
    });
}

#[test]
fn a_server_without_shared_memory_refuses_to_bind() {
    let seen = meet(Scheme::ShmName, Fails, None, Some(("memfd_create", libc::EPERM)));
    let error = seen.expect_err("it cannot");
    assert!(error.starts_with("shm:// is not available here: memfd_create is refused"), "{error}");
}
