//! Objects inherited by a child of `fork(2)` refuse to work, and the parent is not affected.
//!
//! Each child reports failures over a pipe, and is killed by an alarm if it hangs.

#![allow(missing_docs, unsafe_code, reason = "tests; fork(2)")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fmt::Debug;
use std::fs::File;
use std::future::Future;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Waker};
use std::time::Duration;

use rpc_core::bulk::ReadError;
use rpc_core::client::ConnectionHandle;
use rpc_core::stream::{self, Stream, Streaming, stream};
use rpc_core::transport::CloseCause;
use rpc_core::{Bulk, Channel, Code, Context, Server, Status};
use test_kit::Watchdog;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

#[rpc_core::service]
pub trait Desk {
    async fn echo(&self, text: &str) -> String;
    async fn file(&self) -> Bulk;
    async fn weigh(&self, file: Bulk) -> u64;
    /// Waits for `release`.
    async fn held(&self) -> u32;
    async fn release(&self);
    fn count(&self) -> impl Stream<Item = u32>;
    async fn sum(&self, numbers: Streaming<u32>) -> u32;
}

#[derive(Default)]
struct Clerk {
    released: Notify,
    caller: Arc<Mutex<Option<ConnectionHandle>>>,
}

const FILE_BYTES: usize = 1 << 20;
const ITEMS: u32 = 500;

impl Desk for Clerk {
    async fn echo(&self, text: &str) -> String {
        *self.caller.lock().unwrap() = Context::current().connection();
        text.to_owned()
    }

    async fn file(&self) -> Bulk {
        vec![7; FILE_BYTES].into()
    }

    async fn weigh(&self, file: Bulk) -> u64 {
        file.len()
    }

    async fn held(&self) -> u32 {
        self.released.notified().await;
        1
    }

    async fn release(&self) {
        self.released.notify_one();
    }

    fn count(&self) -> impl Stream<Item = u32> {
        stream(async |mut out| {
            for number in 0..ITEMS {
                out.send(number).await?;
            }
            Ok(())
        })
    }

    async fn sum(&self, mut numbers: Streaming<u32>) -> u32 {
        let mut sum = 0;
        while let Some(Ok(number)) = numbers.next().await {
            sum += number;
        }
        sum
    }
}

fn threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn address(scheme: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    match scheme {
        "tcp" => "tcp://127.0.0.1:0".to_owned(),
        "mem" => "mem://".to_owned(),
        _ => {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("rpc-fork-{}-{number}", std::process::id());
            format!("shm://{}", std::env::temp_dir().join(name).display())
        }
    }
}

/// Serves, and returns the address.
async fn serve(scheme: &str, clerk: Clerk) -> String {
    let server = Server::builder().add_service(DeskServer::new(clerk));
    let server = server.bind(address(scheme)).await.unwrap();
    let address = server.local_address().to_string();
    tokio::spawn(server.serve());
    address
}

/// A running child.
struct Child {
    pid: libc::pid_t,
    said: OwnedFd,
}

/// In a child: the pipe for reporting a failure.
struct InChild(OwnedFd);

fn fork() -> Result<Child, InChild> {
    let (said, say) = rustix::pipe::pipe().unwrap();
    // SAFETY: the child allocates, which the C library supports after a fork.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    if pid == 0 { Err(InChild(say)) } else { Ok(Child { pid, said }) }
}

impl InChild {
    /// Runs the child's code, and ends the child.
    fn run(self, work: impl FnOnce()) -> ! {
        // SAFETY: no memory is touched. A child that hangs is killed by the signal.
        unsafe { libc::alarm(60) };
        let text = match catch_unwind(AssertUnwindSafe(work)) {
            Ok(()) => "well".to_owned(),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
                    .unwrap_or_default()
            }
        };
        let _ = rustix::io::write(&self.0, text.as_bytes());
        // SAFETY: ends the process at once: neither tests nor destructors of the parent run here.
        unsafe { libc::_exit(0) }
    }
}

impl Child {
    /// Waits for its end.
    #[track_caller]
    fn join(self) {
        let mut said = String::new();
        File::from(self.said).read_to_string(&mut said).unwrap();
        // SAFETY: a child of this process, which no other code waits for.
        let waited = unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
        assert_eq!(waited, self.pid);
        assert_eq!(said, "well", "empty: it was killed");
    }
}

#[track_caller]
fn assert_forked<T: Debug>(outcome: Result<T, Status>) {
    let error = outcome.expect_err("it is the parent's");
    assert!(error.to_string().contains("fork(2)"), "{error}");
    assert!(!error.is_retryable(), "{error}");
}

/// Objects in use in the parent when it forks.
struct Parts {
    desk: DeskClient,
    items: Streaming<u32>,
    file: Bulk,
    caller: ConnectionHandle,
    bound: Server,
}

