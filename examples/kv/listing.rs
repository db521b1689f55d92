//! All pages of a listing, one after the other.
//!
//! Invariant: whatever a server answers, a listing ends or fails, and every key in it begins with
//! the prefix and sorts after the previous one.

use super::error::CommandError;
use super::service::{KvClient, Listed, MAX_PAGE_KEYS, Page};

/// The keys with a prefix, page by page.
pub(crate) struct Listing<'a> {
    client: &'a KvClient,
    prefix: &'a str,
    /// Where the next page begins; `None` after the last one.
    after: Option<String>,
}

impl<'a> Listing<'a> {
    /// A listing that begins at the first key.
    pub(crate) fn new(client: &'a KvClient, prefix: &'a str) -> Self {
        Self { client, prefix, after: Some(String::new()) }
    }

    /// The next page, of at most `limit` keys; `None` after the last one.
    pub(crate) async fn next(&mut self, limit: u64) -> Result<Option<Vec<Listed>>, CommandError> {
        let Some(after) = self.after.take() else { return Ok(None) };
        let limit = u32::try_from(limit).unwrap_or(u32::MAX).min(MAX_PAGE_KEYS);
        let page = self.client.list(self.prefix, &after, limit).await?;
        if !is_in_order(&page, self.prefix, &after) {
            return Err(CommandError::BadListing);
        }
        self.after = page.next;
        Ok(Some(page.keys))
    }
}

fn is_in_order(page: &Page, prefix: &str, after: &str) -> bool {
    let mut last = after;
    for listed in &page.keys {
        if !listed.key.starts_with(prefix) || *listed.key <= *last {
            return false;
        }
        last = &listed.key;
    }
    page.next.as_deref().is_none_or(|next| next > after && next >= last)
}

#[cfg(test)]
mod tests {
    use super::super::service::Version;
    use super::*;

    #[test]
    fn page_without_progress_is_refused() {
        let page = |keys: &[&str], next: Option<&str>| {
            let listed =
                |key: &&str| Listed { key: (*key).to_owned(), version: Version(1), bytes: 0 };
            Page { keys: keys.iter().map(listed).collect(), next: next.map(str::to_owned) }
        };
        for (keys, next) in
            [(&["pb", "pc"][..], None), (&["pb", "pc"], Some("pc")), (&[], None), (&[], Some("pz"))]
        {
            assert!(is_in_order(&page(keys, next), "p", "pa"), "{keys:?} {next:?}");
        }
        for (keys, next) in [
            (&["pa"][..], None),
            (&["pc", "pb"], None),
            (&["pb", "pb"], None),
            (&["q"], None),
            (&["pb"], Some("pa")),
            (&["pc"], Some("pb")),
            (&[], Some("pa")),
        ] {
            assert!(!is_in_order(&page(keys, next), "p", "pa"), "{keys:?} {next:?}");
        }
    }
}
