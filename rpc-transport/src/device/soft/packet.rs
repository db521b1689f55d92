//! Packets: the messages between two software queue pairs, on any wire.
//!
//! Owns the operations, their flags and the two fixed extensions; each wire adds its own framing (a
//! sequence number, a cumulative ack). Pure; never copies payload.
//!
//! A message is a run of packets of one operation, cut at the wire's MTU as on an InfiniBand
//! reliable connection (RC): the first carries [`Flags::FIRST`], the last [`Flags::LAST`].
//!
//! Invariants:
//! 1. What [`Head::decode`] returns is consistent: the extension fits into the body.
//! 2. All integers are little-endian.

/// Operation of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Op {
    /// Part of a SEND. The last packet carries the immediate, if any ([`Extension::Word`]).
    Send = 1,
    /// Part of a WRITE that the target's engine carries out. The first packet carries a [`Span`].
    Write = 2,
    /// A WRITE_WITH_IMM whose bytes the requester has already copied to the target: consumes a
    /// RECV.
    Placed = 3,
    /// Asks for bytes of a region.
    ReadRequest = 4,
    /// Part of the answer to a [`Op::ReadRequest`].
    ReadResponse = 5,
    /// Asks for permission to map a region (wires with shared memory).
    MapRequest = 6,
    /// The answer to a [`Op::MapRequest`]: the region's [`Span`]; its memory file is sent on the
    /// side channel. Length 0 if the region cannot be mapped, so that it must be accessed through
    /// the target's engine.
    MapAnswer = 7,
    /// Carries only the wire's cumulative ack.
    Ack = 8,
    /// Refuses the packet that follows the acknowledged ones ([`Nak`] in [`Extension::Word`]).
    Nak = 9,
    /// Carries nothing; asks for an acknowledgement of everything before it.
    Probe = 10,
}

impl Op {
    fn decode(value: u8) -> Option<Self> {
        const ALL: [Op; 10] = [
            Op::Send,
            Op::Write,
            Op::Placed,
            Op::ReadRequest,
            Op::ReadResponse,
            Op::MapRequest,
            Op::MapAnswer,
            Op::Ack,
            Op::Nak,
            Op::Probe,
        ];
        ALL.get(usize::from(value).checked_sub(1)?).copied()
    }
}

/// Flags of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Flags(pub(super) u8);

impl Flags {
    /// First packet of its message.
    pub(super) const FIRST: Self = Self(1);
    /// Last packet of its message.
    pub(super) const LAST: Self = Self(2);
    /// The message carries an immediate.
    pub(super) const IMM: Self = Self(4);
    /// The requester needs an acknowledgement.
    pub(super) const ACK: Self = Self(8);

    pub(super) const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) const fn with_if(self, other: Self, condition: bool) -> Self {
        if condition { self.with(other) } else { self }
    }

    pub(super) const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Most READs that one QP keeps outstanding; the responder accepts no more at a time.
pub(super) const MAX_READS: usize = 16;
/// Longest extension, bytes.
pub(super) const MAX_EXTENSION_BYTES: usize = Span::BYTES;

/// A span of the target's memory, and an auxiliary word: the immediate of a WRITE, or the access
/// bits of a region in [`Op::MapAnswer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) address: u64,
    pub(super) rkey: u32,
    pub(super) aux: u32,
    pub(super) len: u64,
}

impl Span {
    /// Encoded size, bytes.
    pub(super) const BYTES: usize = 24;

    /// Whether all of `part` lies inside this span.
    pub(super) fn covers(self, part: Self) -> bool {
        let end = |span: Self| span.address.checked_add(span.len);
        part.address >= self.address
            && end(part).is_some_and(|part| end(self).is_some_and(|end| part <= end))
    }
}

/// `aux` of [`Op::MapAnswer`]: what the peer may do, and the number of the word that revokes it.
pub(super) fn encode_rights(write: bool, read: bool, word: u32) -> u32 {
    u32::from(write) | u32::from(read) << 1 | word << 2
}

/// The opposite of [`encode_rights`].
pub(super) fn decode_rights(aux: u32) -> (bool, bool, u32) {
    (aux & 1 != 0, aux & 2 != 0, aux >> 2)
}

/// The optional field between a packet's head and its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extension {
    /// Nothing.
    None,
    /// 32 bits: an immediate, or a [`Nak`].
    Word(u32),
    /// A span.
    Span(Span),
}

impl Extension {
    /// The encoded bytes, and how many of them are used.
    pub(super) fn encode(&self) -> ([u8; MAX_EXTENSION_BYTES], usize) {
        let mut bytes = [0; MAX_EXTENSION_BYTES];
        match self {
            Self::None => (bytes, 0),
            Self::Word(word) => {
                bytes[..4].copy_from_slice(&word.to_le_bytes());
                (bytes, 4)
            }
            Self::Span(span) => {
                bytes[..8].copy_from_slice(&span.address.to_le_bytes());
                bytes[8..12].copy_from_slice(&span.rkey.to_le_bytes());
                bytes[12..16].copy_from_slice(&span.aux.to_le_bytes());
                bytes[16..].copy_from_slice(&span.len.to_le_bytes());
                (bytes, Span::BYTES)
            }
        }
    }

    /// Decodes; `bytes` has the length that [`Head::extension_bytes`] gave.
    pub(super) fn decode(bytes: &[u8]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[at..at + 4]);
            u32::from_le_bytes(word)
        };
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        match bytes.len() {
            0 => Self::None,
            4 => Self::Word(word(0)),
            _ => Self::Span(Span { address: long(0), rkey: word(8), aux: word(12), len: long(16) }),
        }
    }
}

