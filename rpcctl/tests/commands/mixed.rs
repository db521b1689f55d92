//! A name behind which servers of two versions are.

use std::collections::BTreeSet;
use std::path::PathBuf;

use rpc_core::Status;
use rpc_core::reflect::{Description, Reflect, ReflectServer, ServiceInfo};
use rpc_core::service::{Dispatch, Handler, Request, ServiceDescriptor};
use rpc_core::stream::{self, Stream};

use crate::gateway::{Gateway, JSON};
use crate::schemas::{schema, world};
use crate::{World, run};

mod v1 {
    use rpc_core::serde::{Deserialize, Serialize};

    /// Two numbers of one type.
    #[derive(Debug, Clone, Serialize, Deserialize)]
    #[serde(crate = "rpc_core::serde")]
    pub(super) struct Transfer {
        from: u32,
        to: u32,
    }

    #[rpc_core::service]
    pub(super) trait Stock {
        async fn transfer(&self, of: Transfer) -> String;
        async fn last(&self) -> Transfer;
    }

    pub(super) struct Shelf;

    impl Stock for Shelf {
        async fn transfer(&self, of: Transfer) -> String {
            format!("from {} to {}", of.from, of.to)
        }

        async fn last(&self) -> Transfer {
            Transfer { from: 1, to: 2 }
        }
    }
}

mod v2 {
    use rpc_core::serde::{Deserialize, Serialize};

    /// The same fields in another order.
    #[derive(Debug, Clone, Serialize, Deserialize)]
    #[serde(crate = "rpc_core::serde")]
    pub(super) struct Transfer {
        to: u32,
        from: u32,
    }

    #[rpc_core::service]
    pub(super) trait Stock {
        async fn transfer(&self, of: Transfer) -> String;
        async fn last(&self) -> Transfer;
        async fn added(&self) -> u32;
    }

    pub(super) struct Shelf;

    impl Stock for Shelf {
        async fn transfer(&self, of: Transfer) -> String {
            format!("from {} to {}", of.from, of.to)
        }

        async fn last(&self) -> Transfer {
            Transfer { from: 1, to: 2 }
        }

        async fn added(&self) -> u32 {
            2
        }
    }
}

/// A server of each version, and a file with the addresses of both.
struct Both {
    worlds: [World; 2],
    path: PathBuf,
}

impl Both {
    fn start(test: &str) -> Self {
        let old = world(v1::StockServer::new(v1::Shelf));
        let new = world(v2::StockServer::new(v2::Shelf));
        let name = format!("rpcctl-{test}-{}.servers", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, format!("{}\n{}\n", old.address, new.address)).unwrap();
        Self { worlds: [old, new], path }
    }