/// A channel of the parent and its parts refuse to work in a child, which creates its own.
fn channels_are_the_parents(scheme: &'static str) {
    let _watchdog = Watchdog::within(Watchdog::LIMIT);
    let runtime = threads();
    let clerk = Clerk::default();
    let caller = Arc::clone(&clerk.caller);
    let at = runtime.block_on(serve(scheme, clerk));
    let mut parts = runtime.block_on(async {
        let desk = DeskClient::connect(&at).await.unwrap();
        assert_eq!(desk.echo("warm").await.unwrap(), "warm");
        let mut items = desk.count().await.unwrap();
        assert_eq!(items.next().await, Some(Ok(0)));
        let file = desk.file().await.unwrap();
        let caller = caller.lock().unwrap().clone().unwrap();
        let bound = Server::builder().add_service(DeskServer::new(Clerk::default()));
        let bound = bound.bind(address(scheme)).await.unwrap();
        Parts { desk, items, file, caller, bound }
    });
    let bound_at = parts.bound.local_address().to_string();
    let stats = parts.bound.stats_handle();
    let desk = parts.desk.clone();
    let mut buffer = desk.channel().bulk_pool().take(100_000).unwrap();
    buffer.fill(1);
    let slot = desk.channel().bulk_pool().slot(100_000).unwrap();
    let held = desk.held().timeout(Duration::from_secs(30)).start();
    let mut sent = pin!(desk.sum(stream::iter(0..10).then_pending()));
    let mut noop = TaskContext::from_waker(Waker::noop());
    {
        let _in_runtime = runtime.enter();
        assert!(sent.as_mut().poll(&mut noop).is_pending());
    }
    let child = match fork() {
        Ok(child) => child,
        Err(here) => here.run(move || {
            let own = Builder::new_current_thread().enable_all().build().unwrap();
            own.block_on(async {
                assert_forked(parts.desk.echo("child").await);
                assert_forked(parts.desk.echo("child").wait_for_ready(true).await);
                assert_forked(parts.desk.echo("child").timeout(Duration::from_secs(1)).await);
                assert_forked(sent.as_mut().await);
                assert_forked(parts.items.next().await.expect("an error"));
                assert_forked(parts.desk.count().await.map(drop));
                let channel = parts.desk.channel().clone();
                assert!(matches!(channel.close_cause(), Some(CloseCause::Forked)));
                assert!(matches!(channel.closed().await, CloseCause::Forked));
                assert!(format!("{channel:?}").contains("Shutdown"));
                assert!(channel.bulk_pool().take(1 << 20).is_err());
                let _ = (channel.stats(), channel.path(), channel.link_metrics());
                assert!(matches!(parts.caller.close_cause(), Some(CloseCause::Forked)));
                assert_forked(DeskClient::new(parts.caller.channel()).echo("child").await);
                if parts.file.is_remote() {
                    assert_eq!(parts.file.to_vec(), Err(ReadError::Forked));
                    let status = Status::from(ReadError::Forked);
                    assert_eq!(status.code(), Code::FailedPrecondition);
                }
                assert!(buffer.iter().all(|byte| *byte == 1), "its own copy");
                buffer.fill(2);
                assert!(channel.bulk_pool().slot(1 << 20).is_err());
                let _ = (parts.bound.stats(), stats.stats());
                let shutdown = parts.bound.shutdown_handle();
                shutdown.shutdown();
                let error = parts.bound.serve().await.expect_err("it is the parent's");
                assert!(error.to_string().contains("fork(2)"), "{error}");
                let file = parts.file;
                drop((parts.desk, parts.items, parts.caller, channel, shutdown));
                drop((held, buffer, slot));
                // Its own.
                if scheme != "mem" {
                    let desk = DeskClient::connect(&at).await.unwrap();
                    for number in 0..50 {
                        let text = format!("child {number}");
                        assert_eq!(desk.echo(&text).await.unwrap(), text);
                    }
                }
                let at = serve(scheme, Clerk::default()).await;
                let desk = DeskClient::connect(&at).await.unwrap();
                assert_eq!(desk.echo("own").await.unwrap(), "own");
                if file.is_remote() {
                    assert_forked(desk.weigh(file.clone()).await);
                    assert_eq!(desk.weigh(file.slice(0..0)).await, Ok(0));
                }
                assert_eq!(desk.file().await.unwrap().to_vec().unwrap(), [7; FILE_BYTES]);
            });
        }),
    };
    // The parent continues meanwhile and afterwards.
    runtime.block_on(async {
        for number in 0..300 {
            let text = format!("parent {number}");
            assert_eq!(parts.desk.echo(&text).await.unwrap(), text);
        }
    });
    child.join();
    runtime.block_on(async {
        for number in 1..ITEMS {
            assert_eq!(parts.items.next().await, Some(Ok(number)));
        }
        assert_eq!(parts.items.next().await, None);
        assert_eq!(parts.file.to_vec().unwrap(), [7; FILE_BYTES]);
        assert!(buffer.iter().all(|byte| *byte == 1));
        drop((buffer, slot));
        parts.desk.release().await.unwrap();
        assert_eq!(held.await.unwrap(), 1);
        assert!(
            parts.caller.close_cause().is_none() && parts.desk.channel().close_cause().is_none()
        );
        // The child has neither taken its connections nor closed it.
        tokio::spawn(parts.bound.serve());
        let desk = DeskClient::connect(&bound_at).await.unwrap();
        assert_eq!(desk.echo("still here").await.unwrap(), "still here");
    });
}

