//! Requests over HTTP/1.1: a connection each, so that none is stale and none is shared.
//!
//! Invariants:
//! 1. Until the head of the answer has come, a request has a time limit. So has a body that is read
//!    as a whole.
//! 2. No more of a body is kept than its limit.
//! 3. A connection ends when its answer is dropped.

use std::fmt;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use rpc_core::transport::HostPort;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::protocol::lines::{Lines, TooLong};

/// Longest body that is read as a whole.
const MAX_BODY_BYTES: usize = 16 << 20;
/// Longest line of a body that is read line by line.
const MAX_LINE_BYTES: usize = 16 << 20;

/// Why there is no answer.
#[derive(Debug, Clone)]
pub(crate) struct HttpError {
    at: String,
    what: String,
}

impl HttpError {
    fn new(at: &HostPort, what: impl fmt::Display) -> Self {
        Self { at: at.to_string(), what: what.to_string() }
    }

    /// With the cause, such as an alert of TLS.
    fn of_connection(at: &HostPort, error: &hyper::Error) -> Self {
        match std::error::Error::source(error) {
            Some(cause) => Self::new(at, format!("{error}: {cause}")),
            None => Self::new(at, error),
        }
    }
}

impl fmt::Display for HttpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.what)
    }
}

/// How a connection is protected.
#[derive(Clone)]
pub(crate) enum Security {
    None,
    #[cfg(feature = "tls")]
    Tls(crate::tls::RegistryTls),
}

/// A request to one server.
pub(crate) struct Asked<'a> {
    pub(crate) at: &'a HostPort,
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    pub(crate) authorization: Option<&'a str>,
    /// JSON.
    pub(crate) body: String,
    pub(crate) limit: Duration,
    pub(crate) security: &'a Security,
}

/// The head of an answer, and the body to come.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    body: Incoming,
    at: HostPort,
    /// For the rest of the body.
    limit: Duration,
    _connection: Connection,
}

/// A task that moves bytes, until it is dropped.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends a request.
///
/// # Errors
/// [`HttpError`]: no connection, no answer, or not in time.
pub(crate) async fn ask(asked: Asked<'_>) -> Result<Answer, HttpError> {
    let (at, limit) = (asked.at, asked.limit);
    let answer = tokio::time::timeout(limit, send(asked)).await;
    answer.unwrap_or_else(|_| Err(HttpError::new(at, format!("no answer within {limit:?}"))))
}

async fn send(asked: Asked<'_>) -> Result<Answer, HttpError> {
    let Asked { at, method, path, authorization, body, limit, security } = asked;
    let failed = |error: &dyn fmt::Display| HttpError::new(at, error);
    let ended = |error: hyper::Error| HttpError::of_connection(at, &error);
    let stream = TcpStream::connect((at.host.as_str(), at.port)).await;
    let stream = stream.map_err(|error| failed(&error))?;
    let _ = stream.set_nodelay(true);
    let (mut sender, connection) = match security {
        Security::None => begin(stream).await.map_err(ended)?,
        #[cfg(feature = "tls")]
        Security::Tls(tls) => {
            let name = at.host.clone().try_into();
            let name = name.map_err(|_| failed(&"its host has no valid name for TLS"))?;
            let connector = tls.connector().await;
            let stream = connector.connect(name, stream).await.map_err(|error| failed(&error))?;
            begin(stream).await.map_err(ended)?
        }
    };
    let mut request = Request::new(Full::new(Bytes::from(body)));
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().map_err(|error| failed(&error))?;
    let mut headers: Vec<(HeaderName, String)> =
        vec![(HOST, at.to_string()), (CONTENT_TYPE, "application/json".to_owned())];
    headers.extend(authorization.map(|it| (hyper::header::AUTHORIZATION, it.to_owned())));
    for (name, value) in headers {
        let value = HeaderValue::try_from(value).map_err(|error| failed(&error))?;
        request.headers_mut().insert(name, value);
    }
    let answer = sender.send_request(request).await.map_err(ended)?;
    let (head, body) = answer.into_parts();
    Ok(Answer { status: head.status, body, at: at.clone(), limit, _connection: connection })
}

/// HTTP over a connection.
async fn begin<S>(stream: S) -> hyper::Result<(SendRequest<Full<Bytes>>, Connection)>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(async move {
        // Why it ends is what the request fails with.
        let _ = connection.await;
    });
    Ok((sender, Connection(connection)))
}

impl Answer {
    /// The whole body.
    ///
    /// # Errors
    /// [`HttpError`]: it breaks off, is too long, or takes too long.
    pub(crate) async fn read(mut self) -> Result<Vec<u8>, HttpError> {
        let (at, limit) = (self.at.clone(), self.limit);
        let read = async {
            let mut bytes = Vec::new();
            while let Some(more) = self.next_bytes().await? {
                bytes.extend_from_slice(&more);
                if bytes.len() > MAX_BODY_BYTES {
                    let what = format!("an answer of more than {MAX_BODY_BYTES} bytes");
                    return Err(HttpError::new(&at, what));
                }
            }
            Ok(bytes)
        };
        let read = tokio::time::timeout(limit, read).await;
        read.unwrap_or_else(|_| Err(HttpError::new(&at, format!("no end within {limit:?}"))))
    }

    /// The body, line by line, without a time limit.
    pub(crate) fn lines(self) -> LineReader {
        LineReader { answer: self, lines: Lines::new(MAX_LINE_BYTES) }
    }

    async fn next_bytes(&mut self) -> Result<Option<Bytes>, HttpError> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(HttpError::of_connection(&self.at, &error)),
                Some(Ok(frame)) => {
                    // Trailers say nothing here.
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }
}

/// The lines of an answer that has no end.
pub(crate) struct LineReader {
    answer: Answer,
    lines: Lines,
}

impl LineReader {
    /// The next line; `None`: the answer has ended. No line is lost if the future is dropped.
    ///
    /// # Errors
    /// [`HttpError`]: the connection has ended, or the line is too long.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, HttpError> {
        loop {
            match self.lines.next() {
                Ok(Some(line)) => return Ok(Some(line)),
                Ok(None) => {}
                Err(TooLong) => {
                    let what = format!("a line of more than {MAX_LINE_BYTES} bytes");
                    return Err(HttpError::new(&self.answer.at, what));
                }
            }
            match self.answer.next_bytes().await? {
                Some(bytes) => self.lines.push(&bytes),
                None => return Ok(None),
            }
        }
    }
}
