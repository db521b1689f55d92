//! Send and receive work requests.

use super::PostErrorKind;
use crate::memory::region::{Buffer, MemoryRegion, MemoryWindow};

/// A span of a peer's memory, as the peer advertised it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteSlice {
    /// Virtual address in the peer's terms ([`MemoryRegion::remote_address`]).
    pub address: u64,
    /// Remote key of the region.
    pub rkey: u32,
}

/// The operation of a send WR.
#[derive(Debug, Default)]
pub enum SendOp {
    /// Two-sided send: consumes a RECV of the peer. A posted READ is left with this value too,
    /// since its buffer has moved into the queue.
    #[default]
    Send,
    /// Two-sided send with 32 bits of immediate data
    /// ([`Capabilities::IMMEDIATE`](super::Capabilities::IMMEDIATE)).
    SendWithImm(u32),
    /// One-sided write into the peer's memory; the peer sees no completion.
    Write(RemoteSlice),
    /// One-sided write that also consumes a RECV
    /// ([`Capabilities::WRITE_WITH_IMM`](super::Capabilities::WRITE_WITH_IMM)).
    WriteWithImm(RemoteSlice, u32),
    /// One-sided read from the peer's memory ([`Capabilities::READ`](super::Capabilities::READ)),
    /// with [`Source::Empty`].
    Read {
        /// The memory to read.
        from: RemoteSlice,
        /// Where the bytes are written, from the first byte on. Moves into the queue, and comes
        /// back in the completion. Owned, so that nobody can access arriving bytes.
        into: Buffer,
        /// Length, bytes.
        len: u32,
    },
    /// Binds a memory window to this QP ([`Capabilities::WINDOWS`](super::Capabilities::WINDOWS),
    /// rule 23), with [`Source::Window`]. It takes a slot as every WR does.
    Bind,
}

/// A [`SendOp`] without its buffer; the [`Source`] holds the buffer, if there is one.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Opcode {
    Send,
    SendWithImm(u32),
    Write(RemoteSlice),
    WriteWithImm(RemoteSlice, u32),
    Read(RemoteSlice),
    Bind,
}

/// Where the bytes of a send WR lie.
#[derive(Debug, Default)]
pub enum Source<'a> {
    /// No bytes. A posted WR is left with this value too, since its buffer has moved into the
    /// queue.
    #[default]
    Empty,
    /// Copied before `post_send` returns; at most `max_inline_bytes` in all.
    Inline(&'a [u8]),
    /// Two spans, gathered in order and copied before `post_send` returns.
    InlineGather(&'a [u8], &'a [u8]),
    /// A span of a uniquely owned registered buffer.
    Buffer {
        /// The buffer; moves into the queue.
        buffer: Buffer,
        /// First byte.
        start: u32,
        /// Length, bytes.
        len: u32,
    },
    /// A span of shared registered memory. It is only read, by a device or by atomic copies. If a
    /// peer writes it in the meantime, the bytes sent are some mixture of old and new ones.
    Region {
        /// The region; the queue holds a handle until the WR completes.
        region: MemoryRegion,
        /// First byte.
        start: u64,
        /// Length, bytes.
        len: u64,
    },
    /// The window that [`SendOp::Bind`] binds; the queue holds a handle until the WR completes.
    Window(MemoryWindow),
}

/// A send work request.
#[derive(Debug)]
pub struct SendWr<'a> {
    /// Handed back in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// Whether success gives a completion (rule 4).
    pub signaled: bool,
    /// The bytes.
    pub source: Source<'a>,
}

impl<'a> SendWr<'a> {
    /// Takes out operation and memory, as a post does. The memory of a READ is its destination.
    pub(crate) fn take_work(&mut self) -> (Opcode, Source<'a>) {
        let source = std::mem::take(&mut self.source);
        let opcode = match self.op {
            SendOp::Send => Opcode::Send,
            SendOp::SendWithImm(imm) => Opcode::SendWithImm(imm),
            SendOp::Write(to) => Opcode::Write(to),
            SendOp::WriteWithImm(to, imm) => Opcode::WriteWithImm(to, imm),
            SendOp::Read { .. } => match std::mem::take(&mut self.op) {
                SendOp::Read { from, into, len } => {
                    return (Opcode::Read(from), Source::Buffer { buffer: into, start: 0, len });
                }
                _ => Opcode::Send,
            },
            SendOp::Bind => Opcode::Bind,
        };
        (opcode, source)
    }

    /// The checks that are common to all devices when a WR is posted: inline length, spans, and
    /// that a READ has no source, and a bind has a window.
    ///
    /// # Errors
    /// [`PostErrorKind::InlineTooLong`], [`PostErrorKind::OutOfBounds`],
    /// [`PostErrorKind::TooLong`], [`PostErrorKind::Unsupported`].
    #[inline]
    pub fn check(
        &self,
        max_inline_bytes: u32,
        max_message_bytes: u64,
    ) -> Result<(), PostErrorKind> {
        if let SendOp::Read { into, len, .. } = &self.op {
            return self.check_read(into, *len, max_message_bytes);
        }
        match &self.source {
            Source::Window(_) if matches!(self.op, SendOp::Bind) => Ok(()),
            Source::Window(_) => Err(PostErrorKind::Unsupported),
            _ if matches!(self.op, SendOp::Bind) => Err(PostErrorKind::Unsupported),
            Source::Empty => Ok(()),
            Source::Inline(bytes) => check_inline(bytes.len(), max_inline_bytes),
            Source::InlineGather(a, b) => {
                check_inline(a.len().saturating_add(b.len()), max_inline_bytes)
            }
            Source::Buffer { buffer, start, len } => {
                let (start, len) = (u64::from(*start), u64::from(*len));
                check_span(start, len, buffer.len() as u64, max_message_bytes)
            }
            Source::Region { region, start, len } => {
                check_span(*start, *len, region.len() as u64, max_message_bytes)
            }
        }
    }

    #[cold]
    fn check_read(&self, into: &Buffer, len: u32, max: u64) -> Result<(), PostErrorKind> {
        match self.source {
            Source::Empty => check_span(0, u64::from(len), into.len() as u64, max),
            _ => Err(PostErrorKind::Unsupported),
        }
    }
}

fn check_inline(len: usize, max: u32) -> Result<(), PostErrorKind> {
    if len > max as usize {
        return Err(PostErrorKind::InlineTooLong { len, max });
    }
    Ok(())
}

fn check_span(start: u64, len: u64, size: u64, max: u64) -> Result<(), PostErrorKind> {
    if start.checked_add(len).is_none_or(|end| end > size) {
        return Err(PostErrorKind::OutOfBounds { start, len, size });
    }
    if len > max {
        return Err(PostErrorKind::TooLong { len, max });
    }
    Ok(())
}

/// When the doorbell of a post rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ring {
    /// Before the post returns.
    Now,
    /// The send_path polls or flushes soon. A device whose doorbell is a system call may leave it
    /// until then while the peer has not yet accepted what was sent before, so that one call sends
    /// what several callers have posted; to others this is [`Ring::Now`].
    Soon,
    /// With the doorbell of a later post, or by the next poll or flush.
    WithNext,
}

/// A receive work request: one buffer, filled by one incoming SEND.
#[derive(Debug)]
pub struct RecvWr {
    /// Handed back in the completion.
    pub wr_id: u64,
    /// Where the message lands; comes back in the completion.
    pub buffer: Buffer,
}
