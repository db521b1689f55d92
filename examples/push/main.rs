//! `push`: a server that calls its clients, as soon as it has news.
//!
//! ```sh
//! push serve auto://127.0.0.1:7482            # each line of its stdin goes to all who read
//! push read auto://127.0.0.1:7482 Ada         # in other terminals, as many as you like
//! ```
//!
//! Readers connect, and serve `Reader` on that connection: nobody can connect to them, nor needs
//! to. Each has a line of its own for articles, so one that hangs holds up nobody else. It is
//! forgotten when it takes longer than `--patience` for an article, or has [`MOST_WAITING`] of them
//! to read. A server that comes back finds its readers again, and a reader that comes back takes
//! its own place over.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::Parser;
use examples::options::between_processes;
use rpc_core::client::ConnectionHandle;
use rpc_core::text::{is_printable, printable};
use rpc_core::{Address, CallError, Channel, Code, Context, Server, Status};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The server's service.
#[rpc_core::service]
trait News {
    /// Sends the caller all articles from now on. `reader` is a number that the caller has chosen:
    /// with it, the caller keeps its place when it reconnects.
    #[rpc(idempotent)]
    async fn subscribe(&self, name: &str, reader: u64) -> Result<(), CallError<Taken>>;
}

/// The clients' service.
#[rpc_core::service]
trait Reader {
    async fn article(&self, text: &str);
}

/// Another reader has that name.
#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(crate = "rpc_core::serde")]
struct Taken;

const MOST_READERS: usize = 1_000;
/// Longest name, characters.
const LONGEST_NAME: usize = 64;
/// Articles that a reader may lag behind.
const MOST_WAITING: usize = 16;
/// Pause before a reader asks a server again that has refused it or gone away.
const PAUSE: Duration = Duration::from_secs(1);

/// An article on its way to a reader.
#[derive(Clone)]
struct Article {
    text: Arc<str>,
    /// The number of readers that have received it.
    told: Arc<AtomicUsize>,
    /// Each reader drops its sender when it has received the article or will not receive it.
    _on_its_way: mpsc::Sender<()>,
}

struct Place {
    reader: u64,
    /// Keeps no connection alive.
    connection: ConnectionHandle,
    articles: mpsc::Sender<Article>,
}

/// The readers, by name.
struct Desk {
    places: Arc<Mutex<HashMap<String, Place>>>,
    /// How long a reader may take for an article.
    patience: Duration,
}

fn locked(places: &Mutex<HashMap<String, Place>>) -> MutexGuard<'_, HashMap<String, Place>> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Desk {
    fn new(patience: Duration) -> Self {
        Self { places: Arc::default(), patience }
    }

    /// Gives an article to all readers, and waits for none of them. The future gives how many have
    /// read it, once no more will.
    fn publish(&self, text: &str) -> impl Future<Output = usize> + use<> {
        let told = Arc::<AtomicUsize>::default();
        let (on_its_way, mut all) = mpsc::channel(1);
        let article =
            Article { text: text.into(), told: Arc::clone(&told), _on_its_way: on_its_way };
        locked(&self.places).retain(|name, place| {
            let given = place.articles.try_send(article.clone());
            if let Err(mpsc::error::TrySendError::Full(_)) = given {
                eprintln!("dropping {name}: it is {MOST_WAITING} articles behind");
            }
            given.is_ok()
        });
        drop(article);
        async move {
            // Nothing is ever sent.
            all.recv().await;
            told.load(Ordering::Relaxed)
        }
    }

    /// Sends one reader its articles, until that fails.
    async fn tell(
        places: Arc<Mutex<HashMap<String, Place>>>,
        name: String,
        connection: ConnectionHandle,
        mut articles: mpsc::Receiver<Article>,
        patience: Duration,
    ) {
        let reader = ReaderClient::new(connection.channel());
        while let Some(article) = articles.recv().await {
            match reader.article(&article.text).timeout(patience).await {
                Ok(()) => {
                    article.told.fetch_add(1, Ordering::Relaxed);
                }
                Err(status) => {
                    eprintln!("cannot notify {name}: {status}");
                    let mut places = locked(&places);
                    // Unless the reader has reconnected in the meantime.
                    if places.get(&name).is_some_and(|place| place.connection == connection) {
                        places.remove(&name);
                    }
                    return;
                }
            }
        }
    }
}

impl News for Desk {
    async fn subscribe(&self, name: &str, reader: u64) -> Result<(), CallError<Taken>> {
        let length = name.chars().count();
        if !(1..=LONGEST_NAME).contains(&length) || !is_printable(name) {
            let text = format!("a name has 1 to {LONGEST_NAME} printable characters");
            return Err(Status::invalid_argument(text).into());
        }
        let connection = Context::current()
            .connection()
            .ok_or_else(|| Status::failed_precondition("subscribe over a connection"))?;
        let mut places = locked(&self.places);
        places.retain(|_, place| place.connection.close_cause().is_none());
        match places.get(name) {
            Some(place) if place.reader != reader => return Err(CallError::User(Taken)),
            // A repeated call.
            Some(place) if place.connection == connection => return Ok(()),
            None if places.len() == MOST_READERS => {
                return Err(Status::resource_exhausted("there are already 1,000 readers").into());
            }
            _ => {}
        }
        let (articles, waiting) = mpsc::channel(MOST_WAITING);
        let place = Place { reader, connection: connection.clone(), articles };
        places.insert(name.to_owned(), place);
        drop(places);
        let (places, name) = (Arc::clone(&self.places), name.to_owned());
        println!("{name} reads");
        // The task ends when its place is given up.
        tokio::spawn(Self::tell(places, name, connection, waiting, self.patience));
        Ok(())
    }
}

/// Prints articles.
struct Shown;

