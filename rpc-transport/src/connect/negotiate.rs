//! `auto://`: the best transport to a server, found by one exchange over TCP.
//!
//! Owns the messages of that exchange, and the choice. The server answers with its host, network
//! namespace and user. A client with the same three uses shared memory; any other client uses the
//! TCP connection that it already holds. If shared memory is chosen and fails at either end, the
//! client connects to the port again, by TCP. With the `verbs` feature a client that has an RDMA
//! device tries RDMA before TCP: resolving the route may take one second, and connecting half of
//! the remaining time.
//!
//! The shared memory rendezvous has an abstract name with 128 random bits that only the exchange
//! reveals, so the process that answers there is the server that was asked: the name is the cookie.
//!
//! Invariant: a transport that cannot be used only costs the attempt, never the connection; the
//! reason text names it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::address::{Address, HostPort, LocalEnd};
use crate::connect::resolved::Resolved;
use crate::device::connection_error::{ConnectError, ListenError};
use crate::device::soft;
use crate::device::{Connector, Exchange, Incoming, Listener, Outgoing};
use crate::place::Place;
use crate::text::{is_printable, printable};

/// First byte of both messages.
const VERSION: u8 = 1;
/// Longest time for an attempt to use a better transport than TCP.
const BETTER_WAY_BUDGET: Duration = Duration::from_secs(1);

impl Place {
    fn is_unknown(&self) -> bool {
        self.boot.is_empty() || self.namespace.is_empty()
    }

    /// Why memory cannot be shared with the process at the other end; `None` if it can.
    fn apart_from(&self, there: &Self) -> Option<&'static str> {
        if self.is_unknown() {
            Some("cannot tell whether the server is on this host: /proc is missing here")
        } else if there.is_unknown() {
            Some("cannot tell whether the server is on this host: /proc is missing at the server")
        } else if self.boot != there.boot {
            Some("the server is on another host")
        } else if self.namespace != there.namespace {
            Some("the server is in another network namespace")
        } else if self.user != there.user {
            Some("the server runs as another user")
        } else {
            None
        }
    }
}

/// The server's answer.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    place: Place,
    /// Abstract name of the shared memory rendezvous; empty if there is none.
    shm: String,
    /// Why there is none; empty if there is one, and from servers that give no reason.
    why_no_shm: String,
    /// Port of the RDMA listener; 0 if there is none.
    rdma_port: u16,
}

impl Answer {
    /// `version u8, user u32, rdma port u16`, then `boot`, `namespace` and `shm`, each as a length
    /// byte and its bytes; then `why_no_shm` in the same form, unless it is empty.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&self.place.user.to_le_bytes());
        bytes.extend_from_slice(&self.rdma_port.to_le_bytes());
        let mut push = |text: &str| {
            let end = (0..=text.len().min(255)).rfind(|at| text.is_char_boundary(*at));
            let text = &text.as_bytes()[..end.unwrap_or(0)];
            bytes.extend(u8::try_from(text.len()));
            bytes.extend_from_slice(text);
        };
        for text in [&self.place.boot, &self.place.namespace, &self.shm] {
            push(text);
        }
        if !self.why_no_shm.is_empty() {
            push(&self.why_no_shm);
        }
        bytes
    }

    /// `None` for bytes that are no such answer. Bytes after the answer belong to a later version
    /// and are ignored.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (&version, rest) = bytes.split_first()?;
        if version != VERSION {
            return None;
        }
        let (user, rest) = rest.split_first_chunk::<4>()?;
        let (rdma_port, mut rest) = rest.split_first_chunk::<2>()?;
        let mut text = || {
            let (&len, tail) = rest.split_first()?;
            let (text, tail) = tail.split_at_checked(len.into())?;
            rest = tail;
            String::from_utf8(text.to_vec()).ok()
        };
        let (boot, namespace, shm) = (text()?, text()?, text()?);
        let why_no_shm = text().unwrap_or_default();
        let place = Place { boot, namespace, user: u32::from_le_bytes(*user) };
        let rdma_port = u16::from_le_bytes(*rdma_port);
        Some(Self { place, shm, why_no_shm, rdma_port })
    }
}

