//! Generated code among names that equal its own.
//!
//! The test is that it compiles; a few calls show that the right item was called.
#![allow(missing_docs, unreachable_pub, reason = "the services here are examples")]

use rpc_core::Codec;
use tests::in_process;

/// The crate behind a re-export.
mod reexported {
    pub mod facade {
        pub use rpc_core as rpc;
    }

    #[self::facade::rpc::service(crate = self::facade::rpc)]
    pub trait Kv {
        async fn get(&self, key: &str) -> Result<Vec<u8>, u8>;
    }
}

/// Nothing in scope except explicit imports.
mod bare {
    #![no_implicit_prelude]

    #[::rpc_core::service(client_trait = KvCalls)]
    pub trait Kv {
        async fn get(&self, key: &str) -> ::std::option::Option<::std::vec::Vec<u8>>;
        async fn put(&self, key: &str, all: &[u32]) -> ::std::result::Result<u64, u8>;
        async fn nothing(&self);
    }

    pub struct Store;

    impl Kv for Store {
        async fn get(&self, key: &str) -> ::std::option::Option<::std::vec::Vec<u8>> {
            ::std::option::Option::Some(::std::convert::From::from(key.as_bytes()))
        }
        async fn put(&self, _key: &str, all: &[u32]) -> ::std::result::Result<u64, u8> {
            ::std::result::Result::Ok(::std::iter::Iterator::sum(::std::iter::Iterator::map(
                all.iter(),
                |&one| <u64 as ::std::convert::From<u32>>::from(one),
            )))
        }
        async fn nothing(&self) {}
    }
}

#[tokio::test]
async fn without_a_prelude() {
    let client =
        bare::KvClient::new(in_process(bare::KvServer::new(bare::Store), Codec::default()).await);
    assert_eq!(client.get("k").await, Ok(Some(b"k".to_vec())));
    assert_eq!(client.put("k", &[1, 2]).await, Ok(3));
    assert_eq!(client.nothing().await, Ok(()));
}

/// Types and traits with the names of generated code, but other meanings.
mod shadowed {
    use serde::{Deserialize, Serialize};

    macro_rules! types {
        ($($name:ident)*) => {$(
            #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
            pub struct $name(pub u32);
        )*};
    }

    types! {
        Result Option Status Future Box String Vec Bytes Send Sync Arc Clone Debug CallError
        Channel Call Handler Request Reply Dispatch Context Codec Code KvError Plain Probe Put Take
        S T H E Some None Ok Err MethodDescriptor ServiceDescriptor Service Method0 Incoming
    }

    // Crates with the names that generated code might use.
    pub mod core {}
    pub mod std {}
    pub mod serde_derive {}
    pub mod rpc_core {}

    #[::rpc_core::service(client_trait = Stream)]
    pub trait Kv {
        async fn a(&self, a: Result, b: Option, c: Status, d: Future, e: Box) -> String;
        async fn b(&self, a: Vec, b: Bytes, c: &Arc, d: &[Send], e: Sync) -> Result;
        async fn c(&self, a: S, b: T, c: H, d: E) -> Option;
        async fn d(&self, a: Some, b: None, c: Ok, d: Err) -> Status;
        async fn e(&self, a: Clone, b: Debug, c: CallError, d: Channel, e: Call) -> Vec;
        async fn f(&self, a: Handler, b: Request, c: Reply, d: Dispatch, e: Context) -> Bytes;
        async fn g(&self, a: Codec, b: Code, c: Plain, d: Probe, e: Put, f: Take) -> Box;
        async fn h(&self, a: MethodDescriptor, b: ServiceDescriptor, c: Method0) -> KvError;
        async fn i(&self, a: Service, b: Incoming) -> ::std::result::Result<Ok, Err>;
    }

    pub struct Store;

    impl Kv for Store {
        async fn a(&self, a: Result, b: Option, c: Status, d: Future, e: Box) -> String {
            String(a.0 + b.0 + c.0 + d.0 + e.0)
        }
        async fn b(&self, a: Vec, b: Bytes, c: &Arc, d: &[Send], e: Sync) -> Result {
            Result(a.0 + b.0 + c.0 + d[0].0 + e.0)
        }
        async fn c(&self, a: S, b: T, c: H, d: E) -> Option {
            Option(a.0 + b.0 + c.0 + d.0)
        }
        async fn d(&self, a: Some, b: None, c: Ok, d: Err) -> Status {
            Status(a.0 + b.0 + c.0 + d.0)
        }
        async fn e(&self, a: Clone, b: Debug, c: CallError, d: Channel, e: Call) -> Vec {
            Vec(a.0 + b.0 + c.0 + d.0 + e.0)
        }
        async fn f(&self, a: Handler, b: Request, c: Reply, d: Dispatch, e: Context) -> Bytes {
            Bytes(a.0 + b.0 + c.0 + d.0 + e.0)
        }
        async fn g(&self, a: Codec, b: Code, c: Plain, d: Probe, e: Put, f: Take) -> Box {
            Box(a.0 + b.0 + c.0 + d.0 + e.0 + f.0)
        }
        async fn h(&self, a: MethodDescriptor, b: ServiceDescriptor, c: Method0) -> KvError {
            KvError(a.0 + b.0 + c.0)
        }
        async fn i(&self, a: Service, b: Incoming) -> ::std::result::Result<Ok, Err> {
            if a == Service(0) { Result::Err(Err(b.0)) } else { Result::Ok(Ok(b.0)) }
        }
    }

