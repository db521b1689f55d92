//! `rpcctl cert`.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};

use rpc_core::identity::Protection;
use rpc_core::security::Tls;
use rpc_core::server::Allow;

use crate::World;

/// A directory of one test, removed at its end.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let name = format!("rpcctl-{name}-{}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn cert(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rpcctl")).arg("cert").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn development_certificates_fit_each_other() {
    let to = Directory::new("cert-dev");
    let dir = to.0.display().to_string();
    let names = "localhost,127.0.0.1,kv";
    let made = cert(&["dev", "--dir", &dir, "--names", names]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    for role in ["server", "client"] {
        let key = to.file(&format!("{role}-key.pem"));
        assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        Tls::from_pem(to.file(&format!("{role}.pem")), key, to.file("ca.pem")).unwrap();
    }
    assert!(!to.0.join("ca-key.pem").exists(), "the authority's key is not kept");
    let again = cert(&["dev", "--dir", &dir]);
    assert!(!again.status.success() && text(&again.stderr).contains("--force"));
    let again = cert(&["dev", "--dir", &dir, "--force", "--keep-ca"]);
    assert!(again.status.success() && to.0.join("ca-key.pem").exists());
    // Of another authority now.
    assert!(
        Tls::from_pem(to.file("server.pem"), to.file("client-key.pem"), to.file("ca.pem"))
            .unwrap_err()
            .to_string()
            .contains("does not belong to")
    );
}

#[test]
fn what_certificates_say_is_shown() {
    let to = Directory::new("cert-show");
    let dir = to.0.display().to_string();
    let made =
        cert(&["dev", "--dir", &dir, "--names", "kv,10.0.0.7", "--trust-domain", "test.example"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    let shown = text(&cert(&["show", &to.file("server.pem")]).stdout);
    for line in [
        "SPIFFE id    spiffe://test.example/server",
        "DNS name     kv",
        "IP address   10.0.0.7",
        "role         end",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "{line:?} in {shown}");
    }
    let shown = text(&cert(&["show", "--output", "json", &to.file("ca.pem")]).stdout);
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["is_authority"], true);
    assert_eq!(shown["key_sha256"].as_str().unwrap().len(), 64);
    let key = cert(&["show", &to.file("client-key.pem")]);
    assert!(!key.status.success() && key.stdout.is_empty());
    let error = text(&key.stderr);
    assert!(error.contains("no certificate in it") && error.lines().count() == 1, "{error}");
    let wrong = cert(&["dev", "--dir", &dir, "--force", "--trust-domain", "Not/One"]);
    assert!(text(&wrong.stderr).contains("--trust-domain"));
}

#[test]
fn servers_with_tls_are_called() {
    let to = Directory::new("tls");
    let dir = to.0.display().to_string();
    assert!(cert(&["dev", "--dir", &dir, "--names", "127.0.0.1"]).status.success());
    let server = Tls::from_pem(to.file("server.pem"), to.file("server-key.pem"), to.file("ca.pem"));
    let server = server.unwrap();
    for (scheme, protection, said) in [
        ("shm", Protection::Encrypt, "authenticate"),
        ("tcp", Protection::Encrypt, "encrypt"),
        ("tcp", Protection::Authenticate, "authenticate"),
    ] {
        let allow = Allow::nobody()
            .rule(&["spiffe://dev.local/client"], &["*", "rpc.Reflect.*", "rpc.Stats.*"]);
        let (tls, allow) = (server.clone().protection(protection), allow.unwrap());
        let world = World::start(scheme, |builder| builder.reflection().tls(tls).allow(allow));
        let id = ["--tls", &dir, "--expect-peer", "spiffe://dev.local/server"];
        let said = ["--protection", said];
        assert!(world.good("list", &[&id[..], &said].concat(), "").contains("Store"));
        world.bad("list", &[], "", &["this server requires TLS"]);
        let other = ["--tls", &dir, "--expect-peer", "spiffe://dev.local/other"];
        world.bad("list", &[&other[..], &said].concat(), "", &["expects spiffe://dev.local/other"]);
        let top = world.good("top", &[&id[..], &said, &["-n", "1"]].concat(), "");
        let level = if said[1] == "encrypt" { "Encrypt" } else { "Authenticate" };
        let row = top.lines().find(|line| line.contains("/client at "));
        assert!(row.is_some_and(|row| row.contains(level)), "{top}");
        // A plain client, and one that expects another server.
        assert!(top.contains("denied 2, failed 0"), "{top}");
        match scheme {
            // The host in the address is the name.
            "tcp" => {
                world.good("list", &["--tls", &dir, said[0], said[1]], "");
                match protection {
                    Protection::Encrypt => _ = world.good("list", &id, ""),
                    _ => world.bad("list", &id, "", &["set the same level at both ends"]),
                }
            }
            _ => world.bad("list", &["--tls", &dir], "", &["expect_peer"]),
        }
    }
}
