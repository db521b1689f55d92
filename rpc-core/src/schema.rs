//! The types of a service in a file of the repository, so that a review shows each change of them.

use std::fmt;
use std::io;
use std::path::Path;

use rpc_schema::changes::changes;
use rpc_schema::services::{Kind, Method, Services, parse};

use crate::service::{Described, ServiceDescriptor};

/// The environment variable that lets [`check`] write.
const UPDATE: &str = "UPDATE_SCHEMAS";

/// Why a file does not have the types of a service. `Debug` shows the text of `Display`, for
/// `unwrap` in tests.
pub struct SchemaError(String);

impl fmt::Display for SchemaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for SchemaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SchemaError {}

/// Compares the types of a service with those in a file, as a test does: no server runs. With
/// `UPDATE_SCHEMAS=1` in the environment it writes the file instead. The file is that of
/// `rpcctl schema save`. `S` is the client of the service, or its server.
///
/// ```no_run
/// # #[rpc_core::service]
/// # pub trait Stock { async fn count(&self) -> u64; }
/// use rpc_core::schema;
///
/// // In a test: fails with what has changed, and which clients and servers that breaks.
/// schema::check::<StockClient>("stock.schema").unwrap();
/// ```
///
/// # Errors
/// The file has other types, even if nothing breaks; it is missing or cannot be read or written.
/// The text says what has changed, what breaks, and what to do.
pub fn check<S: Described>(file: impl AsRef<Path>) -> Result<(), SchemaError> {
    let may_update = std::env::var_os(UPDATE).is_some_and(|value| value == "1");
    compare(S::service(), file.as_ref(), may_update)
}

fn compare(service: &ServiceDescriptor, file: &Path, may_update: bool) -> Result<(), SchemaError> {
    let failed = |text: String| SchemaError(format!("{}: {text}", file.display()));
    let now = types_of(service)?;
    if may_update {
        let written = std::fs::write(file, now.to_string());
        return written.map_err(|error| failed(format!("cannot be written: {error}")));
    }
    let text = std::fs::read_to_string(file).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            failed(format!("there is no such file: run the test with {UPDATE}=1 to write it"))
        }
        _ => failed(format!("cannot be read: {error}")),
    })?;
    let before = parse(&text).map_err(|error| failed(error.to_string()))?;
    if before == now {
        return Ok(());
    }
    let changes = changes(&before, &now);
    let mut said: String = changes.iter().map(ToString::to_string).collect();
    if changes.is_empty() {
        said.push_str("the service has another name, or no methods any more\n");
    }
    let advice = match changes.iter().any(|change| change.is_break()) {
        true => "ends of before and after this change do not work together",
        false => "nothing breaks",
    };
    Err(failed(format!(
        "the types have changed:\n{said}{advice}. If the change is intended, run the test with \
         {UPDATE}=1 and commit the file"
    )))
}

fn types_of(service: &ServiceDescriptor) -> Result<Services, SchemaError> {
    let unwritable = |error: &dyn fmt::Display| SchemaError(format!("{}: {error}", service.name));
    let mut found = Services::default();
    found.add_service(service.name).map_err(|error| unwritable(&error))?;
    for &method in service.methods {
        let name = method.name.rsplit('.').next().unwrap_or(method.name);
        let kind = Kind::new(method.streams.arguments, method.streams.results);
        let schema = method.types().cloned().unwrap_or_default();
        let method = Method { kind, signature: method.signature.to_owned(), schema };
        found.add(service.name, name, method).map_err(|error| unwritable(&error))?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    mod old {
        #[rpc_core::service]
        pub(super) trait Stock {
            async fn count(&self, shelf: u32) -> u64;
        }
    }

    mod wider {
        #[rpc_core::service]
        pub(super) trait Stock {
            async fn count(&self, shelf: u64) -> u64;
        }
    }

    mod other {
        #[rpc_core::service]
        pub(super) trait Stock {
            async fn count(&self, shelf: String) -> u64;
            async fn added(&self);
        }
    }

    #[test]
    fn a_file_holds_the_types_of_a_service() {
        let file = std::env::temp_dir().join(format!("rpc-stock-{}.schema", std::process::id()));
        let _ = std::fs::remove_file(&file);
        fn check<S: Described>(file: &Path, may_update: bool) -> Result<(), SchemaError> {
            compare(S::service(), file, may_update)
        }
        let text = check::<old::StockClient>(&file, false).unwrap_err().to_string();
        assert!(text.contains("UPDATE_SCHEMAS=1 to write it"), "{text}");
        check::<old::StockClient>(&file, true).unwrap();
        check::<old::StockClient>(&file, false).unwrap();
        // A change that works is still a difference of the file.
        let text = check::<wider::StockClient>(&file, false).unwrap_err().to_string();
        assert!(text.contains("changed Stock.count") && text.contains("nothing breaks"), "{text}");
        let text = check::<other::StockServer<()>>(&file, false).unwrap_err().to_string();
        assert!(text.contains("added Stock.added") && text.contains("BREAKS"), "{text}");
        assert!(text.contains("do not work together"), "{text}");
        std::fs::write(&file, "services 2\n").unwrap();
        let text = check::<old::StockClient>(&file, false).unwrap_err().to_string();
        assert!(text.contains("line 1"), "{text}");
        std::fs::remove_file(&file).unwrap();
    }
}
