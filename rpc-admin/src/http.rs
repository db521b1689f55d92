//! Requests and answers.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderName, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::hosts::Hosts;
use crate::report;
use crate::subject::Subject;

const PAGE: &str = include_str!("page.html");
/// Nothing from elsewhere, and no other site may show the page in itself.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(crate) fn router(subject: Arc<Subject>, hosts: Hosts) -> Router {
    let hosts = Arc::new(hosts);
    Router::new()
        .route("/", get(async || answer(StatusCode::OK, "text/html; charset=utf-8", PAGE)))
        .route("/api/stats", get(stats))
        .route("/metrics", get(metrics))
        .fallback(async || {
            let paths = "there are /, /api/stats and /metrics\n";
            answer(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", paths)
        })
        .method_not_allowed_fallback(async || {
            let kind = "text/plain; charset=utf-8";
            answer(StatusCode::METHOD_NOT_ALLOWED, kind, "the page is only read: GET\n")
        })
        .with_state(subject)
        .layer(middleware::from_fn(move |request: Request, next: Next| {
            let hosts = Arc::clone(&hosts);
            async move {
                match hosts.refusal(&request) {
                    Some(text) => {
                        let kind = "text/plain; charset=utf-8";
                        answer(StatusCode::MISDIRECTED_REQUEST, kind, text).into_response()
                    }
                    None => next.run(request).await,
                }
            }
        }))
}

async fn stats(State(subject): State<Arc<Subject>>, uri: Uri) -> impl IntoResponse {
    let after = match after(uri.query().unwrap_or_default()) {
        Ok(after) => after,
        Err(error) => {
            let kind = "text/plain; charset=utf-8";
            return answer(StatusCode::BAD_REQUEST, kind, error).into_response();
        }
    };
    answer(StatusCode::OK, "application/json", report::json(&subject, after)).into_response()
}

async fn metrics(State(subject): State<Arc<Subject>>) -> impl IntoResponse {
    let text = report::prometheus(&subject.prometheus_texts());
    answer(StatusCode::OK, "text/plain; version=0.0.4", text)
}

/// `after=N`: the points after that one.
fn after(query: &str) -> Result<u64, String> {
    match query.split('&').find_map(|pair| pair.strip_prefix("after=")) {
        Some(number) => number
            .parse()
            .map_err(|_| "after=N takes the sequence number of a point, 0 or more\n".to_owned()),
        None => Ok(0),
    }
}

/// Every answer ends its connection: nobody holds one for longer than a request takes.
fn answer(status: StatusCode, kind: &'static str, body: impl IntoResponse) -> impl IntoResponse {
    let headers: [(HeaderName, &'static str); 6] = [
        (header::CONTENT_TYPE, kind),
        (header::CONNECTION, "close"),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (status, headers, body)
}
