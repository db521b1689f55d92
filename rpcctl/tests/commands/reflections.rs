//! Reflection that answers nothing, or nothing good.

use std::sync::atomic::{AtomicU32, Ordering};

use rpc_core::Status;
use rpc_core::reflect::{MethodInfo, Reflect, ServiceInfo};

/// Reflection that never answers.
pub(crate) struct Silent;

impl Reflect for Silent {
    async fn services(&self) -> Vec<ServiceInfo> {
        std::future::pending().await
    }

    async fn methods(&self, _: &str) -> Result<Vec<MethodInfo>, Status> {
        std::future::pending().await
    }

    async fn schema(&self, _: &str) -> Result<Vec<String>, Status> {
        std::future::pending().await
    }

    async fn types(&self, _: &str) -> Result<String, Status> {
        std::future::pending().await
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

    async fn methods(&self, service: &str) -> Result<Vec<MethodInfo>, Status> {
        if service.starts_with("refused") {
            return Err(Status::internal(format!("no{ESCAPES}{}", "x".repeat(4000))));
        }
        let info = serde_json::json!({
            "name": "Store.who", "signature": format!("(str) -> str{ESCAPES}"),
            "arguments": [format!("key{ESCAPES}")], "docs": format!("docs{ESCAPES}"),
            "idempotent": false, "no_cancel": false, "spawn": false,
            "streams_arguments": false, "streams_results": false, "idle_deadline": false,
        });
        Ok(vec![serde_json::from_value(info).unwrap()])
    }

    async fn schema(&self, _: &str) -> Result<Vec<String>, Status> {
        Ok(vec![format!("0: str{ESCAPES}"), format!("result: str{ESCAPES}")])
    }

    async fn types(&self, _: &str) -> Result<String, Status> {
        // Every kind of reader of a method meets one of them.
        let text =
            "argument \"key\\u{a}error: forged\\u{1b}[2J\u{202e}\": #0\nresult: #1\n#0 str\n";
        match self.asked.fetch_add(1, Ordering::Relaxed) % 2 {
            0 => Ok(format!("{text}#1 unknown \"why\u{202e}\"\n")),
            _ => Ok(format!("{text}{ESCAPES}")),
        }
    }
}
