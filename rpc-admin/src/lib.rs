//! One page that shows what a server does: methods, connections, credits, memory, and the calls that
//! failed or were slow.
//!
//! ```
//! # #[rpc_core::service] pub trait Greeter { async fn greet(&self) -> String; }
//! # struct Polite; impl Greeter for Polite { async fn greet(&self) -> String { "Good day".into() } }
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
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
//! | path | what |
//! |---|---|
//! | `/` | the page; it needs nothing from elsewhere |
//! | `/api/stats` | what it shows, as JSON |
//! | `/metrics` | the numbers for Prometheus |
//!
//! The numbers are read once a second, whoever looks, and kept for three minutes. Servers without the
//! page pay nothing for it: it reads what they count anyway.
//!
//! The page asks nobody who they are, and can change nothing. On an address that others can reach it
//! says so, in the log and on the page: use a loopback address, or put a proxy before it that asks. On a
//! loopback address it answers to names of the loopback alone, and to those given to [`Admin::host`].
//!
//! | file | idea |
//! |---|---|
//! | `admin` | from what is shown to an address |
//! | `subject` | servers and channels that are shown |
//! | `history` | numbers over time; pure |
//! | `recent` | failed and slow calls |
//! | `report` | what the page is told |
//! | `http` | requests and answers |
//! | `hosts` | the names that the page answers to |
//! | `listener` | bounds on who asks |
//! | `wall_clock` | the time of day |
//! | `page.html` | the page |

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

mod admin;
mod history;
mod hosts;
mod http;
mod listener;
mod recent;
mod report;
mod subject;
mod wall_clock;

pub use self::admin::{Admin, BoundAdmin};
pub use self::recent::Recent;
