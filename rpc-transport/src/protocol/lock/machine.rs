//! [`LockedLink`]: one end of a connection until both ends have proved who they are.
//!
//! Owns the phase, the levels and the numbers of frames. Never posts or waits: frames go in by
//! [`LockedLink::on_frame`] and come out of [`LockedLink::poll_transmit`].
//!
//! How to drive it:
//!
//! 1. [`LockedLink::new`], then after each step post all of [`LockedLink::poll_transmit`].
//! 2. [`LockedLink::on_frame`] for each frame of the peer, in order.
//! 3. Once [`LockedLink::is_finish_due`]: [`LockedLink::finish`].
//! 4. At a server that has finished: make the link, and send [`LockedLink::unlock`] as its first
//!    frame. At a client [`LockedLink::is_unlocked`] turns true: make the link. Either end takes
//!    [`LockedLink::sealing`] if its frames are to be sealed from then on.
//! 5. After an error post [`LockedLink::refusal`] and end the connection.
//!
//! Invariants:
//! 1. Nothing but a Close is taken except where it is due: handshake frames until the handshake is
//!    complete, then UNLOCKED at the client, then nothing.
//! 2. A frame has the newest level that this end can open, and the next number of that level. A
//!    message ends where its level ends, and the next level begins with a frame.
//! 3. Each direction has at most [`MAX_FRAMES`] handshake frames, or the receiver's first window if
//!    that is smaller, and [`MAX_BYTES`] in all. A longer message is refused when its length is
//!    known.
//! 4. Nothing leaves between the end of the handshake and [`LockedLink::finish`].
//! 5. No number of a level is sealed twice.

use std::collections::VecDeque;

use super::driver::{Handshake, HandshakeFactory, Level, Role, Secured, Start};
use super::sealing::{FrameKeys, Opener, Sealer};
use super::set_up::Parameters;
use crate::device::handshake_failure::{FailureReason, HandshakeFailure};
use crate::protocol::frame::{self, CloseCode, CloseReason, Frame, HEADER_BYTES, Kind};
use crate::protocol::handshake::{Features, Offer};
use crate::text::printable;

/// Handshake frames of each direction, at most. An exchange with a retry takes 3.
pub const MAX_FRAMES: u16 = 8;
/// Bytes of the handshake frames of each direction, at most.
pub const MAX_BYTES: usize = 64 << 10;
/// Codes of a refusal that is sealed: the user refuses the client, its certificate is not accepted,
/// or anything else, such as a frame that somebody has changed. They are followed by a text.
const DENIED: u8 = 1;
const CERTIFICATE: u8 = 2;
const OTHER: u8 = 3;
/// Type and length of a message, bytes.
const MESSAGE_PREFIX_BYTES: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Handshaking,
    /// The handshake is complete, and [`LockedLink::finish`] is due.
    Complete,
    /// The client waits for UNLOCKED; the server may send it.
    Finished,
    /// UNLOCKED was opened or sealed.
    Unlocked,
    Failed,
    /// The failure was reported.
    Refused,
}

/// What one direction has taken of its bounds, and the number of its next frame.
#[derive(Debug, Clone, Copy)]
struct Direction {
    level: Level,
    number: u16,
    frames_left: u16,
    bytes_left: usize,
}

/// One end of a locked connection. See the [module](self) for how to drive it.
pub struct LockedLink {
    role: Role,
    parameters: Parameters,
    handshake: Box<dyn Handshake>,
    phase: Phase,
    inbound: Direction,
    outbound: Direction,
    /// Longest frame, bytes.
    frame_bytes: usize,
    /// The beginning of a message whose rest has not arrived.
    partial: Vec<u8>,
    outbox: VecDeque<Vec<u8>>,
}

impl LockedLink {
    /// Begins a handshake. `offers` are those of this end and the peer. A client has something to
    /// transmit then.
    ///
    /// # Errors
    /// [`HandshakeFailure`].
    pub fn new(
        factory: &dyn HandshakeFactory,
        parameters: Parameters,
        expected_name: Option<&str>,
        [own, peer]: [&Offer; 2],
    ) -> Result<Self, HandshakeFailure> {
        let role = parameters.role();
        let bytes = parameters.to_bytes();
        let start = Start::new(role, bytes, expected_name, parameters.protection());
        let handshake = factory.start(start)?;
        let direction = |receiver: &Offer| Direction {
            level: Level::Initial,
            number: 0,
            frames_left: receiver.window.first().data.min(MAX_FRAMES),
            bytes_left: MAX_BYTES,
        };
        let frame_bytes = own.receive_buffer_bytes.min(peer.receive_buffer_bytes);
        let mut this = Self {
            role,
            parameters,
            handshake,
            phase: Phase::Handshaking,
            inbound: direction(own),
            outbound: direction(peer),
            frame_bytes: frame_bytes as usize,
            partial: Vec::new(),
            outbox: VecDeque::new(),
        };
        this.write()?;
        Ok(this)
    }

