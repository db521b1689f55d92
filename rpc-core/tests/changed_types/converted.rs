//! Who still has other types: what the stats of both ends say.

use futures::StreamExt;
use rpc_core::reflect::StatsClient;
use rpc_core::stats::PrometheusText;
use rpc_core::stream::{self, Stream};
use rpc_core::{Channel, Server};

mod old {
    use super::*;

    #[rpc_core::service]
    pub trait Counted {
        async fn put(&self, item: u32) -> u32;
        async fn same(&self, item: u32) -> u32;
        fn list(&self, to: u32) -> impl Stream<Item = u32>;
    }
}

mod new {
    use super::*;

    #[rpc_core::service]
    pub trait Counted {
        async fn put(&self, item: u64) -> u64;
        async fn same(&self, item: u32) -> u32;
        fn list(&self, to: u32) -> impl Stream<Item = u64>;
    }
}

struct Echoes;

impl old::Counted for Echoes {
    async fn put(&self, item: u32) -> u32 {
        item
    }
    async fn same(&self, item: u32) -> u32 {
        item
    }
    fn list(&self, to: u32) -> impl Stream<Item = u32> {
        stream::iter(0..to)
    }
}

#[test]
fn both_ends_name_methods_whose_types_differ() {
    crate::run(async {
        let [address, ..] = crate::addresses();
        let server = Server::builder().reflection();
        let server = server.add_service(old::CountedServer::new(Echoes));
        let server = server.bind(&*address).await.unwrap();
        let stats = server.stats_handle();
        tokio::spawn(server.serve());
        let channel = Channel::connect(&address).await.unwrap();
        let equal = old::CountedClient::new(channel.clone());
        assert_eq!(equal.put(1).await, Ok(1));
        assert_eq!((stats.stats().converted, channel.stats().converted), (vec![], vec![]));
        let other = Channel::connect(&address).await.unwrap();
        let client = new::CountedClient::new(other.clone());
        for _ in 0..3 {
            assert_eq!(client.put(1).await, Ok(1));
            assert_eq!(client.same(1).await, Ok(1));
        }
        assert_eq!(client.list(5).await.unwrap().count().await, 5);
        let (here, there) = (stats.stats().converted, other.stats().converted);
        let messages = |all: &[rpc_core::stats::ConvertedStats]| {
            let mut found: Vec<_> = all.iter().map(|it| (it.method.clone(), it.messages)).collect();
            found.sort();
            found
        };
        let row = |name: &str, count: u64| (format!("Counted.{name}"), count);
        assert_eq!(messages(&here), [row("list", 1), row("put", 3)]);
        // Items, and the end of the stream.
        assert_eq!(messages(&there), [row("list", 6), row("put", 3)]);
        let put = |all: &[rpc_core::stats::ConvertedStats]| {
            let put = all.iter().find(|it| it.method == "Counted.put").unwrap();
            (put.own_schema.clone(), put.peer_schema.clone())
        };
        let ((own, peers), mirrored) = (put(&here), put(&there));
        assert_ne!(own, peers);
        assert_eq!(mirrored, (peers, own));
        let snapshot = StatsClient::new(channel).server(0).await.unwrap();
        assert_eq!(messages(&snapshot.converted), messages(&here));
        let text = PrometheusText::new().server(&stats.stats(), &[]).to_string();
        assert!(text.contains("\nrpc_server_converted_total 4\n"), "{text}");
        assert!(text.contains("\nrpc_server_converted_types 2\n"), "{text}");
    });
}
