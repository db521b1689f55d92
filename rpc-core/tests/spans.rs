//! Spans of calls, and their traces.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use rpc_core::stream::{self, Stream};
use rpc_core::{CallError, Channel, Code, Context, Server, Status};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

#[rpc_core::service]
trait Outer {
    async fn ask(&self, later: bool) -> Result<Vec<String>, Status>;
    async fn refuse(&self) -> Result<(), u8>;
    async fn panic(&self, later: bool);
    async fn hang(&self);
    async fn forward(&self, own: u32) -> Result<Vec<String>, Status>;
    async fn twice(&self) -> Result<Vec<String>, Status>;
    async fn with_state(&self) -> Result<Vec<String>, Status>;
    fn list(&self) -> impl Stream<Item = u8>;
}

#[rpc_core::service]
trait Inner {
    async fn work(&self) -> Vec<String>;
}

struct Service(InnerClient);

fn seen() -> Vec<String> {
    let context = Context::current();
    context
        .metadata()
        .iter()
        .map(|(name, value)| format!("{name}={}", String::from_utf8_lossy(value)))
        .collect()
}

impl Outer for Service {
    async fn ask(&self, later: bool) -> Result<Vec<String>, Status> {
        if later {
            tokio::task::yield_now().await;
        }
        tracing::info!("in ask");
        self.0.work().await
    }

    async fn refuse(&self) -> Result<(), u8> {
        Err(7)
    }

    async fn panic(&self, later: bool) {
        if later {
            tokio::task::yield_now().await;
        }
        panic!("on purpose");
    }

    async fn hang(&self) {
        tracing::info!("in hang");
        std::future::pending().await
    }

    async fn forward(&self, own: u32) -> Result<Vec<String>, Status> {
        self.0.work().metadata("own", vec![b'.'; own as usize]).await
    }

    async fn twice(&self) -> Result<Vec<String>, Status> {
        let mut seen = self.0.work().await?;
        tokio::task::yield_now().await;
        seen.extend(self.0.work().await?);
        Ok(seen)
    }

    async fn with_state(&self) -> Result<Vec<String>, Status> {
        self.0.work().metadata("tracestate", "own=1").await
    }

    fn list(&self) -> impl Stream<Item = u8> {
        stream::iter((0..3).inspect(|_| tracing::info!("in list")))
    }
}

struct Worker;

impl Inner for Worker {
    async fn work(&self) -> Vec<String> {
        tracing::info!("in work");
        seen()
    }
}

/// Keeps every span, and the span of each event.
#[derive(Clone, Default)]
struct Spans(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    /// Whether it reports everything as disabled.
    is_off: bool,
    /// Whether it panics when a field is recorded later.
    is_broken: bool,
    /// Whether it panics when a span closes.
    is_broken_at_close: bool,
    spans: Vec<Span>,
    entered: Vec<u64>,
    events: Vec<(String, Option<u64>)>,
}

#[derive(Clone, Default)]
struct Span {
    name: &'static str,
    fields: HashMap<&'static str, String>,
}

struct Fields<'a>(&'a mut HashMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl Subscriber for Spans {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        if self.0.lock().unwrap().is_off {
            return false;
        }
        metadata.target() == rpc_core::trace::TARGET || metadata.target() == module_path!()
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut state = self.0.lock().unwrap();
        let name = attributes.metadata().name();
        let mut span = Span { name, ..Span::default() };
        attributes.record(&mut Fields(&mut span.fields));
        state.spans.push(span);
        Id::from_u64(state.spans.len() as u64)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        let mut state = self.0.lock().unwrap();
        if state.is_broken {
            drop(state);
            panic!("on purpose");
        }
        let at = id.into_u64() as usize - 1;
        values.record(&mut Fields(&mut state.spans[at].fields));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = HashMap::new();
        event.record(&mut Fields(&mut fields));
        let mut state = self.0.lock().unwrap();
        let within = state.entered.last().copied();
        state.events.push((fields.remove("message").unwrap_or_default(), within));
    }

    fn enter(&self, id: &Id) {
        self.0.lock().unwrap().entered.push(id.into_u64());
    }

    fn exit(&self, id: &Id) {
        assert_eq!(self.0.lock().unwrap().entered.pop(), Some(id.into_u64()));
    }

    fn try_close(&self, _: Id) -> bool {
        let is_broken = self.0.lock().unwrap().is_broken_at_close;
        assert!(!is_broken, "on purpose");
        false
    }
}