    impl Result {
        #[allow(non_snake_case)]
        fn Ok<A, B>(value: A) -> ::std::result::Result<A, B> {
            ::std::result::Result::Ok(value)
        }
        #[allow(non_snake_case)]
        fn Err<A, B>(value: B) -> ::std::result::Result<A, B> {
            ::std::result::Result::Err(value)
        }
    }
}

#[tokio::test]
async fn types_with_well_known_names() {
    use shadowed::*;
    for codec in tests::CODECS {
        let client = KvClient::new(in_process(KvServer::new(Store), codec).await);
        let sum = client.a(Result(1), Option(2), Status(3), Future(4), Box(5)).await;
        assert!(matches!(sum, ::std::result::Result::Ok(String(15))));
        let sum = client.b(Vec(1), Bytes(2), &Arc(3), &[Send(4)], Sync(5)).await;
        assert!(matches!(sum, ::std::result::Result::Ok(Result(15))));
        let error = client.i(Service(0), Incoming(9)).await;
        assert!(matches!(error, ::std::result::Result::Err(::rpc_core::CallError::User(Err(9)))));
    }
}

/// Methods with the names of generated items, and with keywords as names.
mod methods {
    #[rpc_core::service]
    pub trait Taken {
        #[rpc(name = "new")]
        async fn renew(&self) -> u8;
        #[rpc(name = "connect")]
        async fn reconnect(&self, address: &str) -> u8;
        async fn call(&self) -> u8;
        #[rpc(name = "channel")]
        async fn channels(&self) -> u8;
        async fn clone(&self) -> u8;
        async fn from(&self) -> u8;
        async fn from_arc(&self) -> u8;
        async fn as_ref(&self) -> u8;
        async fn fmt(&self) -> u8;
        async fn poll(&self) -> u8;
        async fn start(&self) -> u8;
        async fn timeout(&self) -> u8;
        async fn dispatch(&self, method: usize, request: u8) -> u8;
        async fn descriptor(&self) -> u8;
        async fn put_shape(&self) -> u8;
        async fn drop(&self) -> u8;
        async fn r#type(&self, r#match: u8, r#async: &str) -> u8;
    }

    pub struct Numbers;

    macro_rules! numbers {
        ($($name:ident($($arg:ident: $ty:ty),*) = $number:literal;)*) => {
            impl Taken for Numbers {
                $(async fn $name(&self, $($arg: $ty),*) -> u8 {
                    $(let _ = $arg;)*
                    $number
                })*
            }
        };
    }

    numbers! {
        renew() = 1;
        reconnect(address: &str) = 2;
        call() = 3;
        channels() = 4;
        clone() = 5;
        from() = 6;
        from_arc() = 7;
        as_ref() = 8;
        fmt() = 9;
        poll() = 10;
        start() = 11;
        timeout() = 12;
        dispatch(method: usize, request: u8) = 13;
        descriptor() = 14;
        put_shape() = 15;
        drop() = 16;
        r#type(r#match: u8, r#async: &str) = 17;
    }
}

