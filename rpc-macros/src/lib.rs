//! The attribute `#[service]` of `rpc-over-rdma`, which generates a server and clients from a
//! trait.
//!
//! Use it through the library `rpc_core`, as `#[rpc_core::service]`; its documentation lists the
//! options. Generated code names nothing but `rpc_core::__private` and the user's own types.
//!
//! The macro works in three steps. `parse` reads the attribute and the trait. `model` and `method`
//! make every check and report all mistakes at once, each at the user's own token. `expand` writes
//! the code and cannot fail.

mod attributes;
mod expand;
mod method;
mod model;
mod parse;
mod signature;
mod streams;
mod types;

use proc_macro::TokenStream;

/// Turns a trait into an RPC service; see `rpc_core::service` for an example.
///
/// For a trait `Kv` of `async fn`s the macro generates
/// - the trait itself, with each `async fn f(..) -> T` as `fn f(..) -> impl Future<Output = T> +
///   Send` (implementations write `async fn`) and the supertraits `Send + Sync + 'static`;
/// - `KvServer<S>`, which serves an implementation `S: Kv`;
/// - `KvClient`, whose methods return calls: futures of `Result<T, Status>`, or of `Result<T,
///   CallError<E>>` for methods that return `Result<T, E>`;
/// - `KvBlockingClient`, whose methods block and return those results.
///
/// # Options of a service
/// - `name = "Other"`: the name on the wire. Default: the trait's name.
/// - `version = 2`: the version of all methods that set none.
/// - `server = KvService`, `client = KvCaller`, `blocking_client = KvWaiter`: the names of the
///   generated types. Default: the trait's name with `Server`, `Client` or `BlockingClient`
///   appended. Use these options if such a name is taken, for example by the client of a second
///   trait `KvBlocking`; or put each trait into its own module.
/// - `blocking_client = false`: generates no blocking client.
/// - `client_trait = KvCalls`: also generates a trait of that name, which `KvClient` implements,
///   and which fakes and wrappers can implement. Its methods return futures of what the client's
///   calls return. They return a stream of results as `impl Stream`, and take any `Stream` as a
///   stream of arguments.
/// - `crate = path::to::rpc_core`: the path of `rpc_core`, if it is renamed or re-exported.
///
/// # Options of a method: `#[rpc(..)]`
/// - `name = "other"`: the name on the wire.
/// - `version = 2`: a part of the signature; change it when values change their meaning. Changed
///   types are detected without it: see `docs/changing-types.md`.
/// - `idempotent`: may run more than once, so a failed call may be retried.
/// - `no_cancel`: runs to its end although the caller has gone away.
/// - `spawn`: runs as a task from the start; see below.
/// - `codec = "msgpack"`: its messages name their fields, so that types may need a self-describing
///   format, and change as serde lets them. Needs the feature `msgpack`; the option of the trait
///   holds for all of its methods.
/// - `stream_deadline = "idle"`: a deadline restarts with each item of the method's streams.
/// - `result`: the return type is an alias of a `Result`.
/// - `plain`: the return type is a plain value, although it is named `Result`.
///
/// # Options of an argument: `#[rpc(..)]`
/// - `default`: a caller whose trait lacks the argument gets its type's `Default`. An `Option` is
///   `None` then and needs no option.
///
/// # Handlers that compute or block
/// The driver of a connection first polls a handler on the driver's own thread. A handler that
/// completes in that poll costs no task; otherwise it becomes a task. Code before its first wait
/// delays every connection of that driver: their acks, pings, deadlines and calls. If the first
/// poll of a method takes longer than 1 ms, one warning names the method. Only the first of every
/// 64 calls is timed.
///
/// A method marked `spawn` is a task from the start, and so is a call with more than 64 KiB to
/// decode, not counting byte strings. Its handlers delay no driver while another worker of the
/// runtime is free. They share the workers with the drivers, however: while all workers are in long
/// polls, or if there is only one, a driver waits for the next poll to end. Also, tokio keeps a
/// task that a running task wakes on the same worker. A handler that makes a call may thus wake the
/// driver of that call's connection, and if it then computes without awaiting anything, it delays
/// that driver. `spawn` therefore suits polls of up to about a millisecond. Longer computations and
/// blocking operations belong in `tokio::task::spawn_blocking` or on separate threads, awaited by
/// the handler.
///
/// # Arguments and results
/// Any type works that implements serde's traits and needs no self-describing format: no
/// `untagged`, `tag` or `flatten`, no variants or fields that are skipped in one direction only,
/// and `skip_serializing_if` only for values that are `None`, empty, 0 or false. `bind` and a
/// client's first call reject other types; `docs/changing-types.md` has the list.
///
/// Arguments may borrow: `&str`, `&[u8]`, `Cow<str>`, `Cow<[u8]>` and `Foo<'_>` are decoded from
/// the request's message without a copy; `&Foo` and `&[Foo]` are decoded and lent. Byte strings
/// travel in one piece. Results own their data, except `Cow<str>` and `Cow<[u8]>`, which a server
/// may borrow from `&self`. A method that returns `Result<T, Status>` ends its call with that
/// status. One that returns `Result<T, CallError<E>>` ends it with its own error or a status,
/// including the status of a call that the handler has made.
///
/// A tuple has at most 16 fields, and an array of anything but bytes at most 32 elements, which are
/// the limits of serde's traits. A constant may be an argument of a type (`Row<WIDTH>`) if its name
/// is in upper case; put other names in braces (`Row<{ Width }>`).
///
/// # Lints
/// Generated code passes under `#![forbid(..)]` of any lint. Lints that a trait or method allows
/// are allowed in the code generated for it. The only exception is a deprecated service, or one
/// with a deprecated method: it needs `deprecated` to be at most denied, because the server calls
/// the method.
///
/// # Streams
/// A method returns a stream as `fn f(..) -> impl Stream<Item = T>`. The stream may end with an
/// error (`Item = Result<T, E>`), be refused (`async fn f(..) -> Result<impl Stream<Item = T>,
/// E>`), or return a value after its items (`impl Producer<Item = T, Output = R>`). A method takes
/// a stream as its last argument, `rows: Streaming<T>`, for which the client's method takes any
/// stream of `T`. Items own their data. See `rpc_core::stream`.
#[proc_macro_attribute]
pub fn service(options: TokenStream, item: TokenStream) -> TokenStream {
    let result = parse::parse(options.into(), item.into()).and_then(model::check);
    match result {
        Ok(service) => expand::expand(&service).into(),
        Err(error) => error.into_compile_error().into(),
    }
}
