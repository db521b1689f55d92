//! HTTP to calls. A buyer who hangs up cancels the work for him, in all servers.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use rpc_core::health::HealthClient;
use rpc_core::{CallError, Code, Status};
use tokio::net::TcpListener;

use crate::cli::Role;
use crate::service::{OrdersClient, Refusal};
use crate::serving;

/// Longest time of a request without `within_ms`.
const WITHIN: Duration = Duration::from_secs(2);

struct Gateway {
    orders: OrdersClient,
    health: HealthClient,
}

pub(crate) async fn serve(role: &Role) -> Result<()> {
    let mut signals = rpc_core::signal::shutdown();
    let channel = serving::upstream(role)?;
    let gateway =
        Gateway { orders: OrdersClient::new(channel.clone()), health: HealthClient::new(channel) };
    let listener = TcpListener::bind(&role.listen).await?;
    let router = Router::new()
        .route("/orders", post(place).get(all))
        .route("/audit", post(audit))
        .route("/health", get(health))
        .with_state(Arc::new(gateway));
    serving::ready(&listener.local_addr()?.to_string(), "-", "-")?;
    let end = async move { signals.terminated().await };
    Ok(axum::serve(listener, router).with_graceful_shutdown(end).await?)
}

/// `POST /orders?key=K&count=N`: the order's number.
async fn place(State(gateway): State<Arc<Gateway>>, uri: Uri, headers: HeaderMap) -> Response {
    let (Some(key), Some(Ok(count))) = (of(&uri, "key"), of(&uri, "count").map(str::parse)) else {
        return (StatusCode::BAD_REQUEST, "POST /orders?key=K&count=N\n").into_response();
    };
    let mut call = gateway.orders.place(key, count).timeout(within(&uri));
    // The buyer's trace, if there is one, is passed through all servers.
    if let Some(trace) = headers.get("traceparent") {
        call = call.metadata("traceparent", trace.as_bytes().to_vec());
    }
    match call.await {
        Ok(number) => number.to_string().into_response(),
        Err(CallError::User(Refusal::SoldOut)) => {
            (StatusCode::CONFLICT, "sold out\n").into_response()
        }
        Err(CallError::Status(status)) => failed(&status),
    }
}

/// `GET /orders`: a line of key, number and count for each.
async fn all(State(gateway): State<Arc<Gateway>>) -> Response {
    let lines = async {
        let mut orders = gateway.orders.all().await?;
        let mut lines = String::new();
        while let Some(order) = orders.try_next().await? {
            lines += &format!("{} {} {}\n", order.key, order.number, order.count);
        }
        Ok(lines)
    };
    lines.await.map_or_else(|status: Status| failed(&status), IntoResponse::into_response)
}

async fn audit(State(gateway): State<Arc<Gateway>>, uri: Uri) -> Response {
    match gateway.orders.audit().timeout(within(&uri)).await {
        Ok(count) => count.to_string().into_response(),
        Err(error) => failed(&Status::from(error)),
    }
}

async fn health(State(gateway): State<Arc<Gateway>>) -> Response {
    match gateway.health.check("Orders").timeout(WITHIN).await {
        Ok(status) => status.to_string().into_response(),
        Err(error) => failed(&Status::from(error)),
    }
}

fn of<'a>(uri: &'a Uri, name: &str) -> Option<&'a str> {
    let pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(found, _)| *found == name).map(|(_, value)| value).next()
}

fn within(uri: &Uri) -> Duration {
    let millis = of(uri, "within_ms").and_then(|millis| millis.parse().ok());
    millis.map_or(WITHIN, Duration::from_millis)
}

fn failed(status: &Status) -> Response {
    let code = match status.code() {
        Code::InvalidArgument => StatusCode::BAD_REQUEST,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::Unavailable | Code::ResourceExhausted => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (code, format!("{status}\n")).into_response()
}
