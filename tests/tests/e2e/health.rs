//! `rpc.Health`: the reported status of services, now and as it changes, and at the end of a
//! server.

use std::time::Duration;

use rpc_core::health::{HealthClient, HealthReporter, ServingStatus};
use rpc_core::transport::CloseCause;
use rpc_core::{Channel, Code, PollMode, ServerBuilder, ShutdownHandle, Status};
use tests::limit::patient_channel;
use tests::raw::RawService;
use tests::scheme::Scheme;
use tokio::task::JoinHandle;

on_every_device! {
    health_is_what_the_reporter_says,
    a_watch_reports_changes_of_known_names,
    an_unread_watch_skips_to_the_last,
    draining_is_told_while_the_server_still_serves,
    watches_end_with_draining,
    a_server_without_health_says_so,
}

/// A server in this process, and a channel to it.
struct Here {
    channel: Channel,
    shutdown: ShutdownHandle,
    serving: JoinHandle<()>,
}

impl Here {
    async fn start(scheme: Scheme, builder: ServerBuilder) -> Self {
        let builder = builder.poll_mode(PollMode::Event).add_service(RawService);
        let server = builder.bind(scheme.fresh_address()).await.expect("a fresh address");
        let address = server.local_address().to_string();
        let shutdown = server.shutdown_handle();
        let serving = tokio::spawn(async move { server.serve().await.expect("it listens") });
        let channel = patient_channel().connect(address).await.expect("connected");
        Self { channel, shutdown, serving }
    }

    fn health(&self) -> HealthClient {
        HealthClient::new(self.channel.clone())
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

const DAY: Duration = Duration::from_secs(86_400);

async fn health_is_what_the_reporter_says(scheme: Scheme) {
    let reporter = HealthReporter::new();
    reporter.set("Later", ServingStatus::NotServing);
    let here = Here::start(scheme, tests::device::server().health(&reporter)).await;
    let health = here.health();
    for service in ["", "Raw"] {
        assert_eq!(health.check(service).await, Ok(ServingStatus::Serving), "{service:?}");
    }
    assert_eq!(health.check("Later").await, Ok(ServingStatus::NotServing));
    reporter.set("", ServingStatus::NotServing);
    assert_eq!(health.check("").await, Ok(ServingStatus::NotServing));
    assert_eq!(health.check("Raw").await, Ok(ServingStatus::Serving));
    let unknown = Status::from(health.check("Row").await.expect_err("there is none"));
    assert_eq!(unknown.code(), Code::NotFound, "{unknown}");
    assert!(unknown.message().contains("\"Row\""), "{unknown}");
}

async fn a_watch_reports_changes_of_known_names(scheme: Scheme) {
    let reporter = HealthReporter::new();
    let here = Here::start(scheme, tests::device::server().health(&reporter)).await;
    let health = here.health();
    let refused = Status::from(health.watch("Row").await.expect_err("there is none"));
    assert_eq!(refused.code(), Code::NotFound, "{refused}");
    let mut states = health.watch("Raw").await.expect("accepted");
    for status in [ServingStatus::Serving, ServingStatus::NotServing, ServingStatus::Serving] {
        reporter.set("Raw", status);
        assert_eq!(states.try_next().await, Ok(Some(status)));
    }
}

async fn an_unread_watch_skips_to_the_last(scheme: Scheme) {
    let reporter = HealthReporter::new();
    let here = Here::start(scheme, tests::device::server().health(&reporter)).await;
    let health = here.health();
    let mut states = health.watch("").await.expect("accepted");
    for _ in 0..5_000 {
        reporter.set("", ServingStatus::NotServing);
        tokio::task::yield_now().await;
        reporter.set("", ServingStatus::Serving);
        tokio::task::yield_now().await;
    }
    // A unique name, so that the end of the updates is known.
    reporter.set("", ServingStatus::Draining);
    let mut before = 0;
    while states.try_next().await.expect("a status") != Some(ServingStatus::Draining) {
        before += 1;
    }
    assert!(before < 100, "{before} were kept for a reader that did not read");
}

async fn draining_is_told_while_the_server_still_serves(scheme: Scheme) {
    let reporter = HealthReporter::new();
    let builder = tests::device::server().drain_lead(DAY).health(&reporter);
    let here = Here::start(scheme, builder).await;
    let health = here.health();
    let mut states = health.watch("Raw").await.expect("accepted");
    assert_eq!(states.try_next().await, Ok(Some(ServingStatus::Serving)));
    here.shutdown.shutdown();
    assert_eq!(states.try_next().await, Ok(Some(ServingStatus::Draining)));
    assert_eq!(states.try_next().await, Ok(None));
    assert_eq!(health.check("").await, Ok(ServingStatus::Draining));
    let mut late = health.watch("").await.expect("still served");
    assert_eq!(late.try_next().await, Ok(Some(ServingStatus::Draining)));
    assert_eq!(late.try_next().await, Ok(None));
}

async fn watches_end_with_draining(scheme: Scheme) {
    let reporter = HealthReporter::new();
    let mut here = Here::start(scheme, tests::device::server().grace(DAY).health(&reporter)).await;
    let health = here.health();
    let mut states = health.watch("").await.expect("accepted");
    assert_eq!(states.try_next().await, Ok(Some(ServingStatus::Serving)));
    here.shutdown.shutdown();
    assert_eq!(states.try_next().await, Ok(Some(ServingStatus::Draining)));
    assert_eq!(states.try_next().await, Ok(None));
    // Long before the end of a day of grace.
    (&mut here.serving).await.expect("no panic");
    let cause = here.channel.closed().await;
    assert!(matches!(cause, CloseCause::Peer(_)), "{cause}");
}

async fn a_server_without_health_says_so(scheme: Scheme) {
    let here = Here::start(scheme, tests::device::server()).await;
    let status = Status::from(here.health().check("").await.expect_err("there is no rpc.Health"));
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
}
