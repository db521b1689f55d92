//! Metadata before the items of streams, over each device.

use std::sync::{Arc, Mutex};

use futures::StreamExt;
use rpc_core::client::blocking::BlockingChannel;
use rpc_core::interceptor::{ClientInterceptor, Ended, ServerInterceptor};
use rpc_core::metadata::MetadataError;
use rpc_core::stream::{self, Stream, Streaming};
use rpc_core::{ChannelBuilder, Code, Context, PollMode, ServerBuilder, Status};
use tests::limit::patient_channel;
use tests::scheme::Scheme;
use tokio::sync::Notify;

on_every_device! {
    initial_metadata_is_read_before_the_first_item,
    initial_metadata_arrives_before_the_first_item,
    initial_metadata_of_failing_or_empty_streams,
    initial_metadata_survives_an_unencodable_item,
    unread_initial_metadata_is_no_item,
    initial_metadata_as_long_as_may_be,
    without_items_it_goes_with_the_reply,
    initial_metadata_is_set_once_before_items,
    a_blocking_client_reads_initial_metadata,
    interceptors_see_initial_metadata,
}

#[rpc_core::service]
trait Feed {
    fn list(&self, count: u64) -> impl Stream<Item = u64>;
    async fn checked(&self, fails: bool) -> Result<impl Stream<Item = u64>, Status>;
    fn waits(&self, later: bool) -> impl Stream<Item = u64>;
    fn fails(&self) -> impl Stream<Item = Result<u64, Status>>;
    fn large(&self, bytes: u32) -> impl Stream<Item = u64>;
    fn doubled(&self, numbers: Streaming<u64>) -> impl Stream<Item = u64>;
    async fn sum(&self, numbers: Streaming<u64>) -> Result<u64, Status>;
    fn strict(&self) -> impl Stream<Item = String>;
    fn unwritable(&self) -> impl Stream<Item = Unwritable>;
}

/// A value whose serialization fails.
#[derive(Debug, serde::Deserialize)]
struct Unwritable;

impl serde::Serialize for Unwritable {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("not today"))
    }
}

#[derive(Clone, Default)]
struct Feeds {
    go: Arc<Notify>,
}

fn say(value: &'static str) {
    Context::set_initial_metadata("said", value).expect("it fits");
}

impl Feed for Feeds {
    fn list(&self, count: u64) -> impl Stream<Item = u64> {
        say("list");
        Context::set_reply_metadata("said", "end").expect("it fits");
        stream::iter(0..count)
    }
    async fn checked(&self, fails: bool) -> Result<impl Stream<Item = u64>, Status> {
        tokio::task::yield_now().await;
        say("checked");
        if fails { Err(Status::not_found("nothing")) } else { Ok(stream::iter(0..3)) }
    }
    fn waits(&self, later: bool) -> impl Stream<Item = u64> {
        stream::stream(async move |mut out| {
            if later {
                // The call is accepted, and no item has left.
                self.go.notified().await;
            }
            say("waits");
            self.go.notified().await;
            out.send(7).await
        })
    }
    fn fails(&self) -> impl Stream<Item = Result<u64, Status>> {
        say("fails");
        stream::try_stream(async |_out| Err(Status::aborted("at once")))
    }
    fn large(&self, bytes: u32) -> impl Stream<Item = u64> {
        Context::set_initial_metadata("large", vec![7; bytes as usize]).expect("it fits");
        stream::iter(0..200)
    }
    fn doubled(&self, mut numbers: Streaming<u64>) -> impl Stream<Item = u64> {
        stream::stream(async move |mut out| {
            say("doubled");
            while let Ok(Some(number)) = numbers.try_next().await {
                out.send(2 * number).await?;
            }
            Ok(())
        })
    }
    async fn sum(&self, mut numbers: Streaming<u64>) -> Result<u64, Status> {
        say("sum");
        let mut sum = 0;
        while let Some(number) = numbers.try_next().await? {
            sum += number;
        }
        Ok(sum)
    }
    fn strict(&self) -> impl Stream<Item = String> {
        stream::stream(async |mut out| {
            let set = |value: &[u8]| {
                Context::set_initial_metadata("name", value.to_vec())
                    .expect_err("refused")
                    .to_string()
            };
            let too_large = set(&[0; 65_536]);
            say("before");
            say("instead");
            tokio::task::yield_now().await;
            let twice = set(b"again");
            out.send(too_large).await?;
            out.send(twice).await?;
            out.send(set(b"late")).await
        })
    }
    fn unwritable(&self) -> impl Stream<Item = Unwritable> {
        say("unwritable");
        stream::iter([Unwritable])
    }
}

