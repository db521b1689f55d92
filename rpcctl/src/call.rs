//! `call`: calls a method that is unknown to this program, using the server's description of its
//! types.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use futures::stream::unfold;
use rpc_core::__private::StreamDecoders;
use rpc_core::service::MethodDescriptor;
use rpc_core::stream::{NoUpload, Pump, Stream, Upload};
use rpc_core::{CallError, Status};
use rpc_schema::schema::Id;
use rpc_schema::value::Data;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};

use crate::dynamic::{Body, Failure, Parts, accepted, descriptor, item, reply};
use crate::json::{parse, read, read_arguments};
use crate::options::{Call, Common};
use crate::target::{Target, of_status};
use crate::text::json;

impl Parts {
    fn print(&self, body: Body, id: Option<Id>) -> Result<()> {
        let value = match id {
            Some(id) => body.decode(&self.schema, id)?,
            None => bail!("the server does not describe the type of the value that it sent"),
        };
        let mut out = io::stdout();
        writeln!(out, "{}", json(&value)?)?;
        Ok(out.flush()?)
    }

    /// The error of a failed call. `own` is the type of the method's own error.
    fn failure(&self, error: Failure, own: Option<Id>) -> anyhow::Error {
        let body = match error {
            CallError::Status(status) => return of_status(&status),
            CallError::User(body) => body,
        };
        match own.map(|id| body.decode(&self.schema, id)) {
            Some(Ok(value)) => match json(&value) {
                Ok(value) => anyhow!("the method's own error: {value}"),
                Err(error) => error.into(),
            },
            Some(Err(error)) => error,
            None => anyhow!("the method's own error, of a type that the server does not describe"),
        }
    }
}

pub(crate) async fn call(options: &Call, common: &Common) -> Result<()> {
    let target = Target::connect(&options.address, common).await?;
    let description = target.method(&options.method).await?;
    let info = &description.info;
    let parts: &'static Parts = Box::leak(Box::new(Parts::new(&description)?));
    parts.check(info)?;
    let json = match options.json.as_deref() {
        Some("-") if info.streams_arguments => {
            bail!("stdin carries the items of {}: pass the arguments as --json '{{..}}'", info.name)
        }
        Some("-") => {
            let mut text = String::new();
            tokio::io::stdin().read_to_string(&mut text).await.context("stdin")?;
            text
        }
        Some(text) => text.to_owned(),
        None => "{}".to_owned(),
    };
    let json = parse(json.as_bytes()).context("--json")?;
    let arguments: Vec<_> = parts.schema.arguments().collect();
    let arguments = read_arguments(&parts.schema, &arguments, &json);
    let arguments = arguments.map_err(|error| anyhow!("--json: {error}"))?;
    let (method, timeout) = (descriptor(&description)?, common.timeout);
    let channel = &target.channel;
    match (parts.sent_item.filter(|_| info.streams_arguments), info.streams_results) {
        (None, _) if info.streams_arguments => {
            bail!("the server does not describe the items of {}", info.name)
        }
        (None, false) => {
            let call = channel.call(method, &arguments, reply);
            let call = match timeout {
                Some(timeout) => call.timeout(timeout),
                None => call,
            };
            let body = call.await.map_err(|error| parts.failure(error, parts.error))?;
            parts.print(body, parts.result)
        }
        (None, true) => {
            streamed(&target, method, &arguments, NoUpload::default(), parts, timeout).await
        }
        (Some(id), false) => {
            let upload = Upload::new(items(parts, id), |item: Data, encoder| encoder.put(item));
            let call = channel.call_upload(method, &arguments, upload, reply);
            let call = match timeout {
                Some(timeout) => call.timeout(timeout),
                None => call,
            };
            let body = call.await.map_err(|error| parts.failure(error, parts.error))?;
            parts.print(body, parts.result)
        }
        (Some(id), true) => {
            let upload = Upload::new(items(parts, id), |item: Data, encoder| encoder.put(item));
            streamed(&target, method, &arguments, upload, parts, timeout).await
        }
    }
}

/// Calls a method with a stream of results, and prints items as they arrive.
async fn streamed<U: Pump>(
    target: &Target,
    method: &'static MethodDescriptor,
    arguments: &Data,
    upload: U,
    parts: &Parts,
    timeout: Option<Duration>,
) -> Result<()> {
    let decoders = StreamDecoders::new(item, reply, accepted);
    let call = target.channel.call_stream(method, arguments, upload, decoders);
    let call = match timeout {
        Some(timeout) => call.timeout(timeout),
        None => call,
    };
    let mut items = call.await.map_err(|error| parts.failure(error, parts.refusal))?;
    while let Some(body) =
        items.try_next().await.map_err(|error| parts.failure(error, parts.error))?
    {
        parts.print(body, parts.item)?;
    }
    let end = items.finish().await.map_err(|error| parts.failure(error, parts.error))?;
    match parts.result {
        Some(_) => parts.print(end, parts.result),
        None => Ok(()),
    }
}

/// The values on the lines of stdin. A line that does not fit ends the call.
fn items(parts: &'static Parts, id: Id) -> impl Stream<Item = Result<Data, Status>> {
    let lines = BufReader::new(tokio::io::stdin()).lines();
    unfold((lines, 0_u64), move |(mut lines, mut at)| async move {
        loop {
            at += 1;
            let line = match lines.next_line().await {
                Ok(None) => return None,
                Ok(Some(line)) if line.trim().is_empty() => continue,
                Ok(Some(line)) => line,
                Err(error) => {
                    let status = Status::invalid_argument(format!("stdin: {error}"));
                    return Some((Err(status), (lines, at)));
                }
            };
            let value = parse(line.as_bytes()).map_err(|error| error.to_string());
            let value = value.and_then(|json| read(&parts.schema, id, &json, "item"));
            let value =
                value.map_err(|why| Status::invalid_argument(format!("line {at} of stdin: {why}")));
            return Some((value, (lines, at)));
        }
    })
}