/// Asks the server, and chooses the best transport to it.
///
/// # Errors
/// [`ConnectError`] when not even TCP works.
pub(crate) async fn resolve(at: &HostPort, local: &LocalEnd) -> Result<Resolved, ConnectError> {
    let probed = soft::TcpConnector.probe(at, &[VERSION]).await;
    let (answer, tcp) = probed.map_err(|error| as_asked_to_connect(error, local))?;
    let exchange = Exchange { question: vec![VERSION], answer };
    let mut resolved = choose(at, local, &exchange.answer, tcp).await?;
    // A server that only offers tcp:// does not know what it answered.
    resolved.exchange = Answer::decode(&exchange.answer).is_some().then(|| Arc::new(exchange));
    Ok(resolved)
}

/// Chooses the best transport by the server's answer. `tcp` is the connection that it came on.
async fn choose(
    at: &HostPort,
    local: &LocalEnd,
    answer: &[u8],
    tcp: Box<dyn Outgoing>,
) -> Result<Resolved, ConnectError> {
    let Some(answer) = Answer::decode(answer) else {
        let reason = "tcp: the server only offers tcp:// at this address".to_owned();
        return Ok(Resolved::new(tcp, Address::Tcp(at.clone()), reason));
    };
    let mut reasons = Vec::new();
    let port = Address::Tcp(at.clone());
    match Place::here().apart_from(&answer.place) {
        Some(apart) => reasons.push(apart.to_owned()),
        None if answer.shm.is_empty() && answer.why_no_shm.is_empty() => {
            reasons.push("the server offers no shared memory".to_owned());
        }
        None if answer.shm.is_empty() => {
            reasons.push(format!(
                "the server offers no shared memory: {}",
                printable(&answer.why_no_shm)
            ));
        }
        None => match resolve_shm(&answer.shm).await {
            Ok(mut resolved) => {
                resolved.otherwise = Some((port, String::new()));
                return Ok(resolved);
            }
            Err(why) => reasons.push(format!("shared memory failed: {why}")),
        },
    }
    let rdma = resolve_rdma(at, answer.rdma_port, local).await;
    match rdma {
        Ok(mut resolved) => {
            resolved.otherwise = Some((port, reasons.join("; ")));
            reasons.push("RDMA devices on both sides".to_owned());
            resolved.reason = reasons.join("; ");
            Ok(resolved)
        }
        Err(why) => {
            reasons.push(why);
            Ok(Resolved::new(tcp, port, reasons.join("; ")))
        }
    }
}