    /// The next frame to post, in order.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        // Invariant 4.
        if self.phase == Phase::Complete { None } else { self.outbox.pop_front() }
    }

    /// Whether [`LockedLink::poll_transmit`] gives a frame.
    #[must_use]
    pub fn has_transmit(&self) -> bool {
        self.phase != Phase::Complete && !self.outbox.is_empty()
    }

    /// Whether [`LockedLink::finish`] must be called next.
    #[must_use]
    pub fn is_finish_due(&self) -> bool {
        self.phase == Phase::Complete
    }

    /// Whether [`LockedLink::finish`] was called.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, Phase::Finished | Phase::Unlocked)
    }

    /// Whether UNLOCKED has come, at a client.
    #[must_use]
    pub fn is_unlocked(&self) -> bool {
        self.phase == Phase::Unlocked
    }

    /// A frame of the peer has arrived, with the immediate of its completion.
    ///
    /// # Errors
    /// [`HandshakeFailure`]: the handshake is over.
    pub fn on_frame(&mut self, imm: Option<u32>, bytes: &[u8]) -> Result<(), HandshakeFailure> {
        let taken = self.take_frame(imm, bytes);
        if taken.is_err() {
            self.fail();
        }
        taken
    }

    /// Checks the peer's parameters, and has the user's checks made. May take long.
    ///
    /// # Errors
    /// [`HandshakeFailure`]: the handshake is over.
    pub fn finish(&mut self) -> Result<Secured, HandshakeFailure> {
        debug_assert!(self.is_finish_due(), "the handshake is complete and was not finished");
        let checked = self.parameters.check(self.handshake.peer_parameters());
        let finished = checked.and_then(|()| self.handshake.finish());
        match &finished {
            Ok(_) => self.phase = Phase::Finished,
            Err(_) => self.fail(),
        }
        finished
    }

    /// The frame UNLOCKED of a server that has finished, which spends a data credit.
    ///
    /// # Errors
    /// [`HandshakeFailure`].
    pub fn unlock(&mut self) -> Result<Vec<u8>, HandshakeFailure> {
        debug_assert_eq!((self.role, self.phase), (Role::Server, Phase::Finished));
        // Invariant 5: `refusal` seals the same number in any other phase.
        self.phase = Phase::Unlocked;
        self.sealed_unlocked(&[])
    }

    /// The frame that reports a failure to the peer: sealed where this end has the keys, otherwise
    /// a Close in clear. To be posted last.
    #[must_use]
    pub fn refusal(&mut self, failure: &HandshakeFailure) -> Vec<u8> {
        let is_unused = self.phase == Phase::Failed;
        self.phase = Phase::Refused;
        if self.role == Role::Server
            && is_unused
            && let Ok(frame) = self.sealed_unlocked(&sealed_refusal(failure))
        {
            return frame;
        }
        refusal_in_clear(failure)
    }

    /// What seals and opens the frames behind UNLOCKED, which is the first frame of the server. For
    /// an end that is unlocked.
    ///
    /// # Errors
    /// [`HandshakeFailure`]: there are no keys.
    pub fn sealing(mut self) -> Result<(Sealer, Opener), HandshakeFailure> {
        debug_assert_eq!(self.phase, Phase::Unlocked);
        let FrameKeys { own, peer } = self.handshake.frame_keys()?;
        let [sealed, opened] = match self.role {
            Role::Client => [0, 1],
            Role::Server => [1, 0],
        };
        Ok((Sealer::new(own, sealed), Opener::new(peer, opened)))
    }

    fn fail(&mut self) {
        self.phase = Phase::Failed;
        self.outbox.clear();
        self.partial = Vec::new();
    }

    fn sealed_unlocked(&mut self, refusal: &[u8]) -> Result<Vec<u8>, HandshakeFailure> {
        let header = frame::unlocked_header();
        let mut payload = refusal.to_vec();
        self.handshake.seal(Level::Application, 0, &header, &mut payload)?;
        Ok([&header[..], &payload].concat())
    }

    fn take_frame(&mut self, imm: Option<u32>, bytes: &[u8]) -> Result<(), HandshakeFailure> {
        let Some((header, payload)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(broken("a frame shorter than its header"));
        };
        if imm.is_some() {
            return Err(broken("immediate data before the connection was unlocked"));
        }
        // Invariant 1.
        match (Kind::from_byte(header[0]), self.phase, self.role) {
            (Some(Kind::Close), ..) => Err(closed(bytes)),
            (Some(Kind::Handshake), Phase::Handshaking, _) => self.take_handshake(header, payload),
            (Some(Kind::Unlocked), Phase::Finished, Role::Client) => {
                self.take_unlocked(header, payload)
            }
            (Some(kind), ..) => Err(broken(&format!("{kind:?} frame on a locked connection"))),
            (None, ..) => Err(broken(&format!("frame of unknown kind {}", header[0]))),
        }
    }

    fn take_handshake(
        &mut self,
        header: &[u8; HEADER_BYTES],
        payload: &[u8],
    ) -> Result<(), HandshakeFailure> {
        let [_, level, n0, n1, reserved @ ..] = *header;
        let inbound = &mut self.inbound;
        // Invariant 3.
        let frames_left = inbound.frames_left.checked_sub(1);
        inbound.frames_left = frames_left.ok_or_else(|| broken("too many handshake frames"))?;
        let bytes_left = inbound.bytes_left.checked_sub(payload.len());
        inbound.bytes_left = bytes_left.ok_or_else(|| broken("too many handshake bytes"))?;
        // Invariant 2.
        if reserved != [0; 4] {
            return Err(broken("handshake frame with reserved bytes that are not 0"));
        }
        if level != inbound.level as u8 {
            let due = inbound.level as u8;
            return Err(broken(&format!("handshake frame of level {level}, not {due}")));
        }
        let number = u16::from_le_bytes([n0, n1]);
        if number != inbound.number {
            let due = inbound.number;
            return Err(broken(&format!("handshake frame {number} where {due} is due")));
        }
        inbound.number += 1;
        let mut opened = payload.to_vec();
        if inbound.level != Level::Initial {
            self.handshake.open(inbound.level, number.into(), header, &mut opened)?;
        }
        if opened.is_empty() {
            return Err(broken("handshake frame without bytes"));
        }
        self.partial.extend_from_slice(&opened);
        while let Some(message) = self.take_message()? {
            self.handshake.read(&message)?;
            self.write()?;
            let (level, is_complete) = (self.handshake.read_level(), self.handshake.is_complete());
            if (level != self.inbound.level || is_complete) && !self.partial.is_empty() {
                return Err(broken("bytes after the last message of a level"));
            }
            if level != self.inbound.level {
                (self.inbound.level, self.inbound.number) = (level, 0);
            }
            if is_complete {
                self.phase = Phase::Complete;
            }
        }
        Ok(())
    }

    /// Takes the next message that is whole.
    fn take_message(&mut self) -> Result<Option<Vec<u8>>, HandshakeFailure> {
        let Some(&[_, l2, l1, l0]) = self.partial.first_chunk::<MESSAGE_PREFIX_BYTES>() else {
            return Ok(None);
        };
        let len = u32::from_be_bytes([0, l2, l1, l0]) as usize + MESSAGE_PREFIX_BYTES;
        if len > MAX_BYTES {
            return Err(broken("handshake message longer than 64 KiB"));
        }
        if self.partial.len() < len {
            return Ok(None);
        }
        let rest = self.partial.split_off(len);
        Ok(Some(std::mem::replace(&mut self.partial, rest)))
    }

    fn take_unlocked(
        &mut self,
        header: &[u8; HEADER_BYTES],
        payload: &[u8],
    ) -> Result<(), HandshakeFailure> {
        if *header != frame::unlocked_header() {
            return Err(broken("UNLOCKED frame with header bytes that are not 0"));
        }
        let mut refusal = payload.to_vec();
        self.handshake.open(Level::Application, 0, header, &mut refusal)?;
        let Some((code, text)) = refusal.split_first() else {
            self.phase = Phase::Unlocked;
            return Ok(());
        };
        let text = String::from_utf8_lossy(text);
        let text = printable(&text);
        let (reason, says) = match *code {
            DENIED => (FailureReason::DeniedByPeer, "the server refuses this client"),
            CERTIFICATE => {
                let says = "the server does not accept the certificate of this client";
                (FailureReason::CertificateRefusedByPeer, says)
            }
            OTHER => (FailureReason::BrokenRule, "the server ended the handshake"),
            code => return Err(broken(&format!("UNLOCKED frame with the unknown code {code}"))),
        };
        let text = format!("{says}: {text}; its log says why");
        Err(HandshakeFailure::new(reason, text, "refused"))
    }

    /// Queues what the handshake wants sent, as frames.
    fn write(&mut self) -> Result<(), HandshakeFailure> {
        let mut bytes = Vec::new();
        while let Some(level) = self.handshake.write(&mut bytes)? {
            let tag_bytes = if level == Level::Initial { 0 } else { self.handshake.tag_bytes() };
            let most = self.frame_bytes.saturating_sub(HEADER_BYTES + tag_bytes).max(1);
            for payload in bytes.chunks(most) {
                self.push(level, payload.to_vec())?;
            }
            bytes.clear();
        }
        Ok(())
    }

    fn push(&mut self, level: Level, mut payload: Vec<u8>) -> Result<(), HandshakeFailure> {
        if level != self.outbound.level {
            (self.outbound.level, self.outbound.number) = (level, 0);
        }
        let Direction { number, frames_left, bytes_left, .. } = &mut self.outbound;
        let header = frame::handshake_header(level as u8, *number);
        if level != Level::Initial {
            self.handshake.seal(level, (*number).into(), &header, &mut payload)?;
        }
        let frames = frames_left.checked_sub(1);
        let left = frames.zip(bytes_left.checked_sub(payload.len())).ok_or_else(|| {
            let text = "this end's certificates do not fit 8 handshake frames or 64 KiB: use a \
                        shorter chain, or larger receive buffers at both ends";
            HandshakeFailure::new(FailureReason::Configuration, text, "the handshake is too long")
        })?;
        (*frames_left, *bytes_left) = left;
        *number += 1;
        self.outbox.push_back([&header[..], &payload].concat());
        Ok(())
    }
}

