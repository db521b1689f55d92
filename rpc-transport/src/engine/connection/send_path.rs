//! Posting: turns frames and their WRITEs into work requests.
//!
//! Owns the choice of where a WR's bytes are read from: inline, a send buffer, registered memory in
//! place, or a staging buffer. Never decides what is sent.
//!
//! Invariants:
//! 1. The memory that a WRITE reads is kept until the SEND behind it has completed, or the QP is
//!    destroyed. It is never dropped here: it may be the user's.
//! 2. Where registration is expensive, private memory is not registered for each message: it is
//!    copied into staging buffers that stay registered.
//! 3. A WR counts once it is posted: no completion is awaited of one that the device refused.

use super::queue_pair::{ConnectionQp, InFlight, failed, refused, wr_id};
use super::sealing::Sealing;
use super::staging::Staging;
use crate::device::connection_error::CloseCause;
use crate::device::{
    Capabilities, CompletionQueue, Device, ProviderError, Ring, SendOp, SendWr, Source,
};
use crate::memory::region::{Access, Buffer, ProtectionDomain};
use crate::message::outgoing::OutBuf;
use crate::message::part::{OutPart, PartSource};
use crate::protocol::config::LinkConfig;
use crate::protocol::link::{FrameBytes, RemoteWrite, SliceBytes, Stamped, Transmit};

/// The posting side of one connection.
pub(crate) struct SendPath {
    domain: ProtectionDomain,
    registers_freely: bool,
    has_remote_errors: bool,
    binds_windows: bool,
    slices: SliceBytes,
    staging: Staging,
    /// Set once all frames are sealed.
    sealing: Option<Box<Sealing>>,
}

impl SendPath {
    pub(crate) fn new(domain: ProtectionDomain, device: &dyn Device, config: &LinkConfig) -> Self {
        let capabilities = device.attributes().capabilities;
        let registers_freely = capabilities.contains(Capabilities::FREE_REGISTRATION);
        Self {
            domain,
            registers_freely,
            has_remote_errors: capabilities.contains(Capabilities::REMOTE_ERRORS),
            binds_windows: config.binds_windows(capabilities.contains(Capabilities::BINDS_ONCE))
                && capabilities.contains(Capabilities::WINDOWS),
            // A staged segment has one buffer, so it is one slice.
            slices: if capabilities.contains(Capabilities::COPIES_ON_POST) && registers_freely {
                SliceBytes::COPIED
            } else {
                SliceBytes::WHOLE
            },
            staging: Staging::new(config),
            sealing: None,
        }
    }

    /// Frames are sealed from now on. No frame may be posted inline.
    pub(super) fn seal(&mut self, sealing: Sealing) {
        self.sealing = Some(Box::new(sealing));
    }

    pub(super) fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    pub(super) fn slices(&self) -> SliceBytes {
        self.slices
    }

    /// Whether large messages from private memory must be staged.
    pub(super) fn stages(&self) -> bool {
        !self.registers_freely
    }

    /// Whether the device has a status of its own for what the peer refuses.
    pub(super) fn has_remote_errors(&self) -> bool {
        self.has_remote_errors
    }

    /// Room to stage the next segment of a large message, which would stage `bytes` bytes. `None`:
    /// it waits until a send has completed.
    #[cold]
    pub(super) fn staging_room(
        &mut self,
        queue_pair: &mut ConnectionQp,
        bytes: u64,
    ) -> Option<u64> {
        self.staging.make_ready(&self.domain, &mut queue_pair.send_buffers, bytes)
    }

    /// Whether the peer writes its arenas through memory windows.
    pub(super) fn binds_windows(&self) -> bool {
        self.binds_windows
    }

    /// Frames whose bytes were copied into a registered buffer.
    pub(super) fn staged_count(&self) -> u64 {
        self.staging.taken()
    }

    #[cfg(any(test, feature = "model"))]
    pub(super) fn staging(&self) -> &[crate::memory::region::BufferPool] {
        self.staging.pools()
    }

