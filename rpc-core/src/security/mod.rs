//! TLS 1.3 for connections: who the ends are.
//!
//! The only folder that knows rustls. [`Tls`] holds certificates, keys and what is expected of
//! peers; [`ChannelBuilder::tls`](crate::ChannelBuilder::tls) and
//! [`ServerBuilder::tls`](crate::ServerBuilder::tls) take it. The guide to it is `docs/security.md`.

mod der;
#[cfg_attr(not(test), expect(dead_code, reason = "connections do not use it yet"))]
mod driver;
mod pem;
mod provider;
mod refusal;
mod tls;
mod verify;

#[doc(hidden)]
pub use self::der::date;
pub use self::pem::{TlsError, inspect};
pub use self::tls::Tls;
