//! The floor of payloads over TCP: a plain stream between two processes.
//!
//! Owns both ends. Both sockets are blocking, each side has a warm buffer of one payload.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// Reads everything from one connection after another until the process is killed, and sends the
/// byte count at the end of each; prints `READY <address>`.
///
/// # Errors
/// A socket fails.
pub fn serve() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("READY {}", listener.local_addr()?);
    loop {
        count(&listener)?;
    }
}

/// Reads everything from one connection, and sends the byte count at its end.
///
/// # Errors
/// A socket fails.
pub fn count(listener: &TcpListener) -> Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let (mut stream, _) = listener.accept()?;
    let mut total = 0_u64;
    loop {
        match stream.read(&mut buffer)? {
            0 => break,
            count => total += count as u64,
        }
    }
    stream.write_all(&total.to_le_bytes())?;
    Ok(())
}

/// Bytes per second of consecutive writes of `size` bytes, until the peer has read them.
///
/// # Errors
/// The stream fails.
#[allow(clippy::cast_precision_loss, reason = "bytes of a run are far below 2^52")]
pub fn stream(address: &str, size: usize, duration: Duration) -> Result<f64> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let payload = vec![7; size];
    let start = Instant::now();
    let mut total = 0;
    while start.elapsed() < duration {
        stream.write_all(&payload)?;
        total += size as u64;
    }
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut read = [0; 8];
    stream.read_exact(&mut read)?;
    let elapsed = start.elapsed();
    ensure!(u64::from_le_bytes(read) == total, "the peer read different data");
    Ok(total as f64 / elapsed.as_secs_f64())
}

/// Both ends of a stream on one thread.
#[derive(Debug)]
pub struct Both {
    sender: TcpStream,
    receiver: TcpStream,
}

impl Both {
    /// A stream through the loopback device.
    ///
    /// # Errors
    /// A socket is not available.
    pub fn new() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let sender = TcpStream::connect(listener.local_addr()?)?;
        let (receiver, _) = listener.accept()?;
        sender.set_nodelay(true)?;
        for end in [&sender, &receiver] {
            end.set_nonblocking(true)?;
        }
        Ok(Self { sender, receiver })
    }

    /// Transfers as many bytes as both buffers have, in turns.
    ///
    /// # Errors
    /// The stream fails.
    pub fn pass(&mut self, mut from: &[u8], to: &mut [u8]) -> Result<()> {
        let mut read = 0;
        while read < to.len() {
            match self.sender.write(from) {
                Ok(count) => from = &from[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            match self.receiver.read(&mut to[read..]) {
                Ok(0) => anyhow::bail!("the stream has ended"),
                Ok(count) => read += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
