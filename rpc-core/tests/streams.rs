//! Streams of arguments and results: each form in the trait, each kind of end, and drops.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use rpc_core::stream::{self, Producer, Stream, StreamEnd, Streaming};
use rpc_core::{Bulk, CallError, Channel, Code, LinkConfig, PollMode, Server, Status};
use serde::{Deserialize, Serialize};
use test_kit::Watchdog;
use tokio::sync::Notify;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Refused {
    Empty,
    After(u32),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Entry {
    name: String,
    content: Bulk,
}

#[rpc_core::service]
trait Shapes {
    async fn add(&self, a: u64, b: u64) -> u64;
    fn list(&self, prefix: &str) -> impl Stream<Item = String>;
    fn fails(&self, after: u32) -> impl Stream<Item = Result<u32, Refused>>;
    fn fails_with_status(&self, after: u32) -> impl Stream<Item = Result<u32, Status>>;
    async fn later(&self, prefix: &str) -> impl Stream<Item = String>;
    async fn checked(&self, prefix: &str) -> Result<impl Stream<Item = String>, Refused>;
    async fn checked_twice(
        &self,
        from: u32,
    ) -> Result<impl Stream<Item = Result<u32, Refused>>, Status>;
    fn counted(&self, count: u32) -> impl Producer<Item = u32, Output = u64>;
    fn counted_or_not(
        &self,
        count: u32,
    ) -> impl Producer<Item = u32, Output = Result<u64, Refused>>;
    async fn insert(&self, table: &str, rows: Streaming<u32>) -> Result<u64, Refused>;
    async fn total(&self, rows: Streaming<u32>) -> u64;
    async fn how_it_ended(&self, rows: Streaming<u32>) -> String;
    fn double(&self, numbers: Streaming<u32>) -> impl Stream<Item = u32>;
    fn greeting_first(&self, names: Streaming<String>) -> impl Stream<Item = Vec<u8>>;
    fn entries(&self, sizes: Vec<u32>) -> impl Stream<Item = Entry>;
    async fn sizes(&self, entries: Streaming<Entry>) -> Vec<u64>;
    async fn reads_one(&self, rows: Streaming<u32>) -> Option<u32>;
    async fn stops_reading(&self, rows: Streaming<u32>) -> u64;
    fn for_ever(&self) -> impl Stream<Item = u32>;
    fn pending(&self) -> impl Stream<Item = u32>;
    fn panics(&self, after: u32) -> impl Stream<Item = u32>;
    #[rpc(stream_deadline = "idle")]
    fn relay(&self, numbers: Streaming<u32>) -> impl Stream<Item = u32>;
}

struct Service {
    words: Vec<String>,
    /// Streams that were dropped.
    dropped: AtomicU32,
    changed: Notify,
    go_on: Notify,
}

impl Service {
    fn new() -> Self {
        let words = ["ant", "bat", "bee", "cat"].map(str::to_owned).to_vec();
        Self { words, dropped: AtomicU32::new(0), changed: Notify::new(), go_on: Notify::new() }
    }

    fn matching(&self, prefix: &str) -> impl Iterator<Item = String> {
        self.words.iter().filter(move |word| word.starts_with(prefix)).cloned()
    }

    async fn until_dropped(&self, count: u32) {
        loop {
            let changed = self.changed.notified();
            if self.dropped.load(Ordering::SeqCst) >= count {
                return;
            }
            changed.await;
        }
    }
}

/// Reports its drop.
struct Guard<'a>(&'a Service);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
        self.0.changed.notify_waiters();
    }
}

fn upto(after: u32) -> impl Stream<Item = Result<u32, Refused>> {
    stream::iter(0..after).map(Ok).chain(stream::iter([Err(Refused::After(after))]))
}

impl Shapes for Service {
    async fn add(&self, a: u64, b: u64) -> u64 {
        a + b
    }

    fn list(&self, prefix: &str) -> impl Stream<Item = String> {
        stream::iter(self.matching(prefix))
    }

    fn fails(&self, after: u32) -> impl Stream<Item = Result<u32, Refused>> {
        upto(after)
    }

    fn fails_with_status(&self, after: u32) -> impl Stream<Item = Result<u32, Status>> {
        upto(after).map(|item| item.map_err(|_| Status::out_of_range("that is all")))
    }

    async fn later(&self, prefix: &str) -> impl Stream<Item = String> {
        tokio::task::yield_now().await;
        stream::iter(self.matching(prefix))
    }

