//! What a server or a channel has done so far, and what it does now, in numbers.
//!
//! [`Server::stats`](crate::Server::stats) and [`Channel::stats`](crate::Channel::stats) give a
//! snapshot; a [`StatsHandle`] gives snapshots of a server that serves already. All types can be
//! serialized.
//!
//! The counts are always on, and exact. The times are a sample: the first sixteen calls of a method
//! are timed one by one, then one in sixteen, which counts for sixteen; handlers that do not finish in
//! their first poll are timed each. A snapshot reads one number after the other while calls go on, so
//! that those of one snapshot may differ by the calls of a moment.
//!
//! ```
//! # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
//! # struct Polite; impl Greeter for Polite { async fn greet(&self) -> String { "Good day".into() } }
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use rpc_core::Server;
//! let server = Server::builder().add_service(GreeterServer::new(Polite)).bind("mem://stats").await?;
//! let handle = server.stats_handle();
//! tokio::spawn(server.serve());
//! # GreeterClient::connect("mem://stats").await?.greet().await?;
//! for method in handle.stats().methods {
//!     println!("{}: {} calls, {} now, {:?}", method.name, method.started, method.in_flight(), method.took.quantile(0.99));
//! }
//! # Ok(()) }
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `histogram` | times in buckets |
//! | `counts` | the numbers, as they are counted |
//! | `report` | the numbers, as they are read |
//! | `handle` | reads the numbers of a server that serves |
//! | `export` | the names under which they leave the process |
//! | `text` | the same as Prometheus reads them |
//! | `facade` | the same through the crate `metrics` |

pub(crate) mod counts;
mod export;
#[cfg(feature = "metrics")]
mod facade;
pub(crate) mod handle;
pub(crate) mod histogram;
mod report;
mod text;

#[cfg(feature = "metrics")]
pub use self::facade::MetricsPublisher;
pub use self::handle::StatsHandle;
pub use self::histogram::Histogram;
pub use self::report::{ChannelStats, ConnectionStats, MethodStats, ServerStats};