impl Reader for Shown {
    async fn article(&self, text: &str) {
        println!("{}", printable(text));
    }
}

async fn serve(address: &Address, patience: Duration) -> Result<(), Box<dyn std::error::Error>> {
    let desk = Arc::new(Desk::new(patience));
    let news = NewsServer::from_arc(Arc::clone(&desk));
    let server = Server::builder().add_service(news).bind(&address.to_string()).await?;
    println!("READY {}", server.local_address());
    let publishing = async {
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        let mut publishing = JoinSet::new();
        while let Some(line) = lines.next_line().await? {
            let told = desk.publish(&line);
            publishing.spawn(async move { println!("sent to {}", told.await) });
            while publishing.try_join_next().is_some() {}
        }
        publishing.join_all().await;
        Ok::<_, std::io::Error>(())
    };
    // It ends with its stdin.
    let mut outcome = Ok(());
    server.serve_until(async { outcome = publishing.await }).await?;
    Ok(outcome?)
}

async fn read(address: &Address, name: &str) -> Result<(), Box<dyn std::error::Error>> {
    let channel =
        Channel::builder().serve(ReaderServer::new(Shown)).connect_lazy(address.to_string())?;
    let news = NewsClient::new(channel.clone());
    // Hashers start with a random number.
    let reader = RandomState::new().build_hasher().finish();
    let mut is_said = false;
    loop {
        match news.subscribe(name, reader).await {
            Ok(()) => {
                println!("reading as {name}");
                is_said = false;
                let cause = channel.closed().await;
                eprintln!("the server is unavailable: {cause}");
            }
            Err(CallError::User(Taken)) => {
                let text = format!(
                    "another reader is called {name}: choose another name, or stop that reader; if \
                     it is gone, try again later, when the server has noticed that its connection \
                     is dead"
                );
                return Err(text.into());
            }
            Err(CallError::Status(status)) if status.code() == Code::Unavailable => {
                // Once, however long the server is away.
                if !is_said {
                    eprintln!("waiting for the server: {status}");
                }
                is_said = true;
            }
            Err(CallError::Status(status)) => return Err(status.into()),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// A server that calls its clients.
#[derive(Parser)]
#[command(
    name = "push",
    version,
    after_help = "Examples:
  push serve auto://127.0.0.1:7482         sends each line of its stdin to all readers; ends with it
  push read auto://127.0.0.1:7482 Ada      in other terminals; Ctrl-C ends it

Addresses: auto://host:port (shm, rdma or tcp, whichever is best), shm://name, shm:///path,
rdma://host:port, tcp://host:port. RUST_LOG=info shows more.

Exit status: 0 done, 1 failed, 2 wrong usage."
)]
enum Options {
    /// Sends each line of its stdin to all readers.
    Serve {
        /// Where to listen; port 0 takes a free one.
        #[arg(value_parser = between_processes)]
        address: Address,
        /// How long a reader may take for an article, seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 5)]
        patience: u64,
    },
    /// Shows the articles that the server sends.
    Read {
        /// The address of the server; waits until it is there.
        #[arg(value_parser = between_processes)]
        address: Address,
        /// The name of the reader, which must be unique.
        name: String,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    examples::logging::init();
    let outcome = match Options::parse() {
        Options::Serve { address, patience } => {
            serve(&address, Duration::from_secs(patience)).await
        }
        Options::Read { address, name } => read(&address, &name).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", printable(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records articles.
    struct Kept(mpsc::UnboundedSender<String>);

    impl Reader for Kept {
        async fn article(&self, text: &str) {
            let _ = self.0.send(text.to_owned());
        }
    }

    async fn reader(address: &str) -> (NewsClient, mpsc::UnboundedReceiver<String>) {
        let (kept, told) = mpsc::unbounded_channel();
        let channel = Channel::builder().serve(ReaderServer::new(Kept(kept)));
        (NewsClient::new(channel.connect(address).await.expect("it listens")), told)
    }

    async fn desk(name: &str) -> (Arc<Desk>, String) {
        let desk = Arc::new(Desk::new(Duration::from_secs(3600)));
        let news = NewsServer::from_arc(Arc::clone(&desk));
        let address = format!("mem://push-{name}");
        let server = Server::builder().add_service(news).bind(&address).await.expect("free");
        tokio::spawn(server.serve());
        (desk, address)
    }

    #[tokio::test]
    async fn returning_reader_takes_over_its_place() {
        let (desk, address) = desk("back").await;
        let (first, mut to_first) = reader(&address).await;
        let (second, mut to_second) = reader(&address).await;
        first.subscribe("Ada", 7).await.expect("free");
        first.subscribe("Ada", 7).await.expect("a call may come twice");
        assert_eq!(desk.publish("rain").await, 1);
        assert_eq!(to_first.recv().await.as_deref(), Some("rain"));
        assert_eq!(second.subscribe("Ada", 8).await, Err(CallError::User(Taken)));
        second.subscribe("Ada", 7).await.expect("her own place");
        assert_eq!(desk.publish("sun").await, 1);
        assert_eq!(to_second.recv().await.as_deref(), Some("sun"));
        assert!(to_first.try_recv().is_err(), "only her newest connection gets articles");
    }

    #[tokio::test]
    async fn names_are_bounded() {
        let (_, address) = desk("names").await;
        let (reader, _told) = reader(&address).await;
        for name in ["", "a\nb", &"x".repeat(65)] {
            let refused = reader.subscribe(name, 7).await.expect_err("no name");
            let CallError::Status(status) = refused else { panic!("{refused:?}") };
            assert_eq!(status.code(), Code::InvalidArgument);
            assert!(status.message().contains("1 to 64 printable characters"), "{status}");
        }
        reader.subscribe(&"ü".repeat(64), 7).await.expect("as long as it may be");
    }
}
