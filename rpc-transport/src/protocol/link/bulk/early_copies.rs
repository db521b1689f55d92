//! Early copies: tails that are copied out of the arena while the rest of them arrives.
//!
//! Owns the choice among tails whose reader is likely to copy them anyway, as it did with those before. Copied
//! early the two copies of a payload overlap, and its chunks are free sooner.
//!
//! Invariants:
//! 1. Only a message that is the only large one of all connections that share a budget is copied early. Else it
//!    would have its memory beside that of others that are decoded, and allocators give what is free after such a
//!    peak back to the system: each page of the next ones would be a fault.
//! 2. One tail in [`EARLY_COPIES`] is left where it is: what its reader does with it says how to go on.
//! 3. Room is reserved at once for no more than has arrived of an earlier tail.

/// Tails that are copied early before one is left where it is.
pub(super) const EARLY_COPIES: u32 = 64;

/// Those of a connection.
#[derive(Debug, Default)]
pub(super) struct EarlyCopies {
    /// The longest tail that has arrived whole, bytes.
    longest: u64,
    /// How many may follow before one is left where it is.
    left: u32,
}

impl EarlyCopies {
    /// Takes up a tail that may be copied early. Gives how many bytes may be reserved for it at once; `None`
    /// where it stays.
    pub(super) fn next(&mut self) -> Option<u64> {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Some(self.longest)
            }
            None => {
                self.left = EARLY_COPIES;
                None
            }
        }
    }

    /// A message has arrived, with a tail of so many bytes or without one.
    pub(super) fn on_whole(&mut self, tail_bytes: Option<u64>) {
        self.longest = self.longest.max(tail_bytes.unwrap_or_default());
    }
}