impl Spans {
    /// The spans of a method: name, trace, status.
    fn of(&self, method: &str) -> Vec<(&'static str, String, String)> {
        let state = self.0.lock().unwrap();
        let field = |span: &Span, name: &str| span.fields.get(name).cloned().unwrap_or_default();
        let spans = state.spans.iter().filter(|span| field(span, "rpc.method") == method);
        let spans = spans.map(|span| {
            (span.name, field(span, "trace_id"), field(span, "rpc.response.status_code"))
        });
        spans.collect()
    }

    /// The ids of the spans of a method: name, trace, parent, span.
    fn ids(&self, method: &str) -> Vec<(&'static str, String, String, String)> {
        let state = self.0.lock().unwrap();
        let field = |span: &Span, name: &str| span.fields.get(name).cloned().unwrap_or_default();
        let spans = state.spans.iter().filter(|span| field(span, "rpc.method") == method);
        let id = |span| {
            let [trace, parent, own] =
                ["trace_id", "parent_span_id", "span_id"].map(|name| field(span, name));
            (span.name, trace, parent, own)
        };
        spans.map(id).collect()
    }

    /// The methods of the server spans with an event of this text.
    fn within(&self, words: &str) -> Vec<String> {
        let state = self.0.lock().unwrap();
        let events = state.events.iter().filter(|(message, _)| message == words);
        let of = |id: &Option<u64>| {
            let span = &state.spans[id.expect("it is in no span") as usize - 1];
            assert_eq!(span.name, "server call");
            check_peer(span);
            format!("{}.{}", span.fields["rpc.service"], span.fields["rpc.method"])
        };
        events.map(|(_, within)| of(within)).collect()
    }
}

/// The peer, depending on the scheme: a process, or an address and its port.
fn check_peer(span: &Span) {
    let port = span.fields.get("network.peer.port").map(|port| port.parse::<u16>().unwrap());
    let process = format!("pid {} uid ", std::process::id());
    match &*span.fields["network.peer.address"] {
        "127.0.0.1" => assert!(port.is_some_and(|port| port > 0), "{:?}", span.fields),
        "this process" => assert_eq!(port, None),
        other => {
            let user = other.strip_prefix(&process).map(str::parse::<u32>);
            assert!(matches!(user, Some(Ok(_))) && port.is_none(), "{:?}", span.fields);
        }
    }
}

/// Runs on one thread, so that the thread's subscriber sees everything.
fn run<F: Future<Output = ()>>(test: impl Fn(OuterClient, Channel) -> F) {
    // Tests of one process run at once.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("spans-{}-{number}", std::process::id());
    for address in
        [format!("mem://{name}"), format!("shm://{name}"), "tcp://127.0.0.1:0".to_owned()]
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let inner = Channel::to(InnerServer::new(Worker)).await.unwrap();
            let service = OuterServer::new(Service(InnerClient::new(inner)));
            let server = Server::builder().add_service(service).bind(&address).await.unwrap();
            let address = server.local_address().to_string();
            tokio::spawn(server.serve());
            let channel = Channel::connect(&address).await.unwrap();
            test(OuterClient::new(channel.clone()), channel).await;
        });
    }
}