    #[cfg(any(test, feature = "model"))]
    pub(super) fn skip_frames(&mut self, to: u64) {
        if let Some(sealing) = &mut self.sealing {
            sealing.skip_to(to);
        }
    }

    /// Posts the WRITEs of a frame, then the frame as a SEND: inline if the device takes it so,
    /// else from a registered buffer.
    #[inline]
    pub(super) fn post(
        &mut self,
        cq: &mut dyn CompletionQueue,
        queue_pair: &mut ConnectionQp,
        transmit: Transmit<'_>,
    ) -> Result<(), CloseCause> {
        if !transmit.writes.is_empty() {
            return self.post_with_writes(cq, queue_pair, transmit);
        }
        let stamped = Stamped { signaled: transmit.signaled, token: transmit.token };
        self.post_frame(cq, queue_pair, transmit.frame.parts(), transmit.imm, stamped)
    }

    /// Posts a frame that no link has made, as a signaled SEND.
    #[cold]
    pub(super) fn post_bytes(
        &mut self,
        cq: &mut dyn CompletionQueue,
        queue_pair: &mut ConnectionQp,
        frame: &[u8],
    ) -> Result<(), CloseCause> {
        let stamped = Stamped { signaled: true, token: 0 };
        self.post_frame(cq, queue_pair, (frame, &[]), None, stamped)
    }

    #[inline]
    fn post_frame(
        &mut self,
        cq: &mut dyn CompletionQueue,
        queue_pair: &mut ConnectionQp,
        parts: (&[u8], &[u8]),
        imm: Option<u32>,
        stamped: Stamped,
    ) -> Result<(), CloseCause> {
        if parts.0.len() + parts.1.len() > queue_pair.max_inline_bytes {
            return self.post_copied(cq, queue_pair, parts, imm, stamped);
        }
        let wr = self.send(queue_pair, parts, imm, stamped, 1)?;
        post_all(cq, queue_pair, &mut [wr])
    }

    /// Posts a frame that is not inline: it is copied, or sealed.
    #[inline(never)]
    fn post_copied(
        &mut self,
        cq: &mut dyn CompletionQueue,
        queue_pair: &mut ConnectionQp,
        parts: (&[u8], &[u8]),
        imm: Option<u32>,
        stamped: Stamped,
    ) -> Result<(), CloseCause> {
        if let Some(sealing) = &mut self.sealing {
            debug_assert!(imm.is_none(), "nothing authenticates an immediate");
            let parts = [parts.0, parts.1, &[]];
            return sealing.post(cq, queue_pair, &self.domain, parts, stamped);
        }
        let wr = self.send(queue_pair, parts, imm, stamped, 1)?;
        post_all(cq, queue_pair, &mut [wr])
    }

    /// [`SendPath::post`] for a whole small message, which also rings the doorbell.
    #[inline]
    pub(super) fn post_whole(
        &mut self,
        cq: &mut dyn CompletionQueue,
        queue_pair: &mut ConnectionQp,
        message: &OutBuf,
        stamped: Stamped,
        ring: Ring,
    ) -> Result<(), CloseCause> {
        if message.len() > queue_pair.max_inline_bytes {
            return self.post_buffered(cq, queue_pair, message, stamped, ring);
        }
        let wr_id = wr_id(queue_pair, 1) | stamped.token;
        match cq.post_send_inline(queue_pair.qp, wr_id, stamped.signaled, message, ring) {
            Ok(()) => {
                queue_pair.on_posted(1);
                Ok(())
            }
            Err(error) => Err(refused(&error)),
        }
    }

    /// [`SendPath::post_whole`] for a message that is too long to be inline.
    #[inline(never)]
    fn post_buffered(
        &mut self,
        cq: &mut dyn CompletionQueue,
        queue_pair: &mut ConnectionQp,
        message: &OutBuf,
        stamped: Stamped,
        ring: Ring,
    ) -> Result<(), CloseCause> {
        self.post_copied(cq, queue_pair, (message, &[]), None, stamped)?;
        ring_for(cq, ring);
        Ok(())
    }

