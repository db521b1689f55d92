//! Three builds of one service, as it grows: fields, variants and arguments come, go, move, widen
//! and get other names.
//!
//! Owns the versions of the trait, a server of each that answers from the arguments alone, and
//! callers that check each answer.

use rpc_core::stream::Streaming;
use rpc_core::{Channel, ServerBuilder, Status};
use serde::{Deserialize, Serialize};

/// Has a server offer the depot of this build.
///
/// # Panics
/// When there is no such build.
#[must_use]
pub fn added_to(builder: ServerBuilder, build: u8) -> ServerBuilder {
    match build {
        1 => builder.add_service(v1::DepotServer::new(v1::Build)),
        2 => builder.add_service(v2::DepotServer::new(v2::Build)),
        3 => builder.add_service(v3::DepotServer::new(v3::Build)),
        other => panic!("no depot has build {other}"),
    }
}

/// A call of each method, as this build has them, and checks of what they give.
///
/// # Errors
/// The first call that fails.
///
/// # Panics
/// When a wrong value arrives.
pub async fn call_all(build: u8, channel: &Channel, seed: u64) -> Result<(), Status> {
    match build {
        1 => v1::call_all(channel, seed).await,
        2 => v2::call_all(channel, seed).await,
        3 => v3::call_all(channel, seed).await,
        other => panic!("no depot has build {other}"),
    }
}

/// The name of an item.
fn name(number: u64) -> String {
    format!("item {number}")
}

/// The trait of a version, its server and its callers. The type of numbers is `$id`, `$deep` are
/// the further arguments of `find`, and `$fill` is the name of `fill` here.
macro_rules! depot {
    (
        id $id:ty;
        deep $($deep:ident: $deep_type:ty = $deep_value:expr)?;
        fill $fill:ident;
        $($added:tt)*
    ) => {
        /// The service, as this version has it.
        #[rpc_core::service]
        pub trait Depot {
            /// Takes an item; gives its number.
            async fn put(&self, item: Item) -> $id;
            /// The item with a number, unless it is 0.
            async fn find(&self, $($deep: $deep_type,)? id: $id) -> Option<Item>;
            /// The state of an item.
            async fn state(&self, id: $id) -> State;
            /// Every third item is refused.
            async fn take(&self, id: $id) -> Result<Item, Refusal>;
            /// The sum of the numbers.
            #[rpc(name = "fill")]
            async fn $fill(&self, items: Streaming<Item>) -> Result<$id, Status>;
            /// The items up to a number.
            fn list(&self, upto: $id) -> impl Stream<Item = Item>;
            /// Gives back what it gets.
            fn pass(&self, items: Streaming<Item>) -> impl Stream<Item = Item>;
            $($added)*
        }

        /// A server of this version.
        #[derive(Debug, Clone, Copy)]
        pub struct Build;

        /// Fails unless it is this item, with its name.
        #[track_caller]
        fn check(found: &Item, number: u64) {
            let (id, name) = read(found);
            assert_eq!((id, name), (number, &*self::name(number)));
        }

        fn number(id: $id) -> u64 {
            u64::from(id)
        }

        fn id(number: u64) -> $id {
            <$id>::try_from(number).expect("it is small")
        }

        impl Depot for Build {
            async fn put(&self, item: Item) -> $id {
                let (number, _) = read(&item);
                check(&item, number);
                id(number)
            }
            async fn find(&self, $($deep: $deep_type,)? id: $id) -> Option<Item> {
                $(let _ = $deep;)?
                (id != 0).then(|| item(number(id)))
            }
            async fn state(&self, id: $id) -> State {
                state(number(id))
            }
            async fn take(&self, id: $id) -> Result<Item, Refusal> {
                match number(id) % 3 {
                    0 => Err(empty(id)),
                    _ => Ok(item(number(id))),
                }
            }
            async fn $fill(&self, mut items: Streaming<Item>) -> Result<$id, Status> {
                let mut sum = 0;
                while let Some(item) = items.try_next().await? {
                    let (number, _) = read(&item);
                    check(&item, number);
                    sum += number;
                }
                Ok(id(sum))
            }
            fn list(&self, upto: $id) -> impl Stream<Item = Item> {
                stream::iter((1..=number(upto)).map(item))
            }
            fn pass(&self, items: Streaming<Item>) -> impl Stream<Item = Item> {
                items.filter_map(async |item| item.ok())
            }
        }

        pub(super) async fn call_all(channel: &Channel, seed: u64) -> Result<(), Status> {
            let client = DepotClient::new(channel.clone());
            let asked = 1 + seed % 1000;
            assert_eq!(client.put(item(asked)).await?, id(asked));
            let found = client.find($($deep_value as $deep_type,)? id(asked)).await?;
            check(&found.expect("there is one"), asked);
            assert!(client.find($($deep_value as $deep_type,)? id(0)).await?.is_none());
            let shown = client.state(id(asked)).await?;
            assert_eq!(format!("{shown:?}"), format!("{:?}", state(asked % 2)));
            match client.take(id(asked)).await {
                Ok(taken) => {
                    assert_ne!(asked % 3, 0);
                    check(&taken, asked);
                }
                Err(CallError::User(refusal)) => {
                    assert_eq!(asked % 3, 0);
                    assert_eq!(format!("{refusal:?}"), format!("{:?}", empty(id(asked))));
                }
                Err(CallError::Status(status)) => return Err(status),
            }
            let items = || stream::iter((1..=20).map(item));
            assert_eq!(client.$fill(items()).await?, id(210));
            let mut list = client.list(id(20)).await?;
            let mut passed = client.pass(items()).await?;
            for at in 1..=20 {
                check(&list.next().await.expect("there are twenty")?, at);
                check(&passed.next().await.expect("there are twenty")?, at);
            }
            assert!(list.next().await.is_none() && passed.next().await.is_none());
            Ok(())
        }
    };
}

