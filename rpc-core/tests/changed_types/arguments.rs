//! Arguments that are added, removed, moved or borrowed.

use futures::StreamExt;
use rpc_core::stream::{self, Stream, Streaming};
use rpc_core::{CallError, Code};
use serde::{Deserialize, Serialize};

mod old {
    use super::*;

    #[rpc_core::service]
    pub trait Log {
        async fn write(&self, level: u8, text: &str) -> String;
        async fn read(&self, from: u32, bytes: &[u8]) -> String;
        async fn none(&self) -> u32;
        async fn needs(&self, a: u32) -> u32;
        async fn fill(&self, text: &str) -> String;
        fn repeat(&self, text: &str) -> impl Stream<Item = String>;
        async fn join(&self, texts: Streaming<String>) -> String;
    }
}

mod new {
    use super::*;

    /// Has another default than its parts.
    #[derive(Clone, Serialize, Deserialize)]
    pub struct Style {
        pub mark: String,
    }

    impl Default for Style {
        fn default() -> Self {
            Self { mark: "-".into() }
        }
    }

    #[rpc_core::service]
    pub trait Log {
        async fn write(&self, tag: Option<&str>, text: &str, level: u32) -> String;
        async fn read(&self, bytes: &[u8], from: u32, limit: Option<u64>) -> String;
        async fn none(&self, more: Option<Vec<u8>>) -> u64;
        async fn needs(&self, a: u32, b: u32) -> u32;
        async fn fill(
            &self,
            #[rpc(default)] style: &Style,
            #[rpc(default)] bytes: &[u8],
            text: &str,
            #[rpc(default)] count: u32,
        ) -> String;
        fn repeat(&self, text: &str, #[rpc(default)] style: Style) -> impl Stream<Item = String>;
        async fn join(&self, #[rpc(default)] style: Style, texts: Streaming<String>) -> String;
    }
}

struct Shows;

impl old::Log for Shows {
    async fn write(&self, level: u8, text: &str) -> String {
        format!("{level} {text}")
    }
    async fn read(&self, from: u32, bytes: &[u8]) -> String {
        format!("{from} {}", bytes.len())
    }
    async fn none(&self) -> u32 {
        1
    }
    async fn needs(&self, a: u32) -> u32 {
        a
    }
    async fn fill(&self, text: &str) -> String {
        text.to_owned()
    }
    fn repeat(&self, text: &str) -> impl Stream<Item = String> {
        stream::iter(vec![text.to_owned(); 2])
    }
    async fn join(&self, texts: Streaming<String>) -> String {
        joined(texts, "+").await
    }
}

impl new::Log for Shows {
    async fn write(&self, tag: Option<&str>, text: &str, level: u32) -> String {
        format!("{tag:?} {text} {level}")
    }
    async fn read(&self, bytes: &[u8], from: u32, limit: Option<u64>) -> String {
        format!("{} {from} {limit:?}", bytes.len())
    }
    async fn none(&self, more: Option<Vec<u8>>) -> u64 {
        more.map_or(2, |more| more.len() as u64)
    }
    async fn needs(&self, a: u32, b: u32) -> u32 {
        a + b
    }
    async fn fill(&self, style: &new::Style, bytes: &[u8], text: &str, count: u32) -> String {
        format!("{} {} {text} {count}", style.mark, bytes.len())
    }
    fn repeat(&self, text: &str, style: new::Style) -> impl Stream<Item = String> {
        stream::iter(vec![format!("{}{text}", style.mark); 2])
    }
    async fn join(&self, style: new::Style, texts: Streaming<String>) -> String {
        joined(texts, &style.mark).await
    }
}

async fn joined(texts: Streaming<String>, mark: &str) -> String {
    let texts = texts.map(Result::unwrap).collect::<Vec<_>>().await;
    texts.join(mark)
}

fn texts() -> impl Stream<Item = String> + Send + 'static {
    stream::iter(["a".to_owned(), "b".to_owned()])
}

#[test]
fn an_old_client_leaves_arguments_out() {
    crate::run(async {
        for channel in crate::channels(|| new::LogServer::new(Shows)).await {
            let log = old::LogClient::new(channel);
            for _ in 0..2 {
                assert_eq!(log.write(3, "text").await.unwrap(), "None text 3");
                // Large enough to be sent separately.
                assert_eq!(log.read(4, &vec![7; 90_000]).await.unwrap(), "90000 4 None");
                assert_eq!(log.none().await.unwrap(), 2);
                let status = log.needs(1).await.unwrap_err();
                assert_eq!(status.code(), Code::FailedPrecondition);
                assert_eq!(log.fill("text").await.unwrap(), "- 0 text 0");
                let items = log.repeat("text").await.unwrap();
                let items = items.map(Result::unwrap).collect::<Vec<_>>().await;
                assert_eq!(items, ["-text"; 2]);
                assert_eq!(log.join(texts()).await.unwrap(), "a-b");
                crate::assert_has(&status, &["Log.needs", "no argument `b`", "#[rpc(default)]"]);
            }
        }
    });
}

#[test]
fn an_old_server_skips_further_arguments() {
    crate::run(async {
        for channel in crate::channels(|| old::LogServer::new(Shows)).await {
            let log = new::LogClient::new(channel);
            for _ in 0..2 {
                assert_eq!(log.write(Some("tag"), "text", 3).await.unwrap(), "3 text");
                let found = log.read(&vec![7; 90_000], 4, Some(5)).await;
                assert_eq!(found.unwrap(), "4 90000");
                assert_eq!(log.none(Some(vec![7; 80_000])).await.unwrap(), 1);
                assert_eq!(log.needs(1, 2).await.unwrap(), 1);
                let style = new::Style { mark: "*".into() };
                let filled = log.fill(&style, &vec![7; 80_000], "text", 5).await;
                assert_eq!(filled.unwrap(), "text");
                let items = log.repeat("text", style.clone()).await.unwrap();
                let items = items.map(Result::unwrap).collect::<Vec<_>>().await;
                assert_eq!(items, ["text"; 2]);
                assert_eq!(log.join(style, texts()).await.unwrap(), "a+b");
                let status = log.write(None, "text", 300).await.unwrap_err();
                assert_eq!(status.code(), Code::InvalidArgument);
                crate::assert_has(&status, &["level", "300 fits no u8"]);
            }
        }
    });
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum OldError {
    Locked { by: String },
    Gone,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub enum NewError {
    Full,
    Locked { by: String, since: Option<u64> },
}

mod old_errors {
    use super::OldError;

    #[rpc_core::service]
    pub trait Errors {
        async fn fail(&self, which: u8) -> Result<u8, OldError>;
        async fn plain(&self, which: u8) -> u32;
    }
}

mod new_errors {
    use super::NewError;

    #[rpc_core::service]
    pub trait Errors {
        async fn fail(&self, which: u8) -> Result<u16, NewError>;
        async fn plain(&self, which: u8) -> Result<u32, NewError>;
    }
}

impl old_errors::Errors for Shows {
    async fn fail(&self, which: u8) -> Result<u8, OldError> {
        match which {
            0 => Ok(7),
            1 => Err(OldError::Locked { by: "me".into() }),
            _ => Err(OldError::Gone),
        }
    }
    async fn plain(&self, which: u8) -> u32 {
        which.into()
    }
}

impl new_errors::Errors for Shows {
    async fn fail(&self, which: u8) -> Result<u16, NewError> {
        match which {
            0 => Ok(7),
            1 => Err(NewError::Locked { by: "me".into(), since: Some(1) }),
            _ => Err(NewError::Full),
        }
    }
    async fn plain(&self, which: u8) -> Result<u32, NewError> {
        if which == 0 { Ok(7) } else { Err(NewError::Full) }
    }
}

#[test]
fn changed_errors_are_read_or_become_a_status() {
    crate::run(async {
        for channel in crate::channels(|| old_errors::ErrorsServer::new(Shows)).await {
            let errors = new_errors::ErrorsClient::new(channel);
            assert_eq!(errors.fail(0).await, Ok(7));
            let locked = NewError::Locked { by: "me".into(), since: None };
            assert_eq!(errors.fail(1).await, Err(CallError::User(locked)));
            let Err(CallError::Status(status)) = errors.fail(2).await else { panic!("unknown") };
            assert_eq!(status.code(), Code::Unknown);
            crate::assert_has(&status, &["Errors.fail", "Gone"]);
            assert_eq!(errors.plain(9).await, Ok(9));
        }
        for channel in crate::channels(|| new_errors::ErrorsServer::new(Shows)).await {
            let errors = old_errors::ErrorsClient::new(channel);
            assert_eq!(errors.fail(0).await, Ok(7));
            let locked = OldError::Locked { by: "me".into() };
            assert_eq!(errors.fail(1).await, Err(CallError::User(locked)));
            let Err(CallError::Status(status)) = errors.fail(2).await else { panic!("unknown") };
            assert_eq!(status.code(), Code::Unknown);
            crate::assert_has(&status, &["Errors.fail", "Full"]);
            assert_eq!(errors.plain(0).await, Ok(7));
            let status = errors.plain(1).await.unwrap_err();
            assert_eq!(status.code(), Code::Unknown);
            crate::assert_has(&status, &["Errors.plain", "no error type here"]);
        }
    });
}
