//! Names of workloads as SPIFFE writes them: `spiffe://trust-domain/path`.
//!
//! Owns the grammar and the patterns. Invariants:
//! 1. An id has one spelling: there is no escape, no `.` or `..`, no empty segment and no query.
//! 2. `*` in a pattern is one whole segment of the path, never a part of one and never the domain.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

const SCHEME: &str = "spiffe://";
/// Longest id, bytes.
const MAX_BYTES: usize = 2_048;
/// Longest trust domain, bytes.
const MAX_DOMAIN_BYTES: usize = 255;

/// A text is no SPIFFE id, or no pattern of such ids.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no SPIFFE id: {reason}")]
pub struct SpiffeError {
    text: String,
    reason: &'static str,
}

/// The name of a workload, such as `spiffe://prod.example/ns/shop/sa/cart`.
///
/// ```
/// use rpc_core::identity::SpiffeId;
///
/// let id: SpiffeId = "spiffe://prod.example/ns/shop/sa/cart".parse()?;
/// assert_eq!(id.trust_domain(), "prod.example");
/// assert_eq!(id.path(), "/ns/shop/sa/cart");
/// assert!("spiffe://Prod.example/cart".parse::<SpiffeId>().is_err());
/// # Ok::<(), rpc_core::identity::SpiffeError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SpiffeId {
    text: Arc<str>,
    /// Where the path begins.
    path: usize,
}

impl SpiffeId {
    /// The domain whose certificate authorities may issue this id.
    #[must_use]
    pub fn trust_domain(&self) -> &str {
        &self.text[SCHEME.len()..self.path]
    }

    /// The path with its leading slash. The id of a trust domain itself has none.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.text[self.path..]
    }

    /// The whole id.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for SpiffeId {
    type Err = SpiffeError;

    fn from_str(text: &str) -> Result<Self, SpiffeError> {
        let path = split(text, false)?;
        Ok(Self { text: text.into(), path })
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A set of ids: an id in which segments of the path may be `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpiffePattern(String);

impl SpiffePattern {
    pub(crate) fn parse(text: &str) -> Result<Self, SpiffeError> {
        split(text, true)?;
        Ok(Self(text.to_owned()))
    }

    pub(crate) fn matches(&self, id: &SpiffeId) -> bool {
        let (mut own, mut other) = (self.0.split('/'), id.text.split('/'));
        loop {
            match (own.next(), other.next()) {
                (None, None) => return true,
                (Some("*"), Some(_)) => {}
                (Some(own), Some(other)) if own == other => {}
                _ => return false,
            }
        }
    }
}

/// Checks an id, or a pattern, and returns where its path begins.
fn split(text: &str, is_pattern: bool) -> Result<usize, SpiffeError> {
    let wrong =
        |reason| SpiffeError { text: text.chars().take(MAX_DOMAIN_BYTES).collect(), reason };
    if text.len() > MAX_BYTES {
        return Err(wrong("it is longer than 2,048 bytes"));
    }
    let rest = text.strip_prefix(SCHEME).ok_or_else(|| wrong("it must begin with spiffe://"))?;
    let end = rest.find('/').unwrap_or(rest.len());
    let (domain, path) = rest.split_at(end);
    let of_domain =
        |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-' | '_');
    if domain.is_empty() || domain.len() > MAX_DOMAIN_BYTES || !domain.chars().all(of_domain) {
        return Err(wrong(
            "its trust domain must be 1 to 255 of the characters a-z, 0-9, `.`, `-` and `_`",
        ));
    }
    let of_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    for segment in path.split('/').skip(1) {
        let is_star = is_pattern && segment == "*";
        if segment.is_empty() || segment == "." || segment == ".." {
            return Err(wrong("a segment of its path is empty, `.` or `..`"));
        }
        if !is_star && !segment.chars().all(of_path) {
            return Err(wrong(if is_pattern {
                "a segment of its path must be `*` or of the characters a-z, A-Z, 0-9, `.`, `-` \
                 and `_`"
            } else {
                "its path must be of the characters a-z, A-Z, 0-9, `.`, `-`, `_` and `/`"
            }));
        }
    }
    Ok(SCHEME.len() + end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_of_the_grammar_are_ids() {
        for good in ["spiffe://a", "spiffe://prod.example/ns/x/sa/y", "spiffe://a_b-c.1/A.b-c_"] {
            assert_eq!(good.parse::<SpiffeId>().unwrap().as_str(), good);
        }
        let long = format!("spiffe://a/{}", "x".repeat(MAX_BYTES));
        let domain = format!("spiffe://{}/x", "a".repeat(256));
        for bad in [
            "",
            "spiffe:/a/b",
            "http://a/b",
            "spiffe://",
            "spiffe:///b",
            "spiffe://A/b",
            "SPIFFE://a/b",
            "spiffe://a/",
            "spiffe://a/b/",
            "spiffe://a//b",
            "spiffe://a/./b",
            "spiffe://a/../b",
            "spiffe://a/b?c",
            "spiffe://a/b#c",
            "spiffe://a/%62",
            "spiffe://a:1/b",
            "spiffe://u@a/b",
            "spiffe://a/*",
            "spiffe://a/b c",
            "spiffe://a/\u{e4}",
            &long,
            &domain,
        ] {
            assert!(bad.parse::<SpiffeId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_star_is_one_whole_segment() {
        let matches = |pattern: &str, id: &str| {
            SpiffePattern::parse(pattern).unwrap().matches(&id.parse().unwrap())
        };
        assert!(matches("spiffe://a/ns/*/sa/cart", "spiffe://a/ns/shop/sa/cart"));
        assert!(matches("spiffe://a/x", "spiffe://a/x"));
        assert!(!matches("spiffe://a/x/*", "spiffe://a/x"));
        for other in [
            "spiffe://b/ns/shop/sa/cart",
            "spiffe://a/ns/shop/sa/cart/x",
            "spiffe://a/ns/shop/x/sa/cart",
            "spiffe://a/ns/sa/cart",
            "spiffe://a/ns/shop/sa/carts",
            "spiffe://a",
        ] {
            assert!(!matches("spiffe://a/ns/*/sa/cart", other), "{other}");
        }
        for bad in ["*", "spiffe://*/x", "spiffe://a*/x", "spiffe://a/x*", "spiffe://a/**"] {
            assert!(SpiffePattern::parse(bad).is_err(), "{bad}");
        }
    }
}
