//! EndpointSlices of an API server that the test plays, request by request.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod server;

use std::time::Duration;

use futures::StreamExt;
use rpc_core::client::resolve::Resolve;
use rpc_discovery::Kubernetes;
use test_kit::Watchdog;
use tokio::sync::mpsc;

use self::server::{Api, list, slice};

/// What a watch says: addresses, or an error.
type Words = mpsc::UnboundedReceiver<Result<Vec<String>, String>>;

fn named(api: &Api) -> Kubernetes {
    format!("k8s://127.0.0.1:{}/shop/kv:rpc", api.port).parse().unwrap()
}

/// Watches in a task of its own.
fn watched(kubernetes: Kubernetes) -> Words {
    let (told, words) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut sets = kubernetes.watch().unwrap();
        while let Some(word) = sets.next().await {
            let word = word.map_err(|error| error.to_string());
            let shown =
                word.map(|servers| servers.iter().map(|it| it.address().to_string()).collect());
            if told.send(shown).is_err() {
                break;
            }
        }
    });
    words
}

#[tokio::test]
async fn a_watch_continues_where_the_last_ended() {
    let _watchdog = Watchdog::start("a watch of EndpointSlices");
    let mut api = Api::start().await;
    let mut words = watched(named(&api));
    let request = api.next().await;
    assert!(request.head.starts_with(
        "GET /apis/discovery.k8s.io/v1/namespaces/shop/endpointslices\
         ?labelSelector=kubernetes.io%2Fservice-name%3Dkv HTTP/1.1\r\n"
    ));
    request.answer(200, &list(10, &[slice("x", 9, "10.0.0.1")])).await;
    assert_eq!(words.recv().await.unwrap().unwrap(), ["auto://10.0.0.1:7000"]);

    let mut watch = api.next().await;
    assert!(watch.head.contains("watch=1&allowWatchBookmarks=true"), "{}", watch.head);
    assert!(watch.head.contains("&resourceVersion=10 "), "{}", watch.head);
    watch.begin().await;
    watch.event("ADDED", &slice("y", 11, "10.0.0.2")).await;
    let both = ["auto://10.0.0.1:7000", "auto://10.0.0.2:7000"];
    assert_eq!(words.recv().await.unwrap().unwrap(), both);
    watch.event("BOOKMARK", r#"{"metadata":{"resourceVersion":"500"}}"#).await;
    // Its time is over.
    drop(watch);
    let mut watch = api.next().await;
    assert!(watch.head.contains("&resourceVersion=500 "), "it lists again: {}", watch.head);
    watch.begin().await;
    watch.event("DELETED", &slice("x", 501, "10.0.0.1")).await;
    assert_eq!(words.recv().await.unwrap().unwrap(), ["auto://10.0.0.2:7000"]);
}

#[tokio::test]
async fn a_version_that_is_gone_lists_anew() {
    let _watchdog = Watchdog::start("410 Gone");
    let mut api = Api::start().await;
    let mut words = watched(named(&api));
    for (turn, is_event) in [true, false].into_iter().enumerate() {
        let ip = format!("10.0.0.{turn}");
        let request = api.next().await;
        assert!(!request.head.contains("watch=1"), "{}", request.head);
        request.answer(200, &list(10, &[slice("x", 9, &ip)])).await;
        let expected = [format!("auto://{ip}:7000")];
        assert_eq!(words.recv().await.unwrap().unwrap(), expected);
        let mut watch = api.next().await;
        assert!(watch.head.contains("watch=1"), "{}", watch.head);
        let gone = r#"{"code":410,"message":"too old resource version"}"#;
        if is_event {
            watch.begin().await;
            watch.event("ERROR", gone).await;
        } else {
            watch.answer(410, gone).await;
        }
    }
    assert!(!api.next().await.head.contains("watch=1"));
}

#[tokio::test]
async fn a_rotated_token_is_read_again() {
    let _watchdog = Watchdog::start("a token that rotates");
    let mut api = Api::start().await;
    let token = std::env::temp_dir().join(format!("rpc-kubernetes-token-{}", api.port));
    std::fs::write(&token, "one\n").unwrap();
    let mut words = watched(named(&api).token_file(&token));
    let request = api.next().await;
    assert!(request.head.contains("authorization: Bearer one\r\n"), "{}", request.head);
    request.answer(200, &list(10, &[])).await;
    assert_eq!(words.recv().await.unwrap().unwrap(), Vec::<String>::new());
    std::fs::write(&token, "two").unwrap();
    let request = api.next().await;
    assert!(request.head.contains("authorization: Bearer two\r\n"), "{}", request.head);
    request.answer(401, r#"{"message":"Unauthorized"}"#).await;
    let error = words.recv().await.unwrap().unwrap_err();
    assert!(error.contains("401") && error.contains("the service account needs"), "{error}");
    assert!(!error.contains("two"), "{error}");
    std::fs::remove_file(&token).unwrap();
    let error = words.recv().await.unwrap().unwrap_err();
    assert!(error.contains("rpc-kubernetes-token"), "{error}");
}

#[tokio::test]
async fn a_silent_api_server_is_an_error() {
    let _watchdog = Watchdog::start("an API server that is silent");
    let mut api = Api::start().await;
    let mut words = watched(named(&api).request_timeout(Duration::from_millis(100)));
    let _silent = api.next().await;
    let error = words.recv().await.unwrap().unwrap_err();
    assert!(error.contains("no answer within 100ms"), "{error}");
    let request = api.next().await;
    request.answer(200, "<html>").await;
    let error = words.recv().await.unwrap().unwrap_err();
    assert!(error.contains("not a list"), "{error}");
}

#[tokio::test]
async fn the_api_server_must_have_a_trusted_certificate() {
    let _watchdog = Watchdog::start("an API server with TLS");
    for is_trusted in [true, false] {
        let mut api = Api::start_with_tls().await;
        let ca = if is_trusted { api.ca_file() } else { Api::start_with_tls().await.ca_file() };
        let named = named(&api).ca_file(&ca);
        let asked = tokio::spawn(async move { named.resolve().await });
        if is_trusted {
            api.next().await.answer(200, &list(1, &[slice("x", 1, "10.0.0.1")])).await;
            assert_eq!(asked.await.unwrap().unwrap().len(), 1);
        } else {
            let error = asked.await.unwrap().unwrap_err().to_string();
            assert!(error.contains("certificate"), "{error}");
        }
        std::fs::remove_file(&ca).unwrap();
    }
}
