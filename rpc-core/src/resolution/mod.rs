//! Reading the messages of a peer whose types of a method differ.
//!
//! Owns the plans by which they are read: a callee reads arguments by the caller's schema, a caller
//! reads results and errors by the callee's. Nobody writes by a schema of another. Which messages
//! are read by a plan is decided in `server` and `session`, for each call: see [`Decoding`].
//!
//! Invariants:
//! 1. A plan is found by the text of a schema, never by a hash that a peer has sent.
//! 2. A schema and its plan are bounded, whatever the peer has sent.

mod cache;
mod decoding;
mod known;
mod used;

use std::sync::Arc;

use rpc_schema::Plan;
use rpc_schema::exchange::MAX_PLAN_BYTES;
use rpc_schema::plan::Problem;
use rpc_schema::schema::Root;
use rpc_schema::text::parse;
use serde::de::DeserializeSeed;

pub(crate) use self::decoding::By;
pub use self::decoding::{Decoding, Planned};
pub(crate) use self::known::KnownSchemas;
use self::used::Used;
pub(crate) use self::used::uses;
use crate::codec::{Codec, CodecError, Scratch, Tail};
use crate::layout::{MAX_SCHEMA_BYTES, MethodTypes, OwnTypes, version};
use crate::method::MethodDescriptor;
use crate::text::printable;

/// Longest part of a text about problems, bytes.
const MAX_SHOWN_BYTES: usize = 2048;

/// The plans for the messages of a peer.
#[derive(Debug)]
pub(crate) struct Resolution {
    plans: Plans,
    bytes: usize,
    used: Used,
}

#[derive(Debug)]
enum Plans {
    /// At a callee. `item`: of the stream of arguments, if there is one.
    Arguments { arguments: Plan, item: Option<Plan> },
    /// At a caller. `None`: there is nothing to read. An error that cannot be read has the reason.
    Replies {
        result: Option<Plan>,
        item: Option<Plan>,
        error: Option<Result<Plan, String>>,
        /// How an early refusal of a stream is read.
        refusal: Option<Arc<Resolution>>,
    },
}

/// A role in calls of a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    Caller,
    Callee,
}

impl Resolution {
    /// At a callee: how the arguments of a caller with this schema are read.
    ///
    /// # Errors
    /// Why they cannot be read, and what to do.
    pub(crate) fn at_callee(
        method: &'static MethodDescriptor,
        callers: &str,
    ) -> Result<Arc<Self>, String> {
        cache::find_or_make(method, Role::Callee, callers, |own, caller| {
            check_streams(&own.types, caller)?;
            let mut wrong = Vec::new();
            let plan = arguments(caller, &own.types);
            let plan = keep(plan, &mut wrong, "the arguments", "");
            let item = root(caller, &own.types, &Root::SentItem)
                .and_then(|plan| keep(plan, &mut wrong, "the items", Root::SentItem.name()));
            match plan {
                Some(arguments) if wrong.is_empty() => Ok(Plans::Arguments { arguments, item }),
                _ => Err(wrong.join("; ")),
            }
        })
    }

    /// At a caller: how the replies of a callee with this schema are read.
    ///
    /// # Errors
    /// Why its results cannot be read, or it cannot read the arguments, and what to do.
    pub(crate) fn at_caller(
        method: &'static MethodDescriptor,
        callees: &str,
    ) -> Result<Arc<Self>, String> {
        cache::find_or_make(method, Role::Caller, callees, |own, callee| {
            check_streams(callee, &own.types)?;
            let mut wrong = Vec::new();
            let who = "the server cannot read the arguments";
            let _its_own = keep(arguments(&own.types, callee), &mut wrong, who, "");
            if let Some(plan) = root(&own.types, callee, &Root::SentItem) {
                let who = "the server cannot read the items";
                let _its_own = keep(plan, &mut wrong, who, Root::SentItem.name());
            }
            let item = root(callee, &own.types, &Root::Item).and_then(|plan| {
                keep(plan, &mut wrong, "this client cannot read the items", Root::Item.name())
            });
            let result = match root(callee, &own.types, &Root::Result) {
                None if own.types.schema.root(&Root::Result).is_none() => None,
                None => {
                    wrong.push("the server does not describe its result".to_owned());
                    None
                }
                Some(plan) => {
                    let who = "this client cannot read the result";
                    keep(plan, &mut wrong, who, Root::Result.name())
                }
            };
            let error = |root: &Root| {
                let shown = |problems: Vec<_>| shown("its types differ", root.name(), &problems);
                self::root(callee, &own.types, root).map(|plan| plan.map_err(shown))
            };
            if !wrong.is_empty() {
                return Err(wrong.join("; "));
            }
            let refusal = error(&Root::Refusal).map(|refusal| {
                let (result, item, error) = (None, None, Some(refusal));
                let plans = Plans::Replies { result, item, error, refusal: None };
                Arc::new(Self { bytes: plans.bytes(), plans, used: Used::default() })
            });
            Ok(Plans::Replies { result, item, error: error(&Root::Error), refusal })
        })
    }