async fn resolve_shm(name: &str) -> Result<Resolved, String> {
    if name.is_empty() {
        return Err("the server names no rendezvous".to_owned());
    }
    if !is_printable(name) {
        return Err("the server names a rendezvous with unprintable characters".to_owned());
    }
    let address: Address = format!("shm://{name}").parse().map_err(|error| format!("{error}"))?;
    let connector = soft::ShmConnector::default();
    let resolving = connector.resolve(&address);
    match tokio::time::timeout(BETTER_WAY_BUDGET, resolving).await {
        Ok(Ok(outgoing)) => {
            let reason = "same host, network namespace and user".to_owned();
            Ok(Resolved::new(outgoing, address, reason))
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {BETTER_WAY_BUDGET:?}")),
    }
}

#[cfg(not(feature = "verbs"))]
async fn resolve_rdma(_at: &HostPort, _port: u16, _local: &LocalEnd) -> Result<Resolved, String> {
    Err("no RDMA in this build".to_owned())
}

#[cfg(feature = "verbs")]
async fn resolve_rdma(at: &HostPort, port: u16, local: &LocalEnd) -> Result<Resolved, String> {
    if port == 0 {
        return Err("the server offers no RDMA".to_owned());
    }
    let address = Address::Rdma(HostPort { host: at.host.clone(), port }, Box::new(local.clone()));
    match tokio::time::timeout(BETTER_WAY_BUDGET, crate::connect::rdma::resolve(&address)).await {
        Ok(Ok(resolved)) => Ok(resolved),
        Ok(Err(error)) => Err(format!("RDMA failed: {error}")),
        Err(_) => Err(format!("RDMA: no answer within {BETTER_WAY_BUDGET:?}")),
    }
}

/// The RDMA listener to offer to clients. None if this process has a `lack` of locked memory, since
/// the listener would refuse every client. The lack is logged only if there is a device, since
/// other machines need no locked memory.
fn offered(
    listening: Result<Box<dyn Listener>, ListenError>,
    local: &LocalEnd,
    lack: Option<String>,
) -> Option<Box<dyn Listener>> {
    match (listening, lack) {
        (Ok(listener), None) => Some(listener),
        (Ok(_), Some(lack)) => {
            tracing::warn!("no RDMA for this auto:// address: {lack}");
            None
        }
        (Err(error), _) if *local != LocalEnd::default() => {
            tracing::warn!(%error, "no RDMA for this auto:// address, which names a device or a \
                                    source");
            None
        }
        (Err(error), _) => {
            tracing::debug!(%error, "no RDMA for this auto:// address");
            None
        }
    }
}

fn rdma_port(listener: Option<&dyn Listener>) -> u16 {
    match listener.map(Listener::local_address) {
        Some(Address::Rdma(at, _)) => at.port,
        _ => 0,
    }
}

/// The next request of an optional listener; never resolves without one.
async fn incoming(
    listener: &mut Option<Box<dyn Listener>>,
) -> Result<Box<dyn Incoming>, ListenError> {
    match listener {
        Some(listener) => listener.incoming().await,
        None => std::future::pending().await,
    }
}

/// Opens the TCP port and a shared memory rendezvous, and answers the exchange on the port. Offers
/// RDMA unless this process has a `lack` of locked memory.
///
/// # Errors
/// [`ListenError`]: the port cannot be opened.
pub(crate) async fn listen(
    at: &HostPort,
    local: &LocalEnd,
    lack: Option<String>,
) -> Result<Box<dyn Listener>, ListenError> {
    let shm = listen_shm();
    let (name, why_no_shm) = match &shm {
        Ok((name, _)) => (name.clone(), String::new()),
        Err(error) => {
            tracing::warn!(%error, "no shared memory for this auto:// address");
            let why = match error {
                ListenError::Unavailable { reason, .. } | ListenError::Failed { reason, .. } => {
                    reason.clone()
                }
                other => other.to_string(),
            };
            (String::new(), why)
        }
    };
    // At a separate port, if there is a device.
    let rdma = HostPort { host: at.host.clone(), port: 0 };
    let rdma = Address::Rdma(rdma, Box::new(local.clone()));
    let rdma = offered(crate::connect::rdma::listen(&rdma).await, local, lack);
    let rdma_port = rdma_port(rdma.as_deref());
    let answer = Answer { place: Place::here(), shm: name, why_no_shm, rdma_port }.encode();
    let exchange = Arc::new(Exchange { question: vec![VERSION], answer: answer.clone() });
    let listening = soft::listen_tcp(at, Some(Arc::new(move |_: &[u8]| answer.clone()))).await;
    let tcp = listening.map_err(|error| as_asked_to_listen(error, local))?;
    let shm = shm.ok().map(|(_, listener)| listener);
    Ok(Box::new(AutoListener { tcp, shm, rdma, exchange }))
}

/// The address as the user wrote it, not the one of the transport that was tried.
fn as_asked(address: Address, local: &LocalEnd) -> Address {
    match address {
        Address::Tcp(at) => Address::Auto(at, Box::new(local.clone())),
        other => other,
    }
}

fn as_asked_to_connect(error: ConnectError, local: &LocalEnd) -> ConnectError {
    match error {
        ConnectError::Refused { address, reason } => {
            ConnectError::Refused { address: as_asked(address, local), reason }
        }
        ConnectError::Unreachable { address, reason } => {
            ConnectError::Unreachable { address: as_asked(address, local), reason }
        }
        ConnectError::TimedOut { address, after, phase } => {
            ConnectError::TimedOut { address: as_asked(address, local), after, phase }
        }
        ConnectError::Protocol { address, reason } => {
            ConnectError::Protocol { address: as_asked(address, local), reason }
        }
        other => other,
    }
}

fn as_asked_to_listen(error: ListenError, local: &LocalEnd) -> ListenError {
    match error {
        ListenError::InUse { address, reason } => {
            ListenError::InUse { address: as_asked(address, local), reason }
        }
        ListenError::Failed { address, reason } => {
            ListenError::Failed { address: as_asked(address, local), reason }
        }
        other => other,
    }
}

fn listen_shm() -> Result<(String, Box<dyn Listener>), ListenError> {
    let name = format!("auto-{:016x}{:016x}", random(), random());
    let listener = soft::listen_shm(&Address::ShmName(name.clone()))?;
    Ok((name, listener))
}

/// 64 bits from the operating system's generator, through the standard library's hash keys.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::time::SystemTime::now())
}

