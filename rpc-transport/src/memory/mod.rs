//! Memory that devices read and write: regions, buffers and their pools, memory of the user's.

pub mod allocator;
pub mod budget;
pub mod copy;
pub mod mapped;
pub mod owned;
pub mod region;
pub mod registered;
pub mod shared;
