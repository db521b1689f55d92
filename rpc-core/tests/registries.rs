//! Servers that announce themselves: what a registry learns, and when.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use rpc_core::server::{Register, Registered};
use rpc_core::{Address, Channel, Server};
use test_kit::Watchdog;

#[rpc_core::service]
trait Greeter {
    async fn greet(&self) -> String;
}

struct Polite;

impl Greeter for Polite {
    async fn greet(&self) -> String {
        "Good day".into()
    }
}

/// How a registry behaves at the end.
#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Leaves,
    Hangs,
    Panics,
}

/// Writes down what it learns.
#[derive(Clone)]
struct Journal(End, Arc<Mutex<Vec<String>>>);

impl Journal {
    fn write(&self, line: &str) {
        self.1.lock().unwrap().push(line.to_owned());
    }

    fn lines(&self) -> Vec<String> {
        self.1.lock().unwrap().clone()
    }
}

impl Register for Journal {
    fn name(&self) -> String {
        "journal".into()
    }

    fn check(&self, addresses: &[Address]) -> Result<(), String> {
        match addresses {
            [Address::Mem(_), ..] => Ok(()),
            _ => Err("only mem:// is written down".into()),
        }
    }

    fn keep(&self, server: Registered) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.write(&format!("{} serves", server.addresses()[0]));
            server.draining().await;
            self.write("draining");
            server.leaving().await;
            self.write("leaving");
            match self.0 {
                End::Leaves => {}
                End::Hangs => std::future::pending().await,
                End::Panics => std::panic::resume_unwind(Box::new("on purpose")),
            }
        })
    }
}

#[tokio::test(start_paused = true)]
async fn registries_learn_the_phases_in_order() {
    let _watchdog = Watchdog::start("registries of a server");
    for end in [End::Leaves, End::Hangs, End::Panics] {
        let address = format!("mem://registries-{end:?}");
        let journal = Journal(end, Arc::default());
        let server = Server::builder()
            .add_service(GreeterServer::new(Polite))
            .register(journal.clone())
            .drain_lead(Duration::from_secs(10))
            .bind(&address)
            .await
            .unwrap();
        assert_eq!(journal.lines(), Vec::<String>::new(), "nobody serves yet");
        let handle = server.shutdown_handle();
        let serving = tokio::spawn(server.serve());
        let greeter = GreeterClient::new(Channel::builder().connect(&address).await.unwrap());
        greeter.greet().await.unwrap();
        assert_eq!(journal.lines(), [format!("{address} serves")]);
        handle.shutdown();
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(journal.lines()[1..], ["draining"]);
        greeter.greet().await.expect("it serves for the lead time");
        tokio::time::timeout(Duration::from_secs(60), serving).await.unwrap().unwrap().unwrap();
        assert_eq!(journal.lines()[1..], ["draining", "leaving"], "{end:?}");
    }
}

#[tokio::test]
async fn a_refused_address_is_not_bound() {
    let journal = Journal(End::Leaves, Arc::default());
    let builder = Server::builder().register(journal);
    let error = builder.clone().bind("tcp://127.0.0.1:0").await.unwrap_err().to_string();
    assert!(error.contains("journal: only mem:// is written down"), "{error}");
    builder.bind("mem://registries-refused").await.unwrap();
}
