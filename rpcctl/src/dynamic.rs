//! Methods that are unknown to this program, called by the server's description of their types.

use anyhow::{Context, Result, anyhow, bail};
use rpc_core::codec::{Scratch, Tail};
use rpc_core::reflect::{MethodDescription, MethodInfo};
use rpc_core::service::{
    Decoding, LearntMethod, LearntTypes, Message, MethodDescriptor, ReplyKind, ReplyParts,
    TooManyMethods,
};
use rpc_core::text::printable;
use rpc_core::{Bulk, CallError, Codec, Metadata, Status};
use rpc_schema::schema::{Id, Root, Schema};
use rpc_schema::text::parse;
use rpc_schema::value::Seed;
use serde_json::Value;

use crate::json::Json;

/// Maximum length of what is shown of an error about a server's description, bytes.
const MAX_SHOWN_BYTES: usize = 512;

/// A received value, encoded.
pub(crate) struct Body {
    codec: Codec,
    message: Message,
    /// What came with it.
    pub(crate) metadata: Metadata,
}

/// Why a call failed: the method's own error, or a status.
pub(crate) type Failure = CallError<Body>;

impl Body {
    pub(crate) fn decode(mut self, schema: &Schema, id: Id) -> Result<Value> {
        let scratch = Scratch::default();
        let seed = Seed { schema, id, build: &Json };
        let tail = match self.message.take_tail() {
            Some(tail) => Some(Tail::Given(Bulk::from(tail))),
            None => self.message.take_stream().map(Tail::Arriving),
        };
        let decoded = match tail {
            None => self.codec.decode_seed(seed, &self.message),
            Some(tail) => self.codec.decode_parts(seed, &self.message, tail, &scratch),
        };
        decoded.context("the reply does not have the type that the server describes")
    }
}

pub(crate) fn reply(mut parts: ReplyParts) -> Result<Body, Failure> {
    let metadata = parts.take_metadata();
    let codec = parts.codec;
    let body = |message| Body { codec, message, metadata };
    let value = parts.outcome.map_err(CallError::Status)?;
    let kind = value.kind();
    let message = value.by_own_types(parts.method).map_err(CallError::Status)?;
    match kind {
        ReplyKind::Ok => Ok(body(message)),
        ReplyKind::UserError => Err(CallError::User(body(message))),
    }
}

pub(crate) fn accepted(parts: ReplyParts) -> Result<(), Failure> {
    reply(parts).map(|_| ())
}

pub(crate) fn item(
    codec: Codec,
    method: &'static MethodDescriptor,
    decoding: &Decoding,
    message: Message,
) -> Result<Body, Status> {
    decoding.check_own(method)?;
    Ok(Body { codec, message, metadata: Metadata::new() })
}

/// The descriptor of a method. A server whose types are not those of the description refuses its
/// calls.
///
/// # Errors
/// The process has learnt too many methods.
pub(crate) fn descriptor(
    description: &MethodDescription,
) -> Result<&'static MethodDescriptor, TooManyMethods> {
    let MethodDescription { info, lines, .. } = description;
    // The server compares none for a method that it does not describe.
    let types = match lines.is_empty() {
        true => LearntTypes::SignatureAlone,
        false => LearntTypes::Lines(lines.clone()),
    };
    let mut method = LearntMethod::new(&info.name, &info.signature, types);
    method.arguments.clone_from(&info.arguments);
    method.idempotent = info.idempotent;
    method.streams_arguments = info.streams_arguments;
    method.streams_results = info.streams_results;
    method.idle_deadline = info.idle_deadline;
    method.descriptor()
}

/// The types in a description. They are those that a server compares: the lines and the schema
/// agree. Empty if the server does not describe them.
pub(crate) fn types(description: &MethodDescription) -> Result<Schema> {
    let MethodDescription { info, lines, types, .. } = description;
    let wrongly = |why: String| {
        let why = printable(&why).at_most(MAX_SHOWN_BYTES).to_string();
        anyhow!("the server describes the types of {} wrongly: {why}", printable(&info.name))
    };
    if types.is_empty() {
        return Ok(Schema::default());
    }
    let schema = parse(types).map_err(|error| wrongly(error.to_string()))?;
    match schema.disagreement(lines, &info.arguments) {
        None => Ok(schema),
        Some(path) => Err(wrongly(format!("in two ways, which differ at `{path}`"))),
    }
}

/// The types of a method.
pub(crate) struct Parts {
    pub(crate) schema: Schema,
    pub(crate) sent_item: Option<Id>,
    pub(crate) item: Option<Id>,
    pub(crate) result: Option<Id>,
    pub(crate) error: Option<Id>,
    pub(crate) refusal: Option<Id>,
}

impl Parts {
    pub(crate) fn new(description: &MethodDescription) -> Result<Self> {
        let (info, schema) = (&description.info, types(description)?);
        if !schema.arguments().map(|(name, _)| name).eq(info.arguments.iter().map(String::as_str)) {
            bail!(
                "the server does not describe the types of {}, so rpcctl cannot call it",
                info.name
            );
        }
        let [sent_item, item, result, error, refusal] =
            [Root::SentItem, Root::Item, Root::Result, Root::Error, Root::Refusal]
                .map(|root| schema.root(&root));
        Ok(Self { schema, sent_item, item, result, error, refusal })
    }

    /// Refuses a method whose reply could not be shown, before it is executed.
    pub(crate) fn check(&self, info: &MethodInfo) -> Result<()> {
        let is_stream = info.streams_results;
        let has_result = !is_stream || info.signature.contains(" then ");
        // The error type `Status` has no description.
        let answers = [
            ("result", self.result, has_result),
            ("items", self.item, is_stream),
            ("error", self.error, false),
            ("refusal", self.refusal, false),
        ];
        for (name, id, is_needed) in answers {
            let why = match id {
                Some(id) => self.schema.unknown(id),
                None if is_needed => Some("the server does not describe its type"),
                None => None,
            };
            if let Some(why) = why {
                bail!(
                    "the {name} of {} cannot be shown, so the method was not called: {why}",
                    info.name
                );
            }
        }
        Ok(())
    }
}
