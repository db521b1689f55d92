//! Blocking clients: where they work, where they refuse to, and that they leave nothing behind.
#![allow(missing_docs, clippy::unwrap_used, reason = "the services here are examples")]

use std::time::{Duration, Instant};

use rpc_core::client::blocking::BlockingChannel;
use rpc_core::{CallError, Code, ConnectError, Context};
use tests::serve_elsewhere;

#[rpc_core::service]
pub trait Kv {
    async fn get(&self, key: &str) -> Option<Vec<u8>>;
    async fn put(&self, key: &str, value: &[u8]) -> Result<u64, String>;
    async fn wait(&self);
    /// The caller's metadata for that key.
    async fn metadata(&self, key: &str) -> Option<String>;
}

struct Store;

impl Kv for Store {
    async fn get(&self, key: &str) -> Option<Vec<u8>> {
        // Timers work: the client's thread drives them.
        tokio::time::sleep(Duration::from_millis(1)).await;
        Some(key.as_bytes().to_vec())
    }

    async fn put(&self, _key: &str, value: &[u8]) -> Result<u64, String> {
        if value.is_empty() { Err("empty".to_owned()) } else { Ok(value.len() as u64) }
    }

    async fn wait(&self) {
        std::future::pending().await
    }

    async fn metadata(&self, key: &str) -> Option<String> {
        Context::current().metadata().text(key).map(str::to_owned)
    }
}

#[test]
fn calls_wait_for_their_replies() {
    let address = serve_elsewhere(KvServer::new(Store));
    let client = KvBlockingClient::connect(address).unwrap();
    assert_eq!(client.get("k"), Ok(Some(b"k".to_vec())));
    assert_eq!(client.put("k", b"123"), Ok(3));
    assert_eq!(client.put("k", b""), Err(CallError::User("empty".to_owned())));
    let clones: Vec<_> = (0..4)
        .map(|_| client.clone())
        .map(|client| std::thread::spawn(move || client.put("k", b"1234")))
        .collect();
    drop(client);
    for thread in clones {
        assert_eq!(thread.join().unwrap(), Ok(4), "from several threads");
    }
}

#[test]
fn a_timeout_ends_the_wait() {
    let address = serve_elsewhere(KvServer::new(Store));
    let connecting = rpc_core::Channel::connect(address);
    let channel = BlockingChannel::connect_with(connecting).unwrap();
    let hurried = KvBlockingClient::new(channel.clone().with_timeout(Duration::from_millis(5)));
    assert_eq!(hurried.wait().unwrap_err().code(), Code::DeadlineExceeded);
    let patient = KvBlockingClient::new(channel);
    assert_eq!(patient.put("k", b"1"), Ok(1), "the connection lives on");
}

#[test]
fn each_call_has_the_options_of_its_channel() {
    let address = serve_elsewhere(KvServer::new(Store));
    let client = KvBlockingClient::connect(address).unwrap();
    let with = |channel| KvBlockingClient::new(channel);
    let channel = client.channel().clone();
    let knows = with(channel.clone().with_metadata("token", "s3cret").with_metadata("hop", "1"));
    assert_eq!(knows.metadata("token"), Ok(Some("s3cret".to_owned())));
    assert_eq!(knows.metadata("hop"), Ok(Some("1".to_owned())));
    assert_eq!(client.metadata("token"), Ok(None), "of that clone alone");
    let bad = with(channel.clone().with_metadata("no\nkey", "1"));
    assert_eq!(bad.metadata("token").unwrap_err().code(), Code::InvalidArgument);
    let until = Instant::now() + Duration::from_millis(5);
    let hurried = with(channel.clone().with_deadline(until).with_timeout(Duration::from_secs(60)));
    assert_eq!(hurried.wait().unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(hurried.wait().unwrap_err().code(), Code::DeadlineExceeded, "one time for all");
    assert_eq!(client.put("k", b"1"), Ok(1));
}

#[test]
fn nobody_there_is_an_error() {
    let error = KvBlockingClient::connect("mem://nobody-is-here").unwrap_err();
    assert!(matches!(error, ConnectError::Refused { .. }), "{error}");
    let error = KvBlockingClient::connect("no address").unwrap_err();
    assert!(matches!(error, ConnectError::Address(_)), "{error}");
}

/// The text of the panic that `body` ends with.
fn panic_text(body: impl FnOnce() + std::panic::UnwindSafe) -> String {
    let panic = std::panic::catch_unwind(body).unwrap_err();
    panic.downcast_ref::<&str>().map(|text| (*text).to_owned()).unwrap_or_else(|| {
        panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "no text".to_owned())
    })
}

#[test]
fn inside_a_runtime_it_says_so() {
    let address = serve_elsewhere(KvServer::new(Store));
    let client = KvBlockingClient::connect(&address).unwrap();
    for runtime in [
        tokio::runtime::Builder::new_current_thread().build().unwrap(),
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap(),
    ] {
        let (inside, address) = (client.clone(), address.clone());
        let texts = runtime.block_on(async move {
            let task = tokio::spawn(async move {
                let connect = panic_text(|| drop(KvBlockingClient::connect(address)));
                let inside = std::panic::AssertUnwindSafe(inside);
                [connect, panic_text(move || drop(inside.get("k")))]
            });
            task.await.unwrap()
        });
        for text in texts {
            assert!(text.contains("inside an async runtime"), "{text}");
            assert!(text.contains("spawn_blocking"), "{text}");
        }
    }
    assert_eq!(client.put("k", b"1"), Ok(1), "outside it still works");
}

#[tokio::test]
async fn threads_that_may_block_may_use_it() {
    let address = serve_elsewhere(KvServer::new(Store));
    let work = move || {
        let client = KvBlockingClient::connect(address).unwrap();
        let value = client.get("k");
        (client, value)
    };
    let (client, value) = tokio::task::spawn_blocking(work).await.unwrap();
    assert_eq!(value, Ok(Some(b"k".to_vec())));
    // Dropping it is fine where it cannot be used.
    drop(client);
}
