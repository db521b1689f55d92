//! The header that every frame starts with.

use super::{CallStreams, HEADER_BYTES, HowRead, Kind, WireError, WireId, request_flag};

/// The flag of a response, an opened frame or an item of results whose call is [`HowRead::Same`].
pub(super) const SAME_TYPES: u8 = 0x08;
/// The last byte of the first word of such a frame whose call is [`HowRead::BySchema`].
const BY_SCHEMA: u8 = 1;

/// The header's fields, not validated yet.
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) flags: u8,
    pub(super) codec_or_status: u8,
    /// Of an answer; unused in all other frames.
    pub(super) how_read: u8,
    pub(super) method: u32,
    pub(super) id: WireId,
}

impl Header {
    #[inline]
    pub(super) fn new(kind: Kind, bytes: &[u8; HEADER_BYTES]) -> Self {
        let [_, flags, codec_or_status, how_read, m0, m1, m2, m3, s0, s1, s2, s3, g0, g1, g2, g3] =
            *bytes;
        Self {
            kind,
            flags,
            codec_or_status,
            how_read,
            method: u32::from_le_bytes([m0, m1, m2, m3]),
            id: WireId {
                slot: u32::from_le_bytes([s0, s1, s2, s3]),
                generation: u32::from_le_bytes([g0, g1, g2, g3]),
            },
        }
    }

    #[inline]
    pub(super) fn check_flags(&self, known: u8) -> Result<(), WireError> {
        match self.flags & !known {
            0 => Ok(()),
            flags => Err(WireError::UnknownFlags { kind: self.kind, flags }),
        }
    }

    #[inline]
    pub(super) fn check_unused(&self, unused_is_zero: bool) -> Result<(), WireError> {
        self.check_unused_in_answer(unused_is_zero && self.how_read == 0)
    }

    /// [`check_unused`](Self::check_unused) of a frame that says how the arguments were read.
    #[inline]
    pub(super) fn check_unused_in_answer(&self, unused_is_zero: bool) -> Result<(), WireError> {
        if unused_is_zero { Ok(()) } else { Err(WireError::UnusedFieldSet(self.kind)) }
    }

    /// How the callee has read the arguments, as its answer says.
    #[inline]
    pub(super) fn how_read(&self) -> Result<HowRead, WireError> {
        match (self.flags & SAME_TYPES != 0, self.how_read) {
            (false, 0) => Ok(HowRead::Unsaid),
            (true, 0) => Ok(HowRead::Same),
            (false, BY_SCHEMA) => Ok(HowRead::BySchema),
            (_, byte) => {
                Err(WireError::UnknownReading { kind: self.kind, flags: self.flags, byte })
            }
        }
    }

    #[inline]
    pub(super) fn call(&self) -> Result<WireId, WireError> {
        if self.id.generation == 0 {
            return Err(WireError::ZeroGeneration(self.kind));
        }
        Ok(self.id)
    }

    /// Of a request.
    #[inline]
    pub(super) fn streams(&self) -> CallStreams {
        CallStreams {
            arguments: self.flags & request_flag::ARGUMENTS != 0,
            results: self.flags & request_flag::RESULTS != 0,
            idle_deadline: self.flags & request_flag::IDLE != 0,
        }
    }

    pub(super) fn names_nothing(&self) -> bool {
        self.id == WireId::NONE && self.method == 0 && self.codec_or_status == 0
    }
}

#[inline]
pub(super) fn header(
    kind: Kind,
    flags: u8,
    codec_or_status: u8,
    method: u32,
    id: WireId,
) -> [u8; HEADER_BYTES] {
    let [m0, m1, m2, m3] = method.to_le_bytes();
    let [s0, s1, s2, s3] = id.slot.to_le_bytes();
    let [g0, g1, g2, g3] = id.generation.to_le_bytes();
    let kind = kind as u8;
    [kind, flags, codec_or_status, 0, m0, m1, m2, m3, s0, s1, s2, s3, g0, g1, g2, g3]
}

/// The header of a frame that says how the arguments were read.
#[inline]
pub(super) fn answer(
    kind: Kind,
    flags: u8,
    status: u8,
    number: u32,
    id: WireId,
    read: HowRead,
) -> [u8; HEADER_BYTES] {
    let (flag, byte) = match read {
        HowRead::Unsaid => (0, 0),
        HowRead::Same => (SAME_TYPES, 0),
        HowRead::BySchema => (0, BY_SCHEMA),
    };
    let mut header = header(kind, flags | flag, status, number, id);
    header[3] = byte;
    header
}
