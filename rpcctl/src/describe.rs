//! `list` and `describe`.

use std::fmt::Write as _;
use std::io::{self, Write};

use anyhow::{Context, Result};
use rpc_core::reflect::{MethodInfo, ServiceInfo};
use serde_json::Value;

use crate::options::{Common, Describe, List, Output};
use crate::schema::Types;
use crate::target::Target;
use crate::text::{clean, json, width, without_links};

pub(crate) async fn list(options: &List, common: &Common) -> Result<()> {
    let target = Target::connect(&options.address, common).await?;
    let services = target.services().await?;
    let mut out = io::stdout();
    if common.output == Output::Json {
        for service in &services {
            writeln!(out, "{}", json(service)?)?;
        }
        return Ok(());
    }
    let row = |service: &ServiceInfo| {
        let about = service.docs.lines().next().unwrap_or_default();
        (service.name.clone(), service.methods.len().to_string(), without_links(about))
    };
    let rows: Vec<_> = services.iter().map(row).collect();
    let widest = rows.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0).max(7);
    writeln!(out, "{:widest$}  METHODS  ABOUT", "SERVICE")?;
    for (name, methods, about) in rows {
        let line = format!("{:widest$}  {methods:>7}  {}", clean(&name), clean(&about));
        let line: String = line.chars().take(width()).collect();
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

pub(crate) async fn describe(options: &Describe, common: &Common) -> Result<()> {
    let target = Target::connect(&options.address, common).await?;
    let services = target.services().await?;
    let mut out = io::stdout();
    // A service's own name may have a dot, too.
    let name = options.name.as_deref();
    let chosen: Vec<&ServiceInfo> =
        services.iter().filter(|service| name.is_none_or(|name| name == service.name)).collect();
    if chosen.is_empty()
        && let Some(name) = name
    {
        if !name.contains('.') {
            target.methods(name).await?;
        }
        let method = target.method(name).await?;
        return one_method(&target, &method, common.output, &mut out).await;
    }
    for service in chosen {
        let methods = target.methods(&service.name).await?;
        if common.output == Output::Json {
            let object = serde_json::json!({ "name": service.name, "docs": service.docs, "methods": methods });
            writeln!(out, "{}", json(&object)?)?;
            continue;
        }
        let mut text = docs(&service.docs, "");
        let _ = writeln!(text, "service {} {{", service.name);
        for (at, method) in methods.iter().enumerate() {
            if at > 0 {
                text.push('\n');
            }
            text.push_str(&written(method));
        }
        writeln!(out, "{}}}", clean(&text))?;
    }
    Ok(())
}

async fn one_method(
    target: &Target<'_>,
    method: &MethodInfo,
    output: Output,
    out: &mut impl Write,
) -> Result<()> {
    let lines = target.schema(&method.name).await?;
    if output == Output::Json {
        let mut object = serde_json::to_value(method).context("a method")?;
        object["schema"] = Value::from(lines);
        writeln!(out, "{}", json(&object)?)?;
        return Ok(());
    }
    let mut text = written(method);
    text.push('\n');
    let rows = lines.iter().filter_map(|line| line.split_once(": "));
    let mut rows: Vec<Vec<String>> =
        rows.map(|(path, what)| vec![named(path, &method.arguments), what.to_owned()]).collect();
    let widest = rows.iter().map(|row| row[0].chars().count()).max().unwrap_or(0).min(40);
    for row in &mut rows {
        let _ = writeln!(text, "  {:widest$}  {}", row[0], row[1]);
    }
    let mut types = Types::new(&lines);
    let example = method.arguments.iter().enumerate().map(|(at, name)| {
        let value = types.at(&at.to_string()).map_or(Value::Null, |id| types.example(id));
        (name.clone(), value)
    });
    let example = Value::Object(example.collect());
    text.push_str(&command(target.address, method, &json(&example)?));
    writeln!(out, "{}", clean(text.trim_end()))?;
    Ok(())
}

/// The command that calls a method with these arguments; none if its name says something to a shell.
fn command(address: &str, method: &MethodInfo, arguments: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_.-".contains(c);
    if !method.name.chars().all(is_plain) {
        return String::new();
    }
    let arguments = arguments.replace('\'', r"'\''");
    let items = if method.streams_arguments { " < ITEMS" } else { "" };
    format!("\n  rpcctl call {address} {} --json '{arguments}'{items}", method.name)
}

/// A path that begins with the argument's name instead of its position.
fn named(path: &str, arguments: &[String]) -> String {
    let digits = path.find(|c: char| !c.is_ascii_digit()).unwrap_or(path.len());
    let (position, rest) = path.split_at(digits);
    let name = position.parse().ok().and_then(|at: usize| arguments.get(at));
    name.map_or_else(|| path.to_owned(), |name| format!("{name}{rest}"))
}

fn docs(docs: &str, indent: &str) -> String {
    docs.lines().map(|line| format!("{indent}/// {line}").trim_end().to_owned() + "\n").collect()
}

/// A method nearly as it stands in the source.
fn written(method: &MethodInfo) -> String {
    let mut text = docs(&method.docs, "    ");
    let options = [
        (method.idempotent, "idempotent"),
        (method.no_cancel, "no_cancel"),
        (method.spawn, "spawn"),
        (method.idle_deadline, "stream_deadline = \"idle\""),
    ];
    let options: Vec<_> = options.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect();
    if !options.is_empty() {
        let _ = writeln!(text, "    #[rpc({})]", options.join(", "));
    }
    let name = method.name.rsplit('.').next().unwrap_or_default();
    let _ = writeln!(text, "    {name}{}", with_names(&method.signature, &method.arguments));
    text
}

/// A signature with the names of its arguments.
fn with_names(signature: &str, names: &[String]) -> String {
    let mut depth = 0_usize;
    let mut parts = vec![String::new()];
    let mut rest = "";
    for (at, c) in signature.char_indices().skip(1) {
        match c {
            ')' if depth == 0 => {
                rest = &signature[at + 1..];
                break;
            }
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            '(' | '<' | '[' => depth += 1,
            ')' | '>' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    let named = parts.iter().enumerate().map(|(at, part)| match names.get(at) {
        Some(name) => format!("{name}: {}", part.trim()),
        None => part.trim().to_owned(),
    });
    format!("({}){rest}", named.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_proposed_to_a_shell_is_one_word() {
        let info = |name: &str| -> MethodInfo {
            let info = serde_json::json!({
                "name": name, "signature": "(str) -> ()", "arguments": ["key"], "docs": "",
                "idempotent": false, "no_cancel": false, "spawn": false,
                "streams_arguments": false, "streams_results": false, "idle_deadline": false,
            });
            serde_json::from_value(info).unwrap()
        };
        let shown = command("shm://a", &info("Kv.put"), r#"{"it's":0}"#);
        assert_eq!(
            shown,
            r#"
  rpcctl call shm://a Kv.put --json '{"it'\''s":0}'"#
        );
        assert_eq!(command("shm://a", &info("Kv.put; rm -r ~"), "{}"), "");
        assert_eq!(command("shm://a", &info("Kv.$(id)"), "{}"), "");
    }

    #[test]
    fn a_signature_is_shown_with_names() {
        let names = ["key", "map"].map(str::to_owned);
        let shown = with_names("(str, Map<str, (u8, u8)>, stream u64) -> u64 / KvError #2", &names);
        assert_eq!(shown, "(key: str, map: Map<str, (u8, u8)>, stream u64) -> u64 / KvError #2");
        assert_eq!(with_names("() -> ()", &[]), "() -> ()");
        assert_eq!(with_names("", &names), "(key: )");
    }
}
