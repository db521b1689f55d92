//! What calls stand on and no protocol knows of.

pub(crate) mod recycled;
