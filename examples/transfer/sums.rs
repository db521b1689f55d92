//! Checksums: how two files are found to be equal.
//!
//! Owns the algorithm and how a file is cut for it: into leaves of [`LEAF_BYTES`], each with a
//! [`Sum`]; the digest of a file is the sum of its leaves' sums. So both ends can sum any part of a
//! file, in any order, and a partial file is compared leaf by leaf.
//!
//! The algorithm is XXH3 with 128 bits: as fast as memory, and good against errors of disks, wires
//! and programs. It is no defence against somebody who changes files on purpose.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Bytes of a leaf; the last one of a file may have fewer.
pub(crate) const LEAF_BYTES: usize = 256 << 10;

/// A checksum.
pub(crate) type Sum = u128;

/// The checksum of some bytes.
pub(crate) fn sum(bytes: &[u8]) -> Sum {
    xxh3_128(bytes)
}

/// The sums of the leaves of some bytes that begin at a leaf.
pub(crate) fn leaf_sums(bytes: &[u8]) -> Vec<Sum> {
    bytes.chunks(LEAF_BYTES).map(sum).collect()
}

/// The checksum of a file with these leaf sums.
pub(crate) fn digest(leaves: &[Sum]) -> Sum {
    let mut hasher = Xxh3::new();
    for leaf in leaves {
        hasher.update(&leaf.to_le_bytes());
    }
    hasher.digest128()
}

/// The number of leaves of a file of this size.
pub(crate) fn leaf_count(bytes: u64) -> u64 {
    bytes.div_ceil(LEAF_BYTES as u64)
}

/// Reads a file's leaves from `first` on, at most `count`, and sums them. Fewer come back where the
/// file ends.
///
/// # Errors
/// The system's.
pub(crate) fn file_sums(file: &File, first: u64, count: usize) -> io::Result<Vec<Sum>> {
    thread_local! {
        /// Fresh memory for each call would cost more than the sums.
        static LEAF: RefCell<Vec<u8>> = RefCell::new(vec![0; LEAF_BYTES]);
    }
    LEAF.with_borrow_mut(|leaf| {
        let mut sums = Vec::new();
        for step in 0..count as u64 {
            let number = first.checked_add(step);
            let Some(offset) = number.and_then(|number| number.checked_mul(LEAF_BYTES as u64))
            else {
                break;
            };
            let read = read_full(file, offset, leaf)?;
            if read > 0 {
                sums.push(sum(&leaf[..read]));
            }
            if read < LEAF_BYTES {
                break;
            }
        }
        Ok(sums)
    })
}

/// Reads until the buffer is full or the file ends. Returns the number of bytes read.
///
/// # Errors
/// The system's.
pub(crate) fn read_full(file: &File, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        // Bytes beyond the largest offset are beyond the end of every file.
        let Some(at) = offset.checked_add(done as u64).filter(|at| i64::try_from(*at).is_ok())
        else {
            break;
        };
        match file.read_at(&mut into[done..], at) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use examples::testing::Scratch;

    #[test]
    fn sums_are_right_from_any_leaf() {
        let dir = Scratch::new();
        let path = dir.path().join("f");
        for len in [0, 1, LEAF_BYTES - 1, LEAF_BYTES, LEAF_BYTES + 1, 3 * LEAF_BYTES + 7] {
            let bytes: Vec<u8> = (0..len).map(|at| (at ^ (at >> 8)).to_le_bytes()[0]).collect();
            std::fs::write(&path, &bytes).unwrap();
            let file = File::open(&path).unwrap();
            let all = leaf_sums(&bytes);
            assert_eq!(all.len() as u64, leaf_count(len as u64));
            assert_eq!(file_sums(&file, 0, 100).unwrap(), all);
            assert_eq!(
                file_sums(&file, 1, 2).unwrap(),
                all.iter().skip(1).take(2).copied().collect::<Vec<_>>()
            );
            assert_eq!(file_sums(&file, u64::MAX, 2).unwrap(), []);
        }
    }

    #[test]
    fn every_leaf_and_its_place_count() {
        let (one, other) = (sum(b"one"), sum(b"other"));
        let digests = [&[][..], &[one], &[other], &[one, other], &[other, one]].map(digest);
        for (at, found) in digests.iter().enumerate() {
            assert!(!digests[..at].contains(found));
        }
    }
}