#[tokio::test]
async fn methods_with_well_known_names() {
    use methods::{Numbers, TakenClient, TakenServer};
    let channel = in_process(TakenServer::new(Numbers), Codec::default()).await;
    let client = TakenClient::new(channel);
    assert_eq!(client.renew().await, Ok(1));
    assert_eq!(client.reconnect("a").await, Ok(2));
    assert_eq!(client.call().await, Ok(3));
    assert_eq!(client.channels().await, Ok(4));
    assert_eq!(client.clone().await, Ok(5));
    assert_eq!(client.from().await, Ok(6));
    assert_eq!(client.from_arc().await, Ok(7));
    assert_eq!(client.as_ref().await, Ok(8));
    assert_eq!(client.fmt().await, Ok(9));
    assert_eq!(client.poll().await, Ok(10));
    assert_eq!(client.start().await, Ok(11));
    assert_eq!(client.timeout().await, Ok(12));
    assert_eq!(client.dispatch(1, 2).await, Ok(13));
    assert_eq!(client.descriptor().await, Ok(14));
    assert_eq!(client.put_shape().await, Ok(15));
    assert_eq!(client.drop().await, Ok(16));
    assert_eq!(client.r#type(1, "").await, Ok(17));
    // The constructors and accessors still work.
    let channel: &rpc_core::Channel = client.channel();
    let again: TakenClient = Clone::clone(channel).into();
    let server = rpc_core::service::Dispatch::descriptor(&TakenServer::new(Numbers)).methods;
    assert_eq!((server[0].name, server[1].name), ("Taken.new", "Taken.connect"));
    assert_eq!(server[16].name, "Taken.type");
    assert_eq!(server[16].arguments, ["match", "async"]);
    std::mem::drop(again);
}

/// Arguments with the names of variables in generated code.
mod arguments {
    #[rpc_core::service]
    pub trait Named {
        async fn a(&self, self_: u8, client: u8, request: &str, service: u8, incoming: u8) -> u8;
        async fn b(&self, context: u8, method: u8, output: u8, seeds: u8, argument0: &str) -> u8;
        async fn c(&self, channel: u8, value: u8, error: u8, reply: u8, argument1: &[u8]) -> u8;
        #[allow(non_snake_case)]
        async fn d(&self, f: u8, S: u8, __RPC_METHOD: u8, arguments: u8, call: u8) -> u8;
        async fn e(&self, this: u8, args: u8, cx: u8, decode: u8, shape: u8) -> u8 {
            this + args + cx + decode + shape
        }
    }

    pub struct Sum;

    #[allow(non_snake_case)]
    impl Named for Sum {
        async fn a(&self, self_: u8, client: u8, request: &str, service: u8, incoming: u8) -> u8 {
            self_ + client + u8::from(request == "123") * 3 + service + incoming
        }
        async fn b(&self, context: u8, method: u8, output: u8, seeds: u8, argument0: &str) -> u8 {
            context + method + output + seeds + u8::from(argument0 == "12345") * 5
        }
        async fn c(&self, channel: u8, value: u8, error: u8, reply: u8, argument1: &[u8]) -> u8 {
            channel + value + error + reply + argument1[4] - b'0'
        }
        async fn d(&self, f: u8, S: u8, __RPC_METHOD: u8, arguments: u8, call: u8) -> u8 {
            f + S + __RPC_METHOD + arguments + call
        }
    }
}

#[tokio::test]
async fn arguments_with_well_known_names() {
    use arguments::{NamedClient, NamedServer, Sum};
    let client = NamedClient::new(in_process(NamedServer::new(Sum), Codec::default()).await);
    assert_eq!(client.a(1, 2, "123", 4, 5).await, Ok(15));
    assert_eq!(client.b(1, 2, 3, 4, "12345").await, Ok(15));
    assert_eq!(client.c(1, 2, 3, 4, b"12345").await, Ok(15));
    assert_eq!(client.d(1, 2, 3, 4, 5).await, Ok(15));
    assert_eq!(client.e(1, 2, 3, 4, 5).await, Ok(15));
}

/// A service whose name is a keyword, in a function, of no visibility, without methods.
#[tokio::test]
async fn services_in_odd_places() {
    #[rpc_core::service]
    trait r#Loop {}

    struct Empty;
    impl r#Loop for Empty {}
    let _: LoopClient = in_process(LoopServer::new(Empty), Codec::default()).await.into();
    let _ = inner::RestrictedClient::get;

    mod inner {
        #[rpc_core::service]
        pub(super) trait Restricted {
            async fn get(&self) -> u8;
        }
    }
}

/// Constants as arguments of types, which look like types until names are resolved.
mod constants {
    use rpc_core::stream::{Producer, Stream, Streaming};
    use serde::{Deserialize, Serialize};

    pub const WIDTH: usize = 4;
    pub const N: usize = 2;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct Row<const N: usize>(pub Vec<u8>);

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    pub struct Grid<T, const A: usize, const B: usize>(pub Vec<T>);

    type T = u32;

    #[rpc_core::service(client_trait = TableCalls)]
    pub trait Table {
        async fn put(&self, row: Row<WIDTH>, lent: &Row<N>, all: &[Row<WIDTH>]) -> Row<WIDTH>;
        async fn many(&self, rows: Vec<Row<WIDTH>>, row: Option<Row<N>>) -> Vec<Option<Row<N>>>;
        async fn fails(&self, grid: Grid<T, N, WIDTH>) -> Result<Grid<u8, 1, N>, Row<WIDTH>>;
        fn list(&self) -> impl Stream<Item = Result<Row<WIDTH>, Row<N>>>;
        fn swap(
            &self,
            rows: Streaming<Row<N>>,
        ) -> impl Producer<Item = Row<WIDTH>, Output = Row<N>>;
    }

    #[rpc_core::service]
    pub trait Short {
        async fn put(&self, row: Row<WIDTH>) -> Row<WIDTH>;
    }

    pub struct Echo;

    impl Short for Echo {
        async fn put(&self, row: Row<WIDTH>) -> Row<WIDTH> {
            row
        }
    }
}

#[tokio::test]
async fn constants_as_arguments_of_types() {
    use constants::{Echo, Row, ShortClient, ShortServer, WIDTH};
    let client = ShortClient::new(in_process(ShortServer::new(Echo), Codec::default()).await);
    let row = Row::<WIDTH>(vec![1, 2]);
    assert_eq!(client.put(row.clone()).await, Ok(row));
}

/// Attributes and documentation inside of the trait and of a method.
mod inner {
    #[rpc_core::service]
    pub trait Documented {
        //! A service.
        //!
        //! Documented inside.
        #![allow(clippy::too_many_arguments)]

        /// Adds.
        async fn sum(&self, a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8, h: u8) -> u8 {
            //! All of them.
            #![allow(clippy::let_and_return)]
            let sum = a + b + c + d + e + f + g + h;
            sum
        }
    }

    pub struct Sum;

    impl Documented for Sum {}
}

#[tokio::test]
async fn attributes_inside_of_the_trait() {
    use inner::{DocumentedClient, DocumentedServer, Sum};
    let server = DocumentedServer::new(Sum);
    let descriptor = rpc_core::service::Dispatch::descriptor(&server);
    assert_eq!(descriptor.docs, "A service.\n\nDocumented inside.");
    assert_eq!(descriptor.methods[0].docs, "Adds.\nAll of them.");
    let client = DocumentedClient::new(in_process(server, Codec::default()).await);
    assert_eq!(client.sum(1, 2, 3, 4, 5, 6, 7, 8).await, Ok(36));
}

/// Neighbouring services whose generated names would collide.
mod neighbours {
    #[rpc_core::service(blocking_client = KvWaiter)]
    pub trait Kv {
        async fn get(&self) -> u8;
    }

    #[rpc_core::service]
    pub trait KvBlocking {
        async fn get(&self) -> u8;
    }

    #[rpc_core::service(server = TableService, client = TableCaller, blocking_client = false)]
    pub trait Table {
        async fn get(&self) -> u8;
    }

    /// The user's own.
    pub struct TableClient(pub TableCaller);
    pub struct TableServer;
    pub struct TableBlockingClient;

    impl Table for TableServer {
        async fn get(&self) -> u8 {
            3
        }
    }
}

#[tokio::test]
async fn names_of_the_users_choice() {
    use neighbours::*;
    let channel = in_process(TableService::new(TableServer), Codec::default()).await;
    let client = TableClient(TableCaller::new(channel));
    assert_eq!(client.0.get().await, Ok(3));
    let _ =
        (TableBlockingClient, KvWaiter::get, KvBlockingClient::get, KvBlockingBlockingClient::get);
    let shown = format!("{:?} {:?}", TableService::new(TableServer), client.0);
    assert!(shown.starts_with("TableService TableCaller("), "{shown}");
}

/// Deprecated as a whole, and in parts.
#[allow(deprecated, reason = "that is what is tested")]
mod past {
    #[deprecated]
    #[rpc_core::service(client_trait = OldCalls)]
    pub trait Old {
        async fn get(&self) -> u8;
    }
}

/// Every lint that a user may have switched on.
#[deny(warnings, missing_docs, missing_debug_implementations, unused, unreachable_pub)]
#[deny(unused_qualifications, single_use_lifetimes, elided_lifetimes_in_paths, unused_lifetimes)]
#[deny(
    rust_2018_idioms,
    let_underscore_drop,
    unused_results,
    unsafe_code,
    missing_copy_implementations
)]
#[deny(clippy::all, clippy::pedantic, clippy::nursery)]
#[deny(clippy::unwrap_used, clippy::shadow_unrelated, clippy::missing_errors_doc)]
mod linted {
    /// Documented.
    #[rpc_core::service]
    pub(crate) trait Kv {
        /// Documented.
        #[deprecated = "use something else"]
        async fn get(&self, key: &str, owned: String) -> Option<Vec<u8>>;
        /// Documented.
        #[must_use]
        async fn put(&self, key: &str, value: &[u8]) -> Result<u64, u8>;
        /// Documented.
        #[expect(clippy::too_many_arguments, reason = "that is what is tested")]
        async fn many(&self, a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8, h: u8);
        /// Documented.
        #[rpc(result)]
        async fn alias(&self) -> super::Aliased;
    }
}

/// An alias that the macro cannot see through.
pub type Aliased = Result<Vec<u8>, String>;

#[test]
#[expect(deprecated, reason = "the client's method has to be as well")]
fn deprecation_is_carried_over() {
    let _ = linted::KvClient::get;
}
