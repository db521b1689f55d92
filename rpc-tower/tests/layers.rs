//! Common tower layers around servers and calls, over shared memory and TCP.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rpc_core::interceptor::{Ended, ServerInterceptor};
use rpc_core::{CallError, Code, PollMode, Server, ServerBuilder, Status};
use rpc_tower::CallService;
use test_kit::Watchdog;
use tokio::sync::Semaphore;
use tower::limit::{ConcurrencyLimitLayer, GlobalConcurrencyLimitLayer, RateLimitLayer};
use tower::load_shed::LoadShedLayer;
use tower::timeout::TimeoutLayer;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

/// Longer than any test.
const AGES: Duration = Duration::from_secs(3600);

#[rpc_core::service]
trait Work {
    async fn echo(&self, text: &str) -> String;
    async fn never(&self);
    async fn refuse(&self) -> Result<(), Status>;
    async fn refuse_own(&self) -> Result<(), Full>;
    /// Waits for the gate.
    async fn wait(&self);
}

/// In the same server.
#[rpc_core::service]
trait Other {
    async fn echo(&self, text: &str) -> String;
    async fn never(&self);
}

/// A method's own error.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Full;

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("full")
    }
}

impl std::error::Error for Full {}

#[derive(Default)]
struct State {
    running: AtomicUsize,
    most: AtomicUsize,
    begun: AtomicUsize,
    given_up: Semaphore0,
    gate: Semaphore0,
}

/// A semaphore without initial permits.
struct Semaphore0(Semaphore);

impl Default for Semaphore0 {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

struct Worker(Arc<State>);

/// A running handler.
struct Running<'a>(&'a State);

impl<'a> Running<'a> {
    fn begin(state: &'a State) -> Self {
        state.begun.fetch_add(1, Ordering::SeqCst);
        let running = state.running.fetch_add(1, Ordering::SeqCst) + 1;
        state.most.fetch_max(running, Ordering::SeqCst);
        Self(state)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        self.0.given_up.0.add_permits(1);
    }
}

impl Work for Worker {
    async fn echo(&self, text: &str) -> String {
        let _running = Running::begin(&self.0);
        tokio::task::yield_now().await;
        text.to_owned()
    }
    async fn never(&self) {
        let _running = Running::begin(&self.0);
        pending().await
    }
    async fn refuse(&self) -> Result<(), Status> {
        Err(Status::aborted("no"))
    }
    async fn refuse_own(&self) -> Result<(), Full> {
        Err(Full)
    }
    async fn wait(&self) {
        let _running = Running::begin(&self.0);
        self.0.gate.0.acquire().await.unwrap().forget();
    }
}

impl Other for Worker {
    async fn echo(&self, text: &str) -> String {
        text.to_owned()
    }
    async fn never(&self) {
        pending().await
    }
}

async fn start(server: ServerBuilder, scheme: &str) -> (WorkClient, Arc<State>) {
    let (client, _, state) = start_both(server, scheme).await;
    (client, state)
}

async fn start_both(server: ServerBuilder, scheme: &str) -> (WorkClient, OtherClient, Arc<State>) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let address = match scheme {
        "tcp" => "tcp://127.0.0.1:0".to_owned(),
        other => format!("{other}://rpc-tower-{}-{number}", std::process::id()),
    };
    let state = Arc::new(State::default());
    let server =
        server.poll_mode(PollMode::Event).add_service(WorkServer::new(Worker(state.clone())));
    let server = server.add_service(OtherServer::new(Worker(state.clone())));
    let server = server.bind(address).await.unwrap();
    let address = server.local_address().to_string();
    tokio::spawn(server.serve());
    let channel = rpc_core::Channel::builder().poll_mode(PollMode::Event);
    let channel = channel.connect(address).await.unwrap();
    (WorkClient::new(channel.clone()), OtherClient::new(channel), state)
}

fn on_each_scheme<F: Future<Output = ()>>(test: impl Fn(&'static str) -> F) {
    let _watchdog = Watchdog::within(Watchdog::LIMIT);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.unwrap();
    for scheme in ["shm", "tcp"] {
        runtime.block_on(test(scheme));
    }
}

#[test]
fn a_server_ends_what_takes_too_long() {
    on_each_scheme(async |scheme| {
        let layer = rpc_tower::layer(TimeoutLayer::new(Duration::from_millis(20)));
        let (client, state) = start(Server::builder().layer(layer), scheme).await;
        let status = client.never().await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded);
        assert_eq!(status.message(), "the timeout that a layer set for the call has passed");
        state.given_up.0.acquire().await.unwrap().forget();
    });
}

#[test]
fn a_layer_limits_concurrent_calls() {
    on_each_scheme(async |scheme| {
        let layer = rpc_tower::layer(ConcurrencyLimitLayer::new(2));
        let (client, state) = start(Server::builder().layer(layer), scheme).await;
        let calls: Vec<_> = (0..50).map(|_| client.echo("x").start()).collect();
        for call in calls {
            assert_eq!(call.await.unwrap(), "x");
        }
        assert!((1..=2).contains(&state.most.load(Ordering::SeqCst)), "{:?}", state.most);
    });
}

