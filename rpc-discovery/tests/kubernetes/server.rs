//! An API server of a test: it hands each request to the test, which answers.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

pub(crate) struct Api {
    pub(crate) port: u16,
    requests: mpsc::UnboundedReceiver<Request>,
    certificate: Option<PathBuf>,
    _task: JoinSet<()>,
}

/// A request to answer.
pub(crate) struct Request {
    pub(crate) head: String,
    stream: Box<dyn Stream>,
}

impl Api {
    pub(crate) async fn start() -> Self {
        Self::serve(None, None).await
    }

    /// With a certificate of its own, which `openssl` makes.
    pub(crate) async fn start_with_tls() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("rpc-kubernetes-{}-{number}", std::process::id());
        let (certificate, key) = (format!("{name}.crt"), format!("{name}.key"));
        let [certificate, key] = [certificate, key].map(|it| std::env::temp_dir().join(it));
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
            .args(["-nodes", "-subj", "/CN=api", "-days", "1", "-keyout"])
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .args(["-addext", "subjectAltName=IP:127.0.0.1"])
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .output()
            .unwrap_or_else(|error| panic!("openssl: {error}: apt-get install openssl"));
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let chain = CertificateDer::pem_file_iter(&certificate).unwrap();
        let chain = chain.collect::<Result<_, _>>().unwrap();
        let secret = PrivateKeyDer::from_pem_file(&key).unwrap();
        std::fs::remove_file(&key).unwrap();
        let provider = Arc::new(crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, secret)
            .unwrap();
        Self::serve(Some(Arc::new(config).into()), Some(certificate)).await
    }

    async fn serve(tls: Option<TlsAcceptor>, certificate: Option<PathBuf>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (asked, requests) = mpsc::unbounded_channel();
        let mut task = JoinSet::new();
        task.spawn(async move {
            while let Ok((peer, _)) = listener.accept().await {
                let mut stream: Box<dyn Stream> = match &tls {
                    None => Box::new(peer),
                    Some(tls) => match tls.accept(peer).await {
                        Ok(stream) => Box::new(stream),
                        Err(_) => continue,
                    },
                };
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => break,
                    }
                }
                let head = String::from_utf8(head).unwrap();
                let _ = asked.send(Request { head, stream });
            }
        });
        Self { port, requests, certificate, _task: task }
    }

    pub(crate) fn ca_file(&self) -> PathBuf {
        // The test may outlive the server that the certificate is of.
        let copy = std::env::temp_dir().join(format!("rpc-kubernetes-ca-{}", self.port));
        std::fs::copy(self.certificate.as_ref().unwrap(), &copy).unwrap();
        copy
    }

    pub(crate) async fn next(&mut self) -> Request {
        self.requests.recv().await.unwrap()
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        if let Some(certificate) = &self.certificate {
            let _ = std::fs::remove_file(certificate);
        }
    }
}

impl Request {
    /// Answers with a whole body.
    pub(crate) async fn answer(mut self, status: u16, body: &str) {
        let len = body.len();
        let head = format!("HTTP/1.1 {status} Status\r\nContent-Length: {len}\r\n\r\n");
        self.write(&format!("{head}{body}")).await;
        let _ = self.stream.shutdown().await;
    }

    /// Begins an answer that ends with the connection.
    pub(crate) async fn begin(&mut self) {
        self.write("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n").await;
    }

    pub(crate) async fn event(&mut self, kind: &str, object: &str) {
        self.write(&format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")).await;
    }

    async fn write(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
        self.stream.flush().await.unwrap();
    }
}

pub(crate) fn list(version: u64, items: &[String]) -> String {
    let items = items.join(",");
    format!(r#"{{"metadata":{{"resourceVersion":"{version}"}},"items":[{items}]}}"#)
}

/// A slice with one server.
pub(crate) fn slice(name: &str, version: u64, ip: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"{name}","resourceVersion":"{version}"}},
        "endpoints":[{{"addresses":["{ip}"],"conditions":{{"ready":true}}}}],
        "ports":[{{"name":"rpc","port":7000}}]}}"#
    )
    .replace('\n', "")
}
