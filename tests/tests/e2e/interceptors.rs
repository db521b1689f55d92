//! Interceptors and layers, at both ends, over each device.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use parking_lot::Mutex;
use rpc_core::client::blocking::BlockingChannel;
use rpc_core::interceptor::{
    ClientInterceptor, Ended, Ending, Inbound, Outbound, ServerInterceptor,
};
use rpc_core::service::{Dispatch, Handler, Reply, Request, ServiceDescriptor};
use rpc_core::stream::{self, Stream, Streaming};
use rpc_core::transport::PeerIdentity;
use rpc_core::{CallError, ChannelBuilder, Code, Context, PollMode, ServerBuilder, Status};
use tests::limit::patient_channel;
use tests::scheme::Scheme;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

on_every_device! {
    the_first_interceptor_is_outermost_at_both_ends,
    a_call_that_is_refused_does_not_run,
    a_handler_reads_what_interceptors_know,
    each_end_of_a_call_is_told_once,
    a_panic_costs_its_own_call,
    streams_are_counted,
    a_deadline_may_be_brought_forward,
    a_layer_sees_what_the_handler_becomes,
    metadata_of_a_channel_goes_with_each_call,
    a_blocking_client_has_interceptors,
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Own;

#[rpc_core::service]
trait Desk {
    async fn echo(&self, text: &str) -> String;
    async fn user(&self) -> Option<String>;
    async fn metadata(&self, name: &str) -> Option<String>;
    async fn own_error(&self) -> Result<(), Own>;
    async fn never(&self);
    async fn panics(&self);
    fn lengths(&self, words: Streaming<String>) -> impl Stream<Item = Result<u64, Status>>;
}

struct Clerk;

/// The caller, as an interceptor identifies it.
struct User(String);

impl Desk for Clerk {
    async fn echo(&self, text: &str) -> String {
        text.to_owned()
    }
    async fn user(&self) -> Option<String> {
        Some(Context::current().extension::<User>()?.0.clone())
    }
    async fn metadata(&self, name: &str) -> Option<String> {
        Context::current().metadata().text(name).map(str::to_owned)
    }
    async fn own_error(&self) -> Result<(), Own> {
        Err(Own)
    }
    async fn never(&self) {
        pending().await
    }
    async fn panics(&self) {
        panic!("on purpose")
    }
    fn lengths(&self, mut words: Streaming<String>) -> impl Stream<Item = Result<u64, Status>> {
        stream::try_stream(async move |mut out| {
            while let Some(word) = words.try_next().await? {
                out.send(word.len() as u64).await?;
            }
            Ok(())
        })
    }
}

/// Logs its calls.
struct Log {
    name: &'static str,
    lines: UnboundedSender<String>,
}

type Lines = UnboundedReceiver<String>;

fn log(name: &'static str, lines: &UnboundedSender<String>) -> Log {
    Log { name, lines: lines.clone() }
}

impl Log {
    fn write(&self, line: String) {
        self.lines.send(format!("{} {line}", self.name)).expect("the test reads");
    }

    fn ended(&self, call: &Ended<'_>) {
        let how = match call.ending() {
            Ending::Ok => "ok".to_owned(),
            Ending::UserError => "own error".to_owned(),
            Ending::Status(status) => format!("{:?}", status.code()),
            Ending::Cancelled => "cancelled".to_owned(),
            _ => "?".to_owned(),
        };
        self.write(format!("after {} {how}", call.method().name));
    }
}

impl ServerInterceptor for Log {
    fn name(&self) -> &str {
        self.name
    }
    fn before(&self, call: &mut Inbound<'_>) -> Result<(), Status> {
        self.write(format!("before {}", call.method().name));
        Ok(())
    }
    fn after(&self, _: &Context, call: &Ended<'_>) {
        self.ended(call);
    }
}

impl ClientInterceptor for Log {
    fn name(&self) -> &str {
        self.name
    }
    fn before(&self, call: &mut Outbound<'_>) -> Result<(), Status> {
        self.write(format!("before {}", call.method().name));
        Ok(())
    }
    fn after(&self, call: &Ended<'_>) {
        self.ended(call);
    }
}

/// The next lines, in order.
async fn lines(lines: &mut Lines, count: usize) -> Vec<String> {
    let mut found = Vec::new();
    while found.len() < count {
        found.push(lines.recv().await.expect("an interceptor lives"));
    }
    found
}

fn server() -> ServerBuilder {
    tests::device::server().poll_mode(PollMode::Event)
}

async fn serve(server: ServerBuilder, scheme: Scheme) -> String {
    let server = server.add_service(DeskServer::new(Clerk));
    let server = server.bind(scheme.fresh_address()).await.expect("bound");
    let address = server.local_address().to_string();
    tokio::spawn(server.serve());
    address
}

async fn desk(address: &str, channel: ChannelBuilder) -> DeskClient {
    DeskClient::new(channel.connect(address).await.expect("connected"))
}

async fn the_first_interceptor_is_outermost_at_both_ends(scheme: Scheme) {
    let (to, mut seen) = unbounded_channel();
    let server = server().interceptor(log("c", &to)).interceptor(log("d", &to));
    let text = format!("{server:?}");
    assert!(text.contains(r#"["c", "d"]"#), "{text}");
    let address = serve(server, scheme).await;
    let channel = patient_channel().interceptor(log("a", &to)).interceptor(log("b", &to));
    let text = format!("{channel:?}");
    assert!(text.contains(r#"["a", "b"]"#), "{text}");
    let desk = desk(&address, channel).await;
    let echo = desk.echo("x");
    assert!(seen.try_recv().is_err(), "a call that is made and not sent");
    assert_eq!(echo.await.expect("answered"), "x");
    let expected = [
        "a before Desk.echo",
        "b before Desk.echo",
        "c before Desk.echo",
        "d before Desk.echo",
        "d after Desk.echo ok",
        "c after Desk.echo ok",
        "b after Desk.echo ok",
        "a after Desk.echo ok",
    ];
    assert_eq!(lines(&mut seen, expected.len()).await, expected);
    assert!(seen.try_recv().is_err(), "nothing twice");
}

/// Refuses calls, at either end.
struct Refuse;

impl ServerInterceptor for Refuse {
    fn before(&self, _: &mut Inbound<'_>) -> Result<(), Status> {
        Err(Status::permission_denied("not here"))
    }
}

impl ClientInterceptor for Refuse {
    fn before(&self, _: &mut Outbound<'_>) -> Result<(), Status> {
        Err(Status::failed_precondition("not from here"))
    }
}

async fn a_call_that_is_refused_does_not_run(scheme: Scheme) {
    let (to, mut seen) = unbounded_channel();
    let refusing =
        server().interceptor(log("s", &to)).interceptor(Refuse).interceptor(log("inner", &to));
    let address = serve(refusing, scheme).await;
    let client = desk(&address, patient_channel()).await;
    let status = client.panics().await.expect_err("refused");
    assert_eq!((status.code(), status.message()), (Code::PermissionDenied, "not here"));
    let refused = client.lengths(stream::iter(["a".to_owned()])).await.expect_err("refused");
    assert_eq!(refused.code(), Code::PermissionDenied);
    let expected = [
        "s before Desk.panics",
        "s after Desk.panics PermissionDenied",
        "s before Desk.lengths",
        "s after Desk.lengths PermissionDenied",
    ];
    assert_eq!(lines(&mut seen, expected.len()).await, expected);

    let channel = patient_channel().interceptor(log("c", &to)).interceptor(Refuse);
    let client = desk(&address, channel).await;
    let status = client.panics().await.expect_err("refused");
    assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "not from here"));
    let started = client.panics().start().await.expect_err("refused");
    assert_eq!(started.code(), Code::FailedPrecondition);
    let refused = client.lengths(stream::iter(["a".to_owned()])).await.expect_err("refused");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let expected = [
        "c before Desk.panics",
        "c after Desk.panics FailedPrecondition",
        "c before Desk.panics",
        "c after Desk.panics FailedPrecondition",
        "c before Desk.lengths",
        "c after Desk.lengths FailedPrecondition",
    ];
    assert_eq!(lines(&mut seen, expected.len()).await, expected, "and the server saw none of it");
}

/// Knows the user by a token.
struct Auth;

impl ServerInterceptor for Auth {
    fn before(&self, call: &mut Inbound<'_>) -> Result<(), Status> {
        let peer = match call.peer() {
            Some(PeerIdentity::Process { pid, .. }) => format!("process {pid}"),
            Some(PeerIdentity::Network(address)) => format!("host {}", address.ip()),
            Some(PeerIdentity::SameProcess) => "myself".to_owned(),
            _ => return Err(Status::internal("nobody")),
        };
        let token = call.metadata().text("token");
        let token = token.ok_or_else(|| Status::unauthenticated("this server wants a token"))?;
        call.insert(User(format!("{token} at {peer}")));
        Ok(())
    }
    fn after(&self, context: &Context, call: &Ended<'_>) {
        let known = (call.extension::<User>(), context.extension::<User>());
        assert!(matches!(known, (Some(_), Some(_))), "what `before` has put there");
    }
}

async fn a_handler_reads_what_interceptors_know(scheme: Scheme) {
    let address = serve(server().interceptor(Auth), scheme).await;
    let client = desk(&address, patient_channel()).await;
    let status = client.user().await.expect_err("no token");
    assert_eq!(status.code(), Code::Unauthenticated);
    let peer = match scheme {
        Scheme::Mem => "myself".to_owned(),
        Scheme::ShmName => format!("process {}", std::process::id()),
        _ => {
            let known = client.user().metadata("token", "t").await.expect("answered");
            let known = known.expect("a user");
            assert!(known.starts_with("t at host "), "{known}");
            return;
        }
    };
    let known = client.user().metadata("token", "t").await.expect("answered");
    assert_eq!(known, Some(format!("t at {peer}")));
    let plain = serve(server(), scheme).await;
    let client = desk(&plain, patient_channel()).await;
    assert_eq!(client.user().await.expect("answered"), None);
}

async fn each_end_of_a_call_is_told_once(scheme: Scheme) {
    let (to, mut seen) = unbounded_channel();
    let address = serve(server().interceptor(log("s", &to)), scheme).await;
    let (to, mut here) = unbounded_channel();
    let client = desk(&address, patient_channel().interceptor(log("c", &to))).await;
    let error = client.own_error().await.expect_err("an error of its own");
    assert!(matches!(error, CallError::User(Own)), "{error:?}");
    assert_eq!(client.panics().await.expect_err("a panic").code(), Code::Internal);
    let expected = [
        "before Desk.own_error",
        "after Desk.own_error own error",
        "before Desk.panics",
        "after Desk.panics Internal",
    ];
    assert_eq!(lines(&mut seen, 4).await, expected.map(|line| format!("s {line}")));
    assert_eq!(lines(&mut here, 4).await, expected.map(|line| format!("c {line}")));

    // Dropped by its caller while the handler runs.
    let call = client.never().start();
    assert_eq!(lines(&mut seen, 1).await, ["s before Desk.never"]);
    drop(call);
    assert_eq!(lines(&mut seen, 1).await, ["s after Desk.never cancelled"]);
    assert_eq!(lines(&mut here, 2).await, ["c before Desk.never", "c after Desk.never cancelled"]);

    // Ended by its deadline: the server drops the handler.
    let late = client.never().timeout(Duration::from_millis(1)).await.expect_err("no time");
    assert_eq!(late.code(), Code::DeadlineExceeded);
    let ended = ["c before Desk.never", "c after Desk.never DeadlineExceeded"];
    assert_eq!(lines(&mut here, 2).await, ended);
}

/// Panics at the requested step.
struct Clumsy {
    before: bool,
}

impl Clumsy {
    fn before(&self, method: &str) -> Result<(), Status> {
        assert!(!self.before || method != "Desk.user", "on purpose, before");
        Ok(())
    }

    fn after(&self, method: &str) {
        assert!(self.before || method != "Desk.user", "on purpose, after");
    }
}

impl ServerInterceptor for Clumsy {
    fn before(&self, call: &mut Inbound<'_>) -> Result<(), Status> {
        Self::before(self, call.method().name)
    }
    fn after(&self, _: &Context, call: &Ended<'_>) {
        Self::after(self, call.method().name);
    }
}

impl ClientInterceptor for Clumsy {
    fn before(&self, call: &mut Outbound<'_>) -> Result<(), Status> {
        Self::before(self, call.method().name)
    }
    fn after(&self, call: &Ended<'_>) {
        Self::after(self, call.method().name);
    }
}

async fn a_panic_costs_its_own_call(scheme: Scheme) {
    for before in [true, false] {
        let (to, mut seen) = unbounded_channel();
        let clumsy = server().interceptor(log("s", &to)).interceptor(Clumsy { before });
        let address = serve(clumsy, scheme).await;
        let client = desk(&address, patient_channel()).await;
        let never = client.never().start();
        assert_eq!(lines(&mut seen, 1).await, ["s before Desk.never"]);
        let status = client.user().await.expect_err("an interceptor panics");
        assert_eq!(status.code(), Code::Internal);
        assert_eq!(status.message(), "Desk.user: an interceptor panicked");
        let told = lines(&mut seen, 2).await;
        assert_eq!(told[0], "s before Desk.user");
        assert!(told[1].starts_with("s after Desk.user"), "{told:?}");
        assert_eq!(client.echo("x").await.expect("the next call"), "x");
        drop(never);

        let plain = serve(server(), scheme).await;
        let client = desk(&plain, patient_channel().interceptor(Clumsy { before })).await;
        let status = client.user().await.expect_err("an interceptor panics");
        assert_eq!(status.code(), Code::Internal);
        assert_eq!(client.echo("x").await.expect("the next call"), "x");
    }
}

/// Records the counts of ended calls.
#[derive(Clone, Default)]
struct Counts(Arc<Mutex<Vec<[u64; 6]>>>);

impl Counts {
    fn note(&self, call: &Ended<'_>) {
        let items = call.items();
        let bytes = [call.request_bytes(), call.reply_bytes()];
        let items = [items.received, items.received_bytes, items.sent, items.sent_bytes];
        self.0.lock().push([bytes[0], bytes[1], items[0], items[1], items[2], items[3]]);
    }
}

impl ServerInterceptor for Counts {
    fn after(&self, _: &Context, call: &Ended<'_>) {
        self.note(call);
    }
}

impl ClientInterceptor for Counts {
    fn after(&self, call: &Ended<'_>) {
        self.note(call);
    }
}

async fn streams_are_counted(scheme: Scheme) {
    let (there, here) = (Counts::default(), Counts::default());
    let address = serve(server().interceptor(there.clone()), scheme).await;
    let client = desk(&address, patient_channel().interceptor(here.clone())).await;
    let words = stream::iter((0..100).map(|at| "w".repeat(at)));
    let lengths = client.lengths(words).await.expect("accepted");
    assert!(here.0.lock().is_empty(), "the stream goes on");
    let lengths: Vec<u64> = lengths.map(|length| length.expect("an item")).collect().await;
    assert_eq!(lengths, (0..100).collect::<Vec<u64>>());
    // A word is its length in a byte and its bytes, a number one byte.
    let (up, down) = (100 + (0..100).sum::<u64>(), 100);
    assert_eq!(*there.0.lock(), [[0, 0, 100, up, 100, down]]);
    assert_eq!(*here.0.lock(), [[0, 0, 100, down, 100, up]]);
    assert_eq!(client.echo("four").await.expect("answered"), "four");
    assert_eq!(there.0.lock()[1], [5, 5, 0, 0, 0, 0]);
    assert_eq!(here.0.lock()[1], [5, 5, 0, 0, 0, 0]);
}

/// Gives calls no time at all.
struct Hurry;

impl ServerInterceptor for Hurry {
    fn before(&self, call: &mut Inbound<'_>) -> Result<(), Status> {
        call.shorten_deadline(Instant::now() + Duration::from_millis(1));
        Ok(())
    }
}

impl ClientInterceptor for Hurry {
    fn before(&self, call: &mut Outbound<'_>) -> Result<(), Status> {
        assert_eq!(call.deadline(), None);
        call.shorten_deadline(Instant::now() + Duration::from_millis(1));
        assert!(call.deadline().is_some());
        Ok(())
    }
}

async fn a_deadline_may_be_brought_forward(scheme: Scheme) {
    let (to, mut seen) = unbounded_channel();
    let address = serve(server().interceptor(log("s", &to)).interceptor(Hurry), scheme).await;
    let client = desk(&address, patient_channel()).await;
    let status = client.never().await.expect_err("no time");
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(status.message(), "Desk.never: the deadline set by an interceptor has passed");
    let told = ["s before Desk.never", "s after Desk.never DeadlineExceeded"];
    assert_eq!(lines(&mut seen, 2).await, told);

    let plain = serve(server(), scheme).await;
    let client = desk(&plain, patient_channel().interceptor(Hurry)).await;
    assert_eq!(client.never().await.expect_err("no time").code(), Code::DeadlineExceeded);
}

/// Replaces the text of panics.
struct Soothe(Arc<dyn Dispatch>);

impl Dispatch for Soothe {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        self.0.descriptor()
    }

    fn dispatch(&self, method: usize, mut request: Request) -> Handler {
        let context = request.context.clone().with_extension(User("soothed".to_owned()));
        request.context = context.clone();
        let inner = self.0.dispatch(method, request);
        Handler::new(context, async move {
            match inner.await {
                Reply::Status(status) if status.code() == Code::Internal => {
                    Reply::Status(Status::aborted("a pity"))
                }
                reply => reply,
            }
        })
    }
}

async fn a_layer_sees_what_the_handler_becomes(scheme: Scheme) {
    let (to, mut seen) = unbounded_channel();
    let layered = server()
        .interceptor(log("outer", &to))
        .layer(|inner| Arc::new(Soothe(inner)))
        .interceptor(log("inner", &to));
    let text = format!("{layered:?}");
    let order = ["outer", "a_layer_sees_what_the_handler_becomes", "\"inner\""];
    let places = order.map(|name| text.find(name).expect("named"));
    assert!(places.is_sorted(), "{text}");
    let address = serve(layered, scheme).await;
    let client = desk(&address, patient_channel()).await;
    assert_eq!(client.panics().await.expect_err("a panic").message(), "a pity");
    let expected = [
        "outer before Desk.panics",
        "inner before Desk.panics",
        "inner after Desk.panics Internal",
        "outer after Desk.panics Aborted",
    ];
    assert_eq!(lines(&mut seen, 4).await, expected);
    assert_eq!(client.user().await.expect("answered").as_deref(), Some("soothed"));

    let other = |_: Arc<dyn Dispatch>| -> Arc<dyn Dispatch> { Arc::new(OtherServer::new(Clerk)) };
    let server = server().layer(other).add_service(DeskServer::new(Clerk));
    let error = server.bind(scheme.fresh_address()).await.expect_err("another service");
    let text = error.to_string();
    assert!(text.contains("wraps Desk but has the descriptor of Other"), "{text}");
}

#[rpc_core::service]
trait Other {
    async fn nothing(&self);
}

impl Other for Clerk {
    async fn nothing(&self) {}
}

async fn metadata_of_a_channel_goes_with_each_call(scheme: Scheme) {
    let address = serve(server(), scheme).await;
    let channel = patient_channel().metadata("tenant", "blue").metadata("zone", "a");
    let client = desk(&address, channel).await;
    let tenant = || client.metadata("tenant");
    assert_eq!(tenant().await.expect("answered").as_deref(), Some("blue"));
    let own = tenant().metadata("tenant", "red").await.expect("answered");
    assert_eq!(own.as_deref(), Some("red"), "the call's own word counts");
    assert_eq!(client.metadata("zone").await.expect("answered").as_deref(), Some("a"));

    let bad = patient_channel().metadata("Tenant", "blue").connect(&address).await;
    let text = bad.expect_err("a bad name").to_string();
    assert!(text.contains("\"Tenant\"") && text.contains("lower-case"), "{text}");
}

async fn a_blocking_client_has_interceptors(scheme: Scheme) {
    let (to, mut seen) = unbounded_channel();
    let address = serve(server(), scheme).await;
    let blocking = tokio::task::spawn_blocking(move || {
        let builder = patient_channel().metadata("tenant", "blue").interceptor(log("c", &to));
        let channel = BlockingChannel::connect_with(builder.connect(address)).expect("connected");
        let client = DeskBlockingClient::new(channel);
        client.metadata("tenant").expect("answered")
    });
    assert_eq!(blocking.await.expect("no panic").as_deref(), Some("blue"));
    let expected = ["c before Desk.metadata", "c after Desk.metadata ok"];
    assert_eq!(lines(&mut seen, 2).await, expected);
}
