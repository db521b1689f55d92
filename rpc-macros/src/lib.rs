//! The `#[service]` attribute of `rpc-core`.
//!
//! Three steps, one file each: `parse` reads the attribute and the trait, `model` makes every
//! check and reports all mistakes at once, each at the user's own token, `expand` writes code and
//! cannot fail. Generated code names only what is in `rpc_core::__private` and the user's types.

mod expand;
mod model;
mod parse;
mod signature;
mod streams;
mod types;

use proc_macro::TokenStream;

/// Makes a trait an RPC service: see `rpc_core::service`.
///
/// For a trait `Kv` of `async fn`s this writes
/// - the trait itself, with each `async fn f(..) -> T` as `fn f(..) -> impl Future<Output = T> +
///   Send` (implementations write `async fn`) and the supertraits `Send + Sync + 'static`;
/// - `KvServer<S>`, which serves an implementation `S: Kv`;
/// - `KvClient`, whose methods return calls: futures of `Result<T, Status>`, or of
///   `Result<T, CallError<E>>` for methods that return `Result<T, E>`;
/// - `KvBlockingClient`, whose methods wait and return those results.
///
/// # Options of a service
/// - `name = "Other"`: the name on the wire, in place of the trait's.
/// - `version = 2`: the version of all methods that set none.
/// - `client_trait = KvCalls`: writes a trait of that name as well, which `KvClient` implements, and which
///   a fake or a wrapper can. A method in it gives a future of what the client's call gives, a stream of
///   results as `impl Stream` in that, and takes any `Stream` for a stream of arguments.
/// - `crate = path::to::rpc_core`: where `rpc-core` is, when it is renamed or re-exported.
///
/// # Options of a method: `#[rpc(..)]`
/// - `name = "other"`: the name on the wire.
/// - `version = 2`: part of the signature; change it when values get another meaning. A change of what
///   types look like is noticed by itself: see `docs/changing-types.md`.
/// - `idempotent`: may be carried out more than once, so a failed call may be retried.
/// - `no_cancel`: runs to its end although the caller has gone away.
/// - `spawn`: runs as a separate task from the start; see below.
/// - `stream_deadline = "idle"`: a deadline starts anew with each item of the method's streams.
/// - `result`: the return type is an alias of a `Result`.
/// - `plain`: the return type is a value, although it is called `Result`.
///
/// # Handlers that work long
/// A handler is first polled by the connection's driver, on the driver's thread. One that finishes
/// there costs no task; one that is pending after that becomes a task. What it does before its
/// first wait holds up every connection of that driver: their acks, pings, deadlines and calls. A
/// method whose first poll takes longer than 1 ms is named once in a warning, as far as it is seen:
/// the first of every 64 calls is timed.
///
/// A method marked `spawn` is a task from the start, and so is a call with more than 64 KiB to decode
/// (without what is a byte string), so its handlers hold up no driver as long as another worker of the
/// runtime is free. But they share the workers with the drivers: when all of
/// them are in long polls, or there is only one, a driver waits for the next to end. And tokio
/// keeps a task that is woken by a running task on the same worker. So a handler that makes a call
/// may wake the driver of that call's connection, and if it then computes without awaiting
/// anything, that driver stands still as long. So `spawn` suits polls of up to about a millisecond.
/// Longer computing or blocking belongs in `tokio::task::spawn_blocking` or on separate threads,
/// awaited by the handler.
///
/// # Arguments and results
/// Any type that implements serde's traits, as far as a format that does not describe itself can
/// carry it (no `untagged`, `tag`, `flatten`, `skip_serializing_if`). Arguments may borrow: `&str`,
/// `&[u8]`, `Cow<str>`, `Cow<[u8]>` and `Foo<'_>` are decoded from the request's message without a
/// copy, `&Foo` and `&[Foo]` are decoded and lent. Byte strings travel in one piece. Results own
/// what they hold, except `Cow<str>` and `Cow<[u8]>`, which a server may borrow from `&self`. A
/// method that returns `Result<T, Status>` ends its call with that status, and one that returns
/// `Result<T, CallError<E>>` with its own error or a status, whatever the calls that it makes itself
/// ended with.
///
/// # Streams
/// A method gives a stream as `fn f(..) -> impl Stream<Item = T>`; it may end with an error
/// (`Item = Result<T, E>`), be refused (`async fn f(..) -> Result<impl Stream<Item = T>, E>`), or
/// have a value after its items (`impl Producer<Item = T, Output = R>`). It takes one as its last
/// argument, `rows: Streaming<T>`, for which the client's method takes any stream of `T`. Items own
/// what they hold. See `rpc_core::stream`.
#[proc_macro_attribute]
pub fn service(options: TokenStream, item: TokenStream) -> TokenStream {
    let result = parse::parse(options.into(), item.into()).and_then(model::check);
    match result {
        Ok(service) => expand::expand(&service).into(),
        Err(error) => error.into_compile_error().into(),
    }
}
