//! Reading the messages of a peer whose types of a method differ.
//!
//! Owns the plans by which they are read: a callee reads arguments by the caller's schema, a caller
//! reads results and errors by the callee's. Nobody writes by a schema of another. Which messages
//! are read by a plan is decided in `server` and `client`: they put it into the message's note.
//!
//! Invariants:
//! 1. A plan is found by the text of a schema, never by a hash that a peer has sent.
//! 2. A schema and its plan are bounded, whatever the peer has sent.

mod cache;
mod known;

use std::sync::Arc;

use rpc_schema::Plan;
use rpc_schema::plan::Problem;
use rpc_schema::schema::Root;
use rpc_schema::text::parse;
use rpc_transport::message::received::{Message, Note};

pub(crate) use self::known::KnownSchemas;
use crate::method::MethodDescriptor;
use crate::schema::{MAX_SCHEMA_BYTES, MethodTypes, OwnTypes, version};
use crate::text::printable;

/// Most memory of a plan, bytes.
const MAX_PLAN_BYTES: usize = 256 << 10;
/// Longest part of a text about problems, bytes.
const MAX_SHOWN_BYTES: usize = 2048;

/// The plans for the messages of a peer.
#[derive(Debug)]
pub(crate) struct Resolution {
    plans: Plans,
    bytes: usize,
}

#[derive(Debug)]
enum Plans {
    /// At a callee.
    Arguments(Plan),
    /// At a caller. `None`: there is nothing to read. An error that cannot be read has the reason.
    Replies { result: Option<Plan>, error: Option<Result<Plan, String>> },
}

/// A role in calls of a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Role {
    Caller,
    Callee,
}

impl Resolution {
    /// The resolution that a message is to be read by.
    pub(crate) fn of_note(note: &Note) -> Option<Arc<Self>> {
        Arc::clone(note).downcast().ok()
    }

    /// The resolution that a message is to be read by.
    #[cold]
    pub(crate) fn of(message: &Message) -> Option<Arc<Self>> {
        Self::of_note(message.note()?)
    }

    /// At a callee: how the arguments of a caller with this schema are read.
    ///
    /// # Errors
    /// Why they cannot be read, and what to do.
    pub(crate) fn at_callee(
        method: &'static MethodDescriptor,
        callers: &str,
    ) -> Result<Arc<Self>, String> {
        cache::find_or_make(method, Role::Callee, callers, |own, caller| {
            let plan = arguments(caller, &own.types);
            let plan = plan.map_err(|problems| shown("the arguments", "", &problems))?;
            Ok(Plans::Arguments(plan))
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
            let mut wrong = Vec::new();
            if let Err(problems) = arguments(&own.types, callee) {
                wrong.push(shown("the server cannot read the arguments", "", &problems));
            }
            let result = match root(callee, own, &Root::Result) {
                None if own.types.schema.root(&Root::Result).is_none() => None,
                None => {
                    wrong.push("the server does not describe its result".to_owned());
                    None
                }
                Some(Ok(plan)) => Some(plan),
                Some(Err(problems)) => {
                    let who = "this client cannot read the result";
                    wrong.push(shown(who, Root::Result.name(), &problems));
                    None
                }
            };
            let error = root(callee, own, &Root::Error).map(|plan| {
                plan.map_err(|problems| shown("its types differ", Root::Error.name(), &problems))
            });
            match wrong.is_empty() {
                true => Ok(Plans::Replies { result, error }),
                false => Err(wrong.join("; ")),
            }
        })
    }

    /// The plan for arguments; `None`: they are read as they are.
    pub(crate) fn arguments(&self) -> Option<&Plan> {
        match &self.plans {
            Plans::Arguments(plan) if !plan.is_same() => Some(plan),
            _ => None,
        }
    }

    /// The plan for results; `None`: they are read as they are.
    pub(crate) fn result(&self) -> Option<&Plan> {
        match &self.plans {
            Plans::Replies { result: Some(plan), .. } if !plan.is_same() => Some(plan),
            _ => None,
        }
    }

    /// The plan for errors; `None`: they are read as they are.
    ///
    /// # Errors
    /// Why none can be read.
    pub(crate) fn error(&self) -> Result<Option<&Plan>, &str> {
        match &self.plans {
            Plans::Replies { error: Some(Ok(plan)), .. } if !plan.is_same() => Ok(Some(plan)),
            Plans::Replies { error: Some(Err(why)), .. } => Err(why),
            _ => Ok(None),
        }
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
        let (mine, (theirs, text)) = (version(&own.text).0, version(text));
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
        Ok(Self { plans, bytes })
    }
}

impl Plans {
    fn bytes(&self) -> usize {
        match self {
            Self::Arguments(plan) => plan.bytes(),
            Self::Replies { result, error } => {
                let error = match error {
                    Some(Ok(plan)) => plan.bytes(),
                    Some(Err(why)) => why.len(),
                    None => 0,
                };
                result.as_ref().map_or(0, Plan::bytes) + error
            }
        }
    }
}

fn arguments(writer: &MethodTypes, reader: &MethodTypes) -> Result<Plan, Vec<Problem>> {
    Plan::new(&writer.schema, writer.arguments, &reader.schema, reader.arguments)
}

/// The plan for what the callee returns; `None`: one of the ends has no such type.
fn root(callee: &MethodTypes, own: &OwnTypes, root: &Root) -> Option<Result<Plan, Vec<Problem>>> {
    let (written, read) = (callee.schema.root(root)?, own.types.schema.root(root)?);
    Some(Plan::new(&callee.schema, written, &own.types.schema, read))
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
