//! The command line of `doctor`.

use clap::{Parser, ValueEnum};

use super::need::Wanted;

/// Checks which transports work on this machine, and how to fix the others.
///
/// Makes a call over each scheme; shows the RDMA devices with their ports, addresses and MTU, the
/// relevant limits of this process, and the locked memory that a configuration needs on a NIC.
#[derive(Debug, Parser)]
#[command(
    name = "doctor",
    version,
    after_help = "Examples:
  doctor            everything
  doctor rdma       only rdma://; the exit status says whether it works
  doctor shm tcp
  doctor --connections 500 --receive-buffer-bytes 4096
                    also the locked memory that 500 such connections need on a NIC

Exit status: 0; 1 if a scheme named on the command line does not work; 2 for invalid usage.
RDMA needs a build with `--features verbs`."
)]
pub(crate) struct Options {
    /// Schemes that have to work [default: try all, require none]
    #[arg(value_enum, value_name = "SCHEME")]
    named: Vec<Scheme>,
    #[command(flatten)]
    pub(crate) wanted: Wanted,
}

/// A scheme of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scheme {
    /// Within a process
    Mem,
    /// Shared memory between processes of one user
    Shm,
    /// TCP
    Tcp,
    /// RDMA devices
    Rdma,
    /// The best of shm, rdma and tcp
    Auto,
}

impl Scheme {
    /// As in addresses.
    pub(crate) fn name(self) -> String {
        examples::options::word(self)
    }
}

/// The request of the command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Schemes {
    /// The schemes to try.
    pub(crate) tried: Vec<Scheme>,
    /// Whether they have to work.
    pub(crate) needed: bool,
}

impl Options {
    /// Which schemes to try.
    pub(crate) fn schemes(&self) -> Schemes {
        match &*self.named {
            [] => Schemes { tried: Scheme::value_variants().to_vec(), needed: false },
            named => Schemes { tried: named.to_vec(), needed: true },
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Schemes, clap::Error> {
        Options::try_parse_from(line.split(' ')).map(|options| options.schemes())
    }

    #[test]
    fn the_definition_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn all_are_tried_and_those_named_are_needed() {
        let all = parse("doctor").unwrap();
        assert_eq!((all.tried.len(), all.needed), (5, false));
        let named = parse("doctor rdma auto").unwrap();
        assert_eq!(named, Schemes { tried: vec![Scheme::Rdma, Scheme::Auto], needed: true });
        let error = parse("doctor http").unwrap_err().to_string();
        assert!(error.contains("mem, shm, tcp, rdma, auto"), "{error}");
    }
}
