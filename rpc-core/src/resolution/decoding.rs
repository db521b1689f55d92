//! How the values of one message are decoded.

use std::fmt;
use std::sync::Arc;

use rpc_schema::Plan;

use super::{Plans, Resolution};
use crate::method::MethodDescriptor;
use crate::status::{Code, Status};

/// How the values of a message are decoded: a property of the call that it belongs to. There is no
/// default, as the bytes of other types often decode to values that are wrong.
#[derive(Debug, Clone)]
pub enum Decoding {
    /// By this end's types: both ends have said that they are the same.
    OwnTypes,
    /// By a plan, since the types of the writer differ.
    Planned(Planned),
}

/// A plan that values of other types are decoded by.
#[derive(Clone)]
pub struct Planned(pub(crate) Arc<Resolution>);

impl fmt::Debug for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Planned")
    }
}

/// What one value is decoded by.
#[derive(Clone, Copy)]
pub(crate) enum By<'a> {
    OwnTypes,
    Plan(&'a Plan),
}

impl<'a> By<'a> {
    fn plan(plan: &'a Plan) -> Self {
        if plan.is_same() { Self::OwnTypes } else { Self::Plan(plan) }
    }
}

/// Why a value cannot be decoded at all, for people.
type Undescribed<'a> = &'a str;

const UNDESCRIBED: &str = "one of the two ends has no such value";

impl Decoding {
    /// For a decoder that knows no types but this end's.
    ///
    /// # Errors
    /// [`Internal`](Code::Internal) if the types of the writer differ: read by others, its bytes
    /// may give wrong values.
    pub fn check_own(&self, method: &MethodDescriptor) -> Result<(), Status> {
        match self {
            Self::OwnTypes => Ok(()),
            Self::Planned(_) => Err(Status::internal(format!(
                "{}: its types differ at the other end, and this decoder does not convert them",
                method.name
            ))),
        }
    }

    #[inline]
    pub(crate) fn is_own(&self) -> bool {
        matches!(self, Self::OwnTypes)
    }

    /// At a callee: what arguments are decoded by. The message counts.
    pub(crate) fn arguments(&self) -> Result<By<'_>, Undescribed<'_>> {
        self.by(|plans| match plans {
            Plans::Arguments { arguments, .. } => Ok(By::plan(arguments)),
            Plans::Replies { .. } => Err(UNDESCRIBED),
        })
    }

    /// What an item is decoded by. The message counts.
    pub(crate) fn item(&self) -> Result<By<'_>, Undescribed<'_>> {
        self.by(|plans| match plans {
            Plans::Arguments { item: Some(plan), .. } | Plans::Replies { item: Some(plan), .. } => {
                Ok(By::plan(plan))
            }
            _ => Err(UNDESCRIBED),
        })
    }

    /// At a caller: what a result is decoded by. The message counts.
    pub(crate) fn result(&self) -> Result<By<'_>, Undescribed<'_>> {
        self.by(|plans| match plans {
            Plans::Replies { result: Some(plan), .. } => Ok(By::plan(plan)),
            // A stream without a value after its items: there is nothing to decode.
            Plans::Replies { result: None, .. } => Ok(By::OwnTypes),
            Plans::Arguments { .. } => Err(UNDESCRIBED),
        })
    }

    /// At a caller: what the method's own error is decoded by. The message counts.
    pub(crate) fn error(&self) -> Result<By<'_>, Undescribed<'_>> {
        self.by(|plans| match plans {
            Plans::Replies { error: Some(Ok(plan)), .. } => Ok(By::plan(plan)),
            Plans::Replies { error: Some(Err(why)), .. } => Err(why),
            _ => Err(UNDESCRIBED),
        })
    }

    /// At a caller: how an early refusal of a stream is decoded, whose error has another type than
    /// those that end the stream. `Err`: it cannot be.
    pub(crate) fn of_refusal(&self) -> Result<Self, Undescribed<'_>> {
        match self {
            Self::OwnTypes => Ok(Self::OwnTypes),
            Self::Planned(Planned(resolution)) => match &resolution.plans {
                Plans::Replies { refusal: Some(refusal), .. } => {
                    Ok(Self::Planned(Planned(Arc::clone(refusal))))
                }
                _ => Err(UNDESCRIBED),
            },
        }
    }

    /// The code for a value that does not fit its type here.
    pub(crate) fn misfit_code(&self) -> Code {
        match self {
            Self::Planned(Planned(resolution)) => match resolution.plans {
                Plans::Arguments { .. } => Code::InvalidArgument,
                Plans::Replies { .. } => Code::DataLoss,
            },
            Self::OwnTypes => Code::Internal,
        }
    }

    fn by<'a>(
        &'a self,
        of: impl FnOnce(&'a Plans) -> Result<By<'a>, Undescribed<'a>>,
    ) -> Result<By<'a>, Undescribed<'a>> {
        match self {
            Self::OwnTypes => Ok(By::OwnTypes),
            Self::Planned(Planned(resolution)) => {
                resolution.used.count();
                of(&resolution.plans)
            }
        }
    }
}
