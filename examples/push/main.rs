//! `push`: a server that calls its clients, as soon as it has news.
//!
//! ```sh
//! push serve auto://127.0.0.1:7482            # each line of its stdin goes to all who read
//! push read auto://127.0.0.1:7482 Ada         # in other terminals, as many as you like
//! ```
//!
//! Readers connect, and serve `Reader` on that connection: nobody can connect to them, nor needs to. A
//! reader that has gone is forgotten, as is one that takes longer than five seconds for an article: the
//! next article waits for that long. A server that comes back finds its readers again.

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use clap::Parser;
use rpc_core::{CallError, Channel, Code, ConnectionHandle, Context, Server, Status};
use tokio::io::{AsyncBufReadExt, BufReader};

/// What the server has.
#[rpc_core::service]
trait News {
    /// From now on the caller is told what is new.
    #[rpc(idempotent)]
    async fn subscribe(&self, name: &str) -> Result<(), CallError<Taken>>;
}

/// What its clients have.
#[rpc_core::service]
trait Reader {
    async fn article(&self, text: &str);
}

/// Another one has that name.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
#[serde(crate = "rpc_core::serde")]
struct Taken;

/// How long a reader may take for an article.
const PATIENCE: Duration = Duration::from_secs(5);
const MOST_READERS: usize = 1_000;
/// Pause before a reader asks a server again that has refused it or gone away.
const PAUSE: Duration = Duration::from_secs(1);

/// The readers, by name. Handles keep no connection alive.
#[derive(Default)]
struct Desk(Mutex<HashMap<String, ConnectionHandle>>);

impl Desk {
    fn readers(&self) -> MutexGuard<'_, HashMap<String, ConnectionHandle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells all readers at once, and forgets those that cannot be told. Gives how many were told.
    async fn publish(&self, text: &str) -> usize {
        let readers: Vec<_> =
            self.readers().iter().map(|(name, reader)| (name.clone(), reader.clone())).collect();
        let started: Vec<_> = readers
            .into_iter()
            .map(|(name, reader)| {
                let call =
                    ReaderClient::new(reader.channel()).article(text).timeout(PATIENCE).start();
                (name, reader, call)
            })
            .collect();
        let mut told = 0;
        for (name, reader, call) in started {
            match call.await {
                Ok(()) => told += 1,
                Err(status) => {
                    eprintln!("{name} is not told: {status}");
                    let mut readers = self.readers();
                    // Unless it has come back meanwhile.
                    if readers.get(&name) == Some(&reader) {
                        readers.remove(&name);
                    }
                }
            }
        }
        told
    }
}

impl News for Desk {
    async fn subscribe(&self, name: &str) -> Result<(), CallError<Taken>> {
        let reader = Context::current()
            .connection()
            .ok_or_else(|| Status::failed_precondition("subscribe over a connection"))?;
        let mut readers = self.readers();
        readers.retain(|_, other| other.close_cause().is_none());
        match readers.get(name) {
            Some(other) if *other != reader => return Err(CallError::User(Taken)),
            None if readers.len() == MOST_READERS => {
                return Err(Status::resource_exhausted("there are 1,000 readers already").into());
            }
            _ => readers.insert(name.to_owned(), reader),
        };
        drop(readers);
        println!("{name} reads");
        Ok(())
    }
}

/// Shows what it is told.
struct Shown;

impl Reader for Shown {
    async fn article(&self, text: &str) {
        println!("{text}");
    }
}

async fn serve(address: &str) -> Result<(), Box<dyn std::error::Error>> {
    let desk = Arc::new(Desk::default());
    let news = NewsServer::from_arc(Arc::clone(&desk));
    let server = Server::builder().add_service(news).bind(address).await?;
    println!("READY {}", server.local_address());
    let publishing = async {
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        while let Some(line) = lines.next_line().await? {
            println!("told {}", desk.publish(&line).await);
        }
        Ok::<_, std::io::Error>(())
    };
    // It ends with its stdin.
    let mut outcome = Ok(());
    server.serve_until(async { outcome = publishing.await }).await?;
    Ok(outcome?)
}

async fn read(address: &str, name: &str) -> Result<(), Box<dyn std::error::Error>> {
    let channel = Channel::builder()
        .wait_for_ready(true)
        .serve(ReaderServer::new(Shown))
        .connect_lazy(address)?;
    let news = NewsClient::new(channel.clone());
    loop {
        match news.subscribe(name).await {
            Ok(()) => {
                println!("reading as {name}");
                let cause = channel.closed().await;
                eprintln!("the server is away: {cause}");
            }
            Err(CallError::User(Taken)) => {
                return Err(format!("another reader is called {name}").into());
            }
            Err(CallError::Status(status)) if status.code() == Code::Unavailable => {
                eprintln!("{status}");
            }
            Err(CallError::Status(status)) => return Err(status.into()),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// A server that calls its clients.
#[derive(Parser)]
#[command(version)]
enum Options {
    /// Tells each line of its stdin to all readers.
    Serve {
        /// Where to listen.
        address: String,
    },
    /// Shows what the server tells.
    Read {
        /// Where the server is.
        address: String,
        /// Who reads; no two readers have one name.
        name: String,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    examples::logging::init();
    let outcome = match Options::parse() {
        Options::Serve { address } => serve(&address).await,
        Options::Read { address, name } => read(&address, &name).await,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
