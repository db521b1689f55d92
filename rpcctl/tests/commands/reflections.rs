//! Reflection that answers nothing, or nothing good.

use std::sync::atomic::{AtomicU32, Ordering};

use rpc_core::Status;
use rpc_core::reflect::{Description, MethodInfo, Reflect, ServiceInfo};
use rpc_core::stream::{self, Stream};

/// Reflection that never answers.
pub(crate) struct Silent;

impl Reflect for Silent {
    async fn services(&self) -> Vec<ServiceInfo> {
        std::future::pending().await
    }

    async fn describe(&self, _: &str) -> Result<impl Stream<Item = Description>, Status> {
        std::future::pending::<()>().await;
        Ok(stream::iter([]))
    }
}

const ESCAPES: &str = "\nerror: forged\u{1b}[2J\u{202e}";

/// Malicious reflection.
#[derive(Default)]
pub(crate) struct Hostile {
    asked: AtomicU32,
}

impl Reflect for Hostile {
    async fn services(&self) -> Vec<ServiceInfo> {
        let service = |name: &str, docs: &str| {
            let info = serde_json::json!({ "name": name, "docs": docs, "methods": ["Store.who"] });
            serde_json::from_value(info).unwrap()
        };
        vec![
            service(&"n".repeat(70_000), "long"),
            service(&format!("Store{ESCAPES}"), &format!("about{ESCAPES}")),
            service("Links", &"[a](".repeat(500_000)),
        ]
    }

    async fn describe(&self, name: &str) -> Result<impl Stream<Item = Description>, Status> {
        if name.starts_with("refused") {
            return Err(Status::internal(format!("no{ESCAPES}{}", "x".repeat(4000))));
        }
        let services = self.services().await.into_iter().take(usize::from(name.is_empty()));
        let text =
            "argument \"key\\u{a}error: forged\\u{1b}[2J\u{202e}\": #0\nresult: #1\n#0 str\n";
        let unknown = format!("{text}#1 unknown \"why\u{202e}\"\n");
        let lines = |result: &str| vec!["0: str".to_owned(), format!("result: {result}")];
        // Every kind of reader of a method meets one of them.
        let (lines, types) = match self.asked.fetch_add(1, Ordering::Relaxed) % 3 {
            0 => (lines("str"), unknown),
            1 => (lines("str"), format!("{text}{ESCAPES}")),
            _ => (vec![format!("0: str{ESCAPES}"), format!("result: str{ESCAPES}")], unknown),
        };
        let method = serde_json::json!({ "info": who(), "lines": lines, "types": types });
        let method = Description::Method(serde_json::from_value(method).unwrap());
        Ok(stream::iter(services.map(Description::Service).chain([method])))
    }
}

fn who() -> MethodInfo {
    let info = serde_json::json!({
        "name": "Store.who", "signature": format!("(str) -> str{ESCAPES}"),
        "arguments": [format!("key{ESCAPES}")], "docs": format!("docs{ESCAPES}"),
        "idempotent": false, "no_cancel": false, "spawn": false,
        "streams_arguments": false, "streams_results": false, "idle_deadline": false,
    });
    serde_json::from_value(info).unwrap()
}
