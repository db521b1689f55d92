//! One request: its arguments, the call, and the answer or the stream of answers.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body as HttpBody, BodyDataStream, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use futures::StreamExt;
use futures::stream::{BoxStream, unfold};
use rpc_core::__private::StreamDecoders;
use rpc_core::stream::{NoUpload, Pump, Streaming, Upload};
use rpc_core::{CallError, Code, Status};
use rpc_schema::schema::Id;
use rpc_schema::value::Data;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;

use super::answer::{METADATA, failure, headers, refusal, with_body, with_json};
use super::catalog::Method;
use super::{BODY_TIMEOUT, Gateway};
use crate::dynamic::{Body, Failure, Parts, accepted, item, reply};
use crate::json::{parse, read, read_arguments};

/// The header with a time limit, milliseconds.
pub(crate) const TIMEOUT: &str = "rpc-timeout-ms";
const LINES: &str = "application/x-ndjson";
const EVENTS: &str = "text/event-stream";

/// What a request says besides its arguments.
struct Said {
    timeout: Option<Duration>,
    metadata: Vec<(String, Bytes)>,
    wants_events: bool,
}

/// The lines of a body that are not read yet.
type Lines = BoxStream<'static, Result<Bytes, String>>;

/// Makes a call of a builder's type with what the request says.
macro_rules! with_options {
    ($call:expr, $said:expr) => {{
        let mut call = $call;
        if let Some(timeout) = $said.timeout {
            call = call.timeout(timeout);
        }
        for (name, value) in &$said.metadata {
            call = call.metadata(name, value.clone());
        }
        call
    }};
}

/// Answers a request for a method. `place`: kept until the answer is sent.
pub(crate) async fn call(
    gateway: Arc<Gateway>,
    method: Arc<Method>,
    request: Request,
    place: OwnedSemaphorePermit,
) -> Response {
    let (head, body) = request.into_parts();
    let said = match said(&head.headers, gateway.timeout, method.info().streams_arguments) {
        Ok(said) => said,
        Err(response) => return *response,
    };
    match method.parts.sent_item.filter(|_| method.info().streams_arguments) {
        Some(id) => with_upload(&gateway, &method, said, (body, id), place).await,
        None => whole(&gateway, &method, said, body, place).await,
    }
}

/// A method whose arguments are in the body as a whole.
async fn whole(
    gateway: &Gateway,
    method: &Method,
    said: Said,
    body: HttpBody,
    place: OwnedSemaphorePermit,
) -> Response {
    let parts = method.parts;
    let body = match in_time(&said, to_bytes(body, gateway.max_body)).await {
        Some(Ok(body)) => body,
        Some(Err(_)) => {
            let text = format!("the body is longer than {} bytes, or broke off", gateway.max_body);
            return refusal(StatusCode::PAYLOAD_TOO_LARGE, text);
        }
        None => return too_late(),
    };
    let arguments = match arguments(parts, &body) {
        Ok(arguments) => arguments,
        Err(text) => return refusal(StatusCode::BAD_REQUEST, text),
    };
    let failed = if method.info().streams_results {
        match open(gateway, method, &said, &arguments, NoUpload::default()).await {
            Ok(items) => return streamed(parts, items, said.wants_events, place),
            Err(error) => (error, parts.refusal),
        }
    } else {
        let call = gateway.target.channel.call(method.descriptor, &arguments, reply);
        match with_options!(call, said).await {
            Ok(body) => return answer(parts, body),
            Err(error) => (error, parts.error),
        }
    };
    failed_call(gateway, method, failed).await
}

/// What arrives within the time of the call, and of a body. `None`: it did not.
async fn in_time<T>(said: &Said, what: impl Future<Output = T>) -> Option<T> {
    let limit = said.timeout.map_or(BODY_TIMEOUT, |timeout| timeout.min(BODY_TIMEOUT));
    tokio::time::timeout(limit, what).await.ok()
}

fn too_late() -> Response {
    refusal(StatusCode::REQUEST_TIMEOUT, "the request did not arrive in time")
}

/// A method with a stream of arguments: a line with the other arguments, then one for each item.
async fn with_upload(
    gateway: &Gateway,
    method: &Method,
    said: Said,
    (body, id): (HttpBody, Id),
    place: OwnedSemaphorePermit,
) -> Response {
    let parts = method.parts;
    let mut lines = lines(body, gateway.max_body);
    let first = match in_time(&said, lines.next()).await {
        Some(Some(Ok(line))) => line,
        Some(Some(Err(text))) => return refusal(StatusCode::BAD_REQUEST, text),
        Some(None) => Bytes::from_static(b"{}"),
        None => return too_late(),
    };
    let arguments = match arguments(parts, &first) {
        Ok(arguments) => arguments,
        Err(text) => return refusal(StatusCode::BAD_REQUEST, format!("line 1: {text}")),
    };
    let items = lines.enumerate().map(move |(at, line)| {
        let value = line.and_then(|line| {
            let json = parse(&line).map_err(|error| error.to_string())?;
            read(&parts.schema, id, &json, "item")
        });
        value.map_err(|why| Status::invalid_argument(format!("line {}: {why}", at + 2)))
    });
    let upload = Upload::new(items, |item: Data, encoder| encoder.put(item));
    let failed = if method.info().streams_results {
        match open(gateway, method, &said, &arguments, upload).await {
            Ok(items) => return streamed(parts, items, said.wants_events, place),
            Err(error) => (error, parts.refusal),
        }
    } else {
        let channel = &gateway.target.channel;
        let call = channel.call_upload(method.descriptor, &arguments, upload, reply);
        match with_options!(call, said).await {
            Ok(body) => return answer(parts, body),
            Err(error) => (error, parts.error),
        }
    };
    failed_call(gateway, method, failed).await
}

