//! The shm wire between processes, and the socket files that servers leave behind.

#![allow(missing_docs, unsafe_code, dead_code, reason = "tests; parts of a shared fixture")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "conformance/fixture.rs"]
mod fixture;

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use rpc_transport::address::Address;
use rpc_transport::device::connection_error::{ConnectError, ListenError};
use rpc_transport::device::soft;
use rpc_transport::device::{Connector, Listener, PeerIdentity, RemoteSlice, Source, Status};
use rpc_transport::memory::region::Access;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use fixture::*;

/// A directory of this test's own, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rpc-soft-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn socket(&self) -> (PathBuf, Address) {
        let path = self.0.join("server.sock");
        let address = format!("shm://{}", path.display()).parse().unwrap();
        (path, address)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The leftover of a killed server: a socket file without a listener.
fn leave_behind(path: &Path) {
    let flags = SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&socket, 1).unwrap();
}

async fn connect_to(address: &Address) -> Result<End, ConnectError> {
    let connector = soft::ShmConnector::default();
    let mut outgoing = connector.resolve(address).await?;
    let options = Options::default();
    let mut objects = End::objects(outgoing.device(), &options);
    let capacity = End::capacity(&options);
    let qp = outgoing.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
    let mut end = objects.into_end(qp, &options);
    let established = outgoing.connect(b"").await?;
    let PeerIdentity::Process { pid, uid, .. } = established.peer else { panic!("no process") };
    assert!(pid > 0);
    assert_eq!(uid, rustix::process::geteuid().as_raw());
    established.attach.run(&mut *end.cq).unwrap();
    Ok(end)
}

#[test]
fn only_a_dead_servers_leftovers_are_replaced() {
    runtime().block_on(async {
        let scratch = Scratch::new();
        let (path, address) = scratch.socket();
        leave_behind(&path);
        assert!(path.exists());
        let error = connect_to(&address).await.map(drop).unwrap_err();
        assert!(matches!(error, ConnectError::Refused { .. }), "{error}");

        let listener = soft::listen_shm(&address).unwrap();
        let error = soft::listen_shm(&address).map(drop).unwrap_err();
        assert!(matches!(error, ListenError::InUse { .. }), "{error}");
        assert!(error.to_string().contains(&address.to_string()), "{error}");
        let mut listener = listener;
        let options = Options::default();
        let (client, _server) = tokio::join!(connect_to(&address), accept(&mut listener, &options));
        client.unwrap();
        drop(listener);
        assert!(!path.exists(), "a listener removes its socket file");
        soft::listen_shm(&address).unwrap();
    });
}

#[test]
fn name_is_free_after_its_listener_ends() {
    runtime().block_on(async {
        let address: Address = format!("shm://names-{}", std::process::id()).parse().unwrap();
        let listener = soft::listen_shm(&address).unwrap();
        let error = soft::listen_shm(&address).map(drop).unwrap_err();
        assert!(matches!(error, ListenError::InUse { .. }), "{error}");
        drop(listener);
        soft::listen_shm(&address).unwrap();
    });
}

