//! Processes that may open few files.

use std::io::{self, Read};
use std::net::TcpStream;
use std::sync::mpsc;

use tests::scheme::Scheme;
use tests::world::World;

use crate::SERVER;

mod between_processes {
    on_scheme!(shm, ShmName, silent_peers_beyond_the_limit_on_open_files_keep_nobody_out);
    on_scheme!(tcp, Tcp, silent_peers_beyond_the_limit_on_open_files_keep_nobody_out);

    use super::silent_peers_beyond_the_limit_on_open_files_keep_nobody_out;
}

const OPEN_FILES: usize = 64;
/// As many as wait in a listener's backlog, so that an honest client finds a place there.
const PEERS: usize = 120;

async fn silent_peers_beyond_the_limit_on_open_files_keep_nobody_out(scheme: Scheme) {
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

/// A connection on which nothing is said.
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
