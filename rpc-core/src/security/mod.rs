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
mod pem;
mod provider;
mod refusal;
mod tls;
mod verify;

#[doc(hidden)]
pub use self::der::date;
pub(crate) use self::driver::Factory;
pub use self::pem::{TlsError, inspect};
pub use self::tls::Tls;
