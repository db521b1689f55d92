//! The options of balancing: which outcomes of calls speak against an end point, and what follows.

use std::time::Duration;

use super::outliers::OutlierLimits;
use super::picker::CallEnd;
use crate::status::Code;

/// Codes, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Codes(u32);

impl Codes {
    const fn new(codes: &[Code]) -> Self {
        let (mut bits, mut at) = (0, 0);
        while at < codes.len() {
            bits |= 1 << codes[at].number();
            at += 1;
        }
        Self(bits)
    }

    fn has(self, code: Code) -> bool {
        self.0 & (1 << code.number()) != 0
    }
}

/// How a channel to several servers judges them by the outcomes of its calls.
///
/// A call that ends with one of the [failures](BalancingPolicy::failures) speaks against its
/// server: each such call makes the server dearer for about a second, so its share of the calls
/// falls by about the part that fails, however fast it fails. A server that fails several times in
/// a row, or far more often than the others, is *ejected*: it gets no calls for a while.
///
/// `ResourceExhausted` never ejects: a server that refuses what it cannot do still serves the rest.
/// Calls that fail because their connection was lost do not either.
///
/// ```
/// use rpc_core::client::BalancingPolicy;
/// use rpc_core::client::resolve::StaticList;
/// use rpc_core::{Channel, Code};
///
/// # fn channel() -> Result<Channel, Box<dyn std::error::Error>> {
/// let policy = BalancingPolicy::new()
///     .consecutive_failures(3)
///     .failures_of("Reports", [Code::Unavailable]); // Internal is this service's own business
/// let servers = StaticList::new(["auto://10.0.0.7:7471", "auto://10.0.0.8:7471"])?;
/// let channel = Channel::builder().balancing(policy).connect_balanced(servers)?;
/// # Ok(channel) }
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct BalancingPolicy {
    failures: Codes,
    failures_of: Vec<(String, Codes)>,
    pub(crate) limits: OutlierLimits,
    pub(crate) slow_start: Duration,
    pub(crate) health_service: Option<String>,
    pub(crate) resolve_every: Option<Duration>,
    pub(crate) subset: Option<usize>,
    pub(crate) zone: Option<String>,
}

impl Default for BalancingPolicy {
    fn default() -> Self {
        Self::new()
    }
}

impl BalancingPolicy {
    /// The defaults of all options.
    #[must_use]
    pub const fn new() -> Self {
        use Code::{DataLoss, DeadlineExceeded, Internal, ResourceExhausted, Unavailable, Unknown};
        let failures =
            [Unavailable, Internal, Unknown, DataLoss, ResourceExhausted, DeadlineExceeded];
        Self {
            failures: Codes::new(&failures),
            failures_of: Vec::new(),
            limits: OutlierLimits { in_a_row: 5, time_out: Duration::from_secs(10) },
            slow_start: Duration::from_secs(10),
            health_service: None,
            resolve_every: Some(Duration::from_secs(30)),
            subset: None,
            zone: None,
        }
    }

    /// The codes that speak against a server, for all services without codes of their own. Default:
    /// `Unavailable`, `Internal`, `Unknown`, `DataLoss`, `ResourceExhausted` and
    /// `DeadlineExceeded`. All other codes, and a method's own errors, are answers.
    #[must_use]
    pub fn failures(mut self, codes: impl IntoIterator<Item = Code>) -> Self {
        self.failures = Codes::new(&codes.into_iter().collect::<Vec<_>>());
        self
    }

    /// The codes that speak against a server, for calls of one service: `Kv`, not `Kv.get`.
    #[must_use]
    pub fn failures_of(
        mut self,
        service: impl Into<String>,
        codes: impl IntoIterator<Item = Code>,
    ) -> Self {
        let (service, codes) = (service.into(), Codes::new(&codes.into_iter().collect::<Vec<_>>()));
        self.failures_of.retain(|(known, _)| *known != service);
        self.failures_of.push((service, codes));
        self
    }

    /// Failures in a row that eject a server. Default 5; 0: servers are ejected for their success
    /// rate only.
    #[must_use]
    pub const fn consecutive_failures(mut self, count: u32) -> Self {
        self.limits.in_a_row = count;
        self
    }