#[test]
fn what_is_no_socket_is_left_alone() {
    runtime().block_on(async {
        let scratch = Scratch::new();
        let (path, address) = scratch.socket();
        std::fs::write(&path, b"precious").unwrap();
        let error = soft::listen_shm(&address).map(drop).unwrap_err();
        assert!(error.to_string().contains("not a socket"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        let nowhere: Address = "shm:///nonexistent/dir/server.sock".parse().unwrap();
        let error = soft::listen_shm(&nowhere).map(drop).unwrap_err();
        assert!(matches!(error, ListenError::Failed { .. }), "{error}");
        let error = connect_to(&nowhere).await.map(drop).unwrap_err();
        assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
    });
}

#[test]
fn replaced_listener_does_not_remove_the_new_file() {
    runtime().block_on(async {
        let scratch = Scratch::new();
        let (path, address) = scratch.socket();
        let first = soft::listen_shm(&address).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _second = soft::listen_shm(&address).unwrap();
        drop(first);
        assert!(path.exists());
    });
}

/// Several servers start at once at a leftover: one gets it, the others get an error.
#[test]
fn one_of_several_starting_servers_wins() {
    let _watchdog = Watchdog::start("starting servers");
    for _ in 0..20 {
        let scratch = Scratch::new();
        let (path, address) = scratch.socket();
        leave_behind(&path);
        let barrier = std::sync::Barrier::new(4);
        let wins = std::thread::scope(|scope| {
            let start = || {
                runtime().block_on(async {
                    barrier.wait();
                    let listener = soft::listen_shm(&address);
                    barrier.wait();
                    match listener {
                        Ok(_) => 1,
                        Err(ListenError::InUse { .. }) => 0,
                        Err(error) => panic!("{error}"),
                    }
                })
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<i32>()
        });
        assert_eq!(wins, 1);
    }
}

/// The environment variable that turns this test binary into the peer of a test.
const PEER_OF: &str = "RPC_SOFT_PEER_OF";

/// Starts this binary again as the peer that connects to `address`.
struct Peer(Child);

impl Peer {
    fn start(address: &Address) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "peer_process", "--nocapture"]);
        Self(command.env(PEER_OF, address.to_string()).spawn().unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for something on one CQ.
fn wait(end: &mut End, what: &str, until: impl Fn(&End) -> bool) {
    loop {
        end.pump();
        if until(end) {
            return;
        }
        end.cq.arm().unwrap();
        if end.pump() {
            continue;
        }
        assert!(until(end) || end.is_woken(PATIENCE), "waited in vain for {what}");
        end.cq.clear_events().unwrap();
    }
}

/// Not a test: the other process of the tests below. Echoes every message; a message of 12 bytes
/// names a region in the peer's memory, which is first written and read.
#[test]
fn peer_process() {
    let Ok(address) = std::env::var(PEER_OF) else { return };
    let _watchdog = Watchdog::start("the peer process");
    let mut end = runtime().block_on(connect_to(&address.parse().unwrap())).unwrap();
    end.send(0, b"hello");
    loop {
        wait(&mut end, "a message", |end| {
            end.is_disconnected() || end.got.iter().any(|completion| completion.byte_len > 0)
        });
        if end.is_disconnected() {
            return;
        }
        for completion in std::mem::take(&mut end.got) {
            if completion.byte_len == 0 {
                assert_eq!(completion.status, Status::Success);
                continue;
            }
            let bytes = payload(&completion).to_vec();
            drop(completion);
            end.post_recv(0);
            if let Ok(region) = <[u8; 12]>::try_from(&bytes[..]) {
                touch(&mut end, region);
            }
            end.send(0, &bytes);
        }
    }
}

/// Writes a pattern into the peer's region, and reads it back.
fn touch(end: &mut End, region: [u8; 12]) {
    let address = u64::from_le_bytes(region[..8].try_into().unwrap());
    let rkey = u32::from_le_bytes(region[8..].try_into().unwrap());
    let to = RemoteSlice { address, rkey };
    let source = end.pd.register(pattern(1, 100_000), Access::LOCAL).unwrap();
    let mut list = [write(1, to, whole(&source)), read(2, to, &end.pd, 100_000)];
    end.post(&mut list).unwrap();
    wait(end, "the READ", |end| end.got.iter().any(|completion| completion.wr_id == 2));
    assert!(end.got.iter().all(|completion| completion.status == Status::Success));
    let done = end.got.iter().find(|completion| completion.wr_id == 2).unwrap();
    assert!(brought(done, 100_000) == pattern(1, 100_000));
    // A message may have arrived in the meantime.
    end.got.retain(|completion| completion.byte_len > 0);
}

/// A server, and its peer in another process.
fn serve(scratch: &Scratch) -> (End, Peer) {
    let (_, address) = scratch.socket();
    let mut server_end = None;
    let peer = runtime().block_on(async {
        let mut listener: Box<dyn Listener> = soft::listen_shm(&address).unwrap();
        let peer = Peer::start(&address);
        server_end = Some(accept(&mut listener, &Options::default()).await);
        peer
    });
    let mut end = server_end.unwrap();
    wait(&mut end, "the greeting", |end| !end.got.is_empty());
    assert_eq!(payload(&end.got[0]), b"hello");
    end.got.clear();
    end.post_recv(0);
    (end, peer)
}

#[test]
fn two_processes_exchange_messages_and_access_memory() {
    let _watchdog = Watchdog::start("two processes");
    let scratch = Scratch::new();
    let (mut end, mut peer) = serve(&scratch);
    let target = end.pd.allocate(100_000, Access::REMOTE_READ_WRITE).unwrap();
    for round in 0..200_u64 {
        let mut bytes = pattern(round, 1 + (round as usize * 37) % 128);
        if round % 50 == 49 {
            bytes = target.remote_address(0).to_le_bytes().to_vec();
            bytes.extend(target.rkey().to_le_bytes());
        } else if bytes.len() == 12 {
            bytes.push(0);
        }
        end.post(&mut [send(round, false, Source::Inline(&bytes))]).unwrap();
        if round % 8 == 7 {
            end.send(round, b"signaled");
            wait(&mut end, "the send", |end| {
                end.got.iter().any(|completion| completion.byte_len == 0)
            });
            end.got.retain(|completion| completion.byte_len > 0);
            wait(&mut end, "both echoes", |end| end.got.len() == 2);
            end.got.truncate(1);
            end.post_recv(0);
        }
        wait(&mut end, "the echo", |end| !end.got.is_empty());
        assert!(payload(&end.got[0]) == bytes, "round {round}");
        end.got.clear();
        end.post_recv(0);
    }
    assert!(contents(&target) == pattern(1, 100_000));
    let qp = end.qp;
    end.cq.destroy_qp(qp).unwrap();
    assert!(peer.0.wait().unwrap().success(), "the peer's assertions hold");
}

#[test]
fn death_of_a_process_is_seen_at_once() {
    let _watchdog = Watchdog::start("death of a process");
    for is_asleep in [false, true] {
        let scratch = Scratch::new();
        let (mut end, mut peer) = serve(&scratch);
        if is_asleep {
            end.cq.arm().unwrap();
            assert!(!end.pump());
        }
        // Unaccepted messages fail; delivered ones stay.
        peer.kill();
        end.send(7, b"anybody?");
        wait(&mut end, "the disconnect", End::is_disconnected);
        wait(&mut end, "the failure", |end| end.got.iter().any(|one| one.wr_id == 7));
        let failed = end.got.iter().find(|completion| completion.wr_id == 7).unwrap();
        assert_eq!(failed.status, Status::RetryExceeded);
    }
}

/// A server killed by force leaves nothing that keeps the next one from starting.
#[test]
fn killed_server_can_be_restarted() {
    let _watchdog = Watchdog::start("a killed server");
    let scratch = Scratch::new();
    let (path, address) = scratch.socket();
    for _ in 0..3 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "server_process", "--nocapture"]);
        let mut server = Peer(command.env(PEER_OF, address.to_string()).spawn().unwrap());
        let mut end = runtime().block_on(async {
            loop {
                // Until it listens.
                match connect_to(&address).await {
                    Ok(end) => return end,
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        });
        server.kill();
        wait(&mut end, "the disconnect", End::is_disconnected);
        assert!(path.exists(), "a killed server cannot have removed its file");
    }
}

/// Not a test: a server that accepts one connection, and waits to be killed.
#[test]
fn server_process() {
    let Ok(address) = std::env::var(PEER_OF) else { return };
    let _watchdog = Watchdog::start("the server process");
    runtime().block_on(async {
        let mut listener = soft::listen_shm(&address.parse().unwrap()).unwrap();
        let _end = accept(&mut listener, &Options::default()).await;
        std::future::pending::<()>().await;
    });
}

/// Makes a child process run out of file descriptors, at this point.
const STARVED: &str = "RPC_SOFT_STARVED";

/// However few file descriptors are left, the error names the cause and the remedy.
#[test]
fn descriptor_exhaustion_names_the_limit_to_raise() {
    let _watchdog = Watchdog::start("a starved process");
    let address: Address = format!("shm://starved-{}", std::process::id()).parse().unwrap();
    runtime().block_on(async {
        let mut listener = soft::listen_shm(&address).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "starved_process", "--nocapture"]);
        let mut child = Peer(command.env(STARVED, address.to_string()).spawn().unwrap());
        let child = tokio::task::spawn_blocking(move || child.0.wait().unwrap());
        let status = tokio::select! {
            status = child => status.unwrap(),
            () = async { loop { accept(&mut listener, &Options::default()).await; } } => unreachable!(),
        };
        assert!(status.success());
    });
}

