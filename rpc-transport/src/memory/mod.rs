//! Memory that devices read and write: regions, buffers and their pools, and user memory.

mod access;
pub mod allocator;
pub mod budget;
pub mod copy;
pub mod free_list;
pub(crate) mod limits;
pub mod mapped;
pub mod owned;
pub(crate) mod pages;
pub mod process;
pub mod region;
pub mod registered;
pub mod shared;
pub(crate) mod storage;
