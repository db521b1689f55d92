//! `rpc.Reflect` and `rpc.Stats`: a server's reports about itself.

use rpc_core::reflect::{Description, MethodInfo, ReflectClient, StatsClient};
use rpc_core::stream::{self, Stream, Streaming};
use rpc_core::{Channel, Code, PollMode, ServerBuilder, Status};
use tests::limit::patient_channel;
use tests::scheme::Scheme;
use tokio::task::JoinHandle;

on_every_device! {
    services_and_methods_are_described_as_written,
    schemas_are_those_of_the_types,
    services_come_before_their_methods,
    unknown_names_list_the_known_ones,
    the_stats_of_a_server_count_its_calls,
    a_server_tells_nothing_unasked,
}

/// Sums.
///
/// In 64 bits.
#[rpc_core::service(name = "Adder", version = 3)]
trait Sums {
    /// Adds two
    /// numbers.
    #[rpc(idempotent, spawn, no_cancel)]
    async fn add(&self, left: u64, r#type: Option<u64>) -> u64;
    async fn all(&self, numbers: Streaming<u64>) -> Result<u64, Status>;
    #[rpc(stream_deadline = "idle", name = "running")]
    fn sums(&self, from: u64, numbers: Streaming<u64>) -> impl Stream<Item = u64>;
}

struct Sum;

impl Sums for Sum {
    async fn add(&self, left: u64, r#type: Option<u64>) -> u64 {
        left + r#type.unwrap_or_default()
    }

    async fn all(&self, mut numbers: Streaming<u64>) -> Result<u64, Status> {
        let mut sum = 0;
        while let Some(number) = numbers.try_next().await? {
            sum += number;
        }
        Ok(sum)
    }

    fn sums(&self, from: u64, _: Streaming<u64>) -> impl Stream<Item = u64> {
        stream::iter([from])
    }
}

/// A server in this process, and a channel to it.
struct Here {
    channel: Channel,
    serving: JoinHandle<()>,
}

impl Here {
    async fn start(scheme: Scheme, configure: impl FnOnce(ServerBuilder) -> ServerBuilder) -> Self {
        let builder =
            tests::device::server().poll_mode(PollMode::Event).add_service(SumsServer::new(Sum));
        let server = configure(builder).bind(scheme.fresh_address()).await.expect("an address");
        let address = server.local_address().to_string();
        let serving = tokio::spawn(async move { server.serve().await.expect("it listens") });
        Self { channel: patient_channel().connect(address).await.expect("connected"), serving }
    }