    async fn checked(&self, prefix: &str) -> Result<impl Stream<Item = String>, Refused> {
        if prefix.is_empty() {
            Err(Refused::Empty)
        } else {
            Ok(stream::iter(self.matching(prefix)))
        }
    }

    async fn checked_twice(
        &self,
        from: u32,
    ) -> Result<impl Stream<Item = Result<u32, Refused>>, Status> {
        match from {
            0 => Err(Status::permission_denied("not from 0")),
            from => Ok(upto(from)),
        }
    }

    fn counted(&self, count: u32) -> impl Producer<Item = u32, Output = u64> {
        stream::producer(async move |mut out| {
            for number in 0..count {
                out.send(number).await.unwrap();
            }
            u64::from(count)
        })
    }

    fn counted_or_not(
        &self,
        count: u32,
    ) -> impl Producer<Item = u32, Output = Result<u64, Refused>> {
        stream::producer(async move |mut out| {
            for number in 0..count {
                out.send(number).await.unwrap();
            }
            if count == 0 { Err(Refused::Empty) } else { Ok(u64::from(count)) }
        })
    }

    async fn insert(&self, table: &str, mut rows: Streaming<u32>) -> Result<u64, Refused> {
        let mut count = table.len() as u64;
        while let Some(row) = rows.next().await {
            count += u64::from(row.map_err(|_| Refused::Empty)?);
        }
        Ok(count)
    }

    async fn total(&self, rows: Streaming<u32>) -> u64 {
        rows.fold(0, async |sum, row| sum + u64::from(row.unwrap())).await
    }

    async fn how_it_ended(&self, mut rows: Streaming<u32>) -> String {
        let mut text = String::new();
        while let Some(row) = rows.next().await {
            match row {
                Ok(row) => text.push_str(&format!("{row} ")),
                Err(status) => text.push_str(&format!("{:?} ", status.code())),
            }
        }
        format!("{text}{:?}", rows.end().unwrap())
    }

    fn double(&self, numbers: Streaming<u32>) -> impl Stream<Item = u32> {
        numbers.map(|number| 2 * number.unwrap())
    }

    fn greeting_first(&self, mut names: Streaming<String>) -> impl Stream<Item = Vec<u8>> {
        stream::stream(async move |mut out| {
            out.send(b"who?".to_vec()).await?;
            while let Some(Ok(name)) = names.next().await {
                out.send(name.into_bytes()).await?;
            }
            Ok(())
        })
    }

    fn entries(&self, sizes: Vec<u32>) -> impl Stream<Item = Entry> {
        stream::iter(sizes).map(|size| Entry {
            name: size.to_string(),
            content: Bulk::from(vec![7; size as usize]),
        })
    }

    async fn sizes(&self, entries: Streaming<Entry>) -> Vec<u64> {
        entries.map(|entry| entry.unwrap().content.len()).collect().await
    }

    async fn reads_one(&self, mut rows: Streaming<u32>) -> Option<u32> {
        rows.try_next().await.unwrap()
    }

    async fn stops_reading(&self, rows: Streaming<u32>) -> u64 {
        drop(rows);
        self.go_on.notified().await;
        5
    }

    fn for_ever(&self) -> impl Stream<Item = u32> {
        let guard = Guard(self);
        stream::iter(0..).map(move |number| {
            let _guard = &guard;
            number
        })
    }

    fn pending(&self) -> impl Stream<Item = u32> {
        let guard = Guard(self);
        stream::iter(0..3).chain(futures::stream::poll_fn(move |_| {
            let _guard = &guard;
            std::task::Poll::Pending
        }))
    }

    fn panics(&self, after: u32) -> impl Stream<Item = u32> {
        stream::iter(0..=after).map(move |number| {
            assert_ne!(number, after, "on purpose");
            number
        })
    }

    fn relay(&self, numbers: Streaming<u32>) -> impl Stream<Item = u32> {
        numbers.map(|number| number.unwrap())
    }
}

struct World {
    client: ShapesClient,
    service: Arc<Service>,
    _watchdog: Watchdog,
}

async fn world(name: &str) -> World {
    let watchdog = Watchdog::start(name);
    let service = Arc::new(Service::new());
    let address = format!("mem://streams-{name}");
    let server = Server::builder()
        .add_service(ShapesServer::from_arc(Arc::clone(&service)))
        .poll_mode(PollMode::Event)
        .link(LinkConfig::default())
        .bind(&address)
        .await
        .unwrap();
    tokio::spawn(server.serve());
    let channel = Channel::builder().poll_mode(PollMode::Event).connect(&address).await.unwrap();
    World { client: ShapesClient::new(channel), service, _watchdog: watchdog }
}