    /// The WR of the bytes of a frame, `ahead` WRs from now (1: the next one).
    #[inline]
    fn send<'a>(
        &self,
        queue_pair: &mut ConnectionQp,
        parts: (&'a [u8], &'a [u8]),
        imm: Option<u32>,
        stamped: Stamped,
        ahead: usize,
    ) -> Result<SendWr<'a>, CloseCause> {
        let op = imm.map_or(SendOp::Send, SendOp::SendWithImm);
        let (source, is_last) = if parts.0.len() + parts.1.len() <= queue_pair.max_inline_bytes {
            (Source::InlineGather(parts.0, parts.1), false)
        } else {
            buffered(&self.domain, queue_pair, parts)?
        };
        let wr_id = wr_id(queue_pair, ahead) | stamped.token;
        Ok(SendWr { wr_id, op, signaled: stamped.signaled | is_last, source })
    }

    #[cold]
    fn post_with_writes(
        &mut self,
        cq: &mut dyn CompletionQueue,
        queue_pair: &mut ConnectionQp,
        mut transmit: Transmit<'_>,
    ) -> Result<(), CloseCause> {
        let writes = std::mem::take(&mut transmit.writes);
        let mut stage = Stage { buffer: None, used: 0 };
        let wrs = self.list(queue_pair, &writes, &transmit, &mut stage);
        let tags = self.seal_records(&mut stage);
        // Kept before anything is posted, even if posting fails: at the latest until the QP is
        // destroyed.
        let count = writes.len() + usize::from(!matches!(transmit.frame, FrameBytes::Later));
        let staged = stage.buffer.map(|_buffer| InFlight::Staged { _buffer });
        let parts = writes.into_iter().map(|write| InFlight::Part(write.part));
        queue_pair.in_flight.push_back((queue_pair.sequence(count), parts.chain(staged).collect()));
        let (mut wrs, tags) = (wrs?, tags?);
        post_all(cq, queue_pair, &mut wrs)?;
        let Some(sealing) = &mut self.sealing else { return Ok(()) };
        let stamped = Stamped { signaled: transmit.signaled, token: transmit.token };
        let (blocks, payload) = transmit.frame.parts();
        sealing.post(cq, queue_pair, &self.domain, [blocks, &tags, payload], stamped)
    }

    /// Seals what was staged for a frame, if all frames are sealed. Returns its TAGS block.
    fn seal_records(&mut self, stage: &mut Stage) -> Result<Vec<u8>, CloseCause> {
        match (&mut self.sealing, &mut stage.buffer) {
            (Some(sealing), Some(buffer)) => sealing.seal_records(&mut buffer[..stage.used]),
            _ => Ok(Vec::new()),
        }
    }

    /// The list of WRs: the WRITEs, then the frame unless it has to be sealed.
    fn list<'a>(
        &mut self,
        queue_pair: &mut ConnectionQp,
        writes: &[RemoteWrite],
        transmit: &'a Transmit<'_>,
        stage: &mut Stage,
    ) -> Result<Vec<SendWr<'a>>, CloseCause> {
        let mut wrs = Vec::with_capacity(writes.len() + 1);
        for RemoteWrite { part, to } in writes {
            let source = match &self.sealing {
                None => self.source(queue_pair, part, stage),
                Some(_) => self.staged(part, stage),
            };
            let source = source.map_err(|error| failed(&error))?;
            let (wr_id, op) = (wr_id(queue_pair, wrs.len() + 1), SendOp::Write(*to));
            wrs.push(SendWr { wr_id, op, signaled: false, source });
        }
        if self.sealing.is_some() {
            debug_assert!(!matches!(transmit.frame, FrameBytes::Later), "a record without a name");
            return Ok(wrs);
        }
        match (&transmit.frame, wrs.last_mut()) {
            (FrameBytes::Later, Some(last)) => {
                last.wr_id |= transmit.token;
                last.signaled = transmit.signaled;
            }
            _ => {
                let stamped = Stamped { signaled: transmit.signaled, token: transmit.token };
                let (parts, ahead) = (transmit.frame.parts(), wrs.len() + 1);
                wrs.push(self.send(queue_pair, parts, transmit.imm, stamped, ahead)?);
            }
        }
        Ok(wrs)
    }

    /// The memory that a part is written from.
    fn source(
        &mut self,
        queue_pair: &ConnectionQp,
        part: &OutPart,
        stage: &mut Stage,
    ) -> Result<Source<'static>, ProviderError> {
        let (start, len) = (part.start(), part.len());
        let memory = match part.source() {
            PartSource::Region { region, .. } if region.domain() == queue_pair.domain => {
                return Ok(Source::Region { region: region.clone(), start, len });
            }
            PartSource::Region { region, .. } => {
                self.registers_freely.then(|| region.to_owned_memory())
            }
            PartSource::Shared(bytes) => self.registers_freely.then(|| bytes.to_owned_memory()),
        };
        match memory {
            Some(memory) => {
                let region = self.domain.register(memory, Access::LOCAL)?;
                Ok(Source::Region { region, start, len })
            }
            None => self.staged(part, stage),
        }
    }

    /// Copies a part into the staging buffer, behind earlier parts of the same frame.
    fn staged(
        &mut self,
        part: &OutPart,
        stage: &mut Stage,
    ) -> Result<Source<'static>, ProviderError> {
        let buffer = match &mut stage.buffer {
            Some(buffer) => buffer,
            none => none.insert(self.staging.take().ok_or_else(too_long)?),
        };
        let (at, len) = (stage.used, usize::try_from(part.len()).unwrap_or(usize::MAX));
        let room = buffer.get_mut(at..at.saturating_add(len)).ok_or_else(too_long)?;
        part.copy_to(room);
        stage.used += len;
        let start = (buffer.region_offset() + at) as u64;
        Ok(Source::Region { region: buffer.region().clone(), start, len: len as u64 })
    }
}