/// Not a test: a client that gets one file descriptor more at a time until it connects.
#[test]
fn starved_process() {
    let Ok(address) = std::env::var(STARVED) else { return };
    let address: Address = address.parse().unwrap();
    let _watchdog = Watchdog::start("the starved process");
    let mut errors = 0;
    for spare in 0.. {
        let runtime = runtime();
        let result = runtime.block_on(async {
            let mut outgoing = soft::ShmConnector::default().resolve(&address).await.unwrap();
            let options = Options::default();
            let mut objects = End::objects(outgoing.device(), &options);
            let capacity = End::capacity(&options);
            let qp = outgoing.create_qp(&mut *objects.cq, &objects.pd, capacity).unwrap();
            let mut end = objects.into_end(qp, &options);
            let free =
                u64::from(std::fs::File::open("/dev/null").unwrap().as_raw_fd().cast_unsigned());
            let limit = |current| rustix::process::Rlimit { current: Some(current), maximum: None };
            let open_files = rustix::process::Resource::Nofile;
            let maximum = rustix::process::getrlimit(open_files).maximum;
            let starved = rustix::process::Rlimit { maximum, ..limit(free + spare) };
            rustix::process::setrlimit(open_files, starved).unwrap();
            let established = outgoing.connect(b"").await;
            let enough = rustix::process::Rlimit { maximum, ..limit(256) };
            rustix::process::setrlimit(open_files, enough).unwrap();
            established.map(|established| established.attach.run(&mut *end.cq).unwrap())
        });
        match result {
            Ok(()) => break,
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains("ulimit -n"), "{spare} to spare: {error}");
                errors += 1;
            }
        }
    }
    assert!(errors >= 3, "a socket, a segment and the peer's segment: {errors}");
}