async fn all<T, R, E: From<Status>>(mut items: Streaming<T, R, E>) -> Result<Vec<T>, E> {
    let mut all = Vec::new();
    while let Some(item) = items.try_next().await? {
        all.push(item);
    }
    assert_eq!(items.end(), Some(StreamEnd::Finished));
    Ok(all)
}

#[tokio::test]
async fn a_stream_borrows_the_service_and_its_arguments() {
    let world = world("borrows").await;
    let words = world.client.list("b").await.unwrap();
    assert_eq!(all(words).await.unwrap(), ["bat", "bee"]);
    let words = world.client.later("").await.unwrap();
    assert_eq!(all(words).await.unwrap(), ["ant", "bat", "bee", "cat"]);
    let none = world.client.list("z").await.unwrap();
    assert!(all(none).await.unwrap().is_empty(), "an empty stream");
}

#[tokio::test]
async fn a_call_is_refused_before_its_stream() {
    let world = world("refused").await;
    let refused = world.client.checked("").await.unwrap_err();
    assert_eq!(refused, CallError::User(Refused::Empty));
    let words = world.client.checked("c").await.unwrap();
    assert_eq!(all(words).await.unwrap(), ["cat"]);
    let refused = world.client.checked_twice(0).await.unwrap_err();
    assert_eq!(refused.status().unwrap().code(), Code::PermissionDenied);
    // An error as the first event of a stream is not a refusal.
    let mut numbers = world.client.fails(0).await.unwrap();
    assert_eq!(numbers.next().await, Some(Err(CallError::User(Refused::After(0)))));
}

#[tokio::test]
async fn a_stream_ends_with_the_methods_own_error() {
    let world = world("own-error").await;
    for after in [1, 3, 100] {
        let mut numbers = world.client.fails(after).await.unwrap();
        for number in 0..after {
            assert_eq!(numbers.next().await, Some(Ok(number)));
        }
        assert_eq!(numbers.next().await, Some(Err(CallError::User(Refused::After(after)))));
        assert_eq!(numbers.end(), Some(StreamEnd::Failed));
        assert_eq!(numbers.next().await, None, "nothing after the error");
        let failed = numbers.finish().await.unwrap_err();
        assert_eq!(failed.status().unwrap().code(), Code::FailedPrecondition);
    }
    let mut numbers = world.client.fails_with_status(1).await.unwrap();
    assert_eq!(numbers.next().await, Some(Ok(0)));
    let Some(Err(CallError::Status(status))) = numbers.next().await else { panic!("no status") };
    assert_eq!((status.code(), status.message()), (Code::OutOfRange, "that is all"));
}

#[tokio::test]
async fn a_value_comes_after_the_items() {
    let world = world("value").await;
    let mut numbers = world.client.counted(3).await.unwrap();
    assert_eq!(numbers.next().await, Some(Ok(0)));
    assert_eq!(numbers.finish().await, Ok(3), "the others are skipped");
    let mut numbers = world.client.counted_or_not(40).await.unwrap();
    let mut count = 0;
    while let Some(number) = numbers.try_next().await.unwrap() {
        assert_eq!(number, count);
        count += 1;
    }
    assert_eq!((count, numbers.finish().await), (40, Ok(40)));
    let none = world.client.counted_or_not(0).await.unwrap();
    assert_eq!(none.finish().await, Err(CallError::User(Refused::Empty)));
}

#[tokio::test]
async fn arguments_are_streamed() {
    let world = world("arguments").await;
    assert_eq!(world.client.insert("abc", stream::iter(0..1000)).await, Ok(3 + 499_500));
    assert_eq!(world.client.total(stream::iter([0_u32; 0])).await, Ok(0), "an empty stream");
    let slow = stream::iter([1, 2, 3]).then(async |row| {
        tokio::task::yield_now().await;
        row
    });
    assert_eq!(world.client.total(slow).await, Ok(6));
    let started = world.client.total(stream::iter(0..10)).start();
    assert_eq!(tokio::spawn(started).await.unwrap(), Ok(45));
    // It borrows from its caller.
    let rows = [4, 5];
    assert_eq!(world.client.total(stream::iter(rows.iter().copied())).await, Ok(9));
}

#[tokio::test]
async fn both_directions_at_once() {
    let world = world("both").await;
    let doubled = world.client.double(stream::iter(0..5000)).await.unwrap();
    let expected: Vec<_> = (0..5000).map(|number| Ok(2 * number)).collect();
    assert_eq!(doubled.collect::<Vec<_>>().await, expected);
}

