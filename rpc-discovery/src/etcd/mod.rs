//! Servers in etcd: a key each, below a prefix.

mod client;
mod register;
mod watch;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::unfold;
use rpc_core::client::resolve::{Resolve, ResolveError, Resolving, Watching};
use rpc_core::transport::HostPort;

use self::client::Client;
use self::watch::Follower;
use crate::http::Security;
use crate::name_error::NameError;
use crate::protocol::etcd_follow::Follow;
use crate::protocol::etcd_messages::{Range, RangeReply, list};

/// Most members of a cluster.
const MAX_MEMBERS: usize = 16;
/// The port of etcd where none is named.
const PORT: u16 = 2379;

/// The servers below a prefix in etcd: a [resolver](Resolve) for channels, and a registry for
/// servers ([`ServerBuilder::register`](rpc_core::ServerBuilder::register)).
///
/// As a resolver it watches the prefix, so a channel learns of each change at once. It survives
/// compaction, restarts, a wiped or restored etcd, and members that stop answering without closing
/// their connections: see the guide, "Discovery and balancing".
///
/// As a registry it keeps one key per server, with a lease: a server that is killed is gone after
/// [`lease`](Self::lease). Values are JSON:
/// `{"v":1,"address":"auto://10.0.0.5:7000","weight":100,"zone":"a","metadata":{}}`. Entries that
/// cannot be read are left out, with a warning each.
///
/// Needs etcd 3.4 or later and its JSON gateway, which is on by default. Requests are encrypted
/// with the feature `tls` and its `Etcd::tls`.
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use rpc_core::{Channel, Server};
/// use rpc_discovery::Etcd;
///
/// let servers: Etcd = "etcd://10.0.0.1:2379,10.0.0.2:2379/rpc/kv".parse()?;
/// let channel = Channel::builder().connect_balanced(servers.clone())?;
///
/// let server = Server::builder()
///     .register(servers.advertise("auto://10.0.0.5:7000".parse()?).zone("a"))
///     .bind("auto://0.0.0.0:7000")
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Etcd {
    members: Vec<HostPort>,
    /// Ends with a `/`.
    prefix: String,
    user: Option<(String, String)>,
    limit: Duration,
    check_every: Duration,
    security: Security,
    announced: Announced,
}

/// What is registered of a server.
#[derive(Debug, Clone)]
struct Announced {
    address: Option<rpc_core::Address>,
    weight: u32,
    priority: u8,
    zone: Option<String>,
    metadata: BTreeMap<String, String>,
    lease: Duration,
}

impl std::str::FromStr for Etcd {
    type Err = NameError;

    /// Reads `etcd://host:port,host:port/prefix`: the members of the cluster, of which one must
    /// answer, and the prefix of the keys. The port is 2379 where it is left out.
    fn from_str(name: &str) -> Result<Self, NameError> {
        let wrong = |reason: &str| NameError::new(name, reason);
        let form = "write etcd://host:port,host:port/prefix";
        let rest = name.strip_prefix("etcd://").ok_or_else(|| wrong(form))?;
        let (hosts, prefix) = rest.split_once('/').ok_or_else(|| {
            wrong("the prefix of the keys is missing: write etcd://host:port/rpc/SERVICE")
        })?;
        let prefix = prefix.trim_matches('/');
        if prefix.is_empty() || !rpc_core::text::is_printable(prefix) {
            return Err(wrong("the prefix of the keys is missing, or has control characters"));
        }
        if hosts.contains('@') {
            return Err(wrong("a password does not belong into a name: use `Etcd::user`"));
        }
        let members = hosts.split(',').map(|host| {
            // An address of tcp has the same form.
            let full = match host.rsplit_once(':') {
                Some((_, port)) if port.parse::<u16>().is_ok() => format!("tcp://{host}"),
                _ => format!("tcp://{host}:{PORT}"),
            };
            match full.parse() {
                Ok(rpc_core::Address::Tcp(at)) if at.port != 0 => Ok(at),
                _ => Err(wrong(&format!("`{host}` is not host:port; {form}"))),
            }
        });
        let members: Vec<HostPort> = members.collect::<Result<_, _>>()?;
        if members.len() > MAX_MEMBERS {
            return Err(wrong(&format!("more than {MAX_MEMBERS} members")));
        }
        Ok(Self {
            members,
            prefix: format!("/{prefix}/"),
            user: None,
            limit: Duration::from_secs(3),
            check_every: Duration::from_secs(10),
            security: Security::None,
            announced: Announced {
                address: None,
                weight: 100,
                priority: 0,
                zone: None,
                metadata: BTreeMap::new(),
                lease: Duration::from_secs(10),
            },
        })
    }
}

