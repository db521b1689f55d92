//! Port counters that a network for RDMA should not raise: packets sent again, out of order, or
//! refused for lack of a RECV.
//!
//! Counters are the driver's own, under the driver's names; they count all programs, since the
//! device came up. Those of mlx5, bnxt_re, irdma, efa and rxe are known.

use std::fs;
use std::path::Path;

/// Names of packets that were sent again, lost or out of order, as drivers have them.
const LOSSES: [&str; 17] = [
    // mlx5
    "local_ack_timeout_err",
    "packet_seq_err",
    "out_of_sequence",
    "implied_nak_seq_err",
    "roce_adp_retrans_to",
    "rx_icrc_encapsulated",
    // bnxt_re
    "to_retransmits",
    "seq_err_naks_rcvd",
    "oos_drop_count",
    // irdma
    "RetransSegs",
    "tcpRetransSegs",
    // efa
    "retrans_pkts",
    "retrans_timeout_events",
    // rxe
    "completer_retry_err",
    "rcvd_seq_err",
    "out_of_seq_request",
    "retry_exceeded_err",
];
/// Names of messages for which no RECV was posted, on either side. Connections of this crate cause
/// none: their credits ensure that.
const NOT_READY: [&str; 6] = [
    "rnr_nak_retry_err",
    "out_of_buffer",
    "rnr_naks_rcvd",
    "rcvd_rnr_err",
    "send_rnr_err",
    "retry_rnr_exceeded_err",
];

/// The counters that are not 0.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortCounters {
    /// Packets sent again, lost or out of order, by the driver's names.
    pub losses: Vec<(&'static str, u64)>,
    /// Messages for which there was no RECV.
    pub receiver_not_ready: Vec<(&'static str, u64)>,
}

impl PortCounters {
    /// Reads the counters of a port, by its directory in `/sys`.
    pub(super) fn of(port: &Path) -> Self {
        let read = |name: &'static str| {
            let text = fs::read_to_string(port.join("hw_counters").join(name)).ok()?;
            let count = text.trim().parse().ok().filter(|count| *count > 0)?;
            Some((name, count))
        };
        Self {
            losses: LOSSES.into_iter().filter_map(read).collect(),
            receiver_not_ready: NOT_READY.into_iter().filter_map(read).collect(),
        }
    }

    /// All of them, as text.
    pub(super) fn text(&self) -> Option<String> {
        let all = self.losses.iter().chain(&self.receiver_not_ready);
        let all: Vec<_> = all.map(|(name, count)| format!("{name} {count}")).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// Their meaning. `is_roce`: its packets travel over Ethernet, by UDP.
    pub(super) fn advice(&self, device: &str, port: u8, is_roce: bool) -> Vec<String> {
        let mut advice = Vec::new();
        if !self.losses.is_empty() {
            let cure = if is_roce {
                "; RoCE needs priority flow control or ECN on every switch of the path, for the \
                 traffic class used here"
            } else {
                ""
            };
            advice.push(format!(
                "{device} port {port} has retransmitted or lost packets since it came up; dead \
                 peers are one possible cause. If these counters grow under load, the network \
                 drops packets, and each one costs many times its bandwidth{cure}"
            ));
        }
        if !self.receiver_not_ready.is_empty() {
            advice.push(format!(
                "{device} port {port} has received messages for which no RECV was posted; another \
                 program causes them, as connections of this one never do"
            ));
        }
        advice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_nonzero_counters_are_reported() {
        let port = std::env::temp_dir().join(format!("rpc-port-counters-{}", std::process::id()));
        let counters = port.join("hw_counters");
        fs::create_dir_all(&counters).unwrap();
        for (name, text) in [
            ("out_of_sequence", "120\n"),
            ("packet_seq_err", "0\n"),
            ("local_ack_timeout_err", "garbage"),
            ("rnr_nak_retry_err", "3\n"),
            ("lifespan", "10\n"),
        ] {
            fs::write(counters.join(name), text).unwrap();
        }
        let found = PortCounters::of(&port);
        fs::remove_dir_all(&port).unwrap();
        assert_eq!(found.losses, [("out_of_sequence", 120)]);
        assert_eq!(found.receiver_not_ready, [("rnr_nak_retry_err", 3)]);
        assert_eq!(found.text().unwrap(), "out_of_sequence 120, rnr_nak_retry_err 3");
        assert_eq!(found.advice("mlx5_0", 1, true).len(), 2);
        let cure = |is_roce| found.advice("mlx5_0", 1, is_roce)[0].contains("flow control");
        assert!(cure(true) && !cure(false));
        let none = PortCounters::of(&port);
        assert_eq!((none.text(), none.advice("mlx5_0", 1, true)), (None, Vec::new()));
    }
}