#[test]
fn calls_have_spans_at_both_ends() {
    let spans = Spans::default();
    tracing::subscriber::with_default(spans.clone(), || {
        run(|client, _| {
            *spans.0.lock().unwrap() = State::default();
            let spans = spans.clone();
            async move {
                for later in [false, true] {
                    client.ask(later).await.unwrap();
                }
                assert_eq!(spans.within("in ask"), ["Outer.ask", "Outer.ask"]);
                assert_eq!(spans.within("in work"), ["Inner.work", "Inner.work"]);
                let (ask, work) = (spans.of("ask"), spans.of("work"));
                for spans in [&ask, &work] {
                    let [a, b, c, d] = &spans[..] else { panic!("{spans:?}") };
                    assert_eq!(
                        [a.0, b.0, c.0, d.0].map(|name| &name[..6]),
                        ["client", "server", "client", "server"]
                    );
                    assert_eq!((a.1.len(), &a.1, &c.1), (32, &b.1, &d.1));
                    assert_ne!(a.1, c.1, "calls of their own are traces of their own");
                    assert!(spans.iter().all(|span| span.2 == "Ok"), "{spans:?}");
                }
                assert_eq!(
                    (&ask[0].1, &ask[2].1),
                    (&work[0].1, &work[2].1),
                    "nested calls are in the trace"
                );

                let refused = client.refuse().await.unwrap_err();
                assert!(matches!(refused, CallError::User(7)));
                assert!(spans.of("refuse").iter().all(|span| span.2 == "UserError"));
                for later in [false, true] {
                    assert_eq!(client.panic(later).await.unwrap_err().code(), Code::Internal);
                }
                let panics = spans.of("panic");
                assert_eq!(panics.len(), 4);
                assert!(panics.iter().all(|span| span.2 == "Internal"), "{panics:?}");

                let hanging = client.hang().start();
                while spans.within("in hang").is_empty() {
                    tokio::task::yield_now().await;
                }
                drop(hanging);
                while spans.of("hang").iter().any(|span| span.2.is_empty()) {
                    tokio::task::yield_now().await;
                }
                assert!(spans.of("hang").iter().all(|span| span.2 == "Cancelled"));
                assert_eq!(spans.within("in hang"), ["Outer.hang"]);

                let mut list = client.list().await.unwrap();
                while list.try_next().await.unwrap().is_some() {}
                assert_eq!(spans.within("in list"), ["Outer.list"; 3]);
            }
        });
    });
}

/// Regression: the task of a handler that had yielded ended without a reply, so the call never
/// ended.
#[test]
fn a_subscriber_panic_at_the_end_is_harmless() {
    calls_end_under(|| State { is_broken: true, ..State::default() });
}

/// Regression: the handler's span closed before its reply was passed to the session, so the call
/// never ended.
#[test]
fn a_subscriber_panic_on_close_is_harmless() {
    calls_end_under(|| State { is_broken_at_close: true, ..State::default() });
}

fn calls_end_under(state: impl Fn() -> State) {
    let _watchdog = test_kit::Watchdog::within(test_kit::Watchdog::LIMIT);
    let spans = Spans::default();
    tracing::subscriber::with_default(spans.clone(), || {
        run(|client, _| {
            *spans.0.lock().unwrap() = state();
            let spans = spans.clone();
            async move {
                for later in [false, true] {
                    client.ask(later).await.unwrap();
                    assert_eq!(client.panic(later).await.unwrap_err().code(), Code::Internal);
                }
                let hanging = client.hang().start();
                while spans.within("in hang").is_empty() {
                    tokio::task::yield_now().await;
                }
                drop(hanging);
                client.ask(true).await.unwrap();
            }
        });
    });
}

/// Without spans nothing is added to a request, and the caller's trace is forwarded unchanged.
#[test]
fn a_trace_is_forwarded_without_spans() {
    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    run(|client, _| async move {
        for later in [false, true] {
            assert_eq!(client.ask(later).await.unwrap(), Vec::<String>::new());
            let traced =
                client.ask(later).metadata("traceparent", TRACE).metadata("tracestate", "a=1");
            let expected = [format!("traceparent={TRACE}"), "tracestate=a=1".to_owned()];
            assert_eq!(traced.metadata("other", "is not passed on").await.unwrap(), expected);
        }
        // A malformed trace is not used as a parent.
        let broken =
            client.ask(false).metadata("traceparent", "00-nonsense").metadata("tracestate", "a=1");
        assert_eq!(broken.await.unwrap(), Vec::<String>::new());
    });
}

