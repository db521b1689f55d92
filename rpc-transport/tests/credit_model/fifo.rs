//! First in, first out (I7): as a `VecDeque`, and packed into one integer for the search.
//!
//! Owns the two encodings. The packed one is exact (equal contents are equal integers) and panics
//! when something does not fit; it never drops or reorders.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::marker::PhantomData;

use rpc_transport::protocol::credit::Grant;

/// A received message that its end has not polled yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) is_ack: bool,
    pub(crate) grant: Grant,
}

/// SQ slots of both classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Slots {
    pub(crate) data: u16,
    pub(crate) ack: u16,
}

pub(crate) trait Fifo<T>: Clone + Debug + Default {
    fn push(&mut self, item: T);
    fn pop(&mut self) -> Option<T>;
    fn len(&self) -> usize;
    fn items(&self) -> impl Iterator<Item = T>;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T: Copy + Debug> Fifo<T> for VecDeque<T> {
    fn push(&mut self, item: T) {
        self.push_back(item);
    }

    fn pop(&mut self) -> Option<T> {
        self.pop_front()
    }

    fn len(&self) -> usize {
        self.len()
    }

    fn items(&self) -> impl Iterator<Item = T> {
        self.iter().copied()
    }
}

/// An item in a few bits that are never all 0.
pub(crate) trait Bits: Copy {
    const COUNT: u32;

    fn to_bits(self) -> u16;
    fn from_bits(bits: u16) -> Self;
}

/// The words of a grant, as bits of the packed encoding.
const WORDS: [(Grant, u16); 3] = [
    (Grant { data: Grant::GROWN, ack: 0 }, 1 << 7),
    (Grant { data: 0, ack: Grant::ASKS }, 1 << 8),
    (Grant { data: 0, ack: Grant::ODD }, 1 << 9),
];

impl Bits for Message {
    const COUNT: u32 = 11;

    fn to_bits(self) -> u16 {
        let Grant { data, ack } = self.grant;
        let credits = self.grant.credits();
        let mut bits = 1 << 10 | u16::from(self.is_ack) << 6;
        bits |= bits3(credits.data) << 3 | bits3(credits.ack);
        for (word, bit) in WORDS {
            bits |= if data & word.data | ack & word.ack == 0 { 0 } else { bit };
        }
        bits
    }

    fn from_bits(bits: u16) -> Self {
        let mut grant = Grant { data: bits >> 3 & 7, ack: bits & 7 };
        for (word, bit) in WORDS {
            if bits & bit != 0 {
                grant.data |= word.data;
                grant.ack |= word.ack;
            }
        }
        Self { is_ack: bits & 1 << 6 != 0, grant }
    }
}

/// A signaled WR frees at least its own slot, so the bits are not 0.
impl Bits for Slots {
    const COUNT: u32 = 8;

    fn to_bits(self) -> u16 {
        bits4(self.data) << 4 | bits4(self.ack)
    }

    fn from_bits(bits: u16) -> Self {
        Self { data: bits >> 4, ack: bits & 15 }
    }
}

fn bits3(value: u16) -> u16 {
    assert!(value < 8, "{value} does not fit the packed encoding");
    value
}

fn bits4(value: u16) -> u16 {
    assert!(value < 16, "{value} does not fit the packed encoding");
    value
}

/// As many items as fit, the oldest in the lowest bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Packed<T>(pub(crate) u128, PhantomData<T>);

impl<T> Default for Packed<T> {
    fn default() -> Self {
        Self(0, PhantomData)
    }
}

impl<T: Bits + Debug> Fifo<T> for Packed<T> {
    fn push(&mut self, item: T) {
        let used = u32::try_from(Fifo::len(self)).expect("few") * T::COUNT;
        assert!(used + T::COUNT <= u128::BITS, "the packed queue is full");
        self.0 |= u128::from(item.to_bits()) << used;
    }

    fn pop(&mut self) -> Option<T> {
        if self.0 == 0 {
            return None;
        }
        let [low, high, ..] = self.0.to_le_bytes();
        let item = T::from_bits(u16::from_le_bytes([low, high]) & ((1 << T::COUNT) - 1));
        self.0 >>= T::COUNT;
        Some(item)
    }

    fn len(&self) -> usize {
        (u128::BITS - self.0.leading_zeros()).div_ceil(T::COUNT) as usize
    }

    fn items(&self) -> impl Iterator<Item = T> {
        let mut rest = *self;
        std::iter::from_fn(move || rest.pop())
    }
}