#[tokio::test]
async fn the_server_may_speak_first() {
    let world = world("speaks-first").await;
    let (names, said) = tokio::sync::mpsc::channel(1);
    let said = futures::stream::unfold(said, async |mut said| Some((said.recv().await?, said)));
    let mut greetings = world.client.greeting_first(said).await.unwrap();
    assert_eq!(greetings.next().await, Some(Ok(b"who?".to_vec())));
    for name in ["Ada", "Bob"] {
        names.send(name.to_owned()).await.unwrap();
        assert_eq!(greetings.next().await, Some(Ok(name.as_bytes().to_vec())));
    }
    drop(names);
    assert_eq!(greetings.next().await, None);
}

#[tokio::test]
async fn items_of_every_size_arrive() {
    let world = world("sizes").await;
    let sizes = [0, 1, 100, 8191, 8192, 65_535, 65_536, 200_000, 3 << 20];
    let entries = world.client.entries(sizes.to_vec()).await.unwrap();
    let entries = all(entries).await.unwrap();
    for (entry, size) in entries.iter().zip(sizes) {
        assert_eq!((&*entry.name, entry.content.len()), (&*size.to_string(), u64::from(size)));
        assert!(entry.content.to_vec().unwrap().iter().all(|byte| *byte == 7));
    }
    assert_eq!(entries.len(), sizes.len());
    let sent = world.client.sizes(stream::iter(entries)).await.unwrap();
    assert_eq!(sent, sizes.map(u64::from));
}

#[tokio::test]
async fn a_source_that_fails_resets_its_stream() {
    let world = world("source-fails").await;
    let rows = stream::iter([Ok(1), Ok(2), Err(Status::data_loss("a torn page"))]);
    let status = world.client.how_it_ended(rows).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::DataLoss, "a torn page"));
    assert_eq!(world.client.how_it_ended(stream::iter([1, 2])).await.unwrap(), "1 2 Finished");
    // With results, the error is the last event.
    let numbers = stream::iter([Ok(1), Err(Status::data_loss("a torn page"))]);
    let mut relayed = world.client.relay(numbers).await.unwrap();
    assert_eq!(relayed.next().await, Some(Ok(1)));
    let status = relayed.next().await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::DataLoss);
    assert_eq!(relayed.end(), Some(StreamEnd::Failed));
}

/// A source that is always pending, and reports its drop.
fn pending_source(held: &Arc<()>) -> impl Stream<Item = u32> + use<> {
    let held = Arc::clone(held);
    stream::iter([1]).chain(futures::stream::poll_fn(move |_| {
        let _held = &held;
        std::task::Poll::Pending
    }))
}

#[tokio::test]
async fn a_stopped_reader_drops_the_source() {
    let world = world("stops").await;
    let held = Arc::new(());
    let call = world.client.stops_reading(pending_source(&held)).start();
    let call = tokio::spawn(call);
    while Arc::strong_count(&held) > 1 {
        tokio::task::yield_now().await;
    }
    world.service.go_on.notify_one();
    assert_eq!(call.await.unwrap(), Ok(5), "the call goes on");
    // An outcome ends the source too.
    assert_eq!(world.client.reads_one(pending_source(&held)).await, Ok(Some(1)));
    assert_eq!(Arc::strong_count(&held), 1);
}

#[tokio::test]
async fn dropping_a_stream_drops_the_servers() {
    let world = world("drops").await;
    let mut numbers = world.client.for_ever().await.unwrap();
    assert_eq!(numbers.next().await, Some(Ok(0)));
    drop(numbers);
    world.service.until_dropped(1).await;
    let mut numbers = world.client.pending().await.unwrap();
    assert_eq!(numbers.next().await, Some(Ok(0)));
    drop(numbers);
    world.service.until_dropped(2).await;
    assert_eq!(world.client.add(1, 2).await, Ok(3), "the connection lives");
}

#[tokio::test]
async fn a_reader_that_stops_holds_up_nobody_else() {
    let world = world("holds-up-nobody").await;
    let mut stopped = Vec::new();
    for _ in 0..20 {
        stopped.push(world.client.for_ever().await.unwrap());
    }
    for a in 0..100 {
        assert_eq!(world.client.add(a, 1).await, Ok(a + 1));
    }
    let doubled = world.client.double(stream::iter(0..500)).await.unwrap();
    assert_eq!(doubled.count().await, 500);
    for mut numbers in stopped {
        for number in 0..200 {
            assert_eq!(numbers.next().await, Some(Ok(number)));
        }
    }
}

