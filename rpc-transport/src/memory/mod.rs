//! Memory that devices read and write: regions, buffers and their pools, memory of the user's.

pub mod mapped;
pub mod region;
pub mod registered;
pub mod shared;
