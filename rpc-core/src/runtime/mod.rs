//! What calls stand on and no protocol knows of.

pub(crate) mod driver_thread;
pub(crate) mod phase;
pub(crate) mod random;
pub(crate) mod recycled;
