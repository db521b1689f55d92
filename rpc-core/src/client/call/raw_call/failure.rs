//! The statuses of calls that fail, with the name of the method in their texts.

use super::RawCall;
use crate::metadata::Metadata;
use crate::service::MethodDescriptor;
use crate::session::{self, Failure, ReadBy, StartError};
use crate::status::{Code, Status};
use crate::wire::refusal::{SCHEMA_FOLLOWS, SIGNATURES_DIFFER, UNKNOWN_METHOD};

impl RawCall<'_> {
    /// The status of a call whose connection has ended.
    #[cold]
    pub(super) fn unavailable(&self) -> Status {
        match &self.on {
            Some(connection) => connection.unavailable(),
            None => Status::from(Code::Unavailable),
        }
    }

    pub(super) fn start_failed(&self, error: &StartError) -> Status {
        let name = self.method.name;
        match error {
            StartError::Closed => self.unavailable(),
            StartError::TooManyCalls | StartError::Full(_) | StartError::HandlersWait(_) => {
                Status::new(Code::ResourceExhausted, format!("{name}: {error}"))
                    .with_retryable(true)
            }
            StartError::MetadataTooLong(_) => {
                Status::new(Code::InvalidArgument, format!("{name}: {error}"))
            }
            StartError::DeadlineExceeded => self.deadline_exceeded(),
            StartError::PeerGoingAway => self.failed(Failure::PeerGoingAway, true),
            StartError::PeerTakesNoCalls => self.failed(Failure::PeerTakesNoCalls, true),
            StartError::PeerHasNoStreams => self.failed(Failure::PeerHasNoStreams, true),
            _ => Status::new(Code::Unavailable, format!("{name}: {error}")).with_retryable(true),
        }
    }

    #[cold]
    pub(super) fn failed(&self, reason: Failure, never_sent: bool) -> Status {
        let name = self.method.name;
        match reason {
            Failure::DeadlineExceeded => self.deadline_exceeded(),
            Failure::NoMemory(reason) => Status::new(
                Code::ResourceExhausted,
                format!("{name}: no memory for the reply: {reason}"),
            ),
            Failure::PeerHasNoStreams => Status::unimplemented(format!(
                "{name}: the {} does not support streams; update it",
                self.callee()
            )),
            Failure::TypesDisagree => Status::internal(format!(
                "{name}: the {} has read the arguments as those of other types than this client \
                 has sent, or does not say how; its answer cannot be read",
                self.callee()
            )),
            Failure::PeerTakesNoCalls => Status::unimplemented(format!(
                "{name}: the {} serves no methods on this connection; a client serves methods if \
                 its channel is built with `ChannelBuilder::serve`",
                self.callee()
            )),
            // The handler may have run, also to its end.
            Failure::Closed => {
                // The driver reports it to the channel too, but perhaps later than this task goes
                // on.
                if let Some(connection) = &self.on {
                    connection.is_lost();
                }
                self.unavailable().with_retryable(never_sent || self.method.idempotent)
            }
            Failure::PeerGoingAway => {
                let text = format!(
                    "{name}: the {} is shutting down and accepts no new calls",
                    self.callee()
                );
                Status::new(Code::Unavailable, text).with_retryable(never_sent)
            }
            _ => Status::new(Code::Unavailable, format!("{name}: the call ended without a reply"))
                .with_retryable(never_sent),
        }
    }

    #[cold]
    fn deadline_exceeded(&self) -> Status {
        Status::deadline_exceeded(format!("{}: {}", self.method.name, self.deadline_passed()))
    }

    fn callee(&self) -> &'static str {
        self.on.as_ref().map_or("server", |connection| connection.callee())
    }

    #[cold]
    pub(super) fn received(&self, reply: &session::Reply, code: u8, retryable: bool) -> Status {
        let code = Code::from_number(code).unwrap_or(Code::Unknown);
        if let Some(text) = self.refusal(code, reply) {
            return Status::new(code, text).with_retryable(retryable);
        }
        let status = Status::received(code, reply.text(), reply.details(), retryable);
        match Metadata::decode(reply.metadata()) {
            Ok(metadata) => status.with_metadata(metadata),
            Err(error) => {
                tracing::debug!(method = self.method.name, %error, "the metadata of a status is \
                                                                    malformed, ignored");
                status
            }
        }
    }

    /// The error text when the server does not know the method or its signature differs. The server
    /// marks these statuses in their details. Nobody has read the request there, so no user code
    /// has run, and the marks cannot be details that the user made.
    fn refusal(&self, code: Code, reply: &session::Reply) -> Option<String> {
        if reply.read_by != ReadBy::Nobody {
            return None;
        }
        Some(match (code, reply.details()) {
            (Code::FailedPrecondition, details) if details.starts_with(SIGNATURES_DIFFER) => {
                self.difference(reply.text(), &details[SIGNATURES_DIFFER.len()..])
            }
            (Code::Unimplemented, UNKNOWN_METHOD) => {
                format!(
                    "{}: {}; add the service to the server, or update the server",
                    self.method.name,
                    reply.text()
                )
            }
            _ => return None,
        })
    }

    /// What differs: the signature, or else the contents of its types.
    pub(super) fn difference(&self, text: &str, schema: &[u8]) -> String {
        let MethodDescriptor { name, signature, arguments, .. } = self.method;
        if text.ends_with(&format!("`{signature}`"))
            && let Some(mine) = self.method.schema()
        {
            let lines = schema.split(|byte| *byte == SCHEMA_FOLLOWS).next().unwrap_or(schema);
            let theirs = String::from_utf8_lossy(lines.strip_prefix(b"\n").unwrap_or(lines));
            let difference = mine.difference(&theirs, arguments);
            return format!(
                "{name}: its types differ on the server: {difference}; build both ends from the \
                 same types, or use the changed types in a method with a new name"
            );
        }
        format!(
            "{text}, this client has `{signature}`; build both ends from the same version of the \
             trait"
        )
    }
}
