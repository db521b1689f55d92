//! The command line of `transfer`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use bytes::Bytes;
use clap::builder::{OsStringValueParser, RangedU64ValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use examples::options::{CodecName, Poll, between_processes};
use examples::serving::ServerArgs;
use examples::units::parse_bytes;
use rpc_core::Address;

use super::copy::Options;
use super::service::MAX_BLOCK_BYTES;
use super::sums::LEAF_BYTES;

/// Copies files and directories between machines: over RDMA, shared memory or TCP.
///
/// Every file is verified by checksum before it gets its name. Existing files are not sent again,
/// and an interrupted transfer resumes where it stopped: run the same command again.
#[derive(Debug, Parser)]
#[command(
    name = "transfer",
    version,
    after_help = "Examples:
  transfer serve auto://0.0.0.0:7481 /srv/files             on one machine; Ctrl-C ends it
  transfer send auto://10.0.0.7:7481 ./photos               from another: into /srv/files/photos
  transfer receive auto://10.0.0.7:7481 photos --to ./copy  and back, into ./copy/photos
  transfer verify auto://10.0.0.7:7481 ./photos             are both sides the same?

Directories are copied with all below them: contents, names of any bytes, permissions, times and
symbolic links (as links; they are never followed). Owners, hard links, set-user-ID bits, extended
attributes and the holes of sparse files (they arrive as zeros) are not kept; named pipes, sockets
and devices are left out. Messages about a file name it as the server does, below its directory.

Addresses: auto://host:port (shm, rdma or tcp, whichever is best), shm://name, shm:///path,
rdma://host:port, tcp://host:port. RUST_LOG=info shows more.

Exit status: 0 done, 1 failed or different, 2 wrong usage."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve a directory until Ctrl-C; prints `READY <address>` for each address
    ///
    /// Anybody who can connect can read, replace and add files in DIR. Nothing outside DIR is read
    /// or written: symbolic links are stored and sent as links, and never followed.
    #[command(after_help = "Examples:
  transfer serve auto://127.0.0.1:7481 ./files          for this machine
  transfer serve auto://0.0.0.0:7481 /srv/files         for all others too
  transfer serve auto://0.0.0.0:7481 ./new --create     makes ./new first
  transfer serve shm://files tcp://127.0.0.1:0 ./files  two addresses of the same directory")]
    Serve(ServeArgs),
    /// Copy files and directories to a server
    ///
    /// Each PATH keeps its own name, below the server's directory or below SUBDIR in it.
    #[command(after_help = "Examples:
  transfer send auto://10.0.0.7:7481 ./photos notes.txt
  transfer send auto://10.0.0.7:7481 ./photos --into backup/monday --limit 50M")]
    Send(SendArgs),
    /// Copy files and directories from a server
    ///
    /// Each PATH is relative to the server's directory, and keeps its last name; `.` is all of it.
    #[command(after_help = "Examples:
  transfer receive auto://10.0.0.7:7481 photos/2024 --to ./copy
  transfer receive auto://10.0.0.7:7481 .")]
    Receive(ReceiveArgs),
    /// Compare files and directories with those on a server, by checksum
    ///
    /// Prints each difference on a line of stdout: what is only on one side, and what differs in
    /// contents, permissions or times. Changes nothing.
    #[command(after_help = "Examples:
  transfer verify auto://10.0.0.7:7481 ./photos
  transfer verify auto://10.0.0.7:7481 ./photos --into backup/monday")]
    Verify(VerifyArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Where to listen; port 0 takes a free one. May be repeated
    #[arg(value_name = "ADDRESS", required = true, value_parser = between_processes)]
    pub(crate) addresses: Vec<Address>,

    /// The directory
    #[arg(value_name = "DIR", required = true)]
    pub(crate) dir: PathBuf,

    /// Create DIR if it does not exist
    #[arg(long)]
    pub(crate) create: bool,

    #[command(flatten)]
    pub(crate) server: ServerArgs,

    #[command(flatten)]
    pub(crate) tls: examples::tls::ServerTls,
}

/// The options that every client command needs to connect.
#[derive(Debug, Args)]
pub(crate) struct ConnectArgs {
    /// Where the server listens
    #[arg(value_name = "ADDRESS", value_parser = between_processes)]
    pub(crate) address: Address,

    /// How to wait for replies
    #[arg(long, value_enum, default_value_t, help_heading = "Connection")]
    pub(crate) poll: Poll,

    /// How arguments and results are encoded
    #[arg(long, value_enum, default_value_t, help_heading = "Connection")]
    pub(crate) codec: CodecName,

    #[command(flatten)]
    pub(crate) tls: examples::tls::ClientTls,
}

#[derive(Debug, Args)]
pub(crate) struct SendArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// Local files and directories
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,

    /// Put them into this directory below the server's; created if it does not exist
    #[arg(
        long,
        value_name = "SUBDIR",
        default_value = ".",
        hide_default_value = true,
        value_parser = below()
    )]
    pub(crate) into: Below,

    #[command(flatten)]
    pub(crate) copy: CopyArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReceiveArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// Files and directories below the server's directory; `.` is all of it
    #[arg(value_name = "PATH", required = true, value_parser = below())]
    pub(crate) paths: Vec<Below>,

    /// Put them into this directory; created if it does not exist
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) to: PathBuf,

    #[command(flatten)]
    pub(crate) copy: CopyArgs,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) connect: ConnectArgs,

    /// Local files and directories, as they were sent or received
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<PathBuf>,

    /// Their directory, below the server's
    #[arg(
        long,
        value_name = "SUBDIR",
        default_value = ".",
        hide_default_value = true,
        value_parser = below()
    )]
    pub(crate) into: Below,

    /// Number of batches in flight
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = in_flight())]
    pub(crate) in_flight: usize,

    /// No progress bar and no summary; differences and failures are still printed
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct CopyArgs {
    /// Block size for large files: a multiple of 256K, at most 32M
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = block)]
    pub(crate) block: usize,

    /// Number of blocks, or batches of small files, in flight
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = in_flight())]
    pub(crate) in_flight: usize,

    /// Maximum bytes per second [default: no limit]; accepts K, M, G
    #[arg(long, value_name = "BYTES", value_parser = rate)]
    pub(crate) limit: Option<u64>,

    /// No progress bar and no summary; failures are still printed
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

