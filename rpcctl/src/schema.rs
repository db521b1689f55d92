//! `schema`: the types of all methods of a server in a file, and their changes.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use rpc_core::reflect::Description;
use rpc_core::text::printable;
use rpc_schema::changes::{Change, Outcome, changes};
use rpc_schema::plan::Problem;
use rpc_schema::services::{AddError, Kind, Method, Services, parse};
use serde_json::{Value, json};

use crate::dynamic::types;
use crate::options::{Common, Output, SchemaDiff, SchemaSave};
use crate::target::Target;
use crate::text::{cut, json as line, width};

/// Maximum number of bytes that are read from a file.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Maximum length of what is shown of an error about a server's names, bytes.
const MAX_SHOWN_BYTES: usize = 256;

/// Writes the types of all methods of a server.
pub(crate) async fn save(options: &SchemaSave, common: &Common) -> Result<()> {
    let text = of_server(&options.address, common).await?.to_string();
    match &options.file {
        Some(path) => {
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
        }
        None => Ok(io::stdout().write_all(text.as_bytes())?),
    }
}

/// Prints the changes from one server to another; the code is 1 if one of them is a break.
pub(crate) async fn diff(options: &SchemaDiff, common: &Common) -> Result<ExitCode> {
    let old = services(&options.old, common).await?;
    let new = services(&options.new, common).await?;
    let changes = changes(&old, &new);
    let breaks = changes.iter().filter(|change| change.is_break()).count();
    let mut out = io::stdout();
    if options.json || common.output == Output::Json {
        for change in &changes {
            writeln!(out, "{}", line(&object(change))?)?;
        }
    } else {
        for change in &changes {
            for line in change.to_string().lines() {
                writeln!(out, "{}", printable(line))?;
            }
        }
        match (changes.len(), breaks) {
            (0, _) => writeln!(out, "no method has changed")?,
            (all, 0) => writeln!(out, "methods changed: {all}. Nothing breaks")?,
            (all, breaks) => writeln!(out, "methods changed: {all}. Of these break: {breaks}")?,
        }
    }
    Ok(if breaks == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn object(change: &Change) -> Value {
    let problem =
        |it: &Problem| json!({ "path": it.path.trim_start_matches('.'), "what": it.what });
    let pair = |client: &str, server: &str, outcome: &Outcome| {
        json!({
            "client": client,
            "server": server,
            "works": outcome.works(),
            "problems": outcome.problems.iter().map(problem).collect::<Vec<_>>(),
            "notes": outcome.notes.iter().map(problem).collect::<Vec<_>>(),
        })
    };
    json!({
        "method": change.method,
        "change": change.what.name(),
        "breaks": change.is_break(),
        "pairs": [
            pair("old", "new", &change.old_client),
            pair("new", "old", &change.new_client),
        ],
    })
}

/// Of a server if it is an address, else of a file.
async fn services(file_or_address: &str, common: &Common) -> Result<Services> {
    if file_or_address.contains("://") {
        return of_server(file_or_address, common).await;
    }
    let path = Path::new(file_or_address);
    let read = || {
        let mut text = String::new();
        File::open(path)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
        Ok::<_, io::Error>(text)
    };
    let text = read().with_context(|| {
        format!("cannot read the file {file_or_address} (an address has `://` in it)")
    })?;
    if text.len() as u64 > MAX_FILE_BYTES {
        bail!("{file_or_address} has more than {MAX_FILE_BYTES} bytes");
    }
    parse(&text).with_context(|| file_or_address.to_owned())
}

async fn of_server(address: &str, common: &Common) -> Result<Services> {
    let target = Target::connect(address, common).await?;
    let mut found = Services::default();
    let wrong = |error: AddError| {
        let error = error.to_string();
        let error = printable(&error).at_most(MAX_SHOWN_BYTES);
        anyhow!("the server at {address} describes its services wrongly: {error}")
    };
    // A file of parts of two servers would describe none.
    let mut service = String::new();
    let each = |part| {
        match part {
            Description::Service(info) => {
                found.add_service(&info.name).map_err(wrong)?;
                service = info.name;
            }
            Description::Method(method) => {
                let schema = types(&method)?;
                let info = method.info;
                let name = info.name.strip_prefix(&format!("{service}.")).ok_or_else(|| {
                    let [method, service] = [&info.name, &service].map(|it| cut(it, width()));
                    anyhow!("the server at {address} lists the method {method} in {service}")
                })?;
                let kind = Kind::new(info.streams_arguments, info.streams_results);
                let method = Method { kind, signature: info.signature, schema };
                found.add(&service, name, method).map_err(wrong)?;
            }
            _ => {}
        }
        Ok(())
    };
    target.describe("", each).await?;
    Ok(found)
}
