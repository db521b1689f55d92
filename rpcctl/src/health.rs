//! `health`.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use rpc_core::health::{HealthClient, ServingStatus};
use rpc_core::{Code, Status};

use crate::options::{Common, Health, Output};
use crate::target::{Target, of_status};
use crate::text::json;

pub(crate) async fn health(options: &Health, common: &Common) -> Result<ExitCode> {
    let target = Target::connect(&options.address, common).await?;
    let health = HealthClient::new(target.channel.clone());
    let refused = |status: Status| match status.code() {
        Code::NotFound => of_status(&status),
        _ => target.refusal(status, "health(&reporter)"),
    };
    let say = |status: ServingStatus| {
        let mut out = io::stdout();
        match common.output {
            Output::Text => writeln!(out, "{status}")?,
            Output::Json => {
                let status = format!("{status:?}");
                let object = serde_json::json!({ "service": options.service, "status": status });
                writeln!(out, "{}", json(&object)?)?;
            }
        }
        out.flush()
    };
    let mut last;
    if options.watch {
        // The stream itself has no time limit.
        let states = tokio::time::timeout(target.timeout, health.watch(&options.service)).await;
        let states = states.map_err(|_| {
            anyhow!("deadline exceeded: no answer within {:?} (--timeout)", target.timeout)
        })?;
        let mut states = states.map_err(|error| refused(error.into()))?;
        last = ServingStatus::NotServing;
        while let Some(status) = states.try_next().await.map_err(|error| of_status(&error))? {
            say(status)?;
            last = status;
        }
    } else {
        let call = health.check(&options.service).timeout(target.timeout);
        last = call.await.map_err(|error| refused(error.into()))?;
        say(last)?;
    }
    Ok(if last == ServingStatus::Serving { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
