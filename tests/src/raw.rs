//! A service without a macro: its methods answer with a status.

use rpc_core::service::{
    Dispatch, Handler, MethodDescriptor, Reply, ReplyParts, Request, ServiceDescriptor,
};
use rpc_core::{Call, Channel, Code, Status};

static FAIL: MethodDescriptor = MethodDescriptor::new("Raw.fail", "(u8) -> ()", &["code"]);
static LONG: MethodDescriptor = MethodDescriptor::new("Raw.long", "(u32) -> ()", &["len"]);
static SERVICE: ServiceDescriptor = ServiceDescriptor::new("Raw", &[&FAIL, &LONG]);

/// The text of every status of this service.
pub const TEXT: &str = "not on a tuesday: größer";

/// The details of a status with this code.
#[must_use]
pub fn details(code: Code) -> Vec<u8> {
    vec![code.number(); 3 * usize::from(code.number())]
}

/// Answers each call with the status whose code is the argument.
#[derive(Debug, Clone, Copy, Default)]
pub struct RawService;

impl Dispatch for RawService {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        &SERVICE
    }

    fn dispatch(&self, method: usize, request: Request) -> Handler {
        let Request { codec, message, .. } = request;
        let status = match method {
            0 => codec.decode(&message).ok().and_then(Code::from_number).map(short),
            _ => codec.decode(&message).ok().map(long),
        };
        let status = status.unwrap_or_else(|| Status::invalid_argument("a bad argument"));
        Handler::ready(Reply::Status(status))
    }
}

fn short(code: Code) -> Status {
    Status::new(code, TEXT).with_details(details(code)).with_retryable(code == Code::Aborted)
}

fn long(len: u32) -> Status {
    let len = usize::try_from(len).unwrap_or(0);
    Status::aborted("x".repeat(len)).with_details(vec![1; len])
}

/// Requests a status.
pub fn fail(channel: &Channel, code: Code) -> Call<'_, Result<(), Status>> {
    channel.call(&FAIL, &code.number(), |parts: ReplyParts| parts.outcome.map(drop))
}

/// Requests an `Aborted` status with a text of `len` bytes, and as many bytes of details.
pub fn fail_at_length(channel: &Channel, len: u32) -> Call<'_, Result<(), Status>> {
    channel.call(&LONG, &len, |parts: ReplyParts| parts.outcome.map(drop))
}
