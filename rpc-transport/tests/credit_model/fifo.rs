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

/// An item in one byte that is never 0.
pub(crate) trait Byte: Copy {
    fn to_byte(self) -> u8;
    fn from_byte(byte: u8) -> Self;
}

impl Byte for Message {
    fn to_byte(self) -> u8 {
        0x80 | u8::from(self.is_ack) << 6 | bits3(self.grant.data) << 3 | bits3(self.grant.ack)
    }

    fn from_byte(byte: u8) -> Self {
        let grant = Grant { data: u16::from(byte >> 3 & 7), ack: u16::from(byte & 7) };
        Self { is_ack: byte & 0x40 != 0, grant }
    }
}

/// A signaled WR frees at least its own slot, so the byte is not 0.
impl Byte for Slots {
    fn to_byte(self) -> u8 {
        bits4(self.data) << 4 | bits4(self.ack)
    }

    fn from_byte(byte: u8) -> Self {
        Self { data: u16::from(byte >> 4), ack: u16::from(byte & 15) }
    }
}

fn bits3(value: u16) -> u8 {
    assert!(value < 8, "{value} does not fit the packed encoding");
    value.to_le_bytes()[0]
}

fn bits4(value: u16) -> u8 {
    assert!(value < 16, "{value} does not fit the packed encoding");
    value.to_le_bytes()[0]
}

/// Up to 16 items, the oldest in the lowest byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Packed<T>(pub(crate) u128, PhantomData<T>);

impl<T> Default for Packed<T> {
    fn default() -> Self {
        Self(0, PhantomData)
    }
}

impl<T: Byte + Debug> Fifo<T> for Packed<T> {
    fn push(&mut self, item: T) {
        let used = Fifo::len(self);
        assert!(used < 16, "the packed queue is full");
        self.0 |= u128::from(item.to_byte()) << (8 * used);
    }

    fn pop(&mut self) -> Option<T> {
        if self.0 == 0 {
            return None;
        }
        let item = T::from_byte(self.0.to_le_bytes()[0]);
        self.0 >>= 8;
        Some(item)
    }

    fn len(&self) -> usize {
        (128 - self.0.leading_zeros() as usize).div_ceil(8)
    }

    fn items(&self) -> impl Iterator<Item = T> {
        let mut rest = *self;
        std::iter::from_fn(move || rest.pop())
    }
}
