//! The ARENA block: how arenas are advertised, asked back and given up (`docs/wire-format.md`).

use super::{Advertisement, ArenaError};

/// Length of the block, bytes.
pub const ARENA_BLOCK_BYTES: usize = 24;

const ADVERTISE: u8 = 0;
const ASK_BACK: u8 = 1;
const GIVEN_UP: u8 = 2;

/// The content of an ARENA block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArenaBlock {
    /// The sender of the block has a new arena for the receiver to write to.
    Advertise(Advertisement),
    /// The sender wants its arena back.
    AskBack(u16),
    /// The sender will not write the receiver's arena again.
    GivenUp(u16),
}

impl ArenaBlock {
    /// The bytes on the wire.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ARENA_BLOCK_BYTES] {
        let none = |arena| Advertisement {
            arena,
            first_chunk: 0,
            chunks: 0,
            log2_chunk: 0,
            rkey: 0,
            address: 0,
        };
        let (operation, fields) = match self {
            Self::Advertise(arena) => (ADVERTISE, *arena),
            Self::AskBack(arena) => (ASK_BACK, none(*arena)),
            Self::GivenUp(arena) => (GIVEN_UP, none(*arena)),
        };
        let mut bytes = [0; ARENA_BLOCK_BYTES];
        bytes[0] = operation;
        bytes[1] = fields.log2_chunk;
        bytes[2..4].copy_from_slice(&fields.arena.to_le_bytes());
        bytes[4..6].copy_from_slice(&fields.first_chunk.to_le_bytes());
        bytes[6..8].copy_from_slice(&fields.chunks.to_le_bytes());
        bytes[8..12].copy_from_slice(&fields.rkey.to_le_bytes());
        bytes[16..24].copy_from_slice(&fields.address.to_le_bytes());
        bytes
    }

    /// Reads a block; [`ArenaWriter`](super::ArenaWriter) and [`ArenaOwner`](super::ArenaOwner)
    /// check its values.
    ///
    /// # Errors
    /// [`ArenaError::UnknownOperation`], [`ArenaError::ReservedNotZero`].
    pub fn from_bytes(bytes: &[u8; ARENA_BLOCK_BYTES]) -> Result<Self, ArenaError> {
        let [operation, log2_chunk, a0, a1, f0, f1, c0, c1, rest @ ..] = *bytes;
        let [k0, k1, k2, k3, reserved @ .., _, _, _, _, _, _, _, _] = rest;
        let [.., d0, d1, d2, d3, d4, d5, d6, d7] = rest;
        let arena = u16::from_le_bytes([a0, a1]);
        let unused = match operation {
            ADVERTISE => &reserved[..],
            ASK_BACK | GIVEN_UP => &bytes[4..],
            other => return Err(ArenaError::UnknownOperation(other)),
        };
        let is_short = operation != ADVERTISE;
        if unused.iter().any(|byte| *byte != 0) || (is_short && log2_chunk != 0) {
            return Err(ArenaError::ReservedNotZero);
        }
        Ok(match operation {
            ASK_BACK => Self::AskBack(arena),
            GIVEN_UP => Self::GivenUp(arena),
            _ => Self::Advertise(Advertisement {
                arena,
                first_chunk: u16::from_le_bytes([f0, f1]),
                chunks: u16::from_le_bytes([c0, c1]),
                log2_chunk,
                rkey: u32::from_le_bytes([k0, k1, k2, k3]),
                address: u64::from_le_bytes([d0, d1, d2, d3, d4, d5, d6, d7]),
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ARENA: Advertisement = Advertisement {
        arena: 0x0102,
        first_chunk: 0x0304,
        chunks: 0x0506,
        log2_chunk: 16,
        rkey: 0x0708_090a,
        address: 0x1112_1314_1516_1718,
    };

    fn golden() -> [(ArenaBlock, [u8; ARENA_BLOCK_BYTES]); 3] {
        #[rustfmt::skip]
        let advertise = [
            0, 16, 2, 1, 4, 3, 6, 5, 10, 9, 8, 7, 0, 0, 0, 0,
            0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,
        ];
        let mut ask_back = [0; ARENA_BLOCK_BYTES];
        ask_back[..4].copy_from_slice(&[1, 0, 2, 1]);
        let mut given_up = ask_back;
        given_up[0] = 2;
        [
            (ArenaBlock::Advertise(ARENA), advertise),
            (ArenaBlock::AskBack(0x0102), ask_back),
            (ArenaBlock::GivenUp(0x0102), given_up),
        ]
    }

    #[test]
    fn golden_vectors_are_written_and_read() {
        for (block, bytes) in golden() {
            assert_eq!(block.to_bytes(), bytes);
            assert_eq!(ArenaBlock::from_bytes(&bytes), Ok(block));
        }
    }

    #[test]
    fn corrupted_block_parses_or_gives_named_error() {
        for (block, bytes) in golden() {
            for (at, value) in (0..bytes.len()).flat_map(|at| (0..=255).map(move |v| (at, v))) {
                let mut changed = bytes;
                changed[at] = value;
                let is_reserved = matches!(block, ArenaBlock::Advertise(_))
                    && (12..16).contains(&at)
                    || !matches!(block, ArenaBlock::Advertise(_)) && (at == 1 || at >= 4);
                match ArenaBlock::from_bytes(&changed) {
                    Ok(read) => assert_eq!(read.to_bytes(), changed),
                    Err(ArenaError::UnknownOperation(operation)) => assert_eq!(operation, value),
                    Err(error) => {
                        assert_eq!(error, ArenaError::ReservedNotZero);
                        assert!(is_reserved || at == 0);
                    }
                }
            }
        }
    }
}
