//! The called server, and the meaning of its refusals.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow};
use rpc_core::identity::Protection;
use rpc_core::reflect::{MethodInfo, ReflectClient, ServiceInfo};
use rpc_core::security::Tls;
use rpc_core::text::printable;
use rpc_core::{Channel, Code, Codec, Metadata, Status};
use rpc_discovery::Destination;
use rpc_schema::Schema;
use rpc_schema::text::parse;

use crate::options::{CodecName, Common, ProtectionName};

/// Default time limit for connecting, and for each look-up.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
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

    /// The lines that describe the types of a method.
    pub(crate) async fn schema(&self, method: &str) -> Result<Vec<String>> {
        let lines = self.reflect().schema(method).timeout(self.timeout).await;
        lines.map_err(|error| self.no_reflection(error))
    }

    /// The types of a method. A server of an earlier version only describes them by lines.
    pub(crate) async fn types(&self, method: &MethodInfo) -> Result<Schema> {
        let text = match self.reflect().types(&method.name).timeout(self.timeout).await {
            Ok(text) => text,
            Err(error) if Status::from(error.clone()).code() == Code::Unimplemented => {
                let lines = self.schema(&method.name).await?;
                return Ok(Schema::from_lines(&lines, &method.arguments));
            }
            Err(error) => return Err(self.no_reflection(error)),
        };
        parse(&text).map_err(|error| {
            let error = error.to_string();
            anyhow!(
                "the server describes the types of {} wrongly: {}",
                method.name,
                printable(&error)
            )
        })
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

    /// The methods of a service; for an unknown name, the error suggests a similar one.
    pub(crate) async fn methods(&self, service: &str) -> Result<Vec<MethodInfo>> {
        let methods = match self.reflect().methods(service).timeout(self.timeout).await {
            Ok(methods) => return Ok(methods),
            Err(error) => Status::from(error),
        };
        if methods.code() != Code::NotFound {
            return Err(self.no_reflection(methods));
        }
        let services = self.services().await?;
        let names = services.iter().map(|service| service.name.as_str());
        Err(unknown("service", service, names))
    }

    /// A method by its name, `Service.method`.
    pub(crate) async fn method(&self, name: &str) -> Result<MethodInfo> {
        let (service, _) = name
            .rsplit_once('.')
            .ok_or_else(|| anyhow!("`{name}` is not a method: expected SERVICE.METHOD"))?;
        let methods = self.methods(service).await?;
        let names: Vec<String> = methods.iter().map(|method| method.name.clone()).collect();
        let found = methods.into_iter().find(|method| method.name == name);
        found.ok_or_else(|| unknown("method", name, names.iter().map(String::as_str)))
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