impl CopyArgs {
    /// How to copy.
    pub(crate) fn options(&self) -> Options {
        Options { block_bytes: self.block, in_flight: self.in_flight, limit: self.limit }
    }
}

/// A path below the server's directory; empty for the directory itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Below(pub(crate) Bytes);

fn below() -> impl TypedValueParser<Value = Below> {
    OsStringValueParser::new().try_map(parse_below)
}

fn parse_below(text: OsString) -> Result<Below, String> {
    let text = PathBuf::from(OsString::from_vec(text.into_vec()));
    let mut names: Vec<&[u8]> = Vec::new();
    for component in text.components() {
        match component {
            Component::Normal(name) => names.push(name.as_bytes()),
            Component::CurDir => {}
            _ => return Err(not_below(&text)),
        }
    }
    Ok(Below(names.join(&b'/').into()))
}

fn not_below(path: &Path) -> String {
    format!("`{}` is not a path below the server's directory", path.display())
}

fn in_flight() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=256)
}

fn block(text: &str) -> Result<usize, String> {
    let bytes = parse_bytes(text)?;
    match usize::try_from(bytes) {
        Ok(bytes) if bytes > 0 && bytes <= MAX_BLOCK_BYTES && bytes.is_multiple_of(LEAF_BYTES) => {
            Ok(bytes)
        }
        _ => Err("a block is a multiple of 256K, at most 32M".to_owned()),
    }
}

fn rate(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        0 => Err("the limit must be more than 0 bytes per second".to_owned()),
        bytes => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &[&str]) -> Result<Command, clap::Error> {
        let line = std::iter::once("transfer").chain(line.iter().copied());
        Cli::try_parse_from(line).map(|cli| cli.command)
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_last_word_of_serve_is_the_directory() {
        let Ok(Command::Serve(args)) = parse(&["serve", "shm://a", "tcp://127.0.0.1:0", "d"])
        else {
            panic!()
        };
        assert_eq!((args.addresses.len(), args.dir), (2, "d".into()));
    }

    #[test]
    fn paths_below_the_server_are_made_plain() {
        for (text, path) in [(".", ""), ("./a//b/", "a/b"), ("a/./b", "a/b"), ("", "")] {
            assert_eq!(parse_below(text.into()), Ok(Below(path.into())), "{text}");
        }
        let odd = OsString::from_vec(b"\xff/x".to_vec());
        assert_eq!(parse_below(odd), Ok(Below(b"\xff/x"[..].into())));
    }

    #[test]
    fn mistakes_are_named() {
        for (line, part) in [
            (&["serve", "d"][..], "<ADDRESS>"),
            (&["serve", "shm://a"], "<DIR>"),
            (&["serve", "127.0.0.1:1", "d"], "a scheme is missing"),
            (&["send", "mem://a", "f"], "use shm://a"),
            (&["send", "shm://a"], "<PATH>"),
            (&["send", "shm://a", "f", "--into", "../x"], "below the server's"),
            (&["send", "shm://a", "f", "--into", "/x"], "below the server's"),
            (&["receive", "shm://a", "a/../../b"], "below the server's"),
            (&["send", "shm://a", "f", "--block", "100K"], "multiple of 256K"),
            (&["send", "shm://a", "f", "--block", "64M"], "at most 32M"),
            (&["send", "shm://a", "f", "--limit", "0"], "more than 0"),
            (&["send", "shm://a", "f", "--in-flight", "0"], "1..=256"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line:?}: {error}");
        }
    }
}
