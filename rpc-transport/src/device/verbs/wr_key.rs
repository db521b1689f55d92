//! The 64-bit `wr_id` that a WR carries through the device and that comes back in its completion.
//!
//! Owns its layout: queue, QP (index and generation within its CQ) and position in the queue. A
//! device may deliver completions of a destroyed QP under a QP number that has been reused; the
//! generation distinguishes them (S34). Pure.

/// Most QPs of one CQ.
pub(super) const MAX_QPS: u32 = 1 << QP_BITS;
/// Most WRs of one queue: half the range of positions, so that old and new ones can be
/// distinguished.
pub(super) const MAX_WRS: u32 = 1 << (POSITION_BITS - 1);
/// Positions are counted modulo this.
pub(super) const POSITIONS: u32 = 1 << POSITION_BITS;

const QUEUE_BITS: u32 = 3;
const GENERATION_BITS: u32 = 21;
const QP_BITS: u32 = 20;
const POSITION_BITS: u32 = 20;
const _: () = assert!(QUEUE_BITS + GENERATION_BITS + QP_BITS + POSITION_BITS == 64);

/// The queue of a QP, and the kind of entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    /// A WR of the SQ.
    Send,
    /// A WR of the SQ that is unsignaled for the user, and signaled for the device.
    Silent,
    /// The drain WR: posted by the provider after the last WR of a QP in ERR.
    DrainWr,
    /// A RECV.
    Recv,
    /// A RECV of the SRQ; the QP is 0, and the generation the SRQ's.
    Shared,
}

/// The identity of a posted WR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WrKey {
    pub(super) queue: Queue,
    /// Index of the QP within its CQ, below [`MAX_QPS`].
    pub(super) qp: u32,
    /// Generation of that index; only the low bits are stored.
    pub(super) generation: u32,
    /// Position in the queue, below [`POSITIONS`].
    pub(super) position: u32,
}

impl WrKey {
    /// Encodes as the `wr_id`.
    pub(super) fn encode(self) -> u64 {
        let queue: u64 = match self.queue {
            Queue::Send => 0,
            Queue::DrainWr => 1,
            Queue::Recv => 2,
            Queue::Silent => 3,
            Queue::Shared => 4,
        };
        let generation = u64::from(truncate(self.generation));
        let (qp, position) = (u64::from(self.qp), u64::from(self.position));
        debug_assert!(self.qp < MAX_QPS && self.position < POSITIONS);
        ((queue << GENERATION_BITS | generation) << QP_BITS | qp) << POSITION_BITS | position
    }

    /// Decodes what the device returned; `None` if this provider did not create it.
    pub(super) fn decode(bits: u64) -> Option<Self> {
        let field = |shift: u32, width: u32| {
            let masked = bits >> shift & ((1 << width) - 1);
            u32::try_from(masked).ok()
        };
        let position = field(0, POSITION_BITS)?;
        let qp = field(POSITION_BITS, QP_BITS)?;
        let generation = field(POSITION_BITS + QP_BITS, GENERATION_BITS)?;
        let queue = match field(64 - QUEUE_BITS, QUEUE_BITS)? {
            0 => Queue::Send,
            1 => Queue::DrainWr,
            2 => Queue::Recv,
            3 => Queue::Silent,
            4 => Queue::Shared,
            _ => return None,
        };
        Some(Self { queue, qp, generation, position })
    }

    /// Whether the WR belongs to this generation of its QP's index.
    pub(super) fn is_of(self, generation: u32) -> bool {
        self.generation == truncate(generation)
    }
}

fn truncate(generation: u32) -> u32 {
    generation & ((1 << GENERATION_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_the_device() {
        for queue in [Queue::Send, Queue::Silent, Queue::DrainWr, Queue::Recv, Queue::Shared] {
            for qp in [0, 1, MAX_QPS - 1] {
                for generation in [0, 1, (1 << GENERATION_BITS) - 1] {
                    for position in [0, 1, MAX_WRS, POSITIONS - 1] {
                        let key = WrKey { queue, qp, generation, position };
                        assert_eq!(WrKey::decode(key.encode()), Some(key));
                    }
                }
            }
        }
    }

    #[test]
    fn generations_differ_also_where_they_wrap() {
        let key = WrKey { queue: Queue::Send, qp: 0, generation: u32::MAX, position: 0 };
        let key = WrKey::decode(key.encode()).unwrap();
        assert!(key.is_of(u32::MAX));
        assert!(!key.is_of(u32::MAX.wrapping_add(1)));
        assert!(!key.is_of(u32::MAX - 1));
    }

    #[test]
    fn foreign_bits_are_not_a_key() {
        assert_eq!(WrKey::decode(u64::MAX), None);
    }
}
