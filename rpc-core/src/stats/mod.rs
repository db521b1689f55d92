//! Statistics of servers and channels.
//!
//! [`Server::stats`](crate::Server::stats) and [`Channel::stats`](crate::Channel::stats) return a
//! snapshot; a [`StatsHandle`] returns snapshots of a server that is already serving. All types can
//! be serialized.
//!
//! Counts are always on, and exact. Times are sampled: the first sixteen calls of a method are all
//! timed, then one in sixteen, which counts for sixteen; handlers that do not finish in their first
//! poll are always timed. A snapshot reads the numbers one by one while calls go on, so they may be
//! off from each other by a few calls.
//!
//! ```
//! # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
//! # struct Polite;
//! # impl Greeter for Polite { async fn greet(&self) -> String { "Good day".into() } }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use rpc_core::Server;
//! let builder = Server::builder().add_service(GreeterServer::new(Polite));
//! let server = builder.bind("mem://stats").await?;
//! let handle = server.stats_handle();
//! tokio::spawn(server.serve());
//! # GreeterClient::connect("mem://stats").await?.greet().await?;
//! for method in handle.stats().methods {
//!     let (in_flight, p99) = (method.in_flight(), method.took.quantile(0.99));
//!     println!("{}: {} calls, {in_flight} now, {p99:?}", method.name, method.started);
//! }
//! # Ok(()) }
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `histogram` | times in buckets |
//! | `counts` | the counters |
//! | `converted` | the methods whose types differ at peers |
//! | `report` | snapshots, as plain values |
//! | `handle` | a handle to the statistics of a running server |
//! | `export` | the names of the exported metrics |
//! | `text` | the metrics of several sources in Prometheus' format |
//! | `facade` | publishes through the crate `metrics` |

pub(crate) mod converted;
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
pub use self::report::{
    ChannelStats, ConnectionStats, ConvertedStats, MemberStats, MethodStats, OverloadStats,
    ResolverStats, ServerStats,
};
pub use self::text::PrometheusText;
