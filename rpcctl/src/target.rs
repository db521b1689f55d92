//! The server that is asked, and what its refusals mean.

use std::time::Duration;

use anyhow::{Result, anyhow};
use rpc_core::reflect::{MethodInfo, ReflectClient, ServiceInfo};
use rpc_core::{Channel, Code, Codec, Metadata, Status};

use crate::options::{CodecName, Common};

/// Longest time for connecting, and for each look-up, if nothing else is said.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How like another a name has to be, to be proposed.
const ALIKE: f64 = 0.75;

/// A server.
pub(crate) struct Target<'a> {
    pub(crate) address: &'a str,
    pub(crate) channel: Channel,
    /// Longest time for connecting, and for each look-up.
    pub(crate) timeout: Duration,
}

impl<'a> Target<'a> {
    pub(crate) async fn connect(address: &'a str, common: &Common) -> Result<Self> {
        let timeout = common.timeout.unwrap_or(TIMEOUT);
        let builder = Channel::builder().connect_timeout(timeout);
        let builder = match common.codec {
            None => builder,
            Some(CodecName::Bincode) => builder.codec(Codec::Bincode),
            Some(CodecName::Postcard) => builder.codec(Codec::Postcard),
        };
        let mut metadata = Metadata::new();
        for (name, value) in &common.metadata {
            metadata.insert(name, value.clone()).map_err(|error| anyhow!("--metadata: {error}"))?;
        }
        let builder = common
            .metadata
            .iter()
            .fold(builder, |builder, (name, value)| builder.metadata(name, value.clone()));
        let channel = builder.connect(address).await;
        let channel = channel.map_err(|error| anyhow!("cannot connect to {address}: {error}"))?;
        Ok(Self { address, channel, timeout })
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

    /// What the refusal of a built-in service means.
    pub(crate) fn refusal(&self, status: impl Into<Status>, switch: &str) -> anyhow::Error {
        let status = status.into();
        let address = self.address;
        match status.code() {
            Code::Unimplemented => anyhow!(
                "the server at {address} does not tell: `Server::builder().{switch}` switches that \
                 on, where it is built ({})",
                status.message()
            ),
            Code::FailedPrecondition => anyhow!(
                "the server at {address} is of another version than rpcctl: {}",
                status.message()
            ),
            _ => of_status(&status),
        }
    }

    pub(crate) fn no_reflection(&self, status: impl Into<Status>) -> anyhow::Error {
        self.refusal(status, "reflection()")
    }

    /// The methods of a service; if there is none of that name, which was meant.
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
            .ok_or_else(|| anyhow!("`{name}` is no method: SERVICE.METHOD is wanted"))?;
        let methods = self.methods(service).await?;
        let names: Vec<String> = methods.iter().map(|method| method.name.clone()).collect();
        let found = methods.into_iter().find(|method| method.name == name);
        found.ok_or_else(|| unknown("method", name, names.iter().map(String::as_str)))
    }
}

fn unknown<'n>(what: &str, name: &str, known: impl Iterator<Item = &'n str>) -> anyhow::Error {
    let known: Vec<&str> = known.collect();
    let alike = |other: &&str| strsim::jaro_winkler(&name.to_lowercase(), &other.to_lowercase());
    let nearest = known.iter().copied().max_by(|a, b| alike(a).total_cmp(&alike(b)));
    match nearest.filter(|nearest| alike(nearest) >= ALIKE) {
        Some(nearest) => anyhow!("there is no {what} {name}; did you mean {nearest}?"),
        None => anyhow!("there is no {what} {name}; there are {}", known.join(", ")),
    }
}

/// A status as an error.
pub(crate) fn of_status(status: &Status) -> anyhow::Error {
    anyhow!("{status}")
}