async fn serve(server: ServerBuilder, feeds: Feeds, scheme: Scheme) -> String {
    let server = server.poll_mode(PollMode::Event).add_service(FeedServer::new(feeds));
    let server = server.bind(scheme.fresh_address()).await.expect("bound");
    let address = server.local_address().to_string();
    tokio::spawn(server.serve());
    address
}

async fn connect(address: &str, channel: ChannelBuilder) -> FeedClient {
    FeedClient::new(channel.connect(address).await.expect("connected"))
}

async fn start(scheme: Scheme) -> (FeedClient, Feeds) {
    let feeds = Feeds::default();
    let address = serve(tests::device::server(), feeds.clone(), scheme).await;
    (connect(&address, patient_channel()).await, feeds)
}

async fn initial_metadata_is_read_before_the_first_item(scheme: Scheme) {
    let (client, _) = start(scheme).await;
    let mut list = client.list(100).await.expect("accepted");
    assert_eq!(list.initial_metadata().await.text("said"), Some("list"));
    assert!(list.metadata().is_empty(), "that comes with the end");
    for number in 0..100 {
        assert_eq!(list.try_next().await, Ok(Some(number)));
        assert_eq!(list.initial_metadata().await.text("said"), Some("list"), "it stays");
    }
    assert_eq!(list.try_next().await, Ok(None));
    assert_eq!(list.initial_metadata().await.text("said"), Some("list"));
    assert_eq!(list.metadata().text("said"), Some("end"));

    let mut checked = client.checked(false).await.expect("accepted");
    assert_eq!(checked.initial_metadata().await.text("said"), Some("checked"));
    assert_eq!(checked.count().await, 3);

    let mut doubled = client.doubled(stream::iter(0..50)).await.expect("accepted");
    assert_eq!(doubled.initial_metadata().await.text("said"), Some("doubled"));
    let all = doubled.map(|number| number.expect("an item")).collect::<Vec<_>>().await;
    assert_eq!(all, (0..50).map(|number| 2 * number).collect::<Vec<_>>());
}

async fn initial_metadata_arrives_before_the_first_item(scheme: Scheme) {
    let (client, feeds) = start(scheme).await;
    for later in [false, true] {
        let mut waits = client.waits(later).await.expect("accepted");
        if later {
            // A cancelled wait consumes nothing.
            let early = tokio::select! {
                biased;
                _ = waits.initial_metadata() => true,
                () = tokio::task::yield_now() => false,
            };
            assert!(!early, "nothing was said");
            feeds.go.notify_one();
        }
        assert_eq!(waits.initial_metadata().await.text("said"), Some("waits"));
        feeds.go.notify_one();
        assert_eq!(waits.try_next().await, Ok(Some(7)));
        assert_eq!(waits.try_next().await, Ok(None));
    }
}

async fn initial_metadata_of_failing_or_empty_streams(scheme: Scheme) {
    let (client, _) = start(scheme).await;
    let mut empty = client.list(0).await.expect("accepted");
    assert_eq!(empty.initial_metadata().await.text("said"), Some("list"));
    assert_eq!(empty.try_next().await, Ok(None));
    let mut fails = client.fails().await.expect("accepted");
    assert_eq!(fails.initial_metadata().await.text("said"), Some("fails"));
    assert_eq!(Status::from(fails.try_next().await.expect_err("aborted")).code(), Code::Aborted);
    assert_eq!(fails.try_next().await.ok(), Some(None));
}

async fn initial_metadata_survives_an_unencodable_item(scheme: Scheme) {
    let (client, _) = start(scheme).await;
    let status = match client.unwritable().await {
        Ok(mut items) => items.try_next().await.expect_err("unwritable"),
        Err(refused) => refused,
    };
    assert!(status.message().contains("not today"), "{status}");
    assert_eq!(status.metadata().text("said"), Some("unwritable"));
    assert_eq!(client.list(2).await.expect("accepted").count().await, 2);
}

