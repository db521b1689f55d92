//! Values of any type that belong to a call, found by their type.
//!
//! Invariant: without values nothing is allocated.

use std::any::{Any, TypeId, type_name};
use std::fmt;
use std::sync::Arc;

/// Values that interceptors attach to a call, at most one of each type. Cheap to clone.
#[derive(Clone, Default)]
pub struct Extensions(Vec<Extension>);

#[derive(Clone)]
struct Extension {
    id: TypeId,
    name: &'static str,
    value: Arc<dyn Any + Send + Sync>,
}

impl Extensions {
    /// Creates an empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Inserts a value, replacing an earlier one of its type.
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        let id = TypeId::of::<T>();
        let value: Arc<dyn Any + Send + Sync> = Arc::new(value);
        match self.0.iter_mut().find(|extension| extension.id == id) {
            Some(extension) => extension.value = value,
            None => self.0.push(Extension { id, name: type_name::<T>(), value }),
        }
    }

    /// The value of that type.
    #[must_use]
    pub fn get<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        let id = TypeId::of::<T>();
        let found = self.0.iter().find(|extension| extension.id == id)?;
        Arc::clone(&found.value).downcast().ok()
    }

    /// Whether there are no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().map(|extension| extension.name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_type() {
        let mut extensions = Extensions::new();
        assert!(extensions.is_empty() && extensions.get::<u32>().is_none());
        extensions.insert(1_u32);
        extensions.insert("text");
        let shared = extensions.clone();
        extensions.insert(2_u32);
        assert_eq!(
            (extensions.get::<u32>().as_deref(), shared.get::<u32>().as_deref()),
            (Some(&2), Some(&1))
        );
        assert_eq!(extensions.get::<&str>().as_deref(), Some(&"text"));
        assert_eq!(format!("{shared:?}"), r#"{"u32", "&str"}"#);
    }
}
