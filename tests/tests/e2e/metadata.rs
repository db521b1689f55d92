//! Metadata both ways, over each device.

use std::sync::{Arc, Mutex};

use futures::StreamExt;
use rpc_core::client::blocking::BlockingChannel;
use rpc_core::interceptor::{ClientInterceptor, Ended};
use rpc_core::stream::{self, Stream, Streaming};
use rpc_core::{
    Bulk, CallError, ChannelBuilder, Code, Context, Metadata, PollMode, ServerBuilder, Status,
};
use tests::limit::patient_channel;
use tests::scheme::Scheme;

on_every_device! {
    a_reply_has_metadata,
    an_error_has_metadata,
    the_end_of_a_stream_has_metadata,
    metadata_of_the_last_server_goes_no_further,
    metadata_is_bounded_at_both_ends,
    names_that_are_reserved_are_refused,
    a_blocking_client_reads_metadata,
    interceptors_see_metadata_of_replies,
}

#[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Own;

#[rpc_core::service]
trait Shelf {
    async fn plain(&self, text: &str) -> String;
    async fn named(&self, text: &str) -> String;
    async fn payload(&self, len: u32) -> Bulk;
    async fn own_error(&self) -> Result<(), Own>;
    async fn status(&self) -> Result<(), Status>;
    async fn panics(&self);
    async fn next(&self, with_own: bool) -> Result<(), Status>;
    async fn sum(&self, numbers: Streaming<u64>) -> Result<u64, Status>;
    fn numbers(&self, fails: bool) -> impl Stream<Item = Result<u64, Status>>;
}

/// Calls another server, if it has one.
struct Shelves(Option<ShelfClient>);

fn say(value: &'static str) {
    Context::set_reply_metadata("said", value).expect("it fits");
}

impl Shelf for Shelves {
    async fn plain(&self, text: &str) -> String {
        text.to_owned()
    }
    async fn named(&self, text: &str) -> String {
        say("first");
        tokio::task::yield_now().await;
        say("second");
        Context::set_reply_metadata("bytes", vec![0, 255]).expect("it fits");
        text.to_owned()
    }
    async fn payload(&self, len: u32) -> Bulk {
        say("payload");
        Bulk::from(vec![7; len as usize])
    }
    async fn own_error(&self) -> Result<(), Own> {
        say("own");
        Err(Own)
    }
    async fn status(&self) -> Result<(), Status> {
        say("status");
        Err(Status::not_found("nothing").with_details(vec![1, 2, 3]))
    }
    async fn panics(&self) {
        say("before a panic");
        panic!("on purpose")
    }
    async fn next(&self, with_own: bool) -> Result<(), Status> {
        if with_own {
            Context::set_reply_metadata("own", "yes").expect("it fits");
        }
        Ok(self.0.as_ref().expect("there is one").status().await?)
    }
    async fn sum(&self, mut numbers: Streaming<u64>) -> Result<u64, Status> {
        let mut sum = 0;
        while let Some(number) = numbers.try_next().await? {
            sum += number;
        }
        say("sum");
        Ok(sum)
    }
    fn numbers(&self, fails: bool) -> impl Stream<Item = Result<u64, Status>> {
        stream::try_stream(async move |mut out| {
            for number in 0..100 {
                out.send(number).await?;
            }
            say("numbers");
            if fails { Err(Status::aborted("enough")) } else { Ok(()) }
        })
    }
}

async fn serve(server: ServerBuilder, next: Option<ShelfClient>, scheme: Scheme) -> String {
    let server = server.poll_mode(PollMode::Event).add_service(ShelfServer::new(Shelves(next)));
    let server = server.bind(scheme.fresh_address()).await.expect("bound");
    let address = server.local_address().to_string();
    tokio::spawn(server.serve());
    address
}

async fn shelf(address: &str, channel: ChannelBuilder) -> ShelfClient {
    ShelfClient::new(channel.connect(address).await.expect("connected"))
}

async fn start(scheme: Scheme) -> ShelfClient {
    shelf(&serve(tests::device::server(), None, scheme).await, patient_channel()).await
}

