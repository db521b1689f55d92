//! Where the calls of a program go: what its user writes on the command line.

use std::fmt;
use std::str::FromStr;

use rpc_core::{Address, Channel, ChannelBuilder, ConnectError};

use crate::name_error::NameError;
use crate::names::resolver;

/// One server, by its address, or all servers behind a name.
///
/// ```
/// use rpc_discovery::Destination;
///
/// # fn main() -> Result<(), rpc_discovery::NameError> {
/// assert!(matches!("auto://10.0.0.7:7471".parse()?, Destination::Server(_)));
/// assert!(matches!("etcd://10.0.0.1:2379/rpc/kv".parse()?, Destination::Name(_)));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// The server at this address.
    Server(Address),
    /// The servers that the [`resolver`] of this name finds.
    Name(String),
}

impl FromStr for Destination {
    type Err = NameError;

    /// An address, or else a name of which there is a resolver. Host names in addresses are not
    /// names here: a channel connects to one of their servers.
    fn from_str(text: &str) -> Result<Self, NameError> {
        let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
        match scheme {
            "etcd" | "file" | "srv" | "k8s" => resolver(text).map(|_| Self::Name(text.to_owned())),
            _ => match text.parse() {
                Ok(address) => Ok(Self::Server(address)),
                Err(error) => Err(NameError::new(text, format!("{error}"))),
            },
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(address) => address.fmt(f),
            Self::Name(name) => name.fmt(f),
        }
    }
}

impl Destination {
    /// A channel to it: connected if it is one server, else one that connects with its first call.
    ///
    /// # Errors
    /// [`ConnectError`].
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub async fn connect(&self, builder: ChannelBuilder) -> Result<Channel, ConnectError> {
        match self {
            Self::Server(address) => builder.connect(address.to_string()).await,
            Self::Name(_) => self.connect_lazy(builder),
        }
    }

    /// A channel to it, which connects with its first call.
    ///
    /// # Errors
    /// [`ConnectError`] of what is found without connecting.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O and time enabled.
    pub fn connect_lazy(&self, builder: ChannelBuilder) -> Result<Channel, ConnectError> {
        match self {
            Self::Server(address) => builder.connect_lazy(address.to_string()),
            Self::Name(name) => {
                let resolver = resolver(name);
                let resolver = resolver.map_err(|error| ConnectError::Config(error.to_string()))?;
                builder.connect_balanced(resolver)
            }
        }
    }
}
