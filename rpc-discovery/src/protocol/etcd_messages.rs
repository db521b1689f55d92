//! The messages of etcd's JSON gateway that are used here.
//!
//! Its peculiarities: 64-bit numbers are strings, keys and values are base64, and fields with their
//! default are left out.

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::base64::{decoded, encoded};

/// Most keys of a list.
pub(crate) const MAX_KEYS: usize = 4096;

/// A number that is written as a string, or as itself.
fn number<'de, D: Deserializer<'de>>(source: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Text(String),
        Number(i64),
    }
    match Either::deserialize(source)? {
        Either::Number(number) => Ok(number),
        Either::Text(text) => {
            // Ids of clusters have 64 bits without a sign: all that counts is whether they differ.
            let unsigned = || text.parse::<u64>().map(u64::cast_signed);
            text.parse().or_else(|_| unsigned()).map_err(|_| de::Error::custom("not a number"))
        }
    }
}

fn base64<'de, D: Deserializer<'de>>(source: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(source)?;
    decoded(&text).ok_or_else(|| de::Error::custom("not base64"))
}

/// What each answer begins with.
#[derive(Debug, Default, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Header {
    #[serde(deserialize_with = "number")]
    pub(crate) cluster_id: i64,
    #[serde(deserialize_with = "number")]
    pub(crate) revision: i64,
}

#[derive(Debug, Default, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct KeyValue {
    #[serde(deserialize_with = "base64")]
    pub(crate) key: Vec<u8>,
    #[serde(deserialize_with = "base64")]
    pub(crate) value: Vec<u8>,
    #[serde(deserialize_with = "number")]
    pub(crate) create_revision: i64,
    #[serde(deserialize_with = "number")]
    pub(crate) mod_revision: i64,
}

/// The answer to [`list`] and [`check`].
#[derive(Debug, Default, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct RangeReply {
    pub(crate) header: Header,
    pub(crate) kvs: Vec<KeyValue>,
    /// All keys of the range, also those beyond the limit.
    #[serde(deserialize_with = "number")]
    pub(crate) count: i64,
}

#[derive(Debug, Default, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Event {
    /// Left out for a PUT.
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) kv: KeyValue,
}

/// A message of a watch.
#[derive(Debug, Default, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct WatchReply {
    pub(crate) header: Header,
    pub(crate) created: bool,
    pub(crate) canceled: bool,
    #[serde(deserialize_with = "number")]
    pub(crate) compact_revision: i64,
    pub(crate) cancel_reason: String,
    pub(crate) events: Vec<Event>,
}

/// The answer to [`grant`].
#[derive(Debug, Default, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct GrantReply {
    #[serde(rename = "ID", deserialize_with = "number")]
    pub(crate) id: i64,
    #[serde(rename = "TTL", deserialize_with = "number")]
    pub(crate) ttl: i64,
}

/// The answer to [`keep_alive`]: without a TTL, the lease is gone.
#[derive(Debug, Default, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct KeepAliveReply {
    #[serde(rename = "TTL", deserialize_with = "number")]
    pub(crate) ttl: i64,
}

/// The answer to [`authenticate`].
#[derive(Debug, Default, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct AuthenticateReply {
    pub(crate) token: String,
}

/// An answer of which nothing is needed.
#[derive(Debug, Default, Clone, PartialEq, Deserialize)]
pub(crate) struct Done {}

/// A message of a stream: a result, or an error that ends it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Streamed<T> {
    pub(crate) result: Option<T>,
    pub(crate) error: Option<Value>,
}

/// Why etcd does not do what it was asked.
#[derive(Debug, Default, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Refusal {
    /// A code of gRPC.
    #[serde(alias = "grpc_code")]
    pub(crate) code: u32,
    pub(crate) message: String,
}

impl Refusal {
    /// The lease, or the key, is not there.
    pub(crate) const NOT_FOUND: u32 = 5;
    /// The token is not known, or no longer.
    pub(crate) const UNAUTHENTICATED: u32 = 16;

    /// Whether another member may do it: this one has no leader, is about to stop, or is
    /// overloaded.
    pub(crate) fn is_of_the_member(&self) -> bool {
        matches!(self.code, 4 | 8 | 14)
    }
}

