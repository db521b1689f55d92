//! A web page with the state of a server: methods, connections, credits, memory, and recent failed
//! or slow calls.
//!
//! ```
//! # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
//! # struct Polite;
//! # impl Greeter for Polite { async fn greet(&self) -> String { "Good day".into() } }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use rpc_admin::{Admin, Recent};
//! use rpc_core::Server;
//!
//! let recent = Recent::new();
//! let server = Server::builder()
//!     .interceptor(recent.clone())                            // for failed and slow calls
//!     .add_service(GreeterServer::new(Polite))
//!     .bind("mem://admin")
//!     .await?;
//! let admin = Admin::new(server.stats_handle()).recent(recent).bind(([127, 0, 0, 1], 0)).await?;
//! println!("{}", admin.url());                                // http://127.0.0.1:40123/
//! tokio::spawn(admin.serve());
//! # Ok(()) }
//! ```
//!
//! | path | content |
//! |---|---|
//! | `/` | the page, self-contained |
//! | `/api/stats` | the data of the page, as JSON |
//! | `/metrics` | metrics for Prometheus |
//! | `/readyz` | 200 while the process serves, 503 while it or one of its services does not |
//! | `/healthz` | the same as `/readyz` |
//! | `/livez` | 200 while the process answers, also while it drains |
//!
//! [`Metrics`] serves all but the first two.
//!
//! The numbers are read once a second, regardless of viewers, and kept for three minutes. Servers
//! without the page pay nothing for it: it reads counters that exist anyway.
//!
//! The page is read-only. It listens at loopback addresses alone, unless clients prove who they are
//! by certificates (`Admin::tls`, feature `tls`), or [`Admin::public`] says that everybody may read
//! it; then it warns in the log and on the page. On a loopback address it only answers to loopback
//! names, and to those given to [`Admin::host`].
//!
//! | file | idea |
//! |---|---|
//! | `admin` | builds the page and binds it to an address |
//! | `subject` | the servers and channels shown |
//! | `history` | changes over time; pure |
//! | `recent` | failed and slow calls |
//! | `report` | the data of the page |
//! | `http` | the HTTP routes |
//! | `hosts` | the accepted host names |
//! | `port` | the listener and the limits of its connections |
//! | `secure` | TLS |
//! | `metrics` | metrics and health without the page |
//! | `health` | the health of the process |
//! | `wall_clock` | wall-clock time |
//! | `page.html` | the page |

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

mod admin;
mod health;
mod history;
mod hosts;
mod http;
mod metrics;
mod port;
mod recent;
mod report;
#[cfg(feature = "tls")]
mod secure;
mod subject;
mod wall_clock;

pub use self::admin::{Admin, BoundAdmin};
pub use self::metrics::{BoundMetrics, Metrics};
pub use self::recent::Recent;