impl std::fmt::Debug for LockedLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { role, phase, .. } = self;
        f.debug_struct("LockedLink").field("role", role).field("phase", phase).finish()
    }
}

/// What a server that has keys reports. Only what says something about the client is final there.
fn sealed_refusal(failure: &HandshakeFailure) -> Vec<u8> {
    use FailureReason::{
        BadCertificate, BadSignature, BrokenRule, CertificateRefusedByPeer, Configuration, Denied,
        DeniedByPeer, Expired, Internal, NoCertificate, NotOffered, NotYetValid, NothingInCommon,
        OtherProtection, RefusedByPeer, Revoked, SetUpChanged, UnknownAuthority, WrongName,
    };
    let code = match failure.reason {
        Denied => DENIED,
        WrongName | UnknownAuthority | Expired | NotYetValid | Revoked | NoCertificate
        | BadCertificate => CERTIFICATE,
        BadSignature
        | BrokenRule
        | Configuration
        | Internal
        | NotOffered
        | NothingInCommon
        | OtherProtection
        | RefusedByPeer
        | SetUpChanged
        | DeniedByPeer
        | CertificateRefusedByPeer => OTHER,
    };
    [&[code], frame::close_text(&failure.told).as_bytes()].concat()
}

/// [`LockedLink::refusal`] where no handshake began.
#[must_use]
pub fn refusal_in_clear(failure: &HandshakeFailure) -> Vec<u8> {
    frame::close_frame(&CloseReason::new(CloseCode::Protocol, &*failure.told)).to_vec()
}

/// The peer has ended the handshake.
fn closed(bytes: &[u8]) -> HandshakeFailure {
    match frame::parse(bytes, None, Features::NONE) {
        Ok((Frame::Close(reason), _)) => {
            let text = format!(
                "the other end ended the handshake and says, unverified: {}; its log says why",
                printable(&reason.text)
            );
            HandshakeFailure::new(FailureReason::RefusedByPeer, text, "closed")
        }
        _ => broken("malformed Close frame"),
    }
}

fn broken(rule: &str) -> HandshakeFailure {
    let text = format!("the peer broke a rule of the handshake: {rule}");
    HandshakeFailure::new(FailureReason::BrokenRule, text, rule)
}