/// Head of a packet: operation, flags and length of the body (extension and payload), 4 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) op: Op,
    pub(super) flags: Flags,
    /// Bytes of extension and payload together.
    pub(super) body_bytes: u16,
}

impl Head {
    /// Encodes as the 32 bits that wires carry: from the low byte on, op, flags, body length.
    pub(super) fn encode(self) -> u32 {
        u32::from(self.op as u8) | u32::from(self.flags.0) << 8 | u32::from(self.body_bytes) << 16
    }

    /// The encoded head of a single-packet SEND without immediate.
    #[inline]
    pub(super) fn whole_send(body_bytes: u16, ack: bool) -> u32 {
        let flags = Flags::FIRST.with(Flags::LAST).with_if(Flags::ACK, ack);
        Self { op: Op::Send, flags, body_bytes }.encode()
    }

    /// Body length of a single-packet SEND without immediate; `None` for any other packet.
    #[inline]
    pub(super) fn whole_send_bytes(word: u32) -> Option<usize> {
        const WHOLE: u32 = Op::Send as u32 | (Flags::FIRST.0 as u32 | Flags::LAST.0 as u32) << 8;
        const ANY_ACK: u32 = (Flags::ACK.0 as u32) << 8;
        ((word & 0xffff) & !ANY_ACK == WHOLE).then_some((word >> 16) as usize)
    }

    /// Whether an encoded head asks for an acknowledgement.
    #[inline]
    pub(super) fn wants_ack(word: u32) -> bool {
        word & (Flags::ACK.0 as u32) << 8 != 0
    }

    /// Decodes; `None` for an unknown operation or a body too short for its extension.
    pub(super) fn decode(word: u32) -> Option<Self> {
        let [op, flags, low, high] = word.to_le_bytes();
        let head = Self {
            op: Op::decode(op)?,
            flags: Flags(flags),
            body_bytes: u16::from_le_bytes([low, high]),
        };
        (usize::from(head.body_bytes) >= head.extension_bytes()).then_some(head)
    }

    /// Length of the extension, bytes.
    pub(super) fn extension_bytes(self) -> usize {
        let first = self.flags.contains(Flags::FIRST);
        let last_imm = self.flags.contains(Flags::LAST.with(Flags::IMM));
        match self.op {
            Op::Send if last_imm => 4,
            Op::Write if first => Span::BYTES,
            Op::Placed | Op::ReadRequest | Op::MapRequest | Op::MapAnswer => Span::BYTES,
            Op::Nak => 4,
            _ => 0,
        }
    }

    /// Length of the payload, bytes.
    pub(super) fn payload_bytes(self) -> usize {
        usize::from(self.body_bytes) - self.extension_bytes()
    }
}

/// Why a target refused a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Nak {
    /// No RECV was posted.
    NotReady = 1,
    /// rkey, bounds, access or PD check failed.
    Access = 2,
    /// The RECV was too small, or the packet out of protocol.
    Invalid = 3,
    /// The target could not use its own RECV buffer.
    Operation = 4,
}

impl Nak {
    pub(super) fn decode(value: u32) -> Option<Self> {
        match value {
            1 => Some(Self::NotReady),
            2 => Some(Self::Access),
            3 => Some(Self::Invalid),
            4 => Some(Self::Operation),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_and_extensions_come_back_as_they_went() {
        let span = Span { address: 0x0102_0304_0506_0708, rkey: 9, aux: 10, len: u64::MAX };
        for (op, flags, extension) in [
            (Op::Send, Flags::LAST, Extension::None),
            (Op::Send, Flags::LAST.with(Flags::IMM), Extension::Word(77)),
            (Op::Write, Flags::FIRST, Extension::Span(span)),
            (Op::Write, Flags::LAST, Extension::None),
            (Op::Nak, Flags::LAST, Extension::Word(Nak::Access as u32)),
        ] {
            let (bytes, len) = extension.encode();
            let body_bytes = u16::try_from(len + 5).unwrap();
            let head = Head { op, flags, body_bytes };
            assert_eq!(Head::decode(head.encode()), Some(head));
            assert_eq!((head.extension_bytes(), head.payload_bytes()), (len, 5));
            assert_eq!(Extension::decode(&bytes[..len]), extension);
        }
    }

    #[test]
    fn a_map_answer_is_as_documented() {
        let aux = encode_rights(true, false, 5);
        assert_eq!(decode_rights(aux), (true, false, 5));
        assert_eq!(decode_rights(encode_rights(false, true, u32::MAX >> 2)).2, u32::MAX >> 2);
        let span = Span { address: 0x0102_0304_0506_0708, rkey: 9, aux, len: 4096 };
        let (bytes, len) = Extension::Span(span).encode();
        let head = Head { op: Op::MapAnswer, flags: Flags::LAST, body_bytes: 24 };
        assert_eq!(head.encode().to_le_bytes(), [7, 2, 24, 0]);
        let span = [8, 7, 6, 5, 4, 3, 2, 1, 9, 0, 0, 0, 0x15, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0];
        assert_eq!(bytes[..len], span);
    }

    #[test]
    fn no_word_decodes_to_an_inconsistent_head() {
        // Every operation byte and flag byte, with body lengths around the extension sizes.
        for low in (0..=0xffff_u32).step_by(if cfg!(miri) { 257 } else { 1 }) {
            for len in [0, 1, 3, 4, 5, 23, 24, 25, 0xffff_u32] {
                let Some(head) = Head::decode(low | len << 16) else { continue };
                assert!(head.extension_bytes() <= usize::from(head.body_bytes));
                assert_eq!(head.encode(), low | len << 16);
            }
        }
    }
}