/// The link gave more to be staged than it was given room for.
fn too_long() -> ProviderError {
    ProviderError::Resources {
        what: "staging a large message",
        message: "it is longer than its buffer".into(),
    }
}

/// The staging buffer of one frame.
struct Stage {
    buffer: Option<Buffer>,
    used: usize,
}

/// Rings the doorbells that posts have left.
#[inline]
pub(super) fn ring_for(cq: &mut dyn CompletionQueue, ring: Ring) {
    match ring {
        Ring::Now => cq.flush(),
        Ring::Soon => cq.flush_soon(),
        Ring::WithNext => {}
    }
}

/// Posts a list, and counts the WRs that were posted: only their flush is awaited.
fn post_all(
    cq: &mut dyn CompletionQueue,
    queue_pair: &mut ConnectionQp,
    wrs: &mut [SendWr<'_>],
) -> Result<(), CloseCause> {
    let posted = cq.post_send(queue_pair.qp, wrs);
    queue_pair.on_posted(posted.as_ref().map_or_else(|error| error.posted, |()| wrs.len()));
    posted.map_err(|error| refused(&error))
}

/// Copies a frame into a registered send buffer, and says whether its WR must be signaled.
fn buffered<'a>(
    domain: &ProtectionDomain,
    queue_pair: &mut ConnectionQp,
    (first, second): (&[u8], &[u8]),
) -> Result<(Source<'a>, bool), CloseCause> {
    let taken = queue_pair.send_buffers.take(domain);
    let (mut buffer, is_last) = taken.map_err(|error| failed(&error))?;
    buffer[..first.len()].copy_from_slice(first);
    buffer[first.len()..first.len() + second.len()].copy_from_slice(second);
    let text = |error: std::num::TryFromIntError| CloseCause::Device(error.to_string().into());
    let len = u32::try_from(first.len() + second.len()).map_err(text)?;
    Ok((Source::Buffer { buffer, start: 0, len }, is_last))
}