#[tokio::test]
async fn a_panic_is_no_end() {
    let world = world("panics").await;
    let mut numbers = world.client.panics(2).await.unwrap();
    assert_eq!(numbers.next().await, Some(Ok(0)));
    assert_eq!(numbers.next().await, Some(Ok(1)));
    let status = numbers.next().await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    assert_ne!(numbers.end(), Some(StreamEnd::Finished));
    assert_eq!(world.client.add(1, 2).await, Ok(3), "the connection lives");
}

#[tokio::test]
async fn a_dropped_call_resets_its_arguments() {
    let world = world("dropped-call").await;
    let held = Arc::new(());
    let mut call = world.client.total(pending_source(&held));
    tokio::select! {
        biased;
        total = &mut call => panic!("the source never ends, and yet {total:?}"),
        sum = world.client.add(1, 1) => assert_eq!(sum, Ok(2)),
    }
    drop(call);
    assert_eq!(Arc::strong_count(&held), 1);
    assert_eq!(world.client.add(1, 2).await, Ok(3));
}

#[tokio::test]
async fn the_deadline_is_that_of_the_whole_call() {
    let world = world("deadline").await;
    let call = world.client.pending().timeout(Duration::from_millis(50));
    let mut numbers = call.await.unwrap();
    for number in 0..3 {
        assert_eq!(numbers.next().await, Some(Ok(number)));
    }
    let status = numbers.next().await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(numbers.end(), Some(StreamEnd::Failed));
    world.service.until_dropped(1).await;
}

/// Unread items take memory of the server's budget, whatever the number of streams.
#[tokio::test]
async fn unread_arguments_are_charged_to_the_servers_budget() {
    let _watchdog = Watchdog::start("budget");
    let service = Arc::new(Service::new());
    let server = Server::builder()
        .add_service(ShapesServer::from_arc(Arc::clone(&service)))
        .poll_mode(PollMode::Event)
        .memory_budget(10 * (64 << 10) + 1)
        .bind("mem://streams-budget")
        .await
        .unwrap();
    tokio::spawn(server.serve());
    let builder = Channel::builder().poll_mode(PollMode::Event);
    let client = ShapesClient::new(builder.connect("mem://streams-budget").await.unwrap());
    let held = Arc::new(());
    let calls = (0..11).map(|_| client.stops_reading(pending_source(&held)).start());
    let mut calls: futures::stream::FuturesUnordered<_> = calls.collect();
    let (mut done, mut refused) = (0, 0);
    while !calls.is_empty() {
        let Some(ended) = calls.next().now_or_never().flatten() else {
            service.go_on.notify_waiters();
            tokio::task::yield_now().await;
            continue;
        };
        match ended {
            Ok(five) => done += five / 5,
            Err(status) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
                assert!(status.message().contains("memory_budget"), "{status}");
                assert!(status.is_retryable(), "{status}");
                refused += 1;
            }
        }
    }
    // Half of the budget is reserved for data that cannot be refused.
    assert!(done >= 4 && refused >= 1, "{done} done, {refused} refused");
    assert_eq!(client.add(1, 2).await, Ok(3));
    // It is released.
    service.go_on.notify_one();
    assert_eq!(client.stops_reading(pending_source(&held)).await, Ok(5));
}

#[test]
fn blocking_clients_have_iterators() {
    let _watchdog = Watchdog::start("blocking");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let server = Server::builder().add_service(ShapesServer::new(Service::new()));
    let server = runtime.block_on(server.bind("mem://streams-blocking")).unwrap();
    runtime.spawn(server.serve());
    let client = ShapesBlockingClient::connect("mem://streams-blocking").unwrap();
    let words: Result<Vec<String>, Status> = client.list("b").unwrap().collect();
    assert_eq!(words.unwrap(), ["bat", "bee"]);
    assert_eq!(client.insert("abc", [1, 2]), Ok(6));
    assert_eq!(client.checked("").unwrap_err(), CallError::User(Refused::Empty));
    let doubled: Vec<_> = client.double(0..3).unwrap().collect();
    assert_eq!(doubled, [Ok(0), Ok(2), Ok(4)]);
    let counted = client.counted(2).unwrap();
    assert_eq!(counted.finish(), Ok(2));
    let rows = vec![Ok(1), Err(Status::aborted("enough"))];
    assert_eq!(client.total(rows).unwrap_err().code(), Code::Aborted);
    drop(client);
    runtime.shutdown_background();
}
