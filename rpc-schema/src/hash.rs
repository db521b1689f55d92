//! The hashes that name methods and signatures on the wire.

/// FNV-1a, 32 bits: the id of the method named `name` (`Service.method`).
#[must_use]
pub const fn method_id(name: &str) -> u32 {
    let bytes = name.as_bytes();
    let mut hash = 0x811c_9dc5_u32;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    hash
}

/// FNV-1a, 64 bits: the hash of a method's signature.
#[must_use]
pub const fn signature_hash(signature: &str) -> u64 {
    let bytes = signature.as_bytes();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    hash
}
