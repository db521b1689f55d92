//! Deadlines of calls, over `mem://` and virtual time: which one applies, for how long, and the
//! error text when it has passed.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::time::Duration;

use rpc_core::interceptor::{ClientInterceptor, Outbound};
use rpc_core::stream::{self, Stream, Streaming};
use rpc_core::{Channel, ChannelBuilder, Code, Context, Server, Status};
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

#[rpc_core::service]
trait Slow {
    /// Takes so long.
    async fn work(&self, seconds: u64) -> u64;
    /// Returns its remaining time, ms.
    async fn left(&self) -> Option<u64>;
    /// This many items, one per second, after a second in which the call is not accepted.
    async fn ticks(&self, count: u64) -> Result<impl Stream<Item = u64>, Status>;
    /// With a deadline that restarts with each item.
    #[rpc(stream_deadline = "idle")]
    async fn idle_ticks(&self, count: u64) -> Result<impl Stream<Item = u64>, Status>;
    /// Is never accepted.
    async fn mute(&self) -> Result<impl Stream<Item = u64>, Status>;
    /// The number of items, and its remaining time.
    async fn count(&self, items: Streaming<u64>) -> Result<(u64, Option<u64>), Status>;
}

struct Works;

impl Slow for Works {
    async fn work(&self, seconds: u64) -> u64 {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        seconds
    }

    async fn left(&self) -> Option<u64> {
        left()
    }

    async fn ticks(&self, count: u64) -> Result<impl Stream<Item = u64>, Status> {
        tokio::time::sleep(SECOND).await;
        Ok(ticking(count))
    }

    async fn idle_ticks(&self, count: u64) -> Result<impl Stream<Item = u64>, Status> {
        self.ticks(count).await
    }

    async fn mute(&self) -> Result<impl Stream<Item = u64>, Status> {
        std::future::pending::<()>().await;
        Ok(ticking(0))
    }

    async fn count(&self, mut items: Streaming<u64>) -> Result<(u64, Option<u64>), Status> {
        let mut count = 0;
        while items.try_next().await?.is_some() {
            count += 1;
        }
        Ok((count, left()))
    }
}

fn left() -> Option<u64> {
    let left = Context::current().remaining()?;
    Some(left.as_millis().try_into().unwrap())
}

fn ticking(count: u64) -> impl Stream<Item = u64> {
    stream::stream(async move |mut out| {
        for tick in 0..count {
            tokio::time::sleep(SECOND).await;
            out.send(tick).await?;
        }
        Ok(())
    })
}

/// Calls [`Slow`] at another server, under the deadline of its own caller.
#[rpc_core::service]
trait Front {
    async fn work(&self, seconds: u64) -> Result<u64, Status>;
    async fn left(&self) -> Result<Option<u64>, Status>;
    async fn ticks(&self, count: u64) -> Result<u64, Status>;
    /// The remaining time when its own call has failed, ms.
    async fn spare(&self) -> Option<u64>;
}

struct Asks(SlowClient);

impl Front for Asks {
    async fn work(&self, seconds: u64) -> Result<u64, Status> {
        self.0.work(seconds).await
    }

    async fn left(&self) -> Result<Option<u64>, Status> {
        self.0.left().no_timeout().await
    }

    async fn ticks(&self, count: u64) -> Result<u64, Status> {
        drain(self.0.ticks(count).await?).await
    }

    async fn spare(&self) -> Option<u64> {
        self.0.work(1).await.unwrap_err();
        left()
    }
}

async fn drain(mut items: Streaming<u64>) -> Result<u64, Status> {
    let mut count = 0;
    while items.try_next().await?.is_some() {
        count += 1;
    }
    Ok(count)
}

async fn serve(name: &str) -> String {
    let address = format!("mem://{name}");
    let server =
        Server::builder().add_service(SlowServer::new(Works)).bind(&address).await.unwrap();
    tokio::spawn(server.serve());
    address
}

/// A client with this default timeout.
async fn client(name: &str, seconds: u64) -> SlowClient {
    let address = serve(name).await;
    SlowClient::new(builder(seconds).connect(address).await.unwrap())
}

fn builder(seconds: u64) -> ChannelBuilder {
    Channel::builder().default_timeout(Some(Duration::from_secs(seconds)))
}

/// The status of a call that fails at its deadline, and the time in seconds.
async fn fails<T, E: Into<Status>>(call: impl IntoFuture<Output = Result<T, E>>) -> (String, u64) {
    let begin = Instant::now();
    let Err(error) = call.await else { panic!("the call goes on beyond its deadline") };
    let status: Status = error.into();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    (status.message().to_owned(), begin.elapsed().as_secs())
}

