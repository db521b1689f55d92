//! Calls that the other side cannot serve: each has an error of its own that names the cause, and
//! the connection and its other calls continue.

use rpc_core::service::{Dispatch, MethodDescriptor, ReplyParts};
use rpc_core::{Code, LinkConfig, Status};
use tests::probe::{Mark, ProbeClient, ProbeServer};
use tests::raw;
use tests::scheme::Scheme;
use tests::service::{ProbeService, pattern};
use tests::versions::new;
use tests::world::{World, marked};

use crate::SERVER;

on_every_scheme! {
    an_unknown_method_lists_the_services,
    an_unknown_service_lists_the_services,
    an_argument_of_another_kind_is_refused,
    a_changed_version_fails_with_both_printed,
    arguments_that_do_not_decode_name_the_method,
    a_too_large_reply_is_an_error,
    small_message_limits_still_carry_small_calls,
    a_too_large_status_is_not_lost,
    arguments_that_do_not_encode_name_the_method,
}

between_processes! {
    a_too_large_request_is_an_error,
}

/// Checks that everything else still works.
async fn check_alive(client: &ProbeClient) {
    assert_eq!(client.add(20, 22).await, Ok(42));
}

fn check(status: &Status, code: Code, words: &[&str]) {
    assert_eq!(status.code(), code, "{status}");
    for word in words {
        assert!(status.message().contains(word), "`{status}` lacks `{word}`");
    }
}

#[rpc_core::service]
trait Absent {
    async fn nothing(&self);
}

async fn an_unknown_method_lists_the_services(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    let running = client.hold(1).start();
    let ledger = new::LedgerClient::new(client.channel().clone());
    let status = ledger.close().await.expect_err("the server has no such method");
    check(&status, Code::Unimplemented, &["method", "Ledger", "Probe", "Raw"]);
    assert_eq!(ledger.total().await, Ok(42));
    client.open(1).await.expect("opened");
    assert_eq!(running.await, Ok(1));
}

async fn an_unknown_service_lists_the_services(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    let absent = AbsentClient::new(client.channel().clone());
    let status = absent.nothing().await.expect_err("the server has no such service");
    check(&status, Code::Unimplemented, &["Absent.nothing", "Ledger", "Probe", "Raw"]);
    check_alive(&client).await;
}

async fn an_argument_of_another_kind_is_refused(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    let ledger = new::LedgerClient::new(client.channel().clone());
    // Repeatedly: a refused signature is never recorded as accepted.
    for _ in 0..3 {
        let status = ledger.enter("7".to_owned()).await.expect_err("it takes a number");
        check(&status, Code::FailedPrecondition, &["Ledger.enter", "amount", "u64", "str"]);
    }
    assert_eq!(ledger.total().await, Ok(42));
    check_alive(&client).await;
}

async fn a_changed_version_fails_with_both_printed(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    let ledger = new::LedgerClient::new(client.channel().clone());
    let status = ledger.audit(1999).await.expect_err("it is of another version");
    check(&status, Code::FailedPrecondition, &["Ledger.audit", "#1", "#2"]);
    check_alive(&client).await;
}

fn method(name: &str) -> &'static MethodDescriptor {
    let server = ProbeServer::new(ProbeService::default());
    let methods = server.descriptor().methods;
    methods.iter().find(|method| method.name == name).expect("it is there")
}

/// Calls a method with arguments of another type.
async fn raw_call(
    client: &ProbeClient,
    name: &str,
    arguments: &impl serde::Serialize,
) -> Result<(), Status> {
    let ignore = |parts: ReplyParts| parts.outcome.map(drop);
    client.channel().call(method(name), arguments, ignore).await
}

async fn arguments_that_do_not_decode_name_the_method(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    let short = raw_call(&client, "Probe.add", &(1_u64,)).await.expect_err("one is missing");
    check(&short, Code::InvalidArgument, &["decode", "Probe.add", "b"]);
    let long = raw_call(&client, "Probe.add", &(1_u64, 2_u64, 3_u64)).await;
    check(&long.expect_err("one too many"), Code::InvalidArgument, &["Probe.add", "1 "]);
    let wrong = raw_call(&client, "Probe.shapes", &"no shapes").await.expect_err("other bytes");
    check(&wrong, Code::InvalidArgument, &["Probe.shapes", "value"]);
    let huge_count = raw_call(&client, "Probe.many", &[u64::MAX; 32]).await;
    check(&huge_count.expect_err("no sense"), Code::InvalidArgument, &["Probe.many"]);
    check_alive(&client).await;
}

/// A value whose serialization fails.
struct Unwritable;

impl serde::Serialize for Unwritable {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("not today"))
    }
}

async fn arguments_that_do_not_encode_name_the_method(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let client = world.client().await;
    let status = raw_call(&client, "Probe.add", &(Unwritable,)).await.expect_err("unwritable");
    check(&status, Code::InvalidArgument, &["encode", "Probe.add", "not today"]);
    check_alive(&client).await;
}

async fn a_too_large_reply_is_an_error(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let link = LinkConfig::default().max_message_bytes(1 << 20);
    let client = world.client_with(|builder| builder.link(link)).await;
    let running = client.hold(1).start();
    let status = client.produce(2 << 20, 1).await.expect_err("it is too large");
    check(&status, Code::ResourceExhausted, &["reply", "2097", "1048576", "max_message_bytes"]);
    let fits = client.produce(500_000, 1).await.expect("it fits");
    assert!(fits == pattern(500_000, 1));
    client.open(1).await.expect("opened");
    assert_eq!(running.await, Ok(1));
}

async fn a_too_large_request_is_an_error(scheme: Scheme) {
    let world = World::start_with(SERVER, scheme, &["--max-message", "1048576"]).await;
    let client = world.client().await;
    let running = client.hold(1).start();
    let status = client.digest(&pattern(2 << 20, 1)).await.expect_err("it is too large");
    check(
        &status,
        Code::ResourceExhausted,
        &["Probe.digest", "request", "2097", "1048576", "max_message_bytes"],
    );
    assert_eq!(client.digest(&pattern(500_000, 1)).await.map(|(len, _)| len), Ok(500_000));
    marked(&client, 1, Mark::Started, 1).await;
    client.open(1).await.expect("opened");
    assert_eq!(running.await, Ok(1));
}

async fn small_message_limits_still_carry_small_calls(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let link = LinkConfig::default().receive_buffer_bytes(4096).max_message_bytes(4096);
    let client = world.client_with(|builder| builder.link(link)).await;
    check_alive(&client).await;
    let fits = client.produce(3000, 1).await.expect("it fits");
    assert!(fits == pattern(3000, 1));
    let status = client.produce(5000, 1).await.expect_err("it is too large");
    check(&status, Code::ResourceExhausted, &["reply", "4096", "max_message_bytes"]);
    check_alive(&client).await;
}

async fn a_too_large_status_is_not_lost(scheme: Scheme) {
    let world = World::start(SERVER, scheme).await;
    let link = LinkConfig::default().receive_buffer_bytes(256).max_message_bytes(256);
    let channel = world.channel_with(|builder| builder.link(link)).await;
    let client = ProbeClient::new(channel.clone());
    check_alive(&client).await;
    let status = raw::fail_at_length(&channel, 2000).await.expect_err("it always fails");
    assert_eq!(status.code(), Code::Aborted, "{status}");
    check_alive(&client).await;
}