/// Imports of each version.
macro_rules! version {
    ($(#[$doc:meta])* $name:ident { $($types:tt)* }) => {
        $(#[$doc])*
        #[allow(missing_docs, reason = "the differences are what matters")]
        pub mod $name {
            use futures::StreamExt;
            use rpc_core::CallError;
            use rpc_core::stream::{self, Stream};

            use super::{Channel, Deserialize, Serialize, Status, Streaming, name};

            $($types)*
        }
    };
}

version! {
    /// The first build.
    v1 {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Item {
            pub id: u32,
            pub name: String,
        }

        #[derive(Debug, Serialize, Deserialize)]
        pub enum State {
            New,
            Sold,
        }

        #[derive(Debug, Serialize, Deserialize)]
        pub enum Refusal {
            Empty { id: u32 },
        }

        fn item(number: u64) -> Item {
            Item { id: id(number), name: name(number) }
        }

        fn read(item: &Item) -> (u64, &str) {
            (item.id.into(), &item.name)
        }

        fn empty(id: u32) -> Refusal {
            Refusal::Empty { id }
        }

        fn state(number: u64) -> State {
            if number.is_multiple_of(2) { State::New } else { State::Sold }
        }

        depot! {
            id u32;
            deep;
            fill fill;
        }
    }
}

version! {
    /// Fields and variants are added and moved, numbers are wider, `find` takes more.
    v2 {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Item {
            pub note: Option<String>,
            pub name: String,
            #[serde(default)]
            pub count: u16,
            pub id: u64,
        }

        #[derive(Debug, Serialize, Deserialize)]
        pub enum State {
            Reserved { by: String },
            New,
            Sold,
        }

        #[derive(Debug, Serialize, Deserialize)]
        pub enum Refusal {
            Locked,
            Empty { id: u64 },
        }

        fn item(number: u64) -> Item {
            Item { note: Some("v2".into()), name: name(number), count: 2, id: number }
        }

        fn read(item: &Item) -> (u64, &str) {
            (item.id, &item.name)
        }

        fn empty(id: u64) -> Refusal {
            Refusal::Empty { id }
        }

        fn state(number: u64) -> State {
            if number.is_multiple_of(2) { State::New } else { State::Sold }
        }

        depot! {
            id u64;
            deep deep: Option<bool> = Some(true);
            fill fill;
        }
    }
}

version! {
    /// A field and a variant have other names, others are gone, and a method has another name here.
    v3 {
        #[derive(Debug, Serialize, Deserialize)]
        pub struct Item {
            #[serde(alias = "name")]
            pub title: String,
            pub id: u64,
            #[serde(default)]
            pub tags: Vec<String>,
            #[serde(default)]
            pub count: u64,
        }

        #[derive(Debug, Serialize, Deserialize)]
        pub enum State {
            #[serde(alias = "New")]
            Fresh,
            Sold,
            #[serde(other)]
            Other,
        }

        #[derive(Debug, Serialize, Deserialize)]
        pub enum Refusal {
            Empty { id: u64, since: Option<u64> },
        }

        fn item(number: u64) -> Item {
            Item { title: name(number), id: number, tags: vec!["v3".into()], count: 3 }
        }

        fn read(item: &Item) -> (u64, &str) {
            (item.id, &item.title)
        }

        fn empty(id: u64) -> Refusal {
            Refusal::Empty { id, since: None }
        }

        fn state(number: u64) -> State {
            if number.is_multiple_of(2) { State::Fresh } else { State::Sold }
        }

        depot! {
            id u64;
            deep;
            fill fill_all;
        }
    }
}