#[tokio::test(start_paused = true)]
async fn a_call_may_have_more_than_the_default() {
    let slow = client("deadlines-more", 2).await;
    assert_eq!(slow.work(7).timeout(20 * SECOND).await, Ok(7));
    assert_eq!(slow.work(7).deadline((Instant::now() + 20 * SECOND).into_std()).await, Ok(7));
    let (text, after) = fails(slow.work(9).timeout(8 * SECOND)).await;
    assert_eq!((&*text, after), ("Slow.work: the deadline passed (set for this call)", 8));
    let (_, after) = fails(slow.work(9).timeout(SECOND)).await;
    assert_eq!(after, 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_may_have_no_deadline() {
    let slow = client("deadlines-none", 2).await;
    assert_eq!(slow.work(100).no_timeout().await, Ok(100));
    assert_eq!(slow.work(100).timeout(SECOND).no_timeout().await, Ok(100));
    assert_eq!(slow.work(100).timeout(Duration::MAX).await, Ok(100));
    assert_eq!(slow.left().no_timeout().await, Ok(None));
    let (_, after) = fails(slow.work(9).no_timeout().timeout(SECOND)).await;
    assert_eq!(after, 1);
}

#[tokio::test(start_paused = true)]
async fn a_default_that_has_passed_is_named() {
    let slow = client("deadlines-named", 2).await;
    let (text, after) = fails(slow.work(7)).await;
    let expected = "Slow.work: the deadline passed (the channel's `default_timeout` of 2s)";
    assert_eq!((&*text, after), (expected, 2));
    assert_eq!(slow.left().await, Ok(Some(2000)));
}

#[tokio::test(start_paused = true)]
async fn an_inherited_deadline_is_a_cap() {
    let slow = client("deadlines-inherited", 2).await;
    let server = FrontServer::new(Asks(slow));
    let front = FrontClient::new(Channel::to(server).await.unwrap());
    assert_eq!(front.left().await, Ok(None), "nobody has one");
    assert_eq!(front.left().timeout(9 * SECOND).await, Ok(Some(9000)));
    // The default is shorter.
    let (text, after) = fails(front.work(7).timeout(9 * SECOND)).await;
    let expected = "Slow.work: the deadline passed (the channel's `default_timeout` of 2s)";
    assert_eq!((&*text, after), (expected, 2));
    let (text, after) = fails(front.work(7).timeout(SECOND)).await;
    assert_eq!((&*text, after), ("Front.work: the deadline passed (set for this call)", 1));
    // For the whole stream.
    assert_eq!(front.ticks(7).timeout(9 * SECOND).await, Ok(7));
    let (_, after) = fails(front.ticks(7).timeout(5 * SECOND)).await;
    assert_eq!(after, 5);
}

#[tokio::test(start_paused = true)]
async fn streams_outlive_the_default_timeout() {
    let slow = client("deadlines-streams", 2).await;
    assert_eq!(drain(slow.ticks(7).await.unwrap()).await, Ok(7));
    assert_eq!(drain(slow.idle_ticks(7).await.unwrap()).await, Ok(7));
    let (text, after) = fails(drain(slow.ticks(7).timeout(4 * SECOND).await.unwrap())).await;
    assert_eq!((&*text, after), ("Slow.ticks: the deadline passed (set for this call)", 3));
    let (text, after) = fails(slow.mute()).await;
    assert_eq!(
        (&*text, after),
        (
            "Slow.mute: the deadline passed (the channel's `default_timeout` of 2s, which covers the \
             time until the server accepts the call)",
            2
        )
    );
}

#[tokio::test(start_paused = true)]
async fn uploads_outlive_the_default_timeout() {
    let slow = client("deadlines-uploads", 2).await;
    assert_eq!(slow.count(ticking(7)).await, Ok((7, None)));
    let (_, after) = fails(slow.count(ticking(7)).timeout(4 * SECOND)).await;
    assert_eq!(after, 4);
    assert_eq!(slow.count(ticking(7)).timeout(9 * SECOND).await, Ok((7, Some(2000))));
}

struct Hurries;

impl ClientInterceptor for Hurries {
    fn before(&self, call: &mut Outbound<'_>) -> Result<(), Status> {
        assert!(call.deadline().is_some(), "the default is seen");
        call.shorten_deadline((Instant::now() + SECOND).into_std());
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_an_interceptor_sets_ends_streams() {
    let address = serve("deadlines-interceptor").await;
    let channel = builder(5).interceptor(Hurries).connect(address).await.unwrap();
    let slow = SlowClient::new(channel);
    let (_, after) = fails(slow.count(ticking(2))).await;
    assert_eq!(after, 1);
    assert_eq!(slow.count(ticking(0)).await, Ok((0, Some(1000))));
}

/// The handler learns the reason of its own call's delay before its caller gives up.
#[tokio::test(start_paused = true)]
async fn a_caller_learns_what_its_handler_waited_for() {
    let nobody = Channel::builder().wait_for_ready(true).connect_lazy("mem://deadlines-nobody");
    let front = FrontServer::new(Asks(SlowClient::new(nobody.unwrap())));
    let front = FrontClient::new(Channel::to(front).await.unwrap());
    let (text, _) = fails(front.work(1).timeout(Duration::from_millis(300))).await;
    let expected = "Slow.work: the deadline is about to pass (inherited from Front.work, whose handler made \
                    the call) while waiting for a connection: unavailable: nothing is listening at \
                    mem://deadlines-nobody";
    assert!(text.starts_with(expected), "{text}");
    // There is time for the answer.
    assert_eq!(front.spare().timeout(Duration::from_millis(300)).await, Ok(Some(25)));
    assert_eq!(front.spare().timeout(Duration::from_millis(80)).await, Ok(Some(10)));
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_connection_says_whose_deadline() {
    let builder = builder(2).wait_for_ready(true);
    let slow = SlowClient::new(builder.connect_lazy("mem://deadlines-away").unwrap());
    let (text, after) = fails(slow.work(1)).await;
    let expected = "Slow.work: the deadline passed (the channel's `default_timeout` of 2s) while waiting for \
                    a connection: unavailable: nothing is listening";
    assert!(text.starts_with(expected), "{text}");
    assert_eq!(after, 2);
    let (text, after) = fails(slow.mute()).await;
    assert!(
        text.contains("which covers the time until the server accepts the call) while waiting"),
        "{text}"
    );
    assert_eq!(after, 2);
    let (_, after) = fails(slow.work(1).timeout(5 * SECOND)).await;
    assert_eq!(after, 5);
}
