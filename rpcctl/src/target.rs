//! The called server, and the meaning of its refusals.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use rpc_core::identity::Protection;
use rpc_core::reflect::{Description, MethodDescription, ReflectClient, ServiceInfo};
use rpc_core::security::Tls;
use rpc_core::text::printable;
use rpc_core::{Channel, Code, Codec, Metadata, Status};
use rpc_discovery::Destination;

use crate::options::{CodecName, Common, ProtectionName};

/// Default time limit for connecting, and for each look-up.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of what a server describes at once, bytes.
const MAX_DESCRIBED_BYTES: usize = 64 << 20;
/// Minimum similarity of a name that is suggested.
const ALIKE: f64 = 0.75;

/// A server.
pub(crate) struct Target {
    pub(crate) address: String,
    pub(crate) channel: Channel,
    /// Time limit for connecting, and for each look-up.
    pub(crate) timeout: Duration,
}

impl Target {
    pub(crate) async fn connect(address: &str, common: &Common) -> Result<Self> {
        let timeout = common.timeout.unwrap_or(TIMEOUT);
        let builder = Channel::builder().connect_timeout(timeout);
        let builder = match common.codec {
            None => builder,
            Some(CodecName::Bincode) => builder.codec(Codec::Bincode),
            Some(CodecName::Postcard) => builder.codec(Codec::Postcard),
        };
        let builder = match common.credentials_env.as_ref().or(common.credentials_file.as_ref()) {
            None => builder,
            Some(credentials) => builder.credentials(credentials.clone()),
        };
        let builder = match common.allow_clear_credentials {
            true => builder.allow_clear_credentials(),
            false => builder,
        };
        let builder = match &common.tls {
            None => builder,
            Some(directory) => builder.tls(client_tls(directory, common)?),
        };
        let Common { metadata, metadata_env, metadata_file, .. } = common;
        let given = || metadata.iter().chain(metadata_env).chain(metadata_file);
        let mut metadata = Metadata::new();
        for (name, value) in given() {
            metadata.insert(name, value.clone()).map_err(|error| anyhow!("--metadata: {error}"))?;
        }
        let builder =
            given().fold(builder, |builder, (name, value)| builder.metadata(name, value.clone()));
        let destination: Destination = address.parse()?;
        let channel = destination.connect(builder).await;
        let channel = channel.map_err(|error| anyhow!("cannot connect to {address}: {error}"))?;
        Ok(Self { address: address.to_owned(), channel, timeout })
    }

    fn reflect(&self) -> ReflectClient {
        ReflectClient::new(self.channel.clone())
    }

    /// The services.
    pub(crate) async fn services(&self) -> Result<Vec<ServiceInfo>> {
        let services = self.reflect().services().timeout(self.timeout).await;
        services.map_err(|error| self.no_reflection(error))
    }

    /// What the server describes under a name, everything for the empty one, each part as it
    /// arrives. It is one answer of one server: another one may have other types, and no value may
    /// be read by a mixture of both.
    pub(crate) async fn describe(
        &self,
        name: &str,
        mut each: impl FnMut(Description) -> Result<()>,
    ) -> Result<()> {
        let mut parts = match self.reflect().describe(name).timeout(self.timeout).await {
            Ok(parts) => parts,
            Err(error) => return Err(self.no_description(name, error.into()).await),
        };
        let mut bytes = 0;
        while let Some(part) = parts.try_next().await.map_err(|error| self.no_reflection(error))? {
            bytes += bytes_of(&part);
            if bytes > MAX_DESCRIBED_BYTES {
                bail!("the server describes more than {MAX_DESCRIBED_BYTES} bytes");
            }
            each(part)?;
        }
        Ok(())
    }

    async fn no_description(&self, name: &str, status: Status) -> anyhow::Error {
        match status.code() {
            Code::NotFound => self.no_method(name).await,
            Code::Unimplemented if self.services().await.is_ok() => anyhow!(
                "the server at {} is of an earlier version than rpcctl: it lacks \
                 `rpc.Reflect.describe`",
                self.address
            ),
            _ => self.no_reflection(status),
        }
    }

