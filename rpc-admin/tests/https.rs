//! The page and the metrics over TLS: who is served.
#![cfg(feature = "tls")]
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use rpc_admin::{Admin, Metrics};
use rpc_core::security::Tls;
use rpc_core::{Server, Status};
use test_kit::Watchdog;
use test_kit::certificates::{Authority, Leaf};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

fn watchdog() -> Watchdog {
    Watchdog::within(Duration::from_secs(60))
}

fn tls_of(leaf: &Leaf, authority: &Authority) -> Tls {
    Tls::from_pem_bytes(&leaf.cert, &leaf.key, authority.pem()).unwrap()
}

/// An HTTPS client that trusts an authority, and shows a certificate if it has one.
fn client(trusts: &Authority, shows: Option<&Leaf>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusts.pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    let config = match shows {
        None => builder.with_no_client_auth(),
        Some(leaf) => {
            let cert = CertificateDer::from_pem_slice(leaf.cert.as_bytes()).unwrap();
            let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(vec![cert], key).unwrap()
        }
    };
    TlsConnector::from(Arc::new(config))
}

const REQUEST: &str = "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// The response to a request.
async fn get(client: &TlsConnector, address: SocketAddr) -> io::Result<String> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = client.connect(name, stream).await?;
    stream.write_all(REQUEST.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

async fn page(tls: Tls) -> SocketAddr {
    let server = Server::builder().bind("mem://").await.unwrap();
    let admin = Admin::new(server.stats_handle()).tls(tls).bind(([127, 0, 0, 1], 0)).await.unwrap();
    let address = admin.local_address();
    assert_eq!(admin.url(), format!("https://{address}/"));
    tokio::spawn(server.serve());
    tokio::spawn(admin.serve());
    address
}

async fn is_served(client: &TlsConnector, address: SocketAddr) -> bool {
    get(client, address).await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 "))
}

#[tokio::test]
async fn only_clients_with_certificates_are_served() {
    let _watchdog = watchdog();
    let (own, other) = (Authority::new("own"), Authority::new("other"));
    let (server, friend) = (own.issue(&["localhost"]), own.issue(&["friend"]));
    let address = page(tls_of(&server, &own)).await;
    assert!(is_served(&client(&own, Some(&friend)), address).await);

    let stranger = other.issue(&["friend"]);
    for shown in [None, Some(&stranger)] {
        let answer = get(&client(&own, shown), address).await;
        assert!(answer.is_err(), "{answer:?}");
    }
    let answer = get(&client(&other, Some(&friend)), address).await;
    assert!(answer.unwrap_err().to_string().contains("UnknownIssuer"));

    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(REQUEST.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    // At most an alert.
    assert!(answer.len() <= 7 && !answer.starts_with(b"HTTP"), "{answer:?}");
}

#[tokio::test]
async fn metrics_ask_the_user_about_each_client() {
    let _watchdog = watchdog();
    let own = Authority::new("own");
    let [prometheus, other] =
        ["prometheus", "other"].map(|name| own.issue(&[&format!("spiffe://prod.example/{name}")]));
    let tls = tls_of(&own.issue(&["localhost"]), &own).authorize(|peer| match peer.spiffe() {
        Some(id) if id.path() == "/prometheus" => Ok(()),
        _ => Err(Status::permission_denied("prometheus alone")),
    });
    let server = Server::builder().bind("mem://").await.unwrap();
    // Each reader has proven who it is: so it need not be a loopback address.
    let metrics = Metrics::new(server.stats_handle()).tls(tls).bind(([0, 0, 0, 0], 0));
    let metrics = metrics.await.unwrap();
    let address = ([127, 0, 0, 1], metrics.local_address().port()).into();
    tokio::spawn(server.serve());
    tokio::spawn(metrics.serve());
    assert!(is_served(&client(&own, Some(&prometheus)), address).await);
    let answer = get(&client(&own, Some(&other)), address).await;
    assert!(answer.as_ref().map_or(true, String::is_empty), "{answer:?}");
}

#[tokio::test]
async fn clients_without_certificates_need_two_words() {
    let _watchdog = watchdog();
    let own = Authority::new("own");
    let tls = tls_of(&own.issue(&["localhost"]), &own).allow_anonymous_clients();
    assert!(is_served(&client(&own, None), page(tls.clone()).await).await);
    let server = Server::builder().bind("mem://").await.unwrap();
    let admin = Admin::new(server.stats_handle()).tls(tls);
    let error = admin.bind(([0, 0, 0, 0], 0)).await.unwrap_err().to_string();
    assert!(error.contains("`Admin::public`"), "{error}");
}

/// The port alone has the certificates: no server and no channel reads them again.
#[tokio::test]
async fn changed_files_reach_new_connections() {
    let _watchdog = watchdog();
    let directory = std::env::temp_dir().join(format!("rpc-https-{}", std::process::id()));
    fs::create_dir(&directory).unwrap();
    let [cert, key, ca] = ["server.pem", "key.pem", "ca.pem"].map(|it| directory.join(it));
    let write = |authority: &Authority| {
        let leaf = authority.issue(&["localhost"]);
        let files = [(&cert, &leaf.cert), (&key, &leaf.key), (&ca, &authority.pem())];
        files.into_iter().for_each(|(path, text)| fs::write(path, text).unwrap());
    };
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let [old_client, new_client] = [&old, &new].map(|it| client(it, Some(&it.issue(&["friend"]))));
    write(&old);
    let tls = Tls::from_pem(&cert, &key, &ca).unwrap().reload_every(Duration::from_millis(1));
    let address = page(tls).await;
    assert!(is_served(&old_client, address).await && !is_served(&new_client, address).await);

    write(&new);
    while !is_served(&new_client, address).await {}
    assert!(!is_served(&old_client, address).await);
    fs::remove_dir_all(directory).unwrap();
}

/// More silent clients than connections.
#[tokio::test]
async fn slow_handshakes_block_nobody_and_end() {
    let _watchdog = watchdog();
    let own = Authority::new("own");
    let address = page(tls_of(&own.issue(&["localhost"]), &own)).await;
    let mut slow = Vec::new();
    for _ in 0..40 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The beginning of a ClientHello.
        stream.write_all(&[0x16, 3, 1, 0, 200, 1, 0, 0]).await.unwrap();
        slow.push(stream);
    }
    assert!(is_served(&client(&own, Some(&own.issue(&["friend"]))), address).await);
    // From here on, time passes when all tasks wait.
    tokio::time::pause();
    for mut stream in slow {
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(6), stream.read_to_end(&mut answer));
        assert!(ended.await.is_ok() && answer.is_empty(), "{answer:?}");
    }
}

#[tokio::test]
async fn raw_keys_are_of_no_use_for_http() {
    let _watchdog = watchdog();
    let own = Authority::new("own");
    let (leaf, peer) = (own.issue(&["a"]), own.issue(&["b"]));
    let public = test_kit::certificates::rcgen::KeyPair::from_pem(&peer.key).unwrap();
    let tls = Tls::raw_keys(&leaf.key, [public.public_key_pem()]).unwrap();
    let server = Server::builder().bind("mem://").await.unwrap();
    let admin = Admin::new(server.stats_handle()).tls(tls).bind(([127, 0, 0, 1], 0));
    let error = admin.await.unwrap_err().to_string();
    assert!(error.contains("`Tls::from_pem`"), "{error}");
}