    /// How long a server is ejected the first time. Default 10 s, with a jitter of a tenth. Each
    /// further time is twice as long, up to five minutes; a server that was well for as long as it
    /// was ejected starts over. At most a third of the servers are ejected at once, so of two
    /// servers none is.
    #[must_use]
    pub const fn ejection_time(mut self, time: Duration) -> Self {
        self.limits.time_out = time;
        self
    }

    /// How long it takes until a server that comes to others, or comes back, has its whole share of
    /// the calls: a tenth at first, then more in proportion to the time. Default 10 s; zero: at
    /// once.
    #[must_use]
    pub const fn slow_start(mut self, time: Duration) -> Self {
        self.slow_start = time;
        self
    }

    /// Watches the [health](crate::health) of this service at each server, "" for that of the whole
    /// server. A server that is `NotServing` gets no new calls, one that is `Draining` only if
    /// there is no other. Default: health is not asked for.
    ///
    /// The watch is a call on each connection, so
    /// [`max_connection_idle`](crate::ChannelBuilder::max_connection_idle) does not end them. It
    /// has no metadata: servers that require some need
    /// [`open_health`](crate::ServerBuilder::open_health). A server that does not tell its health
    /// counts as serving: from the third watch on that fails, if it has told it before.
    #[cfg(feature = "macros")]
    #[must_use]
    pub fn health_service(mut self, service: impl Into<String>) -> Self {
        self.health_service = Some(service.into());
        self
    }

    /// How often the resolver is asked, from the first call on, while a server is connected: new
    /// servers get calls, and servers that are named no longer get none, within that time. Default
    /// 30 s, at least 1 s; `None`: only when connections are missing. A resolver
    /// that [watches](crate::client::resolve::Resolve::watch) its servers is not asked for that.
    #[must_use]
    pub fn resolve_every(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.resolve_every = time.into();
        self
    }

    /// Most servers of one priority that the channel connects to. Where there are more, each
    /// channel chooses its own, so that all servers get about the same number of channels. Default
    /// 32; 8 where a server has an `rdma://` address, as each connection takes a queue pair of the
    /// NIC.
    ///
    /// With few channels, a server may be chosen by none: keep the count times the number of
    /// channels at several times the number of servers.
    #[must_use]
    pub const fn subset(mut self, count: usize) -> Self {
        self.subset = Some(count);
        self
    }

    /// The zone of this channel: servers of the same zone get all calls, unless none of them is
    /// ready, or calls take more than twice as long there as elsewhere. Default: there are no
    /// zones.
    #[must_use]
    pub fn zone(mut self, zone: impl Into<String>) -> Self {
        self.zone = Some(zone.into());
        self
    }

    /// What the end of a call of this method, `Service.method`, means for its end point.
    #[must_use]
    pub(crate) fn end(&self, method: &str, code: Code) -> CallEnd {
        let service = method.rsplit_once('.').map_or(method, |(service, _)| service);
        let own = self.failures_of.iter().find(|(known, _)| known == service);
        let is_failure = own.map_or(self.failures, |(_, codes)| *codes).has(code);
        match (is_failure, code) {
            (true, Code::Unavailable) => CallEnd::Refused,
            (true, Code::ResourceExhausted) => CallEnd::Shed,
            (true, Code::DeadlineExceeded) => CallEnd::TimedOut,
            (true, _) => CallEnd::Failed,
            (false, Code::DeadlineExceeded) => CallEnd::GivenUp,
            (false, _) => CallEnd::Answered,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_service_has_its_own_failures() {
        let policy = BalancingPolicy::new()
            .failures_of("Reports", [Code::NotFound])
            .failures_of("a.Reports", []);
        for (method, code, end) in [
            ("Kv.get", Code::Internal, CallEnd::Failed),
            ("Kv.get", Code::NotFound, CallEnd::Answered),
            ("Kv.get", Code::Unavailable, CallEnd::Refused),
            ("Kv.get", Code::ResourceExhausted, CallEnd::Shed),
            ("Kv.get", Code::DeadlineExceeded, CallEnd::TimedOut),
            ("Reports.make", Code::NotFound, CallEnd::Failed),
            ("Reports.make", Code::Internal, CallEnd::Answered),
            ("a.Reports.make", Code::Unavailable, CallEnd::Answered),
            ("a.Reports.make", Code::DeadlineExceeded, CallEnd::GivenUp),
        ] {
            assert_eq!(policy.end(method, code), end, "{method} {code:?}");
        }
    }
}
