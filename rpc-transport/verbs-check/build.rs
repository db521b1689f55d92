//! Checks the system's requirements for feature `verbs`, before a dependency fails with a longer
//! error of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

const MISSING: &str = "feature `verbs` needs the packages libibverbs-dev librdmacm-dev \
                       libclang-dev pkg-config";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=LIBCLANG_PATH");
    for name in ["LLVM_CONFIG_PATH", "PKG_CONFIG", "PKG_CONFIG_PATH"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    if std::env::var_os("CARGO_FEATURE_CHECK").is_none() {
        return ExitCode::SUCCESS;
    }
    match missing() {
        None => ExitCode::SUCCESS,
        Some(what) => {
            eprintln!("{MISSING} (not found: {what})");
            ExitCode::FAILURE
        }
    }
}

fn missing() -> Option<&'static str> {
    let pkg_config = std::env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let runs = |arguments: &[&str]| {
        let mut command = Command::new(&pkg_config);
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if !runs(&["--version"]) {
        return Some("pkg-config");
    }
    // The versions that rdma-sys requires.
    if !runs(&["--exists", "libibverbs >= 1.8.28"]) {
        return Some("libibverbs 1.8.28 or later");
    }
    if !runs(&["--exists", "librdmacm >= 1.2.28"]) {
        return Some("librdmacm 1.2.28 or later");
    }
    (!has_libclang()).then_some("libclang")
}

/// bindgen loads libclang at build time, from the place that `LIBCLANG_PATH` or `llvm-config`
/// names, or from the usual places.
fn has_libclang() -> bool {
    if std::env::var_os("LIBCLANG_PATH").is_some() {
        return true;
    }
    let llvm_config = std::env::var_os("LLVM_CONFIG_PATH").unwrap_or_else(|| "llvm-config".into());
    let from_llvm = Command::new(llvm_config).arg("--libdir").stderr(Stdio::null()).output();
    let from_llvm = from_llvm.ok().and_then(|output| String::from_utf8(output.stdout).ok());
    let mut directories: Vec<PathBuf> = from_llvm
        .iter()
        .map(|directory| PathBuf::from(directory.trim()))
        .chain(["/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib64"].map(PathBuf::from))
        .collect();
    for (parent, suffix) in [("/usr/lib", ""), ("/usr/lib64", ""), ("/usr/lib", "lib")] {
        directories.extend(entries(Path::new(parent)).into_iter().map(|path| path.join(suffix)));
    }
    directories.iter().any(|directory| {
        entries(directory).iter().any(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("libclang.so") || name.starts_with("libclang-")
        })
    })
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}
