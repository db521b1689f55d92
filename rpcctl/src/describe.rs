//! `list` and `describe`.

use std::fmt::Write as _;
use std::io::{self, Write};

use anyhow::{Context, Result};
use rpc_core::reflect::{Description, MethodDescription, MethodInfo, ServiceInfo};
use rpc_core::text::{is_printable, printable};
use rpc_schema::lines::{ARGUMENTS, named};
use serde_json::{Map, Value};

use crate::dynamic::types;
use crate::json::example;
use crate::options::{Common, Describe, List, Output};
use crate::target::Target;
use crate::text::{cut, json, width, without_links};

/// Maximum length of a signature, and of the fields of a type, that is shown, bytes.
const MOST_BYTES: usize = 1 << 16;

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
        let about = without_links(&printable(about).to_string());
        (cut(&service.name, width()), service.methods.len(), about)
    };
    let rows: Vec<_> = services.iter().map(row).collect();
    let widest = rows.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0).max(7);
    writeln!(out, "{:widest$}  METHODS  ABOUT", "SERVICE")?;
    for (name, methods, about) in rows {
        let line = format!("{name:widest$}  {methods:>7}  {about}");
        let line: String = line.chars().take(width()).collect();
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

pub(crate) async fn describe(options: &Describe, common: &Common) -> Result<()> {
    let target = Target::connect(&options.address, common).await?;
    let mut out = io::stdout();
    let (mut services, mut single) = (Vec::<(ServiceInfo, Vec<MethodInfo>)>::new(), None);
    let each = |part| {
        match (part, services.last_mut()) {
            (Description::Service(service), _) => services.push((service, Vec::new())),
            (Description::Method(method), Some((_, methods))) => methods.push(method.info),
            (Description::Method(method), None) => single = Some(method),
            _ => {}
        }
        Ok(())
    };
    let name = options.name.as_deref().unwrap_or_default();
    target.describe(name, each).await?;
    if services.is_empty() && !name.is_empty() {
        return match single.filter(|method| method.info.name == name) {
            Some(method) => one_method(&target, &method, common.output, &mut out),
            None => Err(target.no_method(name).await),
        };
    }
    for (service, methods) in services {
        if common.output == Output::Json {
            let object = serde_json::json!({ "name": service.name, "docs": service.docs, "methods": methods });
            writeln!(out, "{}", json(&object)?)?;
            continue;
        }
        let mut text = docs(&service.docs, "");
        let _ = writeln!(text, "service {} {{", printable(&service.name));
        for (at, method) in methods.iter().enumerate() {
            if at > 0 {
                text.push('\n');
            }
            text.push_str(&written(method));
        }
        writeln!(out, "{text}}}")?;
    }
    Ok(())
}

fn one_method(
    target: &Target,
    description: &MethodDescription,
    output: Output,
    out: &mut impl Write,
) -> Result<()> {
    let MethodDescription { info: method, lines, .. } = description;
    if output == Output::Json {
        let mut object = serde_json::to_value(method).context("a method")?;
        object["schema"] = Value::from(lines.as_slice());
        writeln!(out, "{}", json(&object)?)?;
        return Ok(());
    }
    let mut text = written(method);
    text.push('\n');
    // The names of the arguments are on the method's line.
    let rows = lines.iter().filter_map(|line| line.split_once(": "));
    let rows = rows.filter(|(path, _)| *path != ARGUMENTS);
    let rows: Vec<[String; 2]> =
        rows.map(|(path, what)| [shown(&named(path, &method.arguments)), shown(what)]).collect();
    let widest = rows.iter().map(|[path, _]| path.chars().count()).max().unwrap_or(0).min(40);
    for [path, what] in &rows {
        let _ = writeln!(text, "  {path:widest$}  {what}");
    }
    let schema = types(description)?;
    let mut examples: Map<String, Value> =
        method.arguments.iter().map(|name| (name.clone(), Value::Null)).collect();
    for (name, id) in schema.arguments() {
        examples.insert(name.to_owned(), example(&schema, id));
    }
    let example = Value::Object(examples);
    text.push_str(&command(&target.address, method, &json(&example)?));
    writeln!(out, "{}", text.trim_end())?;
    Ok(())
}

/// The command that calls a method with these arguments; `None` if its name is special to a shell.
fn command(address: &str, method: &MethodInfo, arguments: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_.-".contains(c);
    if !method.name.chars().all(is_plain) || !is_printable(&method.name) {
        return String::new();
    }
    let arguments = arguments.replace('\'', r"'\''");
    let items = if method.streams_arguments { " < ITEMS" } else { "" };
    format!("\n  rpcctl call {address} {} --json '{arguments}'{items}", method.name)
}

fn docs(docs: &str, indent: &str) -> String {
    let line = |line| format!("{indent}/// {}", printable(line)).trim_end().to_owned() + "\n";
    docs.lines().map(line).collect()
}

/// A path, or a line of the server's description.
fn shown(text: &str) -> String {
    printable(text).at_most(MOST_BYTES).to_string()
}

/// A method, nearly as in the source code.
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
    let signature = format!("{name}{}", with_names(&method.signature, &method.arguments));
    let _ = writeln!(text, "    {}", shown(&signature));
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
    fn a_suggested_shell_argument_is_one_word() {
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
