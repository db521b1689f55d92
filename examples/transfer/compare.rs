//! Comparing files of two sides by the sums of their leaves.

use bytes::Bytes;
use futures::future::try_join;

use super::service::{MAX_SUMS, SumAsk};
use super::side::{Failure, Side};
use super::sums::{LEAF_BYTES, Sum, leaf_count};

/// A file of a side, or its partial file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Summed<'a> {
    /// Where.
    pub(crate) side: &'a Side,
    /// Its path.
    pub(crate) path: &'a Bytes,
    /// Whether it is its partial file.
    pub(crate) part: bool,
}

impl Summed<'_> {
    async fn sums(&self, first: u64, count: u64) -> Result<Vec<Sum>, Failure> {
        let ask = SumAsk { path: self.path.clone(), part: self.part, first, count };
        let mut answers = self.side.sums(vec![ask]).await?;
        match answers.pop() {
            Some(Ok(sums)) if sums.len() as u64 <= count => Ok(sums),
            Some(Err(error)) => Err(self.side.alone(error)),
            _ => Err(self.side.senseless()),
        }
    }
}

/// The sums of the leaves that two files have in common from their beginning on; the first one has
/// this many bytes.
pub(crate) async fn common_leaves(
    one: Summed<'_>,
    other: Summed<'_>,
    bytes: u64,
) -> Result<Vec<Sum>, Failure> {
    let all = leaf_count(bytes);
    let mut common: Vec<Sum> = Vec::new();
    loop {
        let first = common.len() as u64;
        let count = (all - first).min(MAX_SUMS as u64);
        if count == 0 {
            return Ok(common);
        }
        let (ours, theirs) = try_join(one.sums(first, count), other.sums(first, count)).await?;
        let equal = ours.iter().zip(&theirs).take_while(|(one, other)| one == other).count();
        common.extend(&ours[..equal]);
        // Also if a file is shorter than it was.
        if (equal as u64) < count {
            return Ok(common);
        }
    }
}

/// The number of bytes that this many leaves from a file's beginning cover.
pub(crate) fn covered(leaves: usize, bytes: u64) -> u64 {
    (leaves as u64).saturating_mul(LEAF_BYTES as u64).min(bytes)
}
