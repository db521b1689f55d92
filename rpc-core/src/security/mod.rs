//! TLS 1.3 for connections: who the ends are, and the keys of what they send.
//!
//! [`Tls`] holds certificates, keys and what is expected of peers.
//! [`ChannelBuilder::tls`](crate::ChannelBuilder::tls) and
//! [`ServerBuilder::tls`](crate::ServerBuilder::tls) take it. `docs/security.md` states what it
//! protects, and from whom.
//!
//! This is the only folder that knows rustls. The HTTP port of `rpc-admin` gets a configuration
//! from here.

mod authorities;
mod chain;
mod der;
mod driver;
mod http;
mod keeper;
mod known;
mod leaf;
mod life;
mod live;
mod pem;
mod pem_lines;
mod provider;
mod proving;
mod refusal;
mod tls;
mod trust;
mod verify;

#[doc(hidden)]
pub use self::der::date;
pub(crate) use self::keeper::Keeper;
#[doc(hidden)]
pub use self::leaf::inspect_der;
pub use self::pem::{TlsError, inspect};
#[doc(hidden)]
pub use self::pem::{authorities_of, own_of};
pub use self::tls::{Local, Tls};