/// A stream that yields its items and then waits forever.
trait ThenPending: Stream + Sized {
    fn then_pending(self) -> impl Stream<Item = Self::Item> {
        futures::StreamExt::chain(self, futures::stream::pending())
    }
}

impl<S: Stream> ThenPending for S {}

#[test]
fn a_child_uses_no_channel_over_shm() {
    channels_are_the_parents("shm");
}

#[test]
fn a_child_uses_no_channel_over_tcp() {
    channels_are_the_parents("tcp");
}

#[test]
fn a_child_uses_no_channel_within_one_process() {
    channels_are_the_parents("mem");
}

fn blocking_clients_are_the_parents(scheme: &str) {
    let _watchdog = Watchdog::within(Watchdog::LIMIT);
    let runtime = threads();
    let at = runtime.block_on(serve(scheme, Clerk::default()));
    let desk = DeskBlockingClient::connect(&at).unwrap();
    assert_eq!(desk.echo("warm").unwrap(), "warm");
    let mut items = desk.count().unwrap();
    assert_eq!(items.next(), Some(Ok(0)));
    let child = match fork() {
        Ok(child) => child,
        Err(here) => here.run(move || {
            assert_forked(desk.echo("child"));
            let hurried = desk.channel().clone().with_timeout(Duration::from_secs(1));
            assert_forked(DeskBlockingClient::new(hurried).echo("child"));
            assert_forked(items.next().expect("an error"));
            assert_forked(desk.count().map(drop));
            drop((desk, items));
            let desk = DeskBlockingClient::connect(&at).unwrap();
            for number in 0..50 {
                let text = format!("child {number}");
                assert_eq!(desk.echo(&text).unwrap(), text);
            }
            drop(desk);
        }),
    };
    for number in 0..300 {
        let text = format!("parent {number}");
        assert_eq!(desk.echo(&text).unwrap(), text);
    }
    child.join();
    assert_eq!(items.next(), Some(Ok(1)));
    assert_eq!(desk.echo("after it").unwrap(), "after it");
}

#[test]
fn a_child_uses_no_blocking_client_over_shm() {
    blocking_clients_are_the_parents("shm");
}

#[test]
fn a_child_uses_no_blocking_client_over_tcp() {
    blocking_clients_are_the_parents("tcp");
}

/// During a fork any thread of the parent may hold any lock, for which the child must not wait.
#[test]
fn locks_held_at_the_fork_hang_no_child() {
    let _watchdog = Watchdog::within(Watchdog::LIMIT);
    let runtime = threads();
    let at = runtime.block_on(serve("shm", Clerk::default()));
    let channel = runtime.block_on(Channel::connect(&at)).unwrap();
    let desk = DeskClient::new(channel);
    static IS_OVER: AtomicBool = AtomicBool::new(false);
    let busy: Vec<_> = (0..4)
        .map(|number: u32| {
            let desk = desk.clone();
            runtime.spawn(async move {
                let text = "x".repeat(1 + 5000 * (number as usize % 2));
                while !IS_OVER.load(Ordering::Relaxed) {
                    assert_eq!(desk.echo(&text).await.unwrap(), text);
                    assert_eq!(desk.file().await.unwrap().len(), FILE_BYTES as u64);
                    let mut items = desk.count().await.unwrap();
                    assert_eq!(items.next().await, Some(Ok(0)));
                }
            })
        })
        .collect();
    for _ in 0..40 {
        let desk = desk.clone();
        let child = match fork() {
            Ok(child) => child,
            Err(here) => here.run(move || {
                let own = Builder::new_current_thread().enable_all().build().unwrap();
                own.block_on(async {
                    assert_forked(desk.echo("child").await);
                    let started = desk.file().start();
                    assert_forked(desk.count().await.map(drop));
                    assert_forked(started.await);
                    let _ = desk.channel().stats();
                });
                drop(desk);
            }),
        };
        child.join();
    }
    IS_OVER.store(true, Ordering::Relaxed);
    for task in busy {
        runtime.block_on(task).unwrap();
    }
}