/// Keys below a prefix, which ends with a `/`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Range {
    key: String,
    range_end: String,
}

impl Range {
    pub(crate) fn below(prefix: &str) -> Self {
        let mut end = prefix.as_bytes().to_vec();
        // A `/` is never the last byte value.
        if let Some(last) = end.last_mut() {
            *last = last.saturating_add(1);
        }
        Self { key: encoded(prefix.as_bytes()), range_end: encoded(&end) }
    }
}

/// All keys and their values.
pub(crate) fn list(range: &Range) -> Value {
    json!({ "key": range.key, "range_end": range.range_end, "limit": MAX_KEYS.to_string() })
}

/// How many keys there are, and the one that was changed last.
pub(crate) fn check(range: &Range) -> Value {
    json!({
        "key": range.key, "range_end": range.range_end, "limit": "1", "keys_only": true,
        "sort_order": "DESCEND", "sort_target": "MOD",
    })
}

/// All changes from a revision on.
pub(crate) fn watch(range: &Range, from: i64) -> Value {
    json!({ "create_request": {
        "key": range.key, "range_end": range.range_end, "start_revision": from.to_string(),
        "progress_notify": true,
    } })
}

/// A lease of some seconds.
pub(crate) fn grant(seconds: u64) -> Value {
    json!({ "TTL": seconds.to_string() })
}

/// A key that lives as long as a lease.
pub(crate) fn put(key: &str, value: &str, lease: i64) -> Value {
    json!({
        "key": encoded(key.as_bytes()), "value": encoded(value.as_bytes()),
        "lease": lease.to_string(),
    })
}

pub(crate) fn delete(key: &str) -> Value {
    json!({ "key": encoded(key.as_bytes()) })
}

pub(crate) fn keep_alive(lease: i64) -> Value {
    json!({ "ID": lease.to_string() })
}

pub(crate) fn revoke(lease: i64) -> Value {
    json!({ "ID": lease.to_string() })
}

pub(crate) fn authenticate(user: &str, password: &str) -> Value {
    json!({ "name": user, "password": password })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_the_gateway_are_read() {
        let range: RangeReply = serde_json::from_str(
            r#"{"header":{"cluster_id":"14841639068965178418","member_id":"1","revision":"2",
            "raft_term":"2"},"kvs":[{"key":"L3JwYy9rdi9h","create_revision":"2",
            "mod_revision":"2","version":"1","value":"eA=="}],"count":"1"}"#,
        )
        .unwrap();
        assert_eq!((range.header.revision, range.count), (2, 1));
        assert_ne!(range.header.cluster_id, 0);
        assert_eq!((&*range.kvs[0].key, &*range.kvs[0].value), (&b"/rpc/kv/a"[..], &b"x"[..]));
        // Without any key, with defaults left out.
        let empty: RangeReply = serde_json::from_str(r#"{"header":{"revision":"1"}}"#).unwrap();
        assert_eq!((empty.kvs.len(), empty.count, empty.header.revision), (0, 0, 1));
        let canceled: Streamed<WatchReply> = serde_json::from_str(
            r#"{"result":{"header":{"cluster_id":"7"},"canceled":true,"compact_revision":"7"}}"#,
        )
        .unwrap();
        let canceled = canceled.result.unwrap();
        assert!(canceled.canceled && canceled.compact_revision == 7);
        let dead: Streamed<KeepAliveReply> =
            serde_json::from_str(r#"{"result":{"header":{},"ID":"12345"}}"#).unwrap();
        assert_eq!(dead.result.unwrap().ttl, 0);
        let refused: Refusal =
            serde_json::from_str(r#"{"error":"e","message":"no such lease","code":5}"#).unwrap();
        assert_eq!((refused.code, &*refused.message), (Refusal::NOT_FOUND, "no such lease"));
    }

    #[test]
    fn the_range_of_a_prefix_ends_behind_it() {
        let range = Range::below("/rpc/kv/");
        assert_eq!(decoded(&range.key).unwrap(), b"/rpc/kv/");
        assert_eq!(decoded(&range.range_end).unwrap(), b"/rpc/kv0");
    }
}