/// The first call in the queue may be cancelled while it waits.
#[test]
fn a_call_cancelled_in_the_queue_blocks_nobody() {
    on_each_scheme(async |scheme| {
        let layer = rpc_tower::layer(GlobalConcurrencyLimitLayer::new(1));
        let (client, state) = start(Server::builder().layer(layer), scheme).await;
        let first = client.wait().start();
        while state.begun.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        let cancelled: Vec<_> = (0..5).map(|_| client.never().start()).collect();
        let last = client.echo("last").start();
        drop(cancelled);
        state.gate.0.add_permits(1);
        first.await.unwrap();
        assert_eq!(last.await.unwrap(), "last");
    });
}

/// Counts the calls that wait for the inner layers.
#[derive(Clone, Default)]
struct Waiting(Arc<AtomicUsize>);

impl<S> Layer<S> for Waiting {
    type Service = WaitingFor<S>;

    fn layer(&self, inner: S) -> WaitingFor<S> {
        WaitingFor { inner, waiting: self.0.clone() }
    }
}

struct WaitingFor<S> {
    inner: S,
    waiting: Arc<AtomicUsize>,
}

impl<R, S: Service<R>> Service<R> for WaitingFor<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        let ready = self.inner.poll_ready(cx);
        self.waiting.fetch_add(usize::from(ready.is_pending()), Ordering::SeqCst);
        ready
    }

    fn call(&mut self, request: R) -> S::Future {
        self.inner.call(request)
    }
}

/// Counts cancelled calls.
#[derive(Clone, Default)]
struct Cancelled(Arc<AtomicUsize>);

impl ServerInterceptor for Cancelled {
    fn after(&self, _: &rpc_core::Context, call: &Ended<'_>) {
        self.0.fetch_add(usize::from(call.code() == Code::Cancelled), Ordering::SeqCst);
    }
}

async fn until_not_zero(count: &AtomicUsize) {
    while count.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
}

/// Regression: the permit went to the service of a cancelled call, which was not called any more.
#[test]
fn a_cancelled_call_blocks_no_other_service() {
    on_each_scheme(async |scheme| {
        let (waiting, cancelled) = (Waiting::default(), Cancelled::default());
        let layer = (waiting.clone(), GlobalConcurrencyLimitLayer::new(1));
        let server = Server::builder().interceptor(cancelled.clone());
        let server = server.layer(rpc_tower::layer(layer));
        let (client, other, state) = start_both(server, scheme).await;
        let first = client.wait().start();
        until_not_zero(&state.begun).await;
        let in_line = other.never().start();
        until_not_zero(&waiting.0).await;
        drop(in_line);
        until_not_zero(&cancelled.0).await;
        state.gate.0.add_permits(1);
        first.await.unwrap();
        assert_eq!(client.echo("next").await.unwrap(), "next");
        assert_eq!(other.echo("last").await.unwrap(), "last");
    });
}

/// Regression: the service of the shed call had asked for a permit, and got it when it was not
/// called any more.
#[test]
fn a_shed_call_takes_no_permit() {
    on_each_scheme(async |scheme| {
        let layer = (LoadShedLayer::new(), GlobalConcurrencyLimitLayer::new(1));
        let server = Server::builder().layer(rpc_tower::layer(layer));
        let (client, other, state) = start_both(server, scheme).await;
        let first = client.wait().start();
        until_not_zero(&state.begun).await;
        assert_eq!(other.echo("shed").await.unwrap_err().code(), Code::ResourceExhausted);
        state.gate.0.add_permits(1);
        first.await.unwrap();
        assert_eq!(client.echo("next").await.unwrap(), "next");
        assert_eq!(other.echo("last").await.unwrap(), "last");
    });
}

#[test]
fn a_limit_covers_all_services() {
    on_each_scheme(async |scheme| {
        let layers = (LoadShedLayer::new(), RateLimitLayer::new(1, AGES));
        let server = Server::builder().layer(rpc_tower::layer(layers));
        let (client, other, _) = start_both(server, scheme).await;
        assert_eq!(client.echo("a").await.unwrap(), "a");
        assert_eq!(other.echo("b").await.unwrap_err().code(), Code::ResourceExhausted);
    });
}

#[test]
fn a_server_sheds_what_is_above_its_rate() {
    on_each_scheme(async |scheme| {
        let layers = (LoadShedLayer::new(), RateLimitLayer::new(2, AGES));
        let layer = rpc_tower::layer(layers);
        let (client, state) = start(Server::builder().layer(layer), scheme).await;
        assert_eq!(client.echo("a").await.unwrap(), "a");
        assert_eq!(client.echo("b").await.unwrap(), "b");
        let status = client.echo("c").await.unwrap_err();
        assert_eq!((status.code(), status.is_retryable()), (Code::ResourceExhausted, true));
        assert_eq!(state.begun.load(Ordering::SeqCst), 2, "and the third did not run");
    });
}

