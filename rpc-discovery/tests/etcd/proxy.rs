//! A proxy in front of etcd that holds connections back, or silences them.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Which connections work. A request for a watch is recognized by its path.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// Watches do not get to etcd; they wait.
    pub(crate) holds_watches: bool,
    /// What etcd says on watches is lost.
    pub(crate) silences_watches: bool,
}

/// A proxy; it ends when dropped.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    faults: watch::Sender<Faults>,
    /// Watches that have begun.
    watches: watch::Receiver<u32>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    pub(crate) async fn start(to: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (faults, seen) = watch::channel(Faults::default());
        let (count, watches) = watch::channel(0);
        let count = Arc::new(count);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(forward(client, to, seen.clone(), Arc::clone(&count)));
            }
        });
        Self { port, faults, watches, _tasks: tasks }
    }

    pub(crate) fn set(&self, faults: Faults) {
        self.faults.send_replace(faults);
    }

    /// Waits until this many watches have been asked for since the start.
    pub(crate) async fn watches(&self, count: u32) {
        self.watches.clone().wait_for(|now| *now >= count).await.unwrap();
    }
}

async fn forward(
    mut client: TcpStream,
    to: u16,
    mut faults: watch::Receiver<Faults>,
    watches: Arc<watch::Sender<u32>>,
) {
    let mut head = vec![0; 4096];
    let Ok(len) = client.read(&mut head).await else { return };
    let is_watch = head.starts_with(b"POST /v3/watch ");
    if is_watch {
        watches.send_modify(|count| *count += 1);
        let _ = faults.wait_for(|faults| !faults.holds_watches).await;
    }
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", to)).await else { return };
    if server.write_all(&head[..len]).await.is_err() {
        return;
    }
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let up = async { tokio::io::copy(&mut from_client, &mut to_server).await.map(drop) };
    let down = async {
        let mut bytes = vec![0; 4096];
        loop {
            let len = from_server.read(&mut bytes).await?;
            if len == 0 {
                return std::io::Result::Ok(());
            }
            if !(is_watch && faults.borrow().silences_watches) {
                to_client.write_all(&bytes[..len]).await?;
            }
        }
    };
    let _ = tokio::try_join!(up, down);
}