async fn unread_initial_metadata_is_no_item(scheme: Scheme) {
    let (client, _) = start(scheme).await;
    let list = client.list(3).await.expect("accepted");
    assert_eq!(list.map(Result::unwrap).collect::<Vec<_>>().await, [0, 1, 2]);
    // A handler that sends none has none: its first item waits for its reader.
    let mut strict = client.strict().await.expect("accepted");
    assert!(strict.try_next().await.expect("an item").is_some());
    drop(client.list(1000).await.expect("accepted"));
    assert_eq!(client.list(2).await.expect("accepted").count().await, 2);
}

/// Longer than the link's small lane allows: the items overtake it.
async fn initial_metadata_as_long_as_may_be(scheme: Scheme) {
    let (client, _) = start(scheme).await;
    for bytes in [1, 5_000, 65_000] {
        let mut large = client.large(bytes).await.expect("accepted");
        let metadata = large.initial_metadata().await;
        assert_eq!(metadata.bytes("large"), Some(&vec![7; bytes as usize][..]));
        let items = large.map(Result::unwrap).collect::<Vec<_>>().await;
        assert_eq!(items, (0..200).collect::<Vec<_>>());
    }
}

async fn without_items_it_goes_with_the_reply(scheme: Scheme) {
    let (client, _) = start(scheme).await;
    let (sum, metadata) = client.sum(stream::iter(1..=10)).with_metadata().await;
    assert_eq!((sum, metadata.text("said")), (Ok(55), Some("sum")));
    let refused = Status::from(client.checked(true).await.expect_err("refused"));
    assert_eq!(refused.code(), Code::NotFound);
    assert_eq!(refused.metadata().text("said"), Some("checked"));
    let outside = Context::set_initial_metadata("name", "v").expect_err("no call");
    assert_eq!(outside, MetadataError::NoCall);
}

async fn initial_metadata_is_set_once_before_items(scheme: Scheme) {
    let (client, _) = start(scheme).await;
    let mut strict = client.strict().await.expect("accepted");
    assert_eq!(strict.initial_metadata().await.text("said"), Some("instead"));
    let mut next = async || strict.try_next().await.expect("no error").expect("an item");
    let too_large = next().await;
    assert!(too_large.starts_with("the metadata of a call exceeds 65535"), "{too_large}");
    let twice = next().await;
    assert!(
        twice.starts_with("the initial metadata has already been sent: set all of it"),
        "{twice}"
    );
    let late = next().await;
    assert!(
        late.starts_with("the first item of the stream, or its end, has already been sent"),
        "{late}"
    );
}

async fn a_blocking_client_reads_initial_metadata(scheme: Scheme) {
    let address = serve(tests::device::server(), Feeds::default(), scheme).await;
    let blocking = tokio::task::spawn_blocking(move || {
        let connecting = patient_channel().connect(address);
        let channel = BlockingChannel::connect_with(connecting).expect("connected");
        let client = FeedBlockingClient::new(channel);
        let mut list = client.list(3).expect("accepted");
        assert_eq!(list.initial_metadata().text("said"), Some("list"));
        assert_eq!(list.by_ref().map(Result::unwrap).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(list.metadata().text("said"), Some("end"));
    });
    blocking.await.expect("no panic");
}

/// The initial metadata, and the number of items.
type Call = (Option<String>, u64);

/// Records both for each call.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<Call>>>);

impl Heard {
    fn hear(&self, call: &Ended<'_>) {
        let said = call.initial_metadata().text("said").map(str::to_owned);
        let items = call.items();
        self.0.lock().expect("no panic").push((said, items.sent + items.received));
    }
}

impl ClientInterceptor for Heard {
    fn after(&self, call: &Ended<'_>) {
        self.hear(call);
    }
}

impl ServerInterceptor for Heard {
    fn after(&self, _: &Context, call: &Ended<'_>) {
        self.hear(call);
    }
}

async fn interceptors_see_initial_metadata(scheme: Scheme) {
    let (here, there) = (Heard::default(), Heard::default());
    let server = tests::device::server().interceptor(there.clone());
    let address = serve(server, Feeds::default(), scheme).await;
    let client = connect(&address, patient_channel().interceptor(here.clone())).await;
    assert_eq!(client.list(5).await.expect("accepted").count().await, 5);
    assert_eq!(client.doubled(stream::iter(0..2)).await.expect("accepted").count().await, 2);
    let expected = [(Some("list".to_owned()), 5), (Some("doubled".to_owned()), 4)];
    assert_eq!(*here.0.lock().expect("no panic"), expected);
    // The server's record precedes its reply.
    assert_eq!(*there.0.lock().expect("no panic"), expected);
}
