//! The raw tcp wire: set-up messages, then frames.

use std::io::{self, ErrorKind, Read};
use std::net::TcpStream;
use std::time::Duration;

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// Connects to a listener's port, and nothing more.
///
/// # Panics
/// When nobody listens there.
#[must_use]
pub fn dial(host: &str, port: u16) -> TcpStream {
    let stream = TcpStream::connect((host, port)).expect("somebody listens");
    stream.set_nodelay(true).expect("a socket option");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket option");
    stream
}

/// A message of the set-up.
///
/// # Panics
/// When the body is too long for its length field.
#[must_use]
pub fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = b"softrdma".to_vec();
    bytes.extend([1, kind]);
    bytes.extend(u16::try_from(body.len()).expect("a short body").to_le_bytes());
    bytes.extend(body);
    bytes
}

/// The next message of the set-up: kind and body.
///
/// # Errors
/// When the other side has closed, or is silent for a minute.
pub fn read_message(stream: &mut TcpStream) -> io::Result<(u8, Vec<u8>)> {
    let mut header = [0; 12];
    stream.read_exact(&mut header)?;
    let mut body = vec![0; usize::from(u16::from_le_bytes([header[10], header[11]]))];
    stream.read_exact(&mut body)?;
    Ok((header[9], body))
}

/// A frame: the number of acknowledged packets, operation, flags, and extension and payload.
///
/// # Panics
/// When the body is too long for its length field.
#[must_use]
pub fn frame(ack: u32, op: u8, flags: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = ack.to_le_bytes().to_vec();
    bytes.extend([op, flags]);
    bytes.extend(u16::try_from(body.len()).expect("a short body").to_le_bytes());
    bytes.extend(body);
    bytes
}

/// Whether the other side closes the connection, whatever it sends before.
#[must_use]
pub fn is_closed(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(_) => return true,
        }
    }
}
