//! `rpcctl schema`.

use std::path::PathBuf;
use std::process::Command;

use rpc_core::reflect::ReflectServer;
use rpc_core::service::Dispatch;
use rpc_core::text::is_printable;

use crate::World;
use crate::reflections::Hostile;

mod old {
    use rpc_core::serde::{Deserialize, Serialize};
    use rpc_core::stream::{self, Stream};

    #[derive(Debug, Clone, Serialize, Deserialize)]
    #[serde(crate = "rpc_core::serde")]
    pub(super) struct Item {
        id: u64,
    }

    #[rpc_core::service]
    pub(super) trait Stock {
        async fn store(&self, item: Item) -> u64;
        async fn find(&self, id: u64) -> Item;
        async fn gone(&self);
        fn watch(&self) -> impl Stream<Item = Item>;
    }

    pub(super) struct Shelf;

    impl Stock for Shelf {
        async fn store(&self, item: Item) -> u64 {
            item.id
        }

        async fn find(&self, id: u64) -> Item {
            Item { id }
        }

        async fn gone(&self) {}

        fn watch(&self) -> impl Stream<Item = Item> {
            stream::iter([Item { id: 1 }])
        }
    }
}

mod new {
    use rpc_core::serde::{Deserialize, Serialize};
    use rpc_core::stream::{self, Stream};

    /// `size` has no default.
    #[derive(Debug, Clone, Serialize, Deserialize)]
    #[serde(crate = "rpc_core::serde")]
    pub(super) struct Item {
        id: u64,
        size: u32,
    }

    #[rpc_core::service]
    pub(super) trait Stock {
        async fn store(&self, item: Item) -> u64;
        async fn find(&self, id: u32, shelf: Option<u8>) -> u64;
        async fn fresh(&self);
        fn watch(&self) -> impl Stream<Item = Item>;
    }

    pub(super) struct Shelf;

    impl Stock for Shelf {
        async fn store(&self, item: Item) -> u64 {
            item.id
        }

        async fn find(&self, id: u32, shelf: Option<u8>) -> u64 {
            u64::from(id) + u64::from(shelf.unwrap_or(0))
        }

        async fn fresh(&self) {}

        fn watch(&self) -> impl Stream<Item = Item> {
            stream::iter([Item { id: 1, size: 1 }])
        }
    }
}

/// A file of one test, removed at its end.
struct Saved(PathBuf);

impl Saved {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("rpcctl-{name}-{}.schema", std::process::id())))
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(crate) fn world(stock: impl Dispatch) -> World {
    World::start("shm", |builder| builder.reflection().add_service(stock))
}

/// The exit code, stdout and stderr.
pub(crate) fn schema(arguments: &[&str]) -> (Option<i32>, String, String) {
    let ended = Command::new(env!("CARGO_BIN_EXE_rpcctl")).arg("schema").args(arguments).output();
    let ended = ended.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (ended.status.code(), text(ended.stdout), text(ended.stderr))
}

