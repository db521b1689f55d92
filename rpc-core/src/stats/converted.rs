//! The methods whose messages are converted, as snapshots report them.

use std::collections::HashSet;

use super::report::{ConvertedStats, MethodStats};
use crate::method::method_in_use;
use crate::resolution::{Role, uses};

/// Most entries in one report: those used last.
const MAX_REPORTED: usize = 64;

/// The messages that this process converts in a role, of these methods.
pub(crate) fn converted(role: Role, of: &[MethodStats]) -> Vec<ConvertedStats> {
    let names: HashSet<&str> = of.iter().map(|stats| stats.name).collect();
    let mut found: Vec<_> = uses(role)
        .filter_map(|used| {
            let method = method_in_use(used.method)?;
            names.contains(method.name).then(|| ConvertedStats {
                method: method.name.to_owned(),
                own_schema: format!("{:016x}", used.hashes.0),
                peer_schema: format!("{:016x}", used.hashes.1),
                messages: used.messages,
                idle: used.idle,
            })
        })
        .collect();
    found.sort_by(|a, b| (a.idle, &a.method).cmp(&(b.idle, &b.method)));
    found.truncate(MAX_REPORTED);
    found
}