/// Regression: the state of the handler's caller replaced it.
#[test]
fn a_calls_own_state_stays() {
    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    run(|client, _| async move {
        let call = client.with_state().metadata("traceparent", TRACE);
        let seen = call.metadata("tracestate", "a=1").await.unwrap();
        assert_eq!(seen, [format!("traceparent={TRACE}"), "tracestate=own=1".to_owned()]);
    });
}

/// Regression: without a trace of the caller, each nested call began its own trace; with one,
/// nested calls were not linked to the handler's span.
#[test]
fn nested_calls_are_children_of_the_server_span() {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    let spans = Spans::default();
    tracing::subscriber::with_default(spans.clone(), || {
        run(|client, _| {
            let spans = spans.clone();
            async move {
                for parent in [None, Some("b7ad6b7169203331")] {
                    // It is sent by `start`, without a span.
                    *spans.0.lock().unwrap() = State { is_off: true, ..State::default() };
                    let mut call = client.twice();
                    if let Some(parent) = parent {
                        call = call.metadata("traceparent", format!("00-{TRACE}-{parent}-01"));
                    }
                    let call = call.start();
                    spans.0.lock().unwrap().is_off = false;
                    let sent = call.await.unwrap();
                    let (outer, inner) = (spans.ids("twice"), spans.ids("work"));
                    let [(name, trace, of, server)] = &outer[..] else { panic!("{outer:?}") };
                    assert_eq!((*name, of.as_str()), ("server call", parent.unwrap_or_default()));
                    assert_eq!((trace.len(), server.len()), (32, 16));
                    assert!(parent.is_none() || trace == TRACE);
                    let [a, b, c, d] = &inner[..] else { panic!("{inner:?}") };
                    for (client, server_of_it) in [(a, b), (c, d)] {
                        assert_eq!((&client.1, &client.2), (trace, server), "{client:?}");
                        let under = (&server_of_it.1, &server_of_it.2);
                        assert_eq!(under, (trace, &client.3), "{server_of_it:?}");
                    }
                    let all = [&a.3, &b.3, &c.3, &d.3, server];
                    assert_eq!(std::collections::HashSet::from(all).len(), 5, "{all:?}");
                    let expected = [&a.3, &c.3].map(|id| format!("traceparent=00-{trace}-{id}-01"));
                    assert_eq!(sent, expected);
                }
            }
        });
    });
}

/// Regression: a long trace of the caller made the handler's calls fail: with their own metadata it
/// exceeded the limit of the channel.
#[test]
fn a_long_trace_fails_no_nested_call() {
    const PARENT: &str = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    run(|client, _| async move {
        let own = |bytes: u32| format!("own={}", ".".repeat(bytes as usize));
        let parent = format!("traceparent=00-{PARENT}");
        for (bytes, state, expected) in [
            (10, 512, vec![own(10), parent.clone(), format!("tracestate={}", "s".repeat(512))]),
            (10, 513, vec![own(10), parent.clone()]),
            (10, 8_100, vec![own(10), parent.clone()]),
            (7_900, 400, vec![own(7_900), parent.clone()]),
            (8_150, 1, vec![own(8_150)]),
        ] {
            let call = client.forward(bytes).metadata("traceparent", format!("00-{PARENT}"));
            let found = call.metadata("tracestate", "s".repeat(state)).await;
            assert_eq!(found.expect("it is sent"), expected, "{bytes} bytes, state of {state}");
        }
        let later = format!("cc-{PARENT}-{}", "x".repeat(7 * 1024));
        let found = client.forward(2_000).metadata("traceparent", later).await;
        assert_eq!(found.expect("it is sent"), [own(2_000), parent]);
    });
}
