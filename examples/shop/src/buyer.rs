//! HTTP as a buyer uses it: a persistent connection, which is made anew when it has failed.

use anyhow::Result;
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// A connection to the gateway.
pub(crate) struct Http {
    address: String,
    sender: Option<SendRequest<Empty<Bytes>>>,
}

impl Http {
    pub(crate) fn new(address: &str) -> Self {
        Self { address: address.to_owned(), sender: None }
    }

    /// Sends one request. A connection that fails is closed, and so is one whose request is
    /// dropped.
    pub(crate) async fn ask(&mut self, method: Method, path: &str) -> Result<(StatusCode, String)> {
        let mut sender = match self.sender.take() {
            Some(sender) if !sender.is_closed() => sender,
            _ => {
                let stream = TokioIo::new(TcpStream::connect(&self.address).await?);
                let (sender, connection) = http1::handshake(stream).await?;
                tokio::spawn(connection);
                sender
            }
        };
        sender.ready().await?;
        let request = Request::builder().method(method).uri(path).header("host", "shop");
        let answer = sender.send_request(request.body(Empty::new())?).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        self.sender = Some(sender);
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }
}
