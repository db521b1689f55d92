//! Certificates for development, and what is in a certificate.

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};
use rpc_core::identity::{Certificate, SpiffeId};
use rpc_core::security::{date, inspect};
use rpc_core::text::printable;
use serde_json::json;

use crate::options::{CertDev, CertShow, Common, Output};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// The clock of the peer may be behind this one by so much.
const CLOCK_SKEW: Duration = Duration::from_secs(60 * 60);

/// Writes an authority, and a certificate with its key for each role.
pub(crate) fn dev(dev: &CertDev) -> Result<()> {
    let CertDev { dir, names, trust_domain, days, keep_ca, force } = dev;
    let id = |role: &str| {
        let id = format!("spiffe://{trust_domain}/{role}").parse::<SpiffeId>();
        id.context("--trust-domain")
    };
    let (server_id, client_id) = (id("server")?, id("client")?);
    let mut directory = DirBuilder::new();
    let made = directory.recursive(true).mode(0o700).create(dir);
    made.with_context(|| format!("cannot create {}", dir.display()))?;

    let mut authority = lasting(*days)?;
    authority.distinguished_name.push(DnType::CommonName, format!("{trust_domain} (development)"));
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
    let issue = |id: &SpiffeId, names: &[String], purposes: &[ExtendedKeyUsagePurpose]| {
        let mut params = lasting(*days)?;
        params.distinguished_name.push(DnType::CommonName, id.as_str());
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = purposes.to_vec();
        params.subject_alt_names.push(SanType::URI(id.as_str().try_into()?));
        for name in names {
            params.subject_alt_names.push(match name.parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(name.as_str().try_into()?),
            });
        }
        let key = KeyPair::generate()?;
        Ok::<_, anyhow::Error>((params.signed_by(&key, &authority)?.pem(), key.serialize_pem()))
    };
    // A server that calls other servers is a client of these.
    let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let (server, server_key) = issue(&server_id, names, &both)?;
    let (client, client_key) = issue(&client_id, &[], &[ExtendedKeyUsagePurpose::ClientAuth])?;

    let mut files = vec![
        ("ca.pem", authority.pem(), 0o644),
        ("server.pem", server, 0o644),
        ("server-key.pem", server_key, 0o600),
        ("client.pem", client, 0o644),
        ("client-key.pem", client_key, 0o600),
    ];
    if *keep_ca {
        files.push(("ca-key.pem", authority.key().serialize_pem(), 0o600));
    }
    let existing = files.iter().map(|(name, ..)| dir.join(name)).find(|path| path.exists());
    if let Some(path) = existing.filter(|_| !force) {
        let path = path.display();
        bail!("{path} exists already: choose another --dir, or replace it with --force");
    }
    for (name, content, mode) in files {
        write(&dir.join(name), &content, mode)?;
    }
    println!("{}: certificates for {days} days", dir.display());
    println!("server  {server_id}  {}", names.join(" "));
    println!("client  {client_id}");
    Ok(())
}

fn lasting(days: u16) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    let now = SystemTime::now();
    params.not_before = (now - CLOCK_SKEW).into();
    params.not_after = (now + DAY * u32::from(days)).into();
    Ok(params)
}

/// A new file: one of another mode would keep it.
fn write(path: &Path, content: &str, mode: u32) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => OpenOptions::new().write(true).create_new(true).mode(mode).open(path),
    }
    .and_then(|mut file| file.write_all(content.as_bytes()))
    .with_context(|| format!("cannot write {}", path.display()))
}

/// Prints the certificates of a file.
pub(crate) fn show(show: &CertShow, common: &Common) -> Result<()> {
    for certificate in inspect(&show.file)? {
        match common.output {
            Output::Text => print_text(&certificate),
            Output::Json => print_json(&certificate),
        }
    }
    Ok(())
}

fn key_hash(certificate: &Certificate) -> String {
    certificate.key_sha256().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn print_text(certificate: &Certificate) {
    let line = |name: &str, value: String| println!("{name:<12} {}", printable(&value));
    if let Some(name) = certificate.common_name() {
        line("common name", name.to_owned());
    }
    if let Some(id) = certificate.spiffe() {
        line("SPIFFE id", id.to_string());
    }
    for name in certificate.dns_names() {
        line("DNS name", name.clone());
    }
    for address in certificate.addresses() {
        line("IP address", address.to_string());
    }
    if let (Some(from), Some(to)) = (certificate.not_before(), certificate.not_after()) {
        let is_over = to < SystemTime::now();
        let note = if is_over { ", which is past" } else { "" };
        line("valid", format!("{} to {}{note}", date(from), date(to)));
    }
    line("key sha256", key_hash(certificate));
    line("role", if certificate.is_authority() { "authority" } else { "end" }.to_owned());
}

fn print_json(certificate: &Certificate) {
    let addresses = certificate.addresses().iter().map(ToString::to_string);
    let value = json!({
        "common_name": certificate.common_name(),
        "spiffe": certificate.spiffe().map(ToString::to_string),
        "dns_names": certificate.dns_names(),
        "addresses": addresses.collect::<Vec<_>>(),
        "not_before": certificate.not_before().map(date),
        "not_after": certificate.not_after().map(date),
        "key_sha256": key_hash(certificate),
        "is_authority": certificate.is_authority(),
    });
    println!("{value}");
}
