//! Servers of a Kubernetes service.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::unfold;
use hyper::{Method, StatusCode};
use rpc_core::Address;
use rpc_core::client::resolve::{Endpoint, Resolve, ResolveError, Resolving, Watching};
use rpc_core::text::printable;
use rpc_core::transport::HostPort;
use rpc_transport::log_limit::LogLimit;
use tokio::time::Instant;

use crate::http::{Answer, Asked, LineReader, Security, ask};
use crate::name_error::NameError;
use crate::protocol::jitter::full_jitter;
use crate::protocol::slices::{SliceList, Slices, Told};
use crate::random::random;
use crate::tls::RegistryTls;

/// Where Kubernetes puts what a pod needs to call its API server.
const ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Time limit of a request.
const LIMIT: Duration = Duration::from_secs(5);
/// How long a watch lasts, and how much longer it may be silent.
const WATCH_SECONDS: u64 = 240;
const WATCH_LEEWAY: Duration = Duration::from_secs(10);

static BAD_SLICES: LogLimit = LogLimit::new("EndpointSlices that are left out in part");

/// The pods behind a Kubernetes service, from its EndpointSlices, which are watched: those that are
/// ready, and those that are about to end as draining. A pod of a service with two IP families is
/// one server, at its IPv4 address.
///
/// The pod's service account needs the verbs `list` and `watch` of `endpointslices` in the group
/// `discovery.k8s.io`. Its token is read for each request, since it is replaced from time to time.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use rpc_discovery::Kubernetes;
///
/// let in_a_pod: Kubernetes = "k8s:///shop/kv:rpc".parse()?;
/// let by_kubectl_proxy: Kubernetes = "k8s://127.0.0.1:8001/shop/kv:7471".parse()?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Kubernetes {
    /// `None`: that of the cluster of this pod.
    api: Option<HostPort>,
    namespace: String,
    service: String,
    /// Name or number; empty: the only one.
    port: String,
    token_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    limit: Duration,
}

impl FromStr for Kubernetes {
    type Err = NameError;

    /// Reads `k8s:///namespace/service:port`, or `k8s://host:port/namespace/service:port` for an
    /// API server that is reached without TLS, such as `kubectl proxy`. The port is a name or a
    /// number; it may be left out if the service has only one.
    fn from_str(name: &str) -> Result<Self, NameError> {
        let wrong = || NameError::new(name, "write k8s:///namespace/service:port");
        let rest = name.strip_prefix("k8s://").ok_or_else(wrong)?;
        let mut parts = rest.split('/');
        let (Some(api), Some(namespace), Some(service), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(wrong());
        };
        let (service, port) = service.split_once(':').unwrap_or((service, ""));
        let is_label = |text: &str| {
            let is_in = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            (1..=63).contains(&text.len()) && text.chars().all(is_in)
        };
        if ![namespace, service].into_iter().all(is_label) || !(port.is_empty() || is_label(port)) {
            return Err(wrong());
        }
        let api = match api {
            "" => None,
            api => match format!("tcp://{api}").parse() {
                Ok(Address::Tcp(at)) if at.port != 0 => Some(at),
                _ => return Err(wrong()),
            },
        };
        let in_pod = |file: &str| api.is_none().then(|| PathBuf::from(format!("{ACCOUNT}/{file}")));
        Ok(Self {
            token_file: in_pod("token"),
            ca_file: in_pod("ca.crt"),
            api,
            namespace: namespace.to_owned(),
            service: service.to_owned(),
            port: port.to_owned(),
            limit: LIMIT,
        })
    }
}