/// The listeners of all transports of this server, as one.
struct AutoListener {
    tcp: Box<dyn Listener>,
    shm: Option<Box<dyn Listener>>,
    rdma: Option<Box<dyn Listener>>,
    exchange: Arc<Exchange>,
}

#[async_trait]
impl Listener for AutoListener {
    fn local_address(&self) -> Address {
        as_asked(self.tcp.local_address(), &LocalEnd::default())
    }

    fn exchange(&self) -> Option<Arc<Exchange>> {
        Some(Arc::clone(&self.exchange))
    }

    async fn incoming(&mut self) -> Result<Box<dyn Incoming>, ListenError> {
        tokio::select! {
            request = incoming(&mut self.shm) => request,
            request = incoming(&mut self.rdma) => request,
            request = self.tcp.incoming() => request,
        }
    }
}

impl fmt::Debug for AutoListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AutoListener").field("address", &self.local_address()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> Answer {
        let place = Place { boot: "b".repeat(36), namespace: "net:[1]".to_owned(), user: 1000 };
        Answer { place, shm: "auto-1".to_owned(), why_no_shm: String::new(), rdma_port: 7 }
    }

    #[test]
    fn answer_round_trips_and_truncated_ones_are_refused() {
        let bytes = answer().encode();
        assert_eq!(Answer::decode(&bytes), Some(answer()));
        for end in 0..bytes.len() {
            assert_eq!(Answer::decode(&bytes[..end]), None, "{end}");
        }
        let mut later = bytes.clone();
        later[0] = VERSION + 1;
        assert_eq!(Answer::decode(&later), None);
    }

    #[test]
    fn answer_gives_the_reason_against_shared_memory() {
        let why = "memfd_create is refused".to_owned();
        let refused = Answer { shm: String::new(), why_no_shm: why, ..answer() };
        let bytes = refused.encode();
        assert_eq!(Answer::decode(&bytes), Some(refused));
        let long = Answer { why_no_shm: format!("x{}", "\u{e4}".repeat(200)), ..answer() };
        let cut = Answer::decode(&long.encode()).unwrap().why_no_shm;
        assert!(cut.len() == 255 && long.why_no_shm.starts_with(&cut), "{cut}");
    }

    #[derive(Debug)]
    struct Opened;

    #[async_trait]
    impl Listener for Opened {
        fn local_address(&self) -> Address {
            "rdma://10.0.0.1:7".parse().unwrap()
        }

        async fn incoming(&mut self) -> Result<Box<dyn Incoming>, ListenError> {
            std::future::pending().await
        }
    }

    /// A regression: clients with a device chose RDMA, and were refused each time.
    #[test]
    fn rdma_is_not_offered_without_enough_lockable_memory() {
        let port = |lack: Option<&str>| {
            let lack = lack.map(ToOwned::to_owned);
            rdma_port(offered(Ok(Box::new(Opened)), &LocalEnd::default(), lack).as_deref())
        };
        assert_eq!(port(None), 7);
        assert_eq!(port(Some("the limit is 65536 bytes")), 0);
    }

    #[test]
    fn shared_memory_requires_same_boot_namespace_and_user() {
        let here = answer().place;
        assert_eq!(here.apart_from(&here.clone()), None);
        let other = |change: fn(&mut Place)| {
            let mut there = here.clone();
            change(&mut there);
            here.apart_from(&there).unwrap()
        };
        assert!(other(|place| place.boot.push('x')).contains("another host"));
        assert!(other(|place| place.namespace.push('x')).contains("namespace"));
        assert!(other(|place| place.user += 1).contains("another user"));
        let nowhere = Place { boot: String::new(), ..here.clone() };
        assert!(nowhere.apart_from(&nowhere.clone()).is_some());
        for unknown in [nowhere, Place { namespace: String::new(), ..here.clone() }] {
            assert!(unknown.apart_from(&here).unwrap().contains("/proc is missing here"));
            assert!(here.apart_from(&unknown).unwrap().contains("/proc is missing at the server"));
        }
    }
}
