//! Processes with a low limit on open files.

use std::fs::File;
use std::io::{self, Read};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::mpsc;

use rpc_core::Channel;
use tokio::process::Command;

use tests::probe::ProbeClient;
use tests::scheme::Scheme;
use tests::world::World;

use crate::SERVER;

mod between_processes {
    on_scheme!(
        shm,
        ShmName,
        silent_peers_exhausting_files_block_nobody,
        a_server_without_files_says_so_to_clients
    );
    on_scheme!(
        tcp,
        Tcp,
        silent_peers_exhausting_files_block_nobody,
        a_server_without_files_says_so_to_clients
    );
    on_scheme!(auto, Auto, a_server_without_files_says_so_to_clients);

    use super::{
        a_server_without_files_says_so_to_clients, silent_peers_exhausting_files_block_nobody,
    };
}

const OPEN_FILES: usize = 64;
/// As many as wait in a listener's backlog, so that an honest client finds room there.
const PEERS: usize = 120;

async fn silent_peers_exhausting_files_block_nobody(scheme: Scheme) {
    let limit = OPEN_FILES.to_string();
    let world = World::start_with(SERVER, scheme, &["--open-files", &limit]).await;
    let (connected, each) = mpsc::channel();
    for _ in 0..PEERS {
        let (address, connected) = (world.address.clone(), connected.clone());
        std::thread::spawn(move || {
            while let Ok(peer) = Silent::dial(&address) {
                let _ = connected.send(());
                peer.wait_until_dropped();
            }
        });
    }
    assert_eq!(each.iter().take(PEERS).count(), PEERS);
    let mut clients = Vec::new();
    for number in 0..8 {
        let client = world.client().await;
        assert_eq!(client.add(number, 1).await, Ok(number + 1));
        clients.push(client);
    }
    for client in clients {
        assert_eq!(client.add(1, 1).await, Ok(2), "it is up, and stays");
    }
}

/// A regression: over tcp a client waited until its own time limit, and its error blamed firewalls.
async fn a_server_without_files_says_so_to_clients(scheme: Scheme) {
    let world = World::start_with(SERVER, scheme, &["--open-files", "32"]).await;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let error = loop {
            match tests::limit::patient_channel().connect(&world.address).await {
                Ok(channel) => clients.push(ProbeClient::new(channel)),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("os error 24") && error.contains("ulimit -n"), "{error}");
    }
    for client in &clients {
        assert_eq!(client.add(1, 1).await, Ok(2), "it stays");
    }
}

/// Makes a child process run out of files, and gives it the server's address.
const STARVED: &str = "RPC_E2E_STARVED";

/// A regression: "bad configuration: no driver", without mentioning the limit.
#[test]
fn a_client_without_files_names_the_limit() {
    tests::limit::run(async {
        let world = World::start(SERVER, Scheme::Tcp).await;
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "open_files::starved_client", "--nocapture"]);
        let status = child.env(STARVED, &world.address).kill_on_drop(true).status().await;
        assert!(status.unwrap().success());
    });
}

/// Not a test: a client that may open one file more at a time until it connects.
#[test]
fn starved_client() {
    let Ok(address) = std::env::var(STARVED) else { return };
    let limit = tests::resources::limit_open_files;
    let mut errors = Vec::new();
    tests::limit::run(async move {
        for spare in 0.. {
            let free = File::open("/dev/null").unwrap().as_raw_fd().cast_unsigned();
            limit(u64::from(free) + spare);
            let connected = Channel::connect(&address).await;
            limit(256);
            let Err(error) = connected else { break };
            errors.push(error.to_string());
        }
        assert!(errors.len() >= 4, "a bell, its epoll set, its copy, and a socket: {errors:?}");
        for error in errors {
            assert!(error.contains("ulimit -n"), "{error}");
        }
    });
}

/// A silent connection.
enum Silent {
    Shm(std::os::fd::OwnedFd),
    Tcp(TcpStream),
}

impl Silent {
    fn dial(address: &str) -> io::Result<Self> {
        Ok(match address.strip_prefix("tcp://") {
            Some(at) => Self::Tcp(TcpStream::connect(at)?),
            None => Self::Shm(test_kit::hostile::shm::try_dial(address)?),
        })
    }

    fn wait_until_dropped(self) {
        match self {
            Self::Shm(socket) => drop(test_kit::hostile::shm::hear(&socket)),
            Self::Tcp(mut stream) => drop(stream.read(&mut [0])),
        }
    }
}
