//! The HTTP routes.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderName, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::IntoResponse;
use axum::routing::get;
use rpc_core::Channel;
use rpc_core::stats::{PrometheusText, StatsHandle};

use crate::health::Health;
use crate::hosts::Hosts;
use crate::report;
use crate::subject::Subject;

const PAGE: &str = include_str!("page.html");
/// Nothing is loaded from elsewhere, and no other site can embed the page.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                      connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const TEXT: &str = "text/plain; charset=utf-8";

/// The contents of `/metrics`: a server, and channels, each with the value of its label `to`.
#[derive(Clone)]
pub(crate) struct Numbers {
    pub(crate) server: StatsHandle,
    pub(crate) channels: Vec<(String, Channel)>,
}

impl Numbers {
    fn prometheus_text(&self) -> PrometheusText {
        let text = PrometheusText::new().server(&self.server.stats(), &[]);
        let add = |text: PrometheusText, (to, channel): &(String, Channel)| {
            text.channel(&channel.stats(), &[("to", to)])
        };
        self.channels.iter().fold(text, add)
    }
}

/// The page and its data.
pub(crate) fn page(subject: Arc<Subject>, health: Health, hosts: Hosts) -> Router {
    let router = Router::new()
        .route("/", get(async || answer(StatusCode::OK, "text/html; charset=utf-8", PAGE)))
        .route("/api/stats", get(stats))
        .route("/metrics", get(all_metrics))
        .with_state(subject)
        .merge(probes(health));
    guarded(
        router,
        "not found; the paths are /, /api/stats, /metrics, /healthz, /readyz and /livez\n",
        hosts,
    )
}

/// The metrics of a server and of channels, and the health of the server.
pub(crate) fn metrics(numbers: Numbers, health: Health, hosts: Hosts) -> Router {
    let text = async |State(numbers): State<Arc<Numbers>>| prometheus(&numbers.prometheus_text());
    let router = Router::new()
        .route("/metrics", get(text))
        .with_state(Arc::new(numbers))
        .merge(probes(health));
    guarded(router, "not found; the paths are /metrics, /healthz, /readyz and /livez\n", hosts)
}

/// For orchestrators. A server that drains is alive, and must not be restarted for that.
fn probes(health: Health) -> Router {
    let check = async |State(health): State<Health>, uri: Uri| {
        let (status, text) = health.answer(uri.query().unwrap_or_default());
        answer(status, TEXT, text)
    };
    Router::new()
        .route("/healthz", get(check))
        .route("/readyz", get(check))
        .route("/livez", get(async || answer(StatusCode::OK, TEXT, "alive\n")))
        .with_state(health)
}

/// Adds the responses to bad requests, and rejects unknown host names.
fn guarded(router: Router, paths: &'static str, hosts: Hosts) -> Router {
    let hosts = Arc::new(hosts);
    router
        .fallback(async move || answer(StatusCode::NOT_FOUND, TEXT, paths))
        .method_not_allowed_fallback(async || {
            answer(StatusCode::METHOD_NOT_ALLOWED, TEXT, "the page is read-only: use GET\n")
        })
        .layer(middleware::from_fn(move |request: Request, next: Next| {
            let hosts = Arc::clone(&hosts);
            async move {
                match hosts.refusal(&request) {
                    Some(text) => {
                        answer(StatusCode::MISDIRECTED_REQUEST, TEXT, text).into_response()
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
            return answer(StatusCode::BAD_REQUEST, TEXT, error).into_response();
        }
    };
    answer(StatusCode::OK, "application/json", report::json(&subject, after)).into_response()
}

async fn all_metrics(State(subject): State<Arc<Subject>>) -> impl IntoResponse {
    prometheus(&subject.prometheus_text())
}

fn prometheus(text: &PrometheusText) -> impl IntoResponse + use<> {
    answer(StatusCode::OK, PrometheusText::CONTENT_TYPE, text.to_string())
}

/// Parses `after=N`: the points after that one.
fn after(query: &str) -> Result<u64, String> {
    match query.split('&').find_map(|pair| pair.strip_prefix("after=")) {
        Some(number) => number
            .parse()
            .map_err(|_| "after=N: N is the sequence number of a point, 0 or more\n".to_owned()),
        None => Ok(0),
    }
}

/// Every response closes its connection, so no connection outlives its request.
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
