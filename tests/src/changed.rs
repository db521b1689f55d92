//! Two programs whose types share their names but differ in content.

use serde::{Deserialize, Serialize};

/// A service that uses the types of the surrounding module.
macro_rules! catalog {
    () => {
        /// The service.
        #[rpc_core::service]
        pub trait Catalog {
            /// Its argument is equal in both.
            async fn total(&self) -> u64;
            /// The variants have changed places.
            async fn act(&self, action: Action) -> String;
            /// Two fields of one type have changed places.
            async fn store(&self, item: Item) -> u32;
            /// A deeply nested field has another width.
            async fn sort(&self, before: u8, shelves: Vec<Shelf>) -> Vec<u32>;
            /// The result is no longer an option.
            async fn find(&self, id: u32) -> Found;
            /// A variant of the error has another name.
            async fn remove(&self, id: u32) -> Result<u32, Refusal>;
            /// A recursive type has a further field.
            async fn walk(&self, tree: &Tree<u32>) -> u32;
            /// The values of the map have another type.
            async fn index(&self, entries: Entries) -> u64;
            /// Other types, with the same bytes.
            async fn label(&self, label: Label) -> u64;
            /// An opaque type.
            async fn even(&self, number: Even) -> u32;
        }

        impl Catalog for super::Service {
            async fn total(&self) -> u64 {
                42
            }
            async fn act(&self, action: Action) -> String {
                format!("{action:?}")
            }
            async fn store(&self, item: Item) -> u32 {
                item.id
            }
            async fn sort(&self, _: u8, shelves: Vec<Shelf>) -> Vec<u32> {
                shelves.iter().flat_map(|shelf| &shelf.items).map(|item| item.id).collect()
            }
            async fn find(&self, _: u32) -> Found {
                Found::default()
            }
            async fn remove(&self, _: u32) -> Result<u32, Refusal> {
                Ok(1)
            }
            async fn walk(&self, tree: &Tree<u32>) -> u32 {
                tree.value
            }
            async fn index(&self, entries: Entries) -> u64 {
                entries.0.len() as u64
            }
            async fn label(&self, label: Label) -> u64 {
                label.text.len() as u64
            }
            async fn even(&self, number: Even) -> u32 {
                number.into()
            }
        }
    };
}

/// Serves either.
#[derive(Debug, Clone, Copy, Default)]
pub struct Service;

/// Takes even numbers only, so the schema cannot look inside.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Even(u32);

impl TryFrom<u32> for Even {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        if number.is_multiple_of(2) { Ok(Self(number)) } else { Err(format!("{number} is odd")) }
    }
}

impl From<Even> for u32 {
    fn from(even: Even) -> Self {
        even.0
    }
}

/// The types that the server of these tests was built with.
#[allow(missing_docs, reason = "the differences are named at the methods")]
pub mod old {
    use std::collections::BTreeMap;

    pub use super::Even;
    use super::{Deserialize, Serialize};

    #[derive(Debug, Serialize, Deserialize)]
    pub enum Action {
        Create,
        Delete,
    }

    #[derive(Debug, Serialize, Deserialize)]
    pub struct Item {
        pub id: u32,
        pub size: u32,
    }

    #[derive(Debug, Serialize, Deserialize)]
    pub struct Shelf {
        pub items: Vec<Piece>,
    }

    #[derive(Debug, Serialize, Deserialize)]
    pub struct Piece {
        pub id: u32,
        pub height: Option<i32>,
    }

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    pub struct Found {
        pub price: Option<u32>,
    }

    #[derive(Debug, Serialize, Deserialize)]
    pub enum Refusal {
        Locked { by: String },
        Gone,
    }

    #[derive(Debug, Serialize, Deserialize)]
    pub struct Tree<T> {
        pub value: T,
        pub children: Vec<Tree<T>>,
    }

    #[derive(Debug, Serialize, Deserialize)]
    pub struct Entries(pub BTreeMap<String, u16>);

    #[derive(Debug, Serialize, Deserialize)]
    pub struct Label {
        pub text: String,
        pub picture: Vec<u8>,
        pub number: u64,
    }

    catalog!();
}

/// The types that its client was built with.
#[allow(missing_docs, reason = "the differences are named at the methods")]
pub mod new {
    use std::collections::HashMap;

    use rpc_core::Bulk;

    pub use super::Even;
    use super::{Deserialize, Serialize};

    #[derive(Debug, Serialize, Deserialize)]
    pub enum Action {
        Delete,
        Create,
    }

    #[derive(Debug, Serialize, Deserialize)]
    pub struct Item {
        pub size: u32,
        pub id: u32,
    }

    #[derive(Debug, Serialize, Deserialize)]
    pub struct Shelf {
        pub items: Vec<Piece>,
    }

    #[derive(Debug, Serialize, Deserialize)]
    pub struct Piece {
        pub id: u32,
        pub height: Option<u32>,
    }

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    pub struct Found {
        pub price: u32,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    pub enum Refusal {
        Kept { by: String },
        Gone,
    }

    #[derive(Debug, Serialize, Deserialize)]
    pub struct Tree<T> {
        pub value: T,
        pub weight: u8,
        pub children: Vec<Tree<T>>,
    }

    #[derive(Debug, Serialize, Deserialize)]
    pub struct Entries(pub HashMap<String, u8>);

    #[derive(Debug, Serialize, Deserialize)]
    pub struct Number(pub u64);

    #[derive(Debug, Serialize, Deserialize)]
    pub struct Label {
        pub text: Box<str>,
        pub picture: Bulk,
        #[serde(rename = "number")]
        pub new_name: Number,
    }

    catalog!();
}