impl Kubernetes {
    /// Calls the API server as the service account whose token is in this file. Default: that of
    /// the pod, or none if the name has an API server.
    #[must_use]
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.token_file = Some(path.into());
        self
    }

    /// Calls the API server over TLS, and trusts the certificates in this file (PEM). Default:
    /// those of the pod, or no TLS if the name has an API server.
    #[must_use]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(path.into());
        self
    }

    /// Time limit of a request. Default 5 s, at least 10 ms.
    #[must_use]
    pub fn request_timeout(mut self, limit: Duration) -> Self {
        self.limit = limit.max(Duration::from_millis(10));
        self
    }

    /// Asks for the slices; `more` is the end of the query.
    async fn ask(&self, more: &str) -> Result<Answer, String> {
        let in_cluster;
        let at = match &self.api {
            Some(at) => at,
            None => {
                let variable =
                    |name: &str| std::env::var(format!("KUBERNETES_SERVICE_{name}")).ok();
                in_cluster = of_the_cluster(variable("HOST"), variable("PORT"))?;
                &in_cluster
            }
        };
        let read = async |path: &PathBuf| {
            let read = tokio::fs::read(path).await;
            read.map_err(|error| format!("{}: {error}", path.display()))
        };
        let token = match &self.token_file {
            Some(path) => {
                let token = String::from_utf8_lossy(&read(path).await?).into_owned();
                Some(format!("Bearer {}", token.trim()))
            }
            None => None,
        };
        let security = match &self.ca_file {
            Some(path) => {
                // Read anew for each request, as the token.
                let tls = RegistryTls::from_files(path);
                Security::Tls(tls.map_err(|error| error.to_string())?)
            }
            None => Security::None,
        };
        let Self { namespace, service, .. } = self;
        let path = format!(
            "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices\
             ?labelSelector=kubernetes.io%2Fservice-name%3D{service}{more}"
        );
        let asked = Asked {
            at,
            method: Method::GET,
            path: &path,
            authorization: token.as_deref(),
            body: String::new(),
            limit: self.limit,
            security: &security,
        };
        ask(asked).await.map_err(|error| error.to_string())
    }

    async fn list(&self) -> Result<SliceList, String> {
        let answer = self.ask("").await?;
        if !answer.status.is_success() {
            return Err(refused(answer).await);
        }
        let body = answer.read().await.map_err(|error| error.to_string())?;
        serde_json::from_slice(&body).map_err(|error| format!("not a list: {error}"))
    }
}

/// The API server, as Kubernetes names it to its pods.
fn of_the_cluster(host: Option<String>, port: Option<String>) -> Result<HostPort, String> {
    let at = host.zip(port.and_then(|it| it.parse().ok()));
    let (host, port) = at.ok_or(
        "this process does not run in a cluster (KUBERNETES_SERVICE_HOST is not set); name an API \
         server: k8s://host:port/namespace/service:port",
    )?;
    Ok(HostPort { host, port })
}

/// Why an answer is not a success.
async fn refused(answer: Answer) -> String {
    let status = answer.status;
    let body = answer.read().await.unwrap_or_default();
    let text = String::from_utf8_lossy(&body);
    let advice = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            "; the service account needs `list` and `watch` of `endpointslices`"
        }
        _ => "",
    };
    format!("{status}: {}{advice}", printable(&text).at_most(200))
}

/// What is to be done next.
enum Stage {
    List,
    Watch,
    Live(LineReader, Instant),
}

/// Lists, and watches from there.
struct Follower {
    kubernetes: Kubernetes,
    slices: Slices,
    stage: Stage,
    failures: u32,
}

