//! `health`.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use rpc_core::health::{HealthClient, ServingStatus};
use rpc_core::{Code, Status};
use serde_json::json;

use crate::options::{Common, Health, Output};
use crate::target::{Target, of_status};

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
                let object = json!({ "service": options.service, "status": format!("{status:?}") });
                writeln!(out, "{object}")?;
            }
        }
        out.flush()
    };
    let mut last;
    if options.watch {
        let states = health.watch(&options.service).await;
        let mut states = states.map_err(|error| refused(error.into()))?;
        last = ServingStatus::NotServing;
        while let Some(status) = states.try_next().await.map_err(|error| of_status(&error))? {
            say(status)?;
            last = status;
        }
    } else {
        let call = health.check(&options.service);
        let call = match common.timeout {
            Some(timeout) => call.timeout(timeout),
            None => call,
        };
        last = call.await.map_err(|error| refused(error.into()))?;
        say(last)?;
    }
    Ok(if last == ServingStatus::NotServing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
