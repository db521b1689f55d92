//! TLS 1.3 for connections: who the ends are, and the keys of what they send.
//!
//! [`Tls`] holds certificates, keys and what is expected of peers.
//! [`ChannelBuilder::tls`](crate::ChannelBuilder::tls) and
//! [`ServerBuilder::tls`](crate::ServerBuilder::tls) take it. `docs/security.md` states what it
//! protects, and from whom.
//!
//! This is the only folder that knows rustls.

mod der;
mod driver;
mod keeper;
mod leaf;
mod life;
mod live;
mod pem;
mod provider;
mod proving;
mod refusal;
mod tls;
mod trust;
mod verify;

#[doc(hidden)]
pub use self::der::date;
pub(crate) use self::keeper::Keeper;
pub use self::pem::{TlsError, inspect};
pub use self::tls::{Local, Tls};