#[test]
fn a_status_of_the_handler_passes_all_layers() {
    on_each_scheme(async |scheme| {
        let layer = rpc_tower::layer(TimeoutLayer::new(AGES));
        let (client, _) = start(Server::builder().layer(layer), scheme).await;
        let status = Status::from(client.refuse().await.unwrap_err());
        assert_eq!((status.code(), status.message()), (Code::Aborted, "no"));
        assert_eq!(client.echo("x").await.unwrap(), "x");
    });
}

#[test]
fn calls_have_layers_of_their_own() {
    on_each_scheme(async |scheme| {
        let (client, state) = start(Server::builder(), scheme).await;
        let hurried = ServiceBuilder::new().timeout(Duration::from_millis(20)).service(CallService);
        // The timeout may pass before the handler begins.
        while state.begun.load(Ordering::SeqCst) == 0 {
            let ended = hurried.clone().oneshot(client.never().into_owned()).await.unwrap_err();
            assert_eq!(rpc_tower::status(ended).code(), Code::DeadlineExceeded);
        }
        state.given_up.0.acquire().await.unwrap().forget();

        let (client, state) = start(Server::builder(), scheme).await;
        let limited = ServiceBuilder::new().concurrency_limit(2).service(CallService);
        let calls =
            (0..50).map(|_| tokio::spawn(limited.clone().oneshot(client.echo("x").into_owned())));
        for call in calls.collect::<Vec<_>>() {
            assert_eq!(call.await.unwrap().unwrap(), "x");
        }
        assert!((1..=2).contains(&state.most.load(Ordering::SeqCst)), "{:?}", state.most);

        let mut rated = ServiceBuilder::new()
            .layer(LoadShedLayer::new())
            .rate_limit(2, AGES)
            .service(CallService);
        let before = state.begun.load(Ordering::SeqCst);
        for _ in 0..2 {
            let echo = client.echo("x").into_owned();
            assert_eq!((&mut rated).oneshot(echo).await.unwrap(), "x");
        }
        let echo = client.echo("x").into_owned();
        let shed = rpc_tower::status((&mut rated).oneshot(echo).await.unwrap_err());
        assert_eq!((shed.code(), shed.is_retryable()), (Code::ResourceExhausted, true));
        assert_eq!(state.begun.load(Ordering::SeqCst), before + 2, "the third was not sent");
    });
}

#[test]
fn a_servers_status_passes_the_layers() {
    on_each_scheme(async |scheme| {
        let (client, _) = start(Server::builder(), scheme).await;
        let patient = ServiceBuilder::new().timeout(AGES).service(CallService);
        let refused = || patient.clone().oneshot(client.refuse().into_owned());
        let status = rpc_tower::status(refused().await.unwrap_err());
        assert_eq!((status.code(), status.message()), (Code::Aborted, "no"));
        let error = rpc_tower::call_error::<Status>(refused().await.unwrap_err());
        assert_eq!(error.status().map(Status::code), Some(Code::Aborted));
        let own = patient.clone().oneshot(client.refuse_own().into_owned()).await.unwrap_err();
        assert_eq!(rpc_tower::call_error(own), CallError::User(Full));

        let gone = client.refuse_own().timeout(Duration::ZERO).into_owned();
        let gone = patient.oneshot(gone).await.unwrap_err();
        let status = rpc_tower::call_error::<Full>(gone).status().map(Status::code);
        assert_eq!(status, Some(Code::DeadlineExceeded));
        let hurried = ServiceBuilder::new().timeout(Duration::ZERO).service(CallService);
        let late = hurried.oneshot(client.never().into_owned()).await.unwrap_err();
        let status = rpc_tower::call_error::<Full>(late).status().map(Status::code);
        assert_eq!(status, Some(Code::DeadlineExceeded));
    });
}

#[derive(Debug)]
struct Behind(CallError<Full>);

impl std::fmt::Display for Behind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("behind")
    }
}

impl std::error::Error for Behind {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

#[test]
fn a_status_is_found_inside_other_errors() {
    let behind = Behind(CallError::Status(Status::aborted("no").with_retryable(true)));
    let error = rpc_tower::call_error::<Full>(behind.into());
    let status = error.status().unwrap();
    assert_eq!((status.code(), status.is_retryable()), (Code::Aborted, true));
    let error = rpc_tower::call_error::<Full>(Behind(CallError::User(Full)).into());
    assert_eq!(error.status().unwrap().message(), "a layer failed: behind: full");
}

#[test]
fn other_layer_errors_include_their_sources() {
    let status = rpc_tower::status("the moon is full".into());
    assert_eq!(status.to_string(), "unknown error: a layer failed: the moon is full");
    let own = rpc_tower::status(Status::aborted("no").into());
    assert_eq!(own.code(), Code::Aborted);
}