    fn new(
        method: &'static MethodDescriptor,
        text: &str,
        make: impl FnOnce(&OwnTypes, &MethodTypes) -> Result<Plans, String>,
    ) -> Result<Self, String> {
        let own = method.own_types().ok_or("its types here are too large to be compared")?;
        if text.len() > MAX_SCHEMA_BYTES {
            return Err(format!(
                "the peer's schema of {} bytes exceeds the limit of {MAX_SCHEMA_BYTES} bytes",
                text.len()
            ));
        }
        let malformed = |why: &dyn std::fmt::Display| {
            let why = why.to_string();
            format!("the peer's schema: {}", printable(&why).at_most(MAX_SHOWN_BYTES))
        };
        let (peers_text, mine) = (text, version(&own.text).0);
        let (theirs, text) = version(text);
        if mine != theirs {
            let shown = |version: Option<&str>| printable(version.unwrap_or("none")).to_string();
            let (mine, theirs) = (shown(mine), shown(theirs));
            return Err(format!("its version is {theirs} at the peer and {mine} here"));
        }
        let schema = parse(text).map_err(|error| malformed(&error))?;
        let peers = MethodTypes::new(schema).map_err(|flaw| malformed(&flaw))?;
        let plans = make(own, &peers)?;
        // The cache has the text once more.
        let bytes = text.len() + size_of::<Self>() + plans.bytes();
        if bytes > MAX_PLAN_BYTES {
            return Err(format!(
                "its types differ, and are too large to be converted: that takes {bytes} bytes, \
                 and the limit is {MAX_PLAN_BYTES}"
            ));
        }
        let used = Used::between(&own.text, peers_text);
        Ok(Self { plans, bytes, used })
    }
}

impl Plans {
    fn bytes(&self) -> usize {
        match self {
            Self::Arguments { arguments, item } => {
                arguments.bytes() + item.as_ref().map_or(0, Plan::bytes)
            }
            Self::Replies { result, item, error, refusal } => {
                let error = match error {
                    Some(Ok(plan)) => plan.bytes(),
                    Some(Err(why)) => why.len(),
                    None => 0,
                };
                let refusal = refusal.as_ref().map_or(0, |refusal| refusal.bytes);
                let values = [result, item].into_iter().flatten().map(Plan::bytes);
                values.sum::<usize>() + error + refusal
            }
        }
    }
}

/// Decodes what a peer has written whose types differ. Methods in a format with names have no plan.
#[cold]
#[inline(never)]
pub(crate) fn decode_by<'de, S: DeserializeSeed<'de> + Clone>(
    codec: Codec,
    by: By<'_>,
    seed: S,
    message: &'de [u8],
    tail: Option<Tail<'de>>,
    scratch: &'de Scratch,
) -> Result<S::Value, CodecError> {
    match (by, tail) {
        (By::Plan(plan), None) => codec.decode_positional(plan.seed(seed), message),
        (By::Plan(plan), Some(tail)) => codec.decode_parts(plan.seed(seed), message, tail, scratch),
        (By::OwnTypes, None) => codec.decode_seed(seed, message),
        (By::OwnTypes, Some(tail)) => codec.decode_parts(seed, message, tail, scratch),
    }
}

fn arguments(writer: &MethodTypes, reader: &MethodTypes) -> Result<Plan, Vec<Problem>> {
    Plan::of_arguments(&writer.schema, writer.arguments, &reader.schema, reader.arguments)
}

/// The plan for the values of a root; `None`: one of the ends has no such type.
fn root(writer: &MethodTypes, reader: &MethodTypes, root: &Root) -> Option<Made> {
    let (written, read) = (writer.schema.root(root)?, reader.schema.root(root)?);
    Some(Plan::new(&writer.schema, written, &reader.schema, read))
}

/// A plan, or what is in its way.
type Made = Result<Plan, Vec<Problem>>;

/// The plan, or its problems in a text.
fn keep(made: Made, wrong: &mut Vec<String>, who: &str, root: &str) -> Option<Plan> {
    made.map_err(|problems| wrong.push(shown(who, root, &problems))).ok()
}

/// # Errors
/// One of the ends has a stream, the other one has none.
fn check_streams(callee: &MethodTypes, caller: &MethodTypes) -> Result<(), String> {
    let streams = [(Root::SentItem, "arguments"), (Root::Item, "results")];
    for (root, what) in streams {
        match (callee.schema.root(&root), caller.schema.root(&root)) {
            (Some(_), None) => return Err(format!("the server has a stream of {what}")),
            (None, Some(_)) => return Err(format!("the server has no stream of {what}")),
            _ => {}
        }
    }
    Ok(())
}

/// Problems for people. Their names come from a peer.
fn shown(who: &str, root: &str, problems: &[Problem]) -> String {
    let texts = problems.iter().map(|Problem { path, what }| {
        Problem { path: format!("{root}{path}"), what: what.clone() }.to_string()
    });
    let texts = texts.collect::<Vec<_>>().join(", ");
    format!("{who}: {}", printable(&texts).at_most(MAX_SHOWN_BYTES))
}

#[cfg(test)]
mod tests;