impl Etcd {
    /// The user that etcd knows this process as. Without
    /// TLS (feature `tls`), the password can be read on the way.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.user = Some((name.into(), password.into()));
        self
    }

    /// Encrypts requests, to all members. Default: requests are in clear.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: crate::tls::RegistryTls) -> Self {
        self.security = Security::Tls(tls);
        self
    }

    /// Time limit of a request to one member. Default 3 s, at least 10 ms.
    #[must_use]
    pub fn request_timeout(mut self, limit: Duration) -> Self {
        self.limit = limit.max(Duration::from_millis(10));
        self
    }

    /// How often a resolver checks that its watch still reports changes. Default 10 s, at least 100
    /// ms. A member that hangs is noticed within this time and
    /// [`request_timeout`](Self::request_timeout).
    #[must_use]
    pub fn check_every(mut self, interval: Duration) -> Self {
        self.check_every = interval.max(Duration::from_millis(100));
        self
    }

    /// Registers this address of the server. Needed if the server listens at a wildcard address,
    /// such as `auto://0.0.0.0:7000`. Port 0 becomes the port that the server listens at. Default:
    /// the first address that it is bound to.
    #[must_use]
    pub fn advertise(mut self, address: rpc_core::Address) -> Self {
        self.announced.address = Some(address);
        self
    }

    /// Registers this weight: see
    /// [`Endpoint::with_weight`](rpc_core::client::resolve::Endpoint::with_weight). Default 100.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.announced.weight = weight;
        self
    }

    /// Registers this priority: see
    /// [`Endpoint::with_priority`](rpc_core::client::resolve::Endpoint::with_priority). Default 0.
    #[must_use]
    pub fn priority(mut self, priority: u8) -> Self {
        self.announced.priority = priority;
        self
    }

    /// Registers this zone: see
    /// [`Endpoint::with_zone`](rpc_core::client::resolve::Endpoint::with_zone).
    #[must_use]
    pub fn zone(mut self, zone: impl Into<String>) -> Self {
        self.announced.zone = Some(zone.into());
        self
    }

    /// Registers a word for operators, such as a version. Channels ignore it. At most 16 of them,
    /// and 4 KiB in all.
    #[must_use]
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.announced.metadata.insert(name.into(), value.into());
        self
    }

    /// Time after which a server that no longer renews its registration is gone. Default 10 s;
    /// whole seconds, at least 2.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.announced.lease = lease;
        self
    }

    fn client(&self) -> Client {
        Client::new(self.members.clone(), self.user.clone(), self.limit, self.security.clone())
    }
}

impl fmt::Display for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members: Vec<String> = self.members.iter().map(HostPort::to_string).collect();
        write!(f, "etcd://{}{}", members.join(","), self.prefix.trim_end_matches('/'))
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the password.
        f.debug_struct("Etcd")
            .field("name", &self.to_string())
            .field("announced", &self.announced)
            .finish_non_exhaustive()
    }
}

impl Resolve for Etcd {
    fn name(&self) -> String {
        self.to_string()
    }

    fn resolve(&self) -> Resolving<'_> {
        Box::pin(async move {
            let (client, range) = (self.client(), Range::below(&self.prefix));
            let listed = client.call::<RangeReply>("kv/range", &list(&range)).await;
            let (_, listed) =
                listed.map_err(|error| ResolveError::new(self.to_string(), error.to_string()))?;
            let mut follow = Follow::new(self.prefix.clone());
            follow.on_list(listed);
            Ok(follow.servers())
        })
    }

    fn watch(&self) -> Option<Watching<'_>> {
        let follower =
            Follower::new(Arc::new(self.client()), self.prefix.clone(), self.check_every);
        Some(Box::pin(unfold(follower, async move |mut follower| {
            let told = follower.next().await;
            let told = told.map_err(|error| ResolveError::new(self.to_string(), error.to_string()));
            Some((told, follower))
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_etcd_are_read() {
        for (name, shown) in [
            ("etcd://a:1,b:2/rpc/kv", "etcd://a:1,b:2/rpc/kv"),
            ("etcd://a/rpc/kv/", "etcd://a:2379/rpc/kv"),
            ("etcd://[::1]:7//kv", "etcd://[::1]:7/kv"),
            ("etcd://[::1]/kv", "etcd://[::1]:2379/kv"),
        ] {
            assert_eq!(name.parse::<Etcd>().unwrap().to_string(), shown);
        }
        for (name, part) in [
            ("etcd:/a/b", "write etcd://"),
            ("etcd://a:1", "prefix"),
            ("etcd://a:1/", "prefix"),
            ("etcd://a:1/\u{7}", "control"),
            ("etcd:///kv", "not host:port"),
            ("etcd://a:0/kv", "not host:port"),
            ("etcd://a,/kv", "not host:port"),
            ("etcd://u:p@a:1/kv", "Etcd::user"),
        ] {
            let error = name.parse::<Etcd>().unwrap_err().to_string();
            assert!(error.contains(part), "{name}: {error}");
        }
    }

    #[test]
    fn the_password_is_not_shown() {
        let etcd = "etcd://a/kv".parse::<Etcd>().unwrap().user("ada", "s3cret");
        assert!(!format!("{etcd:?}").contains("s3cret"));
    }
}