async fn a_reply_has_metadata(scheme: Scheme) {
    let client = start(scheme).await;
    let (text, metadata) = client.named("x").with_metadata().await;
    assert_eq!(text.expect("answered"), "x");
    assert_eq!(
        (metadata.text("said"), metadata.bytes("bytes")),
        (Some("second"), Some(&[0, 255][..]))
    );
    assert_eq!(client.named("y").await.expect("answered"), "y", "and nobody has to look at it");
    assert_eq!(client.named("z").start().await.expect("answered"), "z");
    let (text, metadata) = client.plain("x").with_metadata().await;
    assert_eq!((text.as_deref(), metadata.is_empty()), (Ok("x"), true));
    // With metadata, a part of the result or all of it is in the tail.
    for len in [0, 10_000, 3_000_000] {
        let (payload, metadata) = client.payload(len).with_metadata().await;
        assert_eq!(payload.expect("answered").to_vec().expect("readable"), vec![7; len as usize]);
        assert_eq!(metadata.text("said"), Some("payload"));
        assert_eq!(client.payload(len).await.expect("answered").len(), u64::from(len));
    }
    let numbers = || stream::iter(1..=100);
    let (sum, metadata) = client.sum(numbers()).with_metadata().await;
    assert_eq!((sum, metadata.text("said")), (Ok(5050), Some("sum")));
    assert!(matches!(client.sum(numbers()).await, Ok(5050)));
}

async fn an_error_has_metadata(scheme: Scheme) {
    let client = start(scheme).await;
    let (outcome, metadata) = client.own_error().with_metadata().await;
    assert_eq!(outcome, Err(CallError::User(Own)));
    assert_eq!(metadata.text("said"), Some("own"));
    assert_eq!(client.own_error().await, Err(CallError::User(Own)));
    let (outcome, metadata) = client.status().with_metadata().await;
    let status = Status::from(outcome.expect_err("not found"));
    assert_eq!((status.code(), status.message()), (Code::NotFound, "nothing"));
    assert_eq!((status.details(), status.metadata()), (&[1, 2, 3][..], &metadata));
    assert_eq!(metadata.text("said"), Some("status"));
    // A handler that has not completed has set no metadata.
    let status = client.panics().await.expect_err("a panic");
    assert_eq!((status.code(), status.metadata().len()), (Code::Internal, 0));
}

async fn the_end_of_a_stream_has_metadata(scheme: Scheme) {
    let client = start(scheme).await;
    for fails in [false, true] {
        let mut numbers = client.numbers(fails).await.expect("accepted");
        let mut count = 0;
        let error = loop {
            match numbers.next().await {
                Some(Ok(_)) => assert!(numbers.metadata().is_empty(), "it comes with the end"),
                Some(Err(error)) => break Some(Status::from(error)),
                None => break None,
            }
            count += 1;
        };
        assert_eq!(numbers.metadata().text("said"), Some("numbers"));
        assert_eq!((count, error.is_some()), (100, fails));
        assert_eq!(error.map_or(0, |status| status.metadata().len()), usize::from(fails));
    }
}

async fn metadata_of_the_last_server_goes_no_further(scheme: Scheme) {
    let last = start(scheme).await;
    let first = serve(tests::device::server(), Some(last), scheme).await;
    let client = shelf(&first, patient_channel()).await;
    let status = Status::from(client.next(false).await.expect_err("not found"));
    assert_eq!((status.code(), status.metadata().len()), (Code::NotFound, 0));
    let status = Status::from(client.next(true).await.expect_err("not found"));
    assert_eq!(status.message(), "Shelf.status: nothing");
    assert_eq!(status.metadata().iter().collect::<Vec<_>>(), [("own", &b"yes"[..])]);
}

