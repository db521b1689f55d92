//! Servers from SRV records (RFC 2782).

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::time::Duration;

use rpc_core::client::resolve::Endpoint;

use super::problems::Problems;
use super::reach;

/// The largest weight of an end point.
const MAX_WEIGHT: u32 = 1000;
/// Bounds of the time for which an answer counts.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(300);

/// A server, as its record names it.
#[derive(Debug, Clone)]
pub(crate) struct Srv {
    pub(crate) priority: u16,
    pub(crate) weight: u16,
    pub(crate) port: u16,
    /// A host name, perhaps with the dot at the end.
    pub(crate) target: String,
}

/// The servers of some records. `addresses`: those of the targets that came with them. A target of
/// which none came is resolved when it is connected to. Of several addresses the first one counts,
/// IPv4 before IPv6, as all are of one server.
///
/// Priorities become 0, 1, 2 and so on. Weights above 1,000 make all weights smaller; if all are 0,
/// they are equal.
pub(crate) fn servers(
    records: &[Srv],
    addresses: &BTreeMap<String, Vec<IpAddr>>,
    problems: &mut Problems,
) -> Vec<Endpoint> {
    let mut priorities: Vec<u16> = records.iter().map(|it| it.priority).collect();
    priorities.sort_unstable();
    priorities.dedup();
    let largest = records.iter().map(|it| u32::from(it.weight)).max().unwrap_or(0);
    let mut servers = Vec::new();
    for record in records {
        let host = record.target.trim_end_matches('.');
        if host.is_empty() {
            // A single dot: the service is decidedly not available there.
            continue;
        }
        let known = addresses.get(&record.target).into_iter().flatten();
        let host = match known.min_by_key(|ip| (ip.is_ipv6(), **ip)) {
            Some(IpAddr::V6(ip)) => format!("[{ip}]"),
            Some(ip) => ip.to_string(),
            None => host.to_owned(),
        };
        match reach::read(&format!("auto://{host}:{}", record.port)) {
            Ok(address) => {
                let rank = priorities.binary_search(&record.priority).unwrap_or(0);
                let weight = match (largest, u32::from(record.weight)) {
                    (0, _) => 100,
                    (..=MAX_WEIGHT, weight) => weight,
                    (_, weight) => weight * MAX_WEIGHT / largest,
                };
                let server = Endpoint::from(address).with_weight(weight);
                servers.push(server.with_priority(u8::try_from(rank).unwrap_or(u8::MAX)));
            }
            Err(reason) => problems.add(record.target.as_bytes(), &reason),
        }
    }
    servers
}

/// How long an answer counts whose records may be kept for `ttl`.
pub(crate) fn fresh_for(ttl: Duration) -> Duration {
    ttl.clamp(SHORTEST, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(priority: u16, weight: u16, port: u16, target: &str) -> Srv {
        Srv { priority, weight, port, target: target.to_owned() }
    }

    fn shown(records: &[Srv]) -> Vec<(String, u8, u32)> {
        let addresses = BTreeMap::from([
            ("a.".to_owned(), vec!["::1".parse().unwrap(), "10.0.0.1".parse().unwrap()]),
            ("six.".to_owned(), vec!["fd00::6".parse().unwrap()]),
            ("any.".to_owned(), vec!["0.0.0.0".parse().unwrap()]),
        ]);
        let servers = servers(records, &addresses, &mut Problems::default());
        let shown = servers.iter();
        shown.map(|it| (it.address().to_string(), it.priority(), it.weight())).collect()
    }

    #[test]
    fn records_become_servers() {
        let found = shown(&[
            record(10, 60, 7000, "a."),
            record(20, 0, 7001, "b.example."),
            record(10, 5, 7002, "six."),
            record(65535, 5, 7, "."),
            record(0, 5, 0, "a."),
            record(0, 5, 7, "any."),
        ]);
        assert_eq!(
            found,
            [
                ("auto://10.0.0.1:7000".to_owned(), 1, 60),
                ("auto://b.example:7001".to_owned(), 2, 1),
                ("auto://[fd00::6]:7002".to_owned(), 1, 5),
            ]
        );
    }

    #[test]
    fn weights_are_brought_into_their_range() {
        let weights = |weights: &[u16]| -> Vec<u32> {
            let records: Vec<_> = weights.iter().map(|it| record(0, *it, 1, "a.")).collect();
            shown(&records).into_iter().map(|(_, _, weight)| weight).collect()
        };
        assert_eq!(weights(&[0, 0]), [100, 100]);
        assert_eq!(weights(&[0, 1000]), [1, 1000]);
        assert_eq!(weights(&[60_000, 30_000, 1]), [1000, 500, 1]);
    }

    #[test]
    fn an_answer_counts_for_its_ttl() {
        let seconds = [0, 5, 86_400].map(|ttl| fresh_for(Duration::from_secs(ttl)).as_secs());
        assert_eq!(seconds, [1, 5, 300]);
    }
}