    /// The error for an unknown name, which suggests a similar one.
    pub(crate) async fn no_method(&self, name: &str) -> anyhow::Error {
        let services = match self.services().await {
            Ok(services) => services,
            Err(error) => return error,
        };
        let service = name.rsplit_once('.').map_or(name, |(service, _)| service);
        match services.iter().find(|it| it.name == service) {
            Some(found) => unknown("method", name, found.methods.iter().map(String::as_str)),
            None => unknown("service", service, services.iter().map(|it| it.name.as_str())),
        }
    }

    /// Explains the refusal of a built-in service.
    pub(crate) fn refusal(&self, status: impl Into<Status>, switch: &str) -> anyhow::Error {
        let status = status.into();
        let address = &self.address;
        match status.code() {
            Code::Unimplemented => anyhow!(
                "the server at {address} does not offer this service: enable it with \
                 `Server::builder().{switch}` ({})",
                printable(status.message())
            ),
            Code::FailedPrecondition => anyhow!(
                "the server at {address} and rpcctl have different versions: {}",
                printable(status.message())
            ),
            _ => of_status(&status),
        }
    }

    pub(crate) fn no_reflection(&self, status: impl Into<Status>) -> anyhow::Error {
        self.refusal(status, "reflection()")
    }

    /// A method by its name, `Service.method`.
    pub(crate) async fn method(&self, name: &str) -> Result<MethodDescription> {
        if !name.contains('.') {
            bail!("`{name}` is not a method: expected SERVICE.METHOD");
        }
        let mut found = None;
        let each = |part| {
            found = match part {
                Description::Method(method) if method.info.name == name => Some(method),
                _ => None,
            };
            Ok(())
        };
        self.describe(name, each).await?;
        match found {
            Some(method) => Ok(method),
            None => Err(self.no_method(name).await),
        }
    }
}

/// About how much memory a part of a description takes, bytes.
fn bytes_of(part: &Description) -> usize {
    let texts = |all: &[String]| all.iter().map(|it| size_of::<String>() + it.len()).sum::<usize>();
    size_of::<Description>()
        + match part {
            Description::Service(ServiceInfo { name, docs, methods, .. }) => {
                name.len() + docs.len() + texts(methods)
            }
            Description::Method(MethodDescription { info, lines, types, .. }) => {
                info.docs.len() + texts(&info.arguments) + texts(lines) + types.len()
            }
            _ => 0,
        }
}

fn client_tls(directory: &Path, common: &Common) -> Result<Tls> {
    let file = |name| directory.join(name);
    let mut tls = Tls::from_pem(file("client.pem"), file("client-key.pem"), file("ca.pem"))?;
    if let Some(id) = &common.expect_peer {
        tls = tls.expect_peer(id);
    }
    Ok(match common.protection {
        None => tls,
        Some(ProtectionName::Authenticate) => tls.protection(Protection::Authenticate),
        Some(ProtectionName::Encrypt) => tls.protection(Protection::Encrypt),
    })
}

fn unknown<'n>(what: &str, name: &str, known: impl Iterator<Item = &'n str>) -> anyhow::Error {
    let known: Vec<&str> = known.collect();
    let alike = |other: &&str| strsim::jaro_winkler(&name.to_lowercase(), &other.to_lowercase());
    let nearest = known.iter().copied().max_by(|a, b| alike(a).total_cmp(&alike(b)));
    match nearest.filter(|nearest| alike(nearest) >= ALIKE) {
        Some(nearest) => anyhow!("there is no {what} {name}; did you mean {nearest}?"),
        None => anyhow!("there is no {what} {name}; choose one of {}", known.join(", ")),
    }
}

/// A status as an error.
pub(crate) fn of_status(status: &Status) -> anyhow::Error {
    anyhow!("{status}")
}