async fn metadata_is_bounded_at_both_ends(scheme: Scheme) {
    let address = serve(tests::device::server().max_metadata_bytes(1000), None, scheme).await;
    let channel = || patient_channel().max_metadata_bytes(2000);
    let client = shelf(&address, channel()).await;
    let fits = client.plain("x").metadata("n", vec![0; 995]).await;
    assert_eq!(fits.as_deref(), Ok("x"));
    let refused = client.plain("x").metadata("n", vec![0; 996]).await.expect_err("the server's");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let text = "Shelf.plain: metadata of 1001 bytes exceeds the server's limit of 1000 bytes";
    assert!(refused.message().starts_with(text), "{refused}");
    let refused = client.plain("x").metadata("n", vec![0; 1996]).await.expect_err("the channel's");
    assert_eq!(refused.code(), Code::InvalidArgument);
    let text = "Shelf.plain: metadata of 2001 bytes exceeds the channel's limit of 2000 bytes";
    assert!(refused.message().starts_with(text), "{refused}");
    assert_eq!(client.plain("y").await.as_deref(), Ok("y"));

    let address = serve(tests::device::server().max_metadata_bytes(65_535), None, scheme).await;
    let client = shelf(&address, patient_channel().max_metadata_bytes(65_535)).await;
    let large = client.plain("x").metadata("n", vec![0; 65_000]).await;
    assert_eq!(large.as_deref(), Ok("x"));
    let refused = client.plain("x").metadata("n", vec![0; 70_000]).await.expect_err("the format's");
    assert_eq!(refused.code(), Code::InvalidArgument);
}

async fn names_that_are_reserved_are_refused(scheme: Scheme) {
    let client = start(scheme).await;
    let refused = client.plain("x").metadata("rpc-own", "v").await.expect_err("reserved");
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("are reserved for this framework"), "{refused}");
    let outside = Context::set_reply_metadata("name", "v").expect_err("no call");
    assert!(outside.to_string().contains("only be set in the handler"), "{outside}");
}

async fn a_blocking_client_reads_metadata(scheme: Scheme) {
    let address = serve(tests::device::server(), None, scheme).await;
    let blocking = tokio::task::spawn_blocking(move || {
        let connecting = patient_channel().connect(address);
        let channel = BlockingChannel::connect_with(connecting).expect("connected");
        let seen = Arc::new(Mutex::new(Metadata::new()));
        let client = ShelfBlockingClient::new(channel.with_reply_metadata(Arc::clone(&seen)));
        let said = || seen.lock().expect("no panic").text("said").map(str::to_owned);
        client.named("x").expect("answered");
        assert_eq!(said().as_deref(), Some("second"));
        client.status().expect_err("not found");
        assert_eq!(said().as_deref(), Some("status"));
        client.plain("x").expect("answered");
        assert_eq!(said(), None);
        assert_eq!(client.sum([1, 2]), Ok(3));
        assert_eq!(said().as_deref(), Some("sum"));
        let mut numbers = client.numbers(false).expect("accepted");
        assert_eq!(numbers.by_ref().count(), 100);
        assert_eq!(numbers.metadata().text("said"), Some("numbers"));
    });
    blocking.await.expect("no panic");
}

/// Records metadata of replies.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<Option<String>>>>);

impl ClientInterceptor for Heard {
    fn after(&self, call: &Ended<'_>) {
        let said = call.reply_metadata().text("said").map(str::to_owned);
        self.0.lock().expect("no panic").push(said);
    }
}

async fn interceptors_see_metadata_of_replies(scheme: Scheme) {
    let address = serve(tests::device::server(), None, scheme).await;
    let heard = Heard::default();
    let client = shelf(&address, patient_channel().interceptor(heard.clone())).await;
    client.named("x").await.expect("answered");
    client.own_error().await.expect_err("its own error");
    client.status().await.expect_err("not found");
    client.plain("x").await.expect("answered");
    let numbers = client.numbers(false).await.expect("accepted");
    assert_eq!(numbers.count().await, 100);
    let expected = [Some("second"), Some("own"), Some("status"), None, Some("numbers")];
    assert_eq!(*heard.0.lock().expect("no panic"), expected.map(|said| said.map(str::to_owned)));
}