impl Follower {
    async fn next(&mut self) -> Result<Vec<Endpoint>, String> {
        loop {
            if self.failures > 0 && !matches!(self.stage, Stage::Live(..)) {
                tokio::time::sleep(full_jitter(self.failures, random())).await;
            }
            match &mut self.stage {
                Stage::List => {
                    self.failures = self.failures.saturating_add(1);
                    self.slices.on_list(self.kubernetes.list().await?);
                    self.stage = Stage::Watch;
                    return Ok(self.servers());
                }
                Stage::Watch => {
                    let more = format!(
                        "&watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}\
                         &resourceVersion={}",
                        self.slices.version()
                    );
                    // Until it is of use.
                    self.failures = self.failures.saturating_add(1);
                    self.stage = Stage::List;
                    let answer = self.kubernetes.ask(&more).await?;
                    if answer.status.is_success() {
                        let end = Duration::from_secs(WATCH_SECONDS) + WATCH_LEEWAY;
                        self.stage = Stage::Live(answer.lines(), Instant::now() + end);
                    } else if answer.status != StatusCode::GONE {
                        return Err(refused(answer).await);
                    }
                }
                Stage::Live(lines, until) => {
                    let line = match tokio::time::timeout_at(*until, lines.next()).await {
                        Ok(Ok(Some(line))) => line,
                        // Its time is over.
                        Ok(Ok(None)) => {
                            let half = Duration::from_secs(WATCH_SECONDS / 2);
                            if Instant::now() + half > *until {
                                self.failures = 0;
                            }
                            self.stage = Stage::Watch;
                            continue;
                        }
                        Ok(Err(error)) => {
                            self.stage = Stage::List;
                            return Err(error.to_string());
                        }
                        Err(_) => {
                            self.stage = Stage::List;
                            return Err("the watch has been silent beyond its end".to_owned());
                        }
                    };
                    match self.slices.on_event(&line) {
                        Told::Nothing => self.failures = 0,
                        Told::Changed => {
                            self.failures = 0;
                            return Ok(self.servers());
                        }
                        Told::ListAnew(why) => {
                            let why = printable(&why).to_string();
                            tracing::info!(why, "listing the EndpointSlices anew");
                            self.stage = Stage::List;
                            self.failures = self.failures.max(1);
                        }
                        Told::Failed(why) => {
                            self.stage = Stage::List;
                            self.failures = self.failures.max(1);
                            return Err(printable(&why).to_string());
                        }
                    }
                }
            }
        }
    }

    fn servers(&mut self) -> Vec<Endpoint> {
        let (lines, beyond) = self.slices.problems.take();
        for line in lines {
            BAD_SLICES.fault(Instant::now().into_std(), || {
                tracing::warn!(beyond, "an end point is left out: {line}");
            });
        }
        self.slices.servers()
    }
}

impl fmt::Display for Kubernetes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { api, namespace, service, port, .. } = self;
        let api = api.as_ref().map(HostPort::to_string).unwrap_or_default();
        write!(f, "k8s://{api}/{namespace}/{service}")?;
        if port.is_empty() { Ok(()) } else { write!(f, ":{port}") }
    }
}

impl Resolve for Kubernetes {
    fn name(&self) -> String {
        self.to_string()
    }

    fn resolve(&self) -> Resolving<'_> {
        Box::pin(async move {
            let mut slices = Slices::new(self.port.clone());
            let listed = self.list().await;
            slices.on_list(listed.map_err(|error| ResolveError::new(self.to_string(), error))?);
            Ok(slices.servers())
        })
    }

    fn watch(&self) -> Option<Watching<'_>> {
        let follower = Follower {
            kubernetes: self.clone(),
            slices: Slices::new(self.port.clone()),
            stage: Stage::List,
            failures: 0,
        };
        let name: Arc<str> = self.to_string().into();
        Some(Box::pin(unfold(follower, move |mut follower| {
            let name = Arc::clone(&name);
            async move {
                let told = follower.next().await;
                Some((told.map_err(|error| ResolveError::new(&*name, error)), follower))
            }
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_services_are_read() {
        for name in ["k8s:///shop/kv:rpc", "k8s://127.0.0.1:8001/shop/kv:7471", "k8s:///a/b"] {
            assert_eq!(name.parse::<Kubernetes>().unwrap().to_string(), name);
        }
        for name in [
            "k8s://kv",
            "k8s:///kv",
            "k8s:///shop/kv/x:1",
            "k8s:///shop/KV:1",
            "k8s:///sh?op/kv:1",
            "k8s:///shop/kv:a&b",
            "k8s://host/shop/kv:1",
            "k8s:////kv:1",
        ] {
            let error = name.parse::<Kubernetes>().unwrap_err().to_string();
            assert!(error.contains("write k8s:///"), "{error}");
        }
    }

    #[test]
    fn outside_of_a_cluster_that_is_said() {
        let text = |it: &str| Some(it.to_owned());
        let at = of_the_cluster(text("10.96.0.1"), text("443")).unwrap();
        assert_eq!(at.to_string(), "10.96.0.1:443");
        for (host, port) in [(None, text("443")), (text("10.96.0.1"), None), (None, None)] {
            let error = of_the_cluster(host, port).unwrap_err();
            assert!(error.contains("does not run in a cluster"), "{error}");
        }
    }
}
