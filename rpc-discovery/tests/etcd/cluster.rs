//! Several members, users, and channels whose etcd fails.

use std::net::TcpListener;

use rpc_core::client::resolve::Resolve;
use rpc_discovery::Etcd;
use test_kit::Watchdog;

use super::process;
use super::watched::{Watched, quick};

const A: &str = "tcp://10.0.0.1:7";
const B: &str = "tcp://10.0.0.2:7";

#[tokio::test]
async fn a_dead_member_is_passed_over() {
    let _watchdog = Watchdog::start("a cluster with a dead member");
    let etcd = process::Etcd::start();
    etcd.put("a", A);
    // One refuses connections, one accepts them and is silent.
    let refuses = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = (silent.local_addr().unwrap().port(), silent);
    for dead in [refuses, silent.0] {
        for members in [
            format!("127.0.0.1:{dead},127.0.0.1:{}", etcd.port()),
            format!("127.0.0.1:{},127.0.0.1:{dead}", etcd.port()),
        ] {
            let resolver = quick(&format!("etcd://{members}/rpc/kv"));
            assert_eq!(resolver.resolve().await.unwrap().len(), 1);
            let mut watched = Watched::new(&resolver);
            watched.until(&[A]).await;
            etcd.put("b", B);
            watched.until(&[A, B]).await;
            etcd.delete("b");
            watched.until(&[A]).await;
            assert_eq!(watched.errors, Vec::<String>::new());
        }
    }
}

/// Follows the servers of a user over a restart.
async fn survives_a_restart(etcd: &mut process::Etcd, resolver: &Etcd) {
    let mut watched = Watched::new(resolver);
    watched.until(&[A]).await;
    // Tokens are in the memory of etcd alone: after a restart it knows none of them.
    etcd.kill();
    watched.until_error().await;
    etcd.restart();
    watched.until(&[A]).await;
    etcd.ctl(&["--user", "root:s3cret", "put", "/rpc/kv/b", r#"{"address":"tcp://10.0.0.2:7"}"#]);
    watched.until(&[A, B]).await;
}

#[tokio::test]
async fn a_user_gets_a_new_token_when_needed() {
    let _watchdog = Watchdog::start("a user of etcd");
    let mut etcd = process::Etcd::start();
    etcd.put("a", A);
    etcd.ctl(&["user", "add", "root:s3cret"]);
    etcd.ctl(&["auth", "enable"]);
    let name = etcd.name("rpc/kv");
    let nobody = quick(&name).resolve().await.unwrap_err().to_string();
    assert!(nobody.contains("check the user"), "{nobody}");
    let wrong = quick(&name).user("root", "guess").resolve().await.unwrap_err().to_string();
    assert!(wrong.contains("check the user") && !wrong.contains("guess"), "{wrong}");
    let resolver = quick(&name).user("root", "s3cret");
    survives_a_restart(&mut etcd, &resolver).await;
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn a_user_signs_in_over_tls() {
    use rpc_discovery::RegistryTls;
    use test_kit::certificates::Authority;
    use test_kit::certificates::rcgen::DistinguishedName;

    let _watchdog = Watchdog::start("etcd with TLS");
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let own = ours.issue(&["127.0.0.1"]);
    let mut etcd = process::Etcd::start_secure(&ours.pem(), &own.cert, &own.key);
    etcd.put("a", A);
    etcd.ctl(&["user", "add", "root:s3cret"]);
    etcd.ctl(&["auth", "enable"]);
    let resolver = |tls| quick(&etcd.name("rpc/kv")).tls(tls).user("root", "s3cret");
    let with_name = ours.issue(&["client.example"]);
    let client =
        ours.issue_with(&["client.example"], |it| it.distinguished_name = DistinguishedName::new());
    let stranger = other.issue(&["client.example"]);
    let right = RegistryTls::with_certificate(ours.pem(), client.cert, client.key).unwrap();
    for (tls, part) in [
        // Whether its alert arrives before the end of the connection is not certain.
        (RegistryTls::new(ours.pem()).unwrap(), ""),
        (RegistryTls::new(other.pem()).unwrap(), "UnknownIssuer"),
        (
            RegistryTls::with_certificate(ours.pem(), with_name.cert, with_name.key).unwrap(),
            "CommonName of client",
        ),
        (RegistryTls::with_certificate(ours.pem(), stranger.cert, stranger.key).unwrap(), ""),
    ] {
        let error = resolver(tls).resolve().await.unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
    let clear = quick(&etcd.name("rpc/kv")).user("root", "s3cret").resolve().await;
    assert!(clear.is_err(), "a password must not be sent in clear: {clear:?}");
    let resolver = resolver(right);
    assert_eq!(resolver.resolve().await.unwrap().len(), 1);
    survives_a_restart(&mut etcd, &resolver).await;
}

#[cfg(feature = "tls")]
#[test]
fn unusable_certificates_are_refused() {
    use rpc_discovery::RegistryTls;
    use test_kit::certificates::Authority;

    let authority = Authority::new("ours");
    let (leaf, other) = (authority.issue(&["a.example"]), authority.issue(&["b.example"]));
    let ours = authority.pem();
    let with = |chain: &str, key: &str| RegistryTls::with_certificate(&ours, chain, key);
    for (refused, part) in [
        (RegistryTls::new(""), "no certificate"),
        (RegistryTls::new(&leaf.key), "a block PRIVATE KEY is in it"),
        (with("", &leaf.key), "no certificate"),
        (with(&leaf.cert, ""), "no private key"),
        (with(&leaf.cert, &other.key), "keys may not be consistent"),
    ] {
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[tokio::test]
async fn what_is_not_etcd_is_an_error() {
    let _watchdog = Watchdog::start("a port of something else");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let answers = [
        "HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nNot Found",
        "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
        "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{\"kvs\":",
        "220 mail.example ESMTP\r\n",
        "",
    ];
    tokio::spawn(async move {
        for answer in answers {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let (mut peer, _) = listener.accept().await.unwrap();
            let _ = peer.read(&mut [0; 4096]).await;
            peer.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let resolver: Etcd = quick(&format!("etcd://127.0.0.1:{port}/rpc/kv"));
    for answer in answers {
        let error = resolver.resolve().await.unwrap_err().to_string();
        assert!(error.len() < 400, "{answer}: {error}");
    }
}
