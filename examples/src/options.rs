//! Command line options that every program takes.

use clap::ValueEnum;
use rpc_core::Address;
use rpc_core::{Codec, PollMode};

/// How an end of a connection waits for the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Poll {
    /// Spin briefly, then sleep: no CPU time when idle
    #[default]
    Adaptive,
    /// Never sleep: the lowest latency, one core at 100 %
    Busy,
    /// Sleep at once
    Event,
}

impl From<Poll> for PollMode {
    fn from(poll: Poll) -> Self {
        match poll {
            Poll::Adaptive => Self::Adaptive,
            Poll::Busy => Self::Busy,
            Poll::Event => Self::Event,
        }
    }
}

/// How arguments and results are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum CodecName {
    /// The default
    #[default]
    Bincode,
    /// More compact
    Postcard,
}

impl From<CodecName> for Codec {
    fn from(name: CodecName) -> Self {
        match name {
            CodecName::Bincode => Self::Bincode,
            CodecName::Postcard => Self::Postcard,
        }
    }
}

/// Reads an address that another process can reach.
///
/// # Errors
/// The mistake and its correction.
pub fn between_processes(text: &str) -> Result<Address, String> {
    let address: Address = text.parse().map_err(|error| format!("{error}"))?;
    match &address {
        Address::Mem(name) => {
            Err(format!("mem:// cannot be reached from another process; use shm://{name}"))
        }
        _ => Ok(address),
    }
}

/// The word that an option of this type is written with.
#[must_use]
pub fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
