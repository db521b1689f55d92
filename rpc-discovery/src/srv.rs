//! Servers in DNS, by SRV records.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::{Duration, Instant};

use futures::stream::unfold;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use rpc_core::client::resolve::{Endpoint, Resolve, ResolveError, Resolving, Watching};
use rpc_transport::log_limit::LogLimit;

use crate::name_error::NameError;
use crate::protocol::jitter::full_jitter;
use crate::protocol::problems::Problems;
use crate::protocol::records::{Srv as Found, fresh_for, servers};
use crate::random::random;

/// Time limit of one query, and how often it is sent.
const QUERY_LIMIT: Duration = Duration::from_millis(1500);
const ATTEMPTS: usize = 2;

static BAD_RECORDS: LogLimit = LogLimit::new("SRV records that are left out");

/// The servers that SRV records of a name list, each with its port, weight and priority. Asked
/// again when the records' time to live has passed, from 1 s to 5 min.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use rpc_discovery::Srv;
///
/// let servers: Srv = "srv://_rpc._tcp.kv.example".parse()?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Srv {
    name: Name,
    name_server: Option<SocketAddr>,
}

impl FromStr for Srv {
    type Err = NameError;

    /// Reads `srv://_service._tcp.domain`.
    fn from_str(name: &str) -> Result<Self, NameError> {
        let wrong = |reason: String| NameError::new(name, reason);
        let form = "write srv://_rpc._tcp.kv.example";
        let host = name.strip_prefix("srv://").ok_or_else(|| wrong(form.to_owned()))?;
        let is_plain = !host.is_empty() && host.chars().all(|c| c.is_ascii_graphic() && c != '/');
        if !is_plain {
            return Err(wrong(form.to_owned()));
        }
        let mut name = Name::from_str(host).map_err(|error| wrong(format!("{error}; {form}")))?;
        // The domains that a host searches are for people.
        name.set_fqdn(true);
        Ok(Self { name, name_server: None })
    }
}

impl Srv {
    /// Asks this name server. Default: those of the host.
    #[must_use]
    pub fn name_server(mut self, address: SocketAddr) -> Self {
        self.name_server = Some(address);
        self
    }

    fn resolver(&self) -> Result<TokioResolver, String> {
        let mut builder = match self.name_server {
            None => TokioResolver::builder_tokio().map_err(|error| error.to_string())?,
            Some(address) => {
                let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
                let connections = connections.map(|mut it| {
                    it.port = address.port();
                    it
                });
                let server = NameServerConfig::new(address.ip(), true, connections.into());
                let config = ResolverConfig::from_name_servers(vec![server]);
                TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
            }
        };
        let options = builder.options_mut();
        // What an answer is worth is counted here.
        options.cache_size = 0;
        options.timeout = QUERY_LIMIT;
        options.attempts = ATTEMPTS;
        builder.build().map_err(|error| error.to_string())
    }

    /// The servers, and for how long they count.
    async fn ask(&self) -> Result<(Vec<Endpoint>, Duration), ResolveError> {
        let failed = |reason: String| ResolveError::new(self.name(), reason);
        let resolver = self.resolver().map_err(failed)?;
        let answer = resolver.lookup(self.name.clone(), RecordType::SRV).await;
        let answer = answer.map_err(|error| {
            let error = rpc_core::text::printable(&error.to_string()).to_string();
            failed(format!("{error}; check the name, and that its domain has SRV records"))
        })?;
        let mut addresses = BTreeMap::<String, Vec<IpAddr>>::new();
        for record in answer.additionals() {
            if let Some(ip) = record.data.ip_addr() {
                addresses.entry(record.name.to_ascii()).or_default().push(ip);
            }
        }
        let records: Vec<Found> = answer
            .answers()
            .iter()
            .filter_map(|record| match &record.data {
                RData::SRV(it) => Some(Found {
                    priority: it.priority,
                    weight: it.weight,
                    port: it.port,
                    target: it.target.to_ascii(),
                }),
                _ => None,
            })
            .collect();
        let mut problems = Problems::default();
        let servers = servers(&records, &addresses, &mut problems);
        let (lines, beyond) = problems.take();
        for line in lines {
            BAD_RECORDS.fault(Instant::now(), || {
                tracing::warn!(beyond, "an SRV record is left out: {line}");
            });
        }
        let ttl = answer.valid_until().saturating_duration_since(Instant::now());
        Ok((servers, fresh_for(ttl)))
    }
}

impl Resolve for Srv {
    fn name(&self) -> String {
        format!("srv://{}", self.name.to_ascii().trim_end_matches('.'))
    }

    fn resolve(&self) -> Resolving<'_> {
        Box::pin(async move { self.ask().await.map(|(servers, _)| servers) })
    }

    fn watch(&self) -> Option<Watching<'_>> {
        // How long to wait before the next question, and failures in a row.
        let first = (Duration::ZERO, 0_u32);
        Some(Box::pin(unfold(first, async move |(wait, failures)| {
            tokio::time::sleep(wait).await;
            match self.ask().await {
                Ok((servers, fresh_for)) => Some((Ok(servers), (fresh_for, 0))),
                Err(error) => {
                    let failures = failures.saturating_add(1);
                    Some((Err(error), (full_jitter(failures, random()), failures)))
                }
            }
        })))
    }
}