async fn open<U: Pump>(
    gateway: &Gateway,
    method: &Method,
    said: &Said,
    arguments: &Data,
    upload: U,
) -> Result<Streaming<Body, Body, Failure, U>, Failure> {
    let decoders = StreamDecoders::new(item, reply, accepted);
    let channel = &gateway.target.channel;
    let call = channel.call_stream(method.descriptor, arguments, upload, decoders);
    with_options!(call, said).await
}

fn answer(parts: &Parts, mut body: Body) -> Response {
    let metadata = std::mem::take(&mut body.metadata);
    let value = match parts.result {
        Some(id) => body.decode(&parts.schema, id),
        None => Ok(Value::Null),
    };
    let mut response = match value {
        Ok(value) => with_json(StatusCode::OK, &value),
        Err(error) => refusal(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")),
    };
    headers(&metadata, response.headers_mut());
    response
}

async fn failed_call(
    gateway: &Gateway,
    method: &Method,
    (error, own): (Failure, Option<Id>),
) -> Response {
    let may_have_other_types = matches!(
        &error,
        CallError::Status(status) if status.code() == Code::FailedPrecondition
    );
    if may_have_other_types {
        // For the next request. This one is not sent again: the code may be that of a handler.
        gateway.catalog.again(&gateway.target, method).await;
    }
    let metadata = match &error {
        CallError::Status(status) => status.metadata().clone(),
        CallError::User(body) => body.metadata.clone(),
    };
    let (status, error) = failure(method.parts, own, error);
    let mut response = with_json(status, &json!({ "error": error }));
    headers(&metadata, response.headers_mut());
    response
}

/// The items of a stream as lines or events. The call ends when nobody reads them any more.
fn streamed<U>(
    parts: &'static Parts,
    items: Streaming<Body, Body, Failure, U>,
    wants_events: bool,
    place: OwnedSemaphorePermit,
) -> Response
where
    U: Pump + Send + 'static,
{
    let pieces = unfold(Some((items, place)), move |open| async move {
        let (mut items, place) = open?;
        let (kind, value, open) = match items.try_next().await {
            Ok(Some(body)) => match decoded(parts, body, parts.item) {
                Ok(value) => ("item", value, Some((items, place))),
                Err(error) => ("error", error, None),
            },
            Ok(None) => match items.finish().await {
                Ok(_) if parts.result.is_none() => ("result", Value::Null, None),
                Ok(end) => match decoded(parts, end, parts.result) {
                    Ok(value) => ("result", value, None),
                    Err(error) => ("error", error, None),
                },
                Err(error) => ("error", failure(parts, parts.error, error).1, None),
            },
            Err(error) => ("error", failure(parts, parts.error, error).1, None),
        };
        let text = match (wants_events, kind) {
            (false, kind) => format!("{}\n", json!({ kind: value })),
            (true, "item") => format!("data: {value}\n\n"),
            (true, kind) => format!("event: {kind}\ndata: {value}\n\n"),
        };
        Some((Ok::<_, std::convert::Infallible>(text), open))
    });
    let content_type = if wants_events { EVENTS } else { LINES };
    with_body(StatusCode::OK, content_type, HttpBody::from_stream(pieces))
}

fn decoded(parts: &Parts, body: Body, id: Option<Id>) -> Result<Value, Value> {
    let wrong = |text: String| json!({ "code": "Internal", "message": text });
    match id {
        Some(id) => body.decode(&parts.schema, id).map_err(|error| wrong(format!("{error:#}"))),
        None => Err(wrong("the server does not describe the type of what it sent".to_owned())),
    }
}

fn arguments(parts: &Parts, json: &[u8]) -> Result<Data, String> {
    let json = if json.trim_ascii().is_empty() { b"{}" } else { json };
    let json = parse(json).map_err(|error| format!("no JSON: {error}"))?;
    let arguments: Vec<_> = parts.schema.arguments().collect();
    read_arguments(&parts.schema, &arguments, &json)
}

/// A body that is read by lines.
struct Reader {
    body: Pin<Box<BodyDataStream>>,
    kept: Vec<u8>,
    /// Where the next line begins.
    at: usize,
    is_over: bool,
}

impl Reader {
    fn ended(self) -> Self {
        Self { kept: Vec::new(), at: 0, is_over: true, ..self }
    }

    /// Once for all lines of a chunk, whatever their number.
    fn push(&mut self, more: &[u8]) {
        self.kept.drain(..std::mem::take(&mut self.at));
        self.kept.extend_from_slice(more);
    }
}

/// The lines of a body, without empty ones.
fn lines(body: HttpBody, longest: usize) -> Lines {
    let body = Box::pin(body.into_data_stream());
    let reader = Reader { body, kept: Vec::new(), at: 0, is_over: false };
    let lines = unfold(reader, move |mut reader| async move {
        let mut searched = 0;
        loop {
            // Empty lines are many and give the caller nothing to wait for.
            tokio::task::consume_budget().await;
            let rest = &reader.kept[reader.at..];
            let found = rest[searched..].iter().position(|byte| *byte == b'\n');
            let end = found.map_or(rest.len(), |at| searched + at);
            if end > longest {
                let text = format!("a line is longer than {longest} bytes");
                return Some((Err(text), reader.ended()));
            }
            if found.is_none() && !reader.is_over {
                searched = end;
                match reader.body.next().await {
                    Some(Ok(more)) => reader.push(&more),
                    Some(Err(error)) => {
                        let text = format!("the body broke off: {error}");
                        return Some((Err(text), reader.ended()));
                    }
                    None => reader.is_over = true,
                }
                continue;
            }
            if rest.is_empty() {
                return None;
            }
            let line = rest[..end].trim_ascii();
            let line = (!line.is_empty()).then(|| Bytes::copy_from_slice(line));
            reader.at = (reader.at + end + 1).min(reader.kept.len());
            searched = 0;
            if let Some(line) = line {
                return Some((Ok(line), reader));
            }
        }
    });
    // The first line is read apart from the others.
    lines.fuse().boxed()
}

/// Reads the headers of a request.
fn said(
    headers: &HeaderMap,
    timeout: Option<Duration>,
    streams: bool,
) -> Result<Said, Box<Response>> {
    let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let content_type = text(header::CONTENT_TYPE).unwrap_or_default();
    let content_type = content_type.split(';').next().unwrap_or_default().trim();
    let expected: &[&str] =
        if streams { &[LINES, "application/json"] } else { &["application/json"] };
    if !expected.iter().any(|it| content_type.eq_ignore_ascii_case(it)) {
        let text =
            format!("the content type must be {} (curl --json sets it)", expected.join(" or "));
        return Err(Box::new(refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, text)));
    }
    let wants_events = text(header::ACCEPT).is_some_and(|accept| accept.contains(EVENTS));
    let mut said = Said { timeout, metadata: Vec::new(), wants_events };
    let bad = |text: String| Box::new(refusal(StatusCode::BAD_REQUEST, text));
    for (name, value) in headers {
        let name = name.as_str();
        if name == TIMEOUT {
            let millis = value.to_str().ok().and_then(|text| text.parse().ok());
            let millis = millis
                .ok_or_else(|| bad(format!("{TIMEOUT} must be a whole number of milliseconds")))?;
            said.timeout = Some(Duration::from_millis(millis));
        }
        let name =
            if name == header::AUTHORIZATION { Some(name) } else { name.strip_prefix(METADATA) };
        let Some(name) = name else { continue };
        let value = Bytes::copy_from_slice(value.as_bytes());
        let check = rpc_core::Metadata::new().insert(name, value.clone());
        check.map_err(|error| bad(format!("the header {name}: {error}")))?;
        said.metadata.push((name.to_owned(), value));
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use test_kit::Watchdog;

    use super::*;

    fn of_chunks(chunks: Vec<Vec<u8>>, longest: usize) -> Lines {
        let chunks = chunks.into_iter().map(Ok::<_, std::io::Error>);
        lines(HttpBody::from_stream(futures::stream::iter(chunks)), longest)
    }

    #[tokio::test]
    async fn lines_come_whole_however_they_arrive() {
        let text = b"{}\n\n  1 \r\n22\n \n333";
        for size in 1..=text.len() {
            let chunks = text.chunks(size).map(<[u8]>::to_vec).collect();
            let found: Vec<_> = of_chunks(chunks, 5).collect().await;
            assert_eq!(found, ["{}", "1", "22", "333"].map(|it| Ok(Bytes::from(it))), "{size}");
        }
        let found: Vec<_> = of_chunks(vec![b"1\n12345".to_vec()], 4).collect().await;
        assert!(found[0].is_ok() && found[1].is_err() && found.len() == 2, "{found:?}");
    }

    /// A regression: each line copied the rest of its chunk, and nobody else ran meanwhile.
    #[tokio::test]
    async fn empty_lines_cost_little_and_give_way() {
        let _watchdog = Watchdog::start("empty lines");
        let mut body = vec![b'\n'; 4 << 20];
        body.extend_from_slice(b"1\n");
        let mut lines = of_chunks(vec![body], 4);
        assert!(lines.next().now_or_never().is_none(), "others have their turn");
        assert_eq!(lines.next().await, Some(Ok(Bytes::from("1"))));
    }
}
