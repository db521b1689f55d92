//! What a call's outcome is in HTTP: status codes, headers, and errors as JSON.

use axum::body::Body as HttpBody;
use axum::http::header::{CONTENT_TYPE, HeaderName};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use rpc_core::{CallError, Code, Metadata, Status};
use rpc_schema::schema::Id;
use serde_json::{Value, json};

use crate::dynamic::{Failure, Parts};

/// Headers with this prefix carry metadata, in both directions.
pub(crate) const METADATA: &str = "rpc-metadata-";

/// Google's table of codes in HTTP.
pub(crate) fn http_status(code: Code) -> StatusCode {
    let number = match code {
        Code::Ok => 200,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => 400,
        Code::Unauthenticated => 401,
        Code::PermissionDenied => 403,
        Code::NotFound => 404,
        Code::AlreadyExists | Code::Aborted => 409,
        Code::ResourceExhausted => 429,
        Code::Cancelled => 499,
        Code::Unimplemented => 501,
        Code::Unavailable => 503,
        Code::DeadlineExceeded => 504,
        _ => 500,
    };
    StatusCode::from_u16(number).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// An error with a text.
pub(crate) fn refusal(status: StatusCode, message: impl Into<String>) -> Response {
    let error = json!({ "code": format!("Http{}", status.as_u16()), "message": message.into() });
    with_json(status, &json!({ "error": error }))
}

pub(crate) fn with_json(status: StatusCode, value: &Value) -> Response {
    let mut text = value.to_string();
    text.push('\n');
    with_body(status, "application/json", text)
}

pub(crate) fn with_body(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<HttpBody>,
) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// The error of a failed call, and its status in HTTP. `own`: the type of the method's own error.
pub(crate) fn failure(parts: &Parts, own: Option<Id>, error: Failure) -> (StatusCode, Value) {
    let body = match error {
        CallError::Status(status) => return of_status(&status),
        CallError::User(body) => body,
    };
    let value = own.map(|id| body.decode(&parts.schema, id));
    match value {
        Some(Ok(value)) => {
            let error = json!({
                "code": "MethodError", "message": "the method's own error", "value": value,
            });
            (StatusCode::UNPROCESSABLE_ENTITY, error)
        }
        Some(Err(error)) => of_status(&Status::internal(format!("{error:#}"))),
        None => {
            let text = "the method's own error, of a type that the server does not describe";
            of_status(&Status::unknown(text))
        }
    }
}

fn of_status(status: &Status) -> (StatusCode, Value) {
    let error = json!({
        "code": format!("{:?}", status.code()),
        "message": status.message(),
        "retryable": status.is_retryable(),
    });
    (http_status(status.code()), error)
}

/// Metadata as headers. Values that no header can have are left out.
pub(crate) fn headers(metadata: &Metadata, headers: &mut HeaderMap) {
    for (name, value) in metadata.iter() {
        let name = HeaderName::try_from(format!("{METADATA}{name}"));
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_the_statuses_of_grpc_in_http() {
        let all = Code::ALL.map(|code| http_status(code).as_u16());
        let expected =
            [200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401];
        assert_eq!(all, expected);
    }
}
