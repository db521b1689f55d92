//! Connections of the software device leave nothing behind: the number of file descriptors and
//! mappings is unchanged after thousands of them. A test binary of its own, since it counts what
//! the process holds.

#![allow(missing_docs, unsafe_code, dead_code, reason = "tests; parts of a shared fixture")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "conformance/fixture.rs"]
mod fixture;

use std::sync::Arc;

use rpc_transport::address::HostPort;
use rpc_transport::device::soft;
use rpc_transport::device::{Connector, Listener, RemoteSlice, SendOp, SendWr, Source};
use rpc_transport::memory::region::Access;

use fixture::*;

const CYCLES: usize = 2000;
const WARM_UP: usize = 100;

/// Open file descriptors, and lines of the memory map that are files or shared.
fn held() -> (usize, usize) {
    let fds = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    // Heap arenas come and go as the allocator likes.
    let mapped = maps.lines().filter(|line| line.contains("memfd") || line.contains("rw-s"));
    (fds, mapped.count())
}

/// Size of the address space: private mappings that leak show here (a connection has 136 KiB).
fn address_space_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').next().unwrap().parse().unwrap();
    pages * rustix::param::page_size()
}

/// One connection: a message each way, a WRITE through a window, and the end in one of several
/// ways.
fn cycle(ends: (End, End), how: usize) {
    let (mut client, mut server) = ends;
    let target = region(&server.pd, 4096, Access::WINDOWS, 0);
    let window = server.pd.window(&target).unwrap();
    let source = Source::Window(window.clone());
    server.post(&mut [SendWr { wr_id: 1, op: SendOp::Bind, signaled: true, source }]).unwrap();
    while server.got.is_empty() {
        server.pump();
    }
    let source = client.filled(b"written");
    let to = RemoteSlice { rkey: window.rkey(), ..remote(&target, 0) };
    let mut list = [write(1, to, source), send(2, true, Source::Inline(b"request"))];
    client.post(&mut list).unwrap();
    while server.got.len() < 2 || client.got.len() < 2 {
        client.pump();
        server.pump();
    }
    assert_eq!(&contents(&target)[..7], b"written");
    match how % 4 {
        // Everything is dropped at once, with RECVs posted.
        0 => {}
        1 => {
            let qp = client.qp;
            client.cq.destroy_qp(qp).unwrap();
            while !server.is_disconnected() {
                server.pump();
            }
            let qp = server.qp;
            server.cq.destroy_qp(qp).unwrap();
        }
        2 => {
            let qp = server.qp;
            server.cq.modify_to_error(qp).unwrap();
            while !client.is_disconnected() {
                client.pump();
            }
        }
        // The peer goes first, region and all.
        _ => {
            drop(target);
            drop(server);
            client.pump();
        }
    }
}

/// A fixture whose listener exists already.
struct Reaching(Arc<dyn Connector>);

impl Fixture for Reaching {
    fn listen(&self) -> Box<dyn Listener> {
        unreachable!("the listener is there already")
    }

    fn connector(&self) -> Arc<dyn Connector> {
        Arc::clone(&self.0)
    }
}

fn leaks(
    what: &str,
    listen: impl AsyncFnOnce() -> Box<dyn Listener>,
    connector: Arc<dyn Connector>,
) {
    let runtime = runtime();
    let mut listener = runtime.block_on(listen());
    let options = Options { sends: 4, recvs: 4, posted: 2, ..Options::default() };
    let reaching = Reaching(connector);
    let (mut before, mut space) = ((0, 0), 0);
    for round in 0..WARM_UP + CYCLES {
        if round == WARM_UP {
            (before, space) = (held(), address_space_bytes());
        }
        let address = listener.local_address();
        let ends = runtime.block_on(async {
            tokio::join!(connect(&reaching, &address, &options), accept(&mut listener, &options))
        });
        cycle(ends, round);
    }
    assert_eq!(held(), before, "{what}: (file descriptors, mappings) after and before");
    let grown = address_space_bytes().saturating_sub(space);
    assert!(grown < 32 << 20, "{what}: the address space has grown by {grown} bytes");
}

#[test]
fn thousands_of_connections_leave_nothing_behind() {
    let _watchdog = Watchdog::start("leaks");
    let mem = async || soft::listen_mem("leaks").unwrap();
    leaks("mem", mem, Arc::new(soft::MemConnector));
    let address = format!("shm://leaks-{}", std::process::id()).parse().unwrap();
    let shm = async || soft::listen_shm(&address).unwrap();
    leaks("shm", shm, Arc::new(soft::ShmConnector::default()));
    let at = HostPort { host: "127.0.0.1".to_owned(), port: 0 };
    let tcp = async || soft::listen_tcp(&at, None).await.unwrap();
    leaks("tcp", tcp, Arc::new(soft::TcpConnector));
}
