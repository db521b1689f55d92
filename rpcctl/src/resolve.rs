//! `resolve`.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use futures::StreamExt;
use futures::stream::{BoxStream, unfold};
use rpc_core::client::resolve::{Endpoint, Resolve as Resolver, ResolveError};
use rpc_core::text::printable;

use crate::options::{Common, Output, Resolve};
use crate::target::TIMEOUT;
use crate::text::json;

/// How often a resolver that reports nothing by itself is asked.
const ASK_EVERY: Duration = Duration::from_secs(5);

pub(crate) async fn resolve(options: &Resolve, common: &Common) -> Result<()> {
    let resolver = rpc_discovery::resolver(&options.name)?;
    let limit = common.timeout.unwrap_or(TIMEOUT);
    if !options.watch {
        let servers = tokio::time::timeout(limit, resolver.resolve()).await;
        let servers = servers.map_err(|_| {
            anyhow!("{} was not resolved within {limit:?} (--timeout)", resolver.name())
        })??;
        return show(&servers, common.output, |_| Duration::ZERO);
    }
    let asked = Arc::clone(&resolver);
    let asking = unfold(false, move |is_later| {
        let asked = Arc::clone(&asked);
        async move {
            if is_later {
                tokio::time::sleep(ASK_EVERY).await;
            }
            Some((asked.resolve().await, true))
        }
    });
    let mut sets: BoxStream<'_, Result<Vec<Endpoint>, ResolveError>> =
        resolver.watch().unwrap_or_else(|| asking.boxed());
    let (mut last, mut since) = (None, HashMap::<String, Instant>::new());
    while let Some(told) = sets.next().await {
        let servers = match told {
            Ok(servers) => servers,
            Err(error) => {
                eprintln!("error: {}", printable(&error.to_string()));
                continue;
            }
        };
        if last.as_ref() == Some(&servers) {
            continue;
        }
        // Of those that are as they were.
        let known = |server: &Endpoint| {
            let name = format!("{server:?}");
            let began = since.get(&name).copied().unwrap_or_else(Instant::now);
            (name, began)
        };
        since = servers.iter().map(known).collect();
        if common.output == Output::Text {
            let noun = if servers.len() == 1 { "server" } else { "servers" };
            writeln!(io::stdout(), "{} {noun}:", servers.len())?;
        }
        show(&servers, common.output, |server| since[&format!("{server:?}")].elapsed())?;
        last = Some(servers);
    }
    Ok(())
}

/// A server a line.
fn show(servers: &[Endpoint], output: Output, age: impl Fn(&Endpoint) -> Duration) -> Result<()> {
    let mut out = io::stdout();
    for server in servers {
        let address = server.address().to_string();
        let state = if server.is_draining() { "draining" } else { "ready" };
        let seconds = age(server).as_secs();
        match output {
            Output::Text => {
                let zone = server.zone().map_or("-", |zone| zone);
                let (weight, priority) = (server.weight(), server.priority());
                writeln!(
                    out,
                    "{}  {state}  weight {weight}  priority {priority}  zone {}  for {seconds} s",
                    printable(&address),
                    printable(zone)
                )?;
            }
            Output::Json => {
                let object = serde_json::json!({
                    "address": address, "state": state, "weight": server.weight(),
                    "priority": server.priority(), "zone": server.zone(), "age_s": seconds,
                });
                writeln!(out, "{}", json(&object)?)?;
            }
        }
    }
    Ok(out.flush()?)
}
