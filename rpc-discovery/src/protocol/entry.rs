//! A server in a registry of keys and values: how it is written, and read again.
//!
//! The key is a prefix, a `/` and the id of the instance. The value is a JSON object:
//! `{"v":1,"address":"auto://10.0.0.5:7000","weight":100,"priority":0,"zone":"a","state":"ready",
//! "metadata":{}}`, of which only the address is needed. Fields that are not known are ignored.

use std::collections::BTreeMap;

use rpc_core::client::resolve::Endpoint;
use rpc_core::text::is_printable;
use serde::Deserialize;

use super::reach;

/// Longest value, bytes.
const MAX_VALUE_BYTES: usize = 16 << 10;
/// Longest name of a zone, bytes.
const MAX_ZONE_BYTES: usize = 64;
/// The version of the format.
const VERSION: u64 = 1;

#[derive(Deserialize)]
struct Value {
    #[serde(default = "version")]
    v: u64,
    address: String,
    #[serde(default = "weight")]
    weight: u32,
    #[serde(default)]
    priority: u8,
    #[serde(default)]
    zone: Option<String>,
    #[serde(default)]
    state: Option<String>,
}

fn version() -> u64 {
    VERSION
}

fn weight() -> u32 {
    100
}

/// Reads a value.
///
/// # Errors
/// Why it is of no use.
pub(crate) fn read(value: &[u8]) -> Result<Endpoint, String> {
    if value.len() > MAX_VALUE_BYTES {
        return Err(format!("it has more than {MAX_VALUE_BYTES} bytes"));
    }
    let Value { v, address, weight, priority, zone, state } =
        serde_json::from_slice(value).map_err(|error| format!("not an entry: {error}"))?;
    if v != VERSION {
        return Err(format!("version {v} of the format is not known here: update this program"));
    }
    let mut server = Endpoint::from(reach::read(&address)?);
    server = server.with_weight(weight).with_priority(priority);
    if let Some(zone) = zone {
        if zone.len() > MAX_ZONE_BYTES || !is_printable(&zone) {
            return Err(format!(
                "its zone has control characters, or more than {MAX_ZONE_BYTES} bytes"
            ));
        }
        server = server.with_zone(zone);
    }
    match state.as_deref() {
        None | Some("ready") => Ok(server),
        Some("draining") => Ok(server.draining()),
        Some(_) => Err("its state is neither `ready` nor `draining`".to_owned()),
    }
}

/// The value of a server.
pub(crate) fn written(server: &Endpoint, metadata: &BTreeMap<String, String>) -> String {
    let mut value = serde_json::json!({
        "v": VERSION,
        "address": server.address().to_string(),
        "weight": server.weight(),
        "priority": server.priority(),
        "state": if server.is_draining() { "draining" } else { "ready" },
        "metadata": metadata,
    });
    if let Some(zone) = server.zone() {
        value["zone"] = zone.into();
    }
    value.to_string()
}

/// The id of the instance that a key is of. `prefix` ends with a `/`.
///
/// # Errors
/// Why the key is of no instance.
pub(crate) fn id<'a>(key: &'a [u8], prefix: &str) -> Result<&'a str, String> {
    let rest = key.strip_prefix(prefix.as_bytes()).ok_or("the key is not below the prefix")?;
    let id = std::str::from_utf8(rest).map_err(|_| "the key is not UTF-8".to_owned())?;
    match id {
        "" => Err("the key has no id of an instance after the prefix".to_owned()),
        id if id.contains('/') => Err("the id of the instance has a `/` in it".to_owned()),
        id if !is_printable(id) => Err("the key has control characters".to_owned()),
        id => Ok(id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let server: Endpoint = "auto://10.0.0.5:7000".parse().unwrap();
        let metadata = BTreeMap::from([("build".to_owned(), "7".to_owned())]);
        for server in [
            server.clone(),
            server.clone().with_weight(7).with_priority(3).with_zone("a\"b"),
            server.draining(),
        ] {
            assert_eq!(read(written(&server, &metadata).as_bytes()), Ok(server));
        }
    }

    #[test]
    fn entries_have_defaults_and_ignore_the_unknown() {
        let plain: Endpoint = "tcp://a:1".parse().unwrap();
        for (value, server) in [
            (r#"{"address":"tcp://a:1"}"#, plain.clone()),
            (r#"{"v":1,"address":"tcp://a:1","color":[{}]}"#, plain.clone()),
            (r#"{"address":"tcp://a:1","weight":0}"#, plain.clone().with_weight(1)),
            (r#"{"address":"tcp://a:1","weight":4000000000}"#, plain.clone().with_weight(1000)),
            (r#"{"address":"tcp://a:1","zone":null,"state":"ready"}"#, plain.clone()),
            (r#"{"address":"tcp://a:1","zone":"b"}"#, plain.with_zone("b")),
        ] {
            assert_eq!(read(value.as_bytes()), Ok(server), "{value}");
        }
    }

    #[test]
    fn bad_entries_say_what_is_wrong() {
        let long_zone = format!(r#"{{"address":"tcp://a:1","zone":"{}"}}"#, "z".repeat(65));
        let long = format!(r#"{{"address":"tcp://a:1","x":"{}"}}"#, "x".repeat(17_000));
        for (value, part) in [
            ("", "not an entry"),
            ("auto://10.0.0.5:7000", "not an entry"),
            ("[]", "not an entry"),
            ("{}", "address"),
            (r#"{"address":7}"#, "not an entry"),
            (r#"{"address":"10.0.0.5:7000"}"#, "scheme"),
            (r#"{"address":"auto://0.0.0.0:7000"}"#, "wildcard"),
            (r#"{"address":"auto://h:0"}"#, "port"),
            (r#"{"address":"tcp://a\u0007:1"}"#, "control"),
            (r#"{"address":"tcp://a:1","zone":"a\nb"}"#, "zone"),
            (&long_zone, "zone"),
            (r#"{"address":"tcp://a:1","weight":-1}"#, "not an entry"),
            (r#"{"address":"tcp://a:1","weight":"7"}"#, "not an entry"),
            (r#"{"address":"tcp://a:1","priority":256}"#, "not an entry"),
            (r#"{"address":"tcp://a:1","state":"ill"}"#, "state"),
            (r#"{"v":2,"address":"tcp://a:1"}"#, "version 2"),
            (&long, "16384 bytes"),
        ] {
            let error = read(value.as_bytes()).unwrap_err();
            assert!(error.contains(part), "{value}: {error}");
        }
        assert!(read(&[0xff, 0xfe]).is_err());
    }

    #[test]
    fn keys_of_instances_are_told_from_others() {
        assert_eq!(id(b"/rpc/kv/a-1", "/rpc/kv/"), Ok("a-1"));
        for key in [&b"/rpc/kv/"[..], b"/rpc/kv/a/b", b"/rpc/kv/a\x07", b"/rpc/kv/\xff", b"/x/a"] {
            assert!(id(key, "/rpc/kv/").is_err(), "{key:?}");
        }
    }
}