    async fn reflecting(scheme: Scheme) -> (Self, ReflectClient) {
        let here = Self::start(scheme, ServerBuilder::reflection).await;
        let reflect = ReflectClient::new(here.channel.clone());
        (here, reflect)
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn services_and_methods_are_described_as_written(scheme: Scheme) {
    let (_here, reflect) = Here::reflecting(scheme).await;
    let services = reflect.services().await.expect("services");
    let names: Vec<&str> = services.iter().map(|service| &*service.name).collect();
    assert_eq!(names, ["Adder", "rpc.Stats", "rpc.Reflect"]);
    assert_eq!(services[0].docs, "Sums.\n\nIn 64 bits.");
    assert_eq!(services[0].methods, ["Adder.add", "Adder.all", "Adder.running"]);

    let methods = methods(&reflect, "Adder").await;
    let [add, all, running] = &methods[..] else { panic!("{methods:?}") };
    assert_eq!((&*add.name, &*add.docs), ("Adder.add", "Adds two\nnumbers."));
    assert_eq!(add.signature, "(u64, Option<u64>) -> u64 #3");
    assert_eq!(add.arguments, ["left", "type"]);
    assert!(add.idempotent && add.spawn && add.no_cancel, "{add:?}");
    assert!(!add.streams_arguments && !add.streams_results && !add.idle_deadline, "{add:?}");
    assert!(all.streams_arguments && !all.streams_results && !all.no_cancel, "{all:?}");
    assert_eq!((&*all.docs, all.arguments.len()), ("", 0));
    assert_eq!(
        (&*running.name, &running.arguments[..]),
        ("Adder.running", &["from".to_owned()][..])
    );
    assert!(running.streams_arguments && running.streams_results && running.idle_deadline);
}

/// All that is described under a name.
async fn described(reflect: &ReflectClient, name: &str) -> Result<Vec<Description>, Status> {
    let (mut all, mut parts) = (Vec::new(), reflect.describe(name).await?);
    while let Some(part) = parts.try_next().await? {
        all.push(part);
    }
    Ok(all)
}

/// The methods of a service.
async fn methods(reflect: &ReflectClient, service: &str) -> Vec<MethodInfo> {
    let all = described(reflect, service).await.expect("known").into_iter();
    let info = |part| match part {
        Description::Method(method) => Some(method.info),
        _ => None,
    };
    all.filter_map(info).collect()
}

async fn schemas_are_those_of_the_types(scheme: Scheme) {
    let (_here, reflect) = Here::reflecting(scheme).await;
    let add = described(&reflect, "Adder.add").await.expect("known");
    let [Description::Method(add)] = &add[..] else { panic!("{add:?}") };
    assert_eq!(add.lines, ["0: u64", "1: option", "1?: u64", "result: u64"]);
    let expected = "argument left: #0\nargument type?: #1\nresult: #0\n#0 u64\n#1 option #0\n";
    assert_eq!(add.types, expected);
    let running = described(&reflect, "Adder.running").await.expect("known");
    let [Description::Method(running)] = &running[..] else { panic!("{running:?}") };
    assert_eq!(running.lines, ["0: u64", "sent item: u64", "item: u64"]);
    let methods = methods(&reflect, "Adder").await;
    assert_eq!((&add.info, &running.info), (&methods[0], &methods[2]));
}

async fn services_come_before_their_methods(scheme: Scheme) {
    let (_here, reflect) = Here::reflecting(scheme).await;
    let names = |all: Vec<Description>| -> Vec<String> {
        let name = |part| match part {
            Description::Service(service) => service.name,
            Description::Method(method) => method.info.name,
            other => panic!("{other:?}"),
        };
        all.into_iter().map(name).collect()
    };
    let adder = names(described(&reflect, "Adder").await.expect("known"));
    assert_eq!(adder, ["Adder", "Adder.add", "Adder.all", "Adder.running"]);
    let all = names(described(&reflect, "").await.expect("known"));
    assert_eq!(all[..4], adder);
    assert_eq!(all[4..6], ["rpc.Stats", "rpc.Stats.server"]);
    assert_eq!(all[6], "rpc.Reflect");
    assert!(all.iter().any(|name| name == "rpc.Reflect.describe"), "{all:?}");
}

async fn unknown_names_list_the_known_ones(scheme: Scheme) {
    let (_here, reflect) = Here::reflecting(scheme).await;
    let service = described(&reflect, "Added").await.expect_err("there is none");
    let method = described(&reflect, "Adder.ad").await.expect_err("there is none");
    for (status, name) in [(service, "method \"Added\""), (method, "method \"Adder.ad\"")] {
        assert_eq!(status.code(), Code::NotFound, "{status}");
        assert!(status.message().contains(name), "{status}");
        assert!(status.message().contains("Adder, rpc.Stats"), "{status}");
    }
    let long = described(&reflect, &"x".repeat(5000)).await.expect_err("there is none");
    assert!(long.message().len() < 300, "{long}");
}

async fn the_stats_of_a_server_count_its_calls(scheme: Scheme) {
    let (here, _) = Here::reflecting(scheme).await;
    let sums = SumsClient::new(here.channel.clone());
    for _ in 0..20 {
        assert_eq!(sums.add(1, Some(2)).await, Ok(3));
    }
    let stats = StatsClient::new(here.channel.clone());
    // A handler that became a task counts its end when its reply has gone.
    let add = loop {
        let snapshot = stats.server(10).await.expect("a snapshot");
        assert_eq!((snapshot.connections.len(), snapshot.connection_count), (1, 1));
        let add = snapshot.methods.into_iter().find(|it| it.name == "Adder.add").expect("known");
        if add.ended.get("Ok") == Some(&20) {
            break add;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!((add.started, add.user_errors), (20, 0));
    assert!(add.took.count() > 0 && add.request_bytes > 0, "{add:?}");
    let few = stats.server(0).await.expect("a snapshot");
    assert_eq!((few.connections.len(), few.connection_count), (0, 1));
}

async fn a_server_tells_nothing_unasked(scheme: Scheme) {
    let here = Here::start(scheme, |builder| builder).await;
    let status = ReflectClient::new(here.channel.clone()).services().await.expect_err("it is off");
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
    let stats = StatsClient::new(here.channel.clone()).server(1).await.expect_err("it is off");
    assert_eq!(Status::from(stats).code(), Code::Unimplemented);
}