    fn name(&self) -> String {
        format!("file://{}", self.path.display())
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Regression: the lines of one server and the types of the other swapped the fields of every
/// fourth call.
#[test]
fn a_call_reads_types_of_one_server() {
    let both = Both::start("call");
    for _ in 0..20 {
        let json = r#"{"of": {"from": 1, "to": 2}}"#;
        let (is_good, text, errors) =
            run("call", &both.name(), &["Stock.transfer", "--json", json], "");
        assert!(is_good && text == "\"from 1 to 2\"\n", "{text}{errors}");
        let (is_good, text, errors) = run("call", &both.name(), &["Stock.last"], "");
        assert!(is_good && text.contains("\"from\":1,\"to\":2"), "{text}{errors}");
    }
}

/// Regression: of forty files fifteen were those of no server.
#[test]
fn a_saved_file_is_that_of_one_server() {
    let both = Both::start("save");
    let saved = |address: &str| {
        let (code, text, errors) = schema(&["save", address]);
        assert_eq!(code, Some(0), "{errors}");
        text
    };
    let known = BTreeSet::from([&both.worlds[0], &both.worlds[1]].map(|it| saved(&it.address)));
    for _ in 0..20 {
        let text = saved(&both.name());
        assert!(known.contains(&text), "it is of no server: {text}");
    }
}

/// Regression: it gave up if one server lacked a method of the other, or swapped fields for good.
#[test]
fn a_gateway_starts_while_both_versions_serve() {
    let both = Both::start("gateway");
    for _ in 0..4 {
        let gateway = Gateway::start(&both.name(), &[]);
        for _ in 0..10 {
            let body = r#"{"of": {"from": 1, "to": 2}}"#;
            let answer = gateway.ask("POST /Stock/transfer", &[JSON], body).with(200);
            assert_eq!(answer.json(), "from 1 to 2");
            let answer = gateway.ask("POST /Stock/last", &[JSON], "{}").with(200).json();
            assert_eq!((&answer["from"], &answer["to"]), (&1.into(), &2.into()), "{answer}");
        }
    }
}

/// Describes the lines of one version with the types of the other.
struct Liar;

impl Reflect for Liar {
    async fn services(&self) -> Vec<ServiceInfo> {
        Vec::new()
    }

    async fn describe(&self, _: &str) -> Result<impl Stream<Item = Description>, Status> {
        let lines = ["0: struct { from, to }", "0.from: u32", "0.to: u32", "result: str"];
        let types = "argument of: #0\nresult: #2\n#0 struct { to: #1, from: #1 }\n#1 u32\n#2 str\n";
        let method = serde_json::json!({ "lines": lines, "types": types, "info": {
            "name": "Stock.transfer", "signature": "(Transfer) -> str", "arguments": ["of"],
            "docs": "", "idempotent": false, "no_cancel": false, "spawn": false,
            "streams_arguments": false, "streams_results": false, "idle_deadline": false,
        }});
        Ok(stream::iter([Description::Method(serde_json::from_value(method).unwrap())]))
    }
}

#[test]
fn lines_and_types_that_disagree_are_refused() {
    let world = World::start("shm", |builder| {
        let stock = v1::StockServer::new(v1::Shelf);
        builder.add_service(stock).add_service(ReflectServer::new(Liar))
    });
    let json = r#"{"of": {"from": 1, "to": 2}}"#;
    let why = "the types of Stock.transfer wrongly: in two ways, which differ at `0`";
    world.bad("call", &["Stock.transfer", "--json", json], "", &[why]);
    let (code, _, errors) = schema(&["save", &world.address]);
    assert!(code == Some(1) && errors.contains(why), "{errors}");
    let gateway = Gateway::start(&world.address, &[]);
    let answer = gateway.ask("POST /Stock/transfer", &[JSON], json).with(501);
    assert!(answer.message().contains(why), "{answer:?}");
}

/// Describes methods without end.
struct Endless;

impl Reflect for Endless {
    async fn services(&self) -> Vec<ServiceInfo> {
        Vec::new()
    }

    async fn describe(&self, _: &str) -> Result<impl Stream<Item = Description>, Status> {
        let service =
            serde_json::json!({ "name": "s", "docs": "d".repeat(1 << 20), "methods": [] });
        let service = Description::Service(serde_json::from_value(service).unwrap());
        Ok(stream::iter(std::iter::repeat(service)))
    }
}

#[test]
fn an_endless_description_is_given_up() {
    let world = World::start("shm", |builder| builder.add_service(ReflectServer::new(Endless)));
    world.bad("call", &["Stock.last"], "", &["the server describes more than"]);
}

/// Reflection of a server of before `describe`.
struct Earlier(ReflectServer<Liar>);

impl Dispatch for Earlier {
    fn descriptor(&self) -> &'static ServiceDescriptor {
        let ServiceDescriptor { name, methods, .. } = self.0.descriptor();
        Box::leak(Box::new(ServiceDescriptor::new(name, &methods[..1])))
    }

    fn dispatch(&self, method: usize, request: Request) -> Handler {
        self.0.dispatch(method, request)
    }
}

#[test]
fn a_server_of_an_earlier_version_is_named() {
    let earlier = Earlier(ReflectServer::new(Liar));
    let world = World::start("shm", |builder| builder.add_service(earlier));
    let why = "is of an earlier version than rpcctl: it lacks `rpc.Reflect.describe`";
    world.bad("call", &["Stock.transfer"], "", &[why]);
    let (code, _, errors) = schema(&["save", &world.address]);
    assert!(code == Some(1) && errors.contains(why), "{errors}");
}