#[test]
fn breaks_between_two_servers_are_named() {
    let (old, new) =
        (world(old::StockServer::new(old::Shelf)), world(new::StockServer::new(new::Shelf)));
    let (code, text, errors) = schema(&["diff", &old.address, &new.address]);
    assert_eq!(code, Some(1), "{text}{errors}");
    let lacks = "the writer has no field `size`: give it `#[serde(default)]`";
    for expected in [
        "changed Stock.find\n  old client, new server: BREAKS\n    `result`: it is `u64` at the \
         writer and `struct` here\n  new client, old server: BREAKS\n    `result`: it is `struct` \
         at the writer and `u64` here\n",
        "added Stock.fresh\n  old client, new server: works\n  new client, old server: works\n    \
         note:",
        "removed Stock.gone\n  old client, new server: BREAKS\n    the new server lacks this \
         method",
        &format!(
            "changed Stock.store\n  old client, new server: BREAKS\n    `item`: {lacks}\n  \
             new client, old server: works\n"
        ),
        &format!(
            "changed Stock.watch\n  old client, new server: works\n  new client, old server: \
             BREAKS\n    `item`: {lacks}\n"
        ),
        "methods changed: 5. Of these break: 4\n",
    ] {
        assert!(text.contains(expected), "no {expected:?} in: {text}");
    }
    assert!(!text.contains("Store.") && !text.contains("rpc."), "{text}");
    let (code, text, _) = schema(&["diff", "--json", &old.address, &new.address]);
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((code, lines.len()), (Some(1), 5), "{text}");
    let store = lines.iter().find(|it| it["method"] == "Stock.store").unwrap();
    assert_eq!(store["pairs"][0]["client"], "old");
    assert_eq!(store["pairs"][0]["problems"][0]["what"], lacks);
    assert_eq!(store["pairs"][0]["problems"][0]["path"], "item");
    assert_eq!(store["pairs"][1]["works"], true);
}

#[test]
fn a_saved_file_is_compared_with_servers() {
    let world = world(old::StockServer::new(old::Shelf));
    let file = Saved::new("saved");
    let (code, text, errors) = schema(&["save", &world.address, "-o", file.path()]);
    assert_eq!((code, &*text), (Some(0), ""), "{errors}");
    let saved = std::fs::read_to_string(&file.0).unwrap();
    assert!(
        saved.contains("service Stock\n\nmethod find\n  kind: unary\n  signature: "),
        "{saved}"
    );
    assert!(saved.contains("method twice\n  kind: streams both ways\n"), "{saved}");
    let (_, printed, _) = schema(&["save", &world.address]);
    assert_eq!(printed, saved, "the text is stable");
    let (code, text, errors) = schema(&["diff", file.path(), &world.address]);
    assert_eq!((code, &*text), (Some(0), "no method has changed\n"), "{errors}");
    // An added method is no break.
    let without = saved.replace("method gone\n  kind: unary\n", "method gole\n  kind: unary\n");
    std::fs::write(&file.0, &without).unwrap();
    let (code, text, _) = schema(&["diff", &world.address, file.path()]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("added Stock.gole") && text.contains("removed Stock.gone"), "{text}");
    let stock = saved.find("\nservice Stock").unwrap();
    let end = saved[stock..].find("\nservice Store").unwrap();
    std::fs::write(&file.0, saved[..stock].to_owned() + &saved[stock + end..]).unwrap();
    let (code, text, _) = schema(&["diff", file.path(), &world.address]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("methods changed: 4. Nothing breaks"), "{text}");
}

#[test]
fn files_that_are_no_schemas_are_refused() {
    let file = Saved::new("broken");
    let (code, _, errors) = schema(&["diff", file.path(), file.path()]);
    assert!(code == Some(1) && errors.contains("cannot read the file"), "{errors}");
    std::fs::write(&file.0, "services 1\n\nservice A\n\nmethod b\n  kind: odd\n").unwrap();
    let (code, _, errors) = schema(&["diff", file.path(), file.path()]);
    assert!(code == Some(1) && errors.contains("line 6: expected one of `unary`"), "{errors}");
    let (code, _, errors) = schema(&["diff", "tcp:/x", "mem://a"]);
    assert!(code == Some(2) && errors.contains("mem:// cannot be reached"), "{errors}");
}

#[test]
fn names_of_a_hostile_server_are_not_saved() {
    let world =
        World::start("shm", |builder| builder.add_service(ReflectServer::new(Hostile::default())));
    let file = Saved::new("hostile");
    let (code, _, errors) = schema(&["save", &world.address, "-o", file.path()]);
    assert!(code == Some(1) && errors.contains("lists the method Store.who in ..n"), "{errors}");
    assert!(
        errors.len() < 500 && errors.trim_end().chars().all(|it| is_printable(&it.to_string()))
    );
    assert!(!file.0.exists(), "nothing is written");
}
