//! Recognises types whose `Deserialize` was written by serde's derive, and distinguishes their
//! names. Recognises sets.

use std::any::type_name;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem::discriminant;

use super::tree::{Names, What};

/// Whether serde's derive has written a visitor. Such a visitor takes fields and variants by name.
pub(super) fn is_derived<V>() -> bool {
    type_name::<V>().contains("::__Visitor")
}

/// Whether serde's derive has written the key of a field or variant.
pub(super) fn is_derived_key<K>() -> bool {
    type_name::<K>().contains("::__Field")
}

/// Whether a list becomes a set: `HashSet`, `BTreeSet`, and those of other crates.
pub(super) fn is_set<T>() -> bool {
    let name = type_name::<T>();
    let end = name.find('<').unwrap_or(name.len());
    name[..end].ends_with("Set")
}

/// A hash of a key's variant, which distinguishes it from the others.
pub(super) fn key_of<K>(key: &K) -> u64 {
    let mut hasher = DefaultHasher::new();
    discriminant(key).hash(&mut hasher);
    hasher.finish()
}

/// A struct with these fields, as its visitor reads them.
pub(super) fn struct_of<V>(fields: &'static [&'static str]) -> What {
    match is_derived::<V>() {
        true => What::Struct(Names::untried(fields)),
        false => What::Struct(Names::distinct(fields)),
    }
}