/// Anyone who may read a shared directory may lock it, for ever.
#[test]
fn directory_lock_keeps_nobody_from_listening() {
    runtime().block_on(async {
        let scratch = Scratch::new();
        let (path, address) = scratch.socket();
        let directory = std::fs::File::open(&scratch.0).unwrap();
        let exclusive = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        rustix::fs::flock(&directory, exclusive).unwrap();
        let listener = soft::listen_shm(&address).unwrap();
        assert!(path.exists());
        let left: Vec<_> = std::fs::read_dir(&scratch.0).unwrap().collect();
        assert_eq!(left.len(), 1, "nothing but the socket: {left:?}");
        drop(listener);
    });
}

/// A lock file that others could hold is named; one of a killed server is taken over; a held one
/// means that the address is in use. None of these waits.
#[test]
fn only_an_exclusive_lock_file_is_trusted() {
    use std::os::unix::fs::PermissionsExt;
    runtime().block_on(async {
        let scratch = Scratch::new();
        let (path, address) = scratch.socket();
        let lock = path.with_extension("sock.lock");
        let file = std::fs::File::create(&lock).unwrap();
        let mode = |bits| std::fs::Permissions::from_mode(bits);
        let refusal = || soft::listen_shm(&address).map(drop).unwrap_err().to_string();

        file.set_permissions(mode(0o644)).unwrap();
        let error = refusal();
        assert!(error.contains(lock.to_str().unwrap()) && error.contains("remove it"), "{error}");

        file.set_permissions(mode(0o600)).unwrap();
        let exclusive = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        rustix::fs::flock(&file, exclusive).unwrap();
        let error = soft::listen_shm(&address).map(drop).unwrap_err();
        assert!(matches!(error, ListenError::InUse { .. }), "{error}");

        rustix::fs::flock(&file, rustix::fs::FlockOperation::Unlock).unwrap();
        drop(soft::listen_shm(&address).unwrap());
        assert!(!lock.exists());

        std::os::unix::fs::symlink("/etc/passwd", &lock).unwrap();
        let error = refusal();
        assert!(error.contains(lock.to_str().unwrap()), "{error}");
        std::fs::remove_file(&lock).unwrap();

        if rustix::process::geteuid().is_root() {
            std::fs::write(&lock, b"").unwrap();
            std::fs::set_permissions(&lock, mode(0o600)).unwrap();
            std::os::unix::fs::chown(&lock, Some(65_534), None).unwrap();
            let error = refusal();
            assert!(error.contains("it belongs to user 65534"), "{error}");
        }
    });
}
