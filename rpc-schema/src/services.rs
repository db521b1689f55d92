//! The schemas of all methods of a server, and the text in which they are kept.
//!
//! ```text
//! services 1
//!
//! service Stock
//!
//! method store
//!   kind: unary
//!   signature: (Item) -> u64
//!   argument item: #0
//!   result: #1
//!   #0 struct { id: #1 }
//!   #1 u64
//! ```
//!
//! Services and methods are sorted by name, so the text does not depend on their order in the code.
//! The lines after the signature are the method's schema (see [`text`]).
//!
//! Invariant: a text that is parsed is written again as it was.

use std::collections::BTreeMap;
use std::fmt;
use std::iter::Peekable;

use crate::schema::Schema;
use crate::text::{self, ParseError};

/// The first line: the version of the format.
const HEADER: &str = "services 1";
/// What precedes each line of a method.
const INDENT: &str = "  ";

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// No stream.
    Unary,
    /// A stream of arguments.
    SentItems,
    /// A stream of results.
    Items,
    /// Streams in both directions.
    BothStreams,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Unary, Self::SentItems, Self::Items, Self::BothStreams];

    /// The kind of a call with a stream of arguments, and with one of results.
    #[must_use]
    pub const fn new(streams_arguments: bool, streams_results: bool) -> Self {
        match (streams_arguments, streams_results) {
            (false, false) => Self::Unary,
            (true, false) => Self::SentItems,
            (false, true) => Self::Items,
            (true, true) => Self::BothStreams,
        }
    }

    /// Its name in the text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unary => "unary",
            Self::SentItems => "stream of arguments",
            Self::Items => "stream of results",
            Self::BothStreams => "streams both ways",
        }
    }
}

/// A method and its types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Method {
    /// The kind of its calls.
    pub kind: Kind,
    /// The names of its types, and its version: `(Item) -> u64 #2`.
    pub signature: String,
    /// Its types. Empty: they are not described.
    pub schema: Schema,
}

/// Why a method is not added.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AddError {
    /// The name or the signature has characters that a line of the text cannot have.
    Unwritable(String),
    /// There is such a method already.
    Twice(String),
}

impl fmt::Display for AddError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unwritable(text) => write!(
                f,
                "{text:?} cannot be written: a name consists of letters, digits and ASCII signs"
            ),
            Self::Twice(name) => write!(f, "`{name}` is there twice"),
        }
    }
}

impl std::error::Error for AddError {}

/// The methods of all services of a server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Services(BTreeMap<String, BTreeMap<String, Method>>);

impl Services {
    /// Adds a service without methods.
    ///
    /// # Errors
    /// Its name cannot be written, or it is there already.
    pub fn add_service(&mut self, service: &str) -> Result<(), AddError> {
        if !is_name(service) {
            return Err(AddError::Unwritable(service.to_owned()));
        }
        match self.0.insert(service.to_owned(), BTreeMap::new()) {
            Some(_) => Err(AddError::Twice(service.to_owned())),
            None => Ok(()),
        }
    }

    /// Adds a method, and its service if it is missing. The name has no service in it.
    ///
    /// # Errors
    /// A name or the signature cannot be written, or the method is there already.
    pub fn add(&mut self, service: &str, name: &str, method: Method) -> Result<(), AddError> {
        let unwritable = |text: &str| Err(AddError::Unwritable(text.to_owned()));
        if !is_name(service) {
            return unwritable(service);
        }
        if !is_name(name) {
            return unwritable(name);
        }
        if !method.signature.split(' ').all(is_name) {
            return unwritable(&method.signature);
        }
        let methods = self.0.entry(service.to_owned()).or_default();
        match methods.insert(name.to_owned(), method) {
            Some(_) => Err(AddError::Twice(format!("{service}.{name}"))),
            None => Ok(()),
        }
    }

    /// All methods by their names, `Service.method`.
    pub fn methods(&self) -> impl Iterator<Item = (String, &Method)> {
        self.0.iter().flat_map(|(service, methods)| {
            methods.iter().map(move |(name, method)| (format!("{service}.{name}"), method))
        })
    }
}

fn is_name(text: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c.is_ascii_graphic();
    !text.is_empty() && text.chars().all(is_part)
}

impl fmt::Display for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}")?;
        for (service, methods) in &self.0 {
            writeln!(f, "\nservice {service}")?;
            for (name, Method { kind, signature, schema }) in methods {
                writeln!(f, "\nmethod {name}")?;
                writeln!(f, "{INDENT}kind: {}", kind.name())?;
                writeln!(f, "{INDENT}signature: {signature}")?;
                let schema = schema.to_string();
                schema.lines().try_for_each(|line| writeln!(f, "{INDENT}{line}"))?;
            }
        }
        Ok(())
    }
}

/// Parses the text of a server's services.
///
/// # Errors
/// The text is not exactly one that is written, with the number of the line.
pub fn parse(text: &str) -> Result<Services, ParseError> {
    let error = |line: usize, what: &str| ParseError { line, what: what.to_owned() };
    let mut lines = (1..).zip(text.split_terminator('\n')).peekable();
    if lines.next().is_none_or(|(_, line)| line != HEADER) {
        return Err(error(1, &format!("expected `{HEADER}`: write it by `rpcctl schema save`")));
    }
    if !text.ends_with('\n') {
        return Err(error(text.lines().count(), "its end is missing"));
    }
    let mut found = Services::default();
    // The service, and its last method.
    let mut last: Option<(&str, &str)> = None;
    while let Some((number, line)) = lines.next() {
        if !line.is_empty() {
            return Err(error(number, "expected an empty line"));
        }
        let (number, line) = lines.next().unwrap_or((number, ""));
        let unsorted = || error(number, "it must be sorted by name, without one that is twice");
        let added =
            |added: Result<(), AddError>| added.map_err(|it| error(number, &it.to_string()));
        if let Some(service) = line.strip_prefix("service ") {
            if last.is_some_and(|(last, _)| last >= service) {
                return Err(unsorted());
            }
            added(found.add_service(service))?;
            last = Some((service, ""));
            continue;
        }
        let Some(name) = line.strip_prefix("method ") else {
            return Err(error(number, "expected `service NAME` or `method NAME`"));
        };
        let Some((service, before)) = last else {
            return Err(error(number, "expected `service NAME` before the first method"));
        };
        if before >= name {
            return Err(unsorted());
        }
        added(found.add(service, name, method(number, &mut lines)?))?;
        last = Some((service, name));
    }
    Ok(found)
}

/// The lines of a method after the one with its name, which has this number.
fn method<'a>(
    first: usize,
    lines: &mut Peekable<impl Iterator<Item = (usize, &'a str)>>,
) -> Result<Method, ParseError> {
    let mut next = || lines.next_if(|(_, line)| line.starts_with(INDENT));
    let mut value = |number: usize, key: &str| {
        let line = next().and_then(|(_, line)| line[INDENT.len()..].strip_prefix(key));
        line.ok_or_else(|| ParseError { line: number, what: format!("expected `{INDENT}{key}..`") })
    };
    let name = value(first + 1, "kind: ")?;
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
        let all = Kind::ALL.map(Kind::name).join("`, `");
        ParseError { line: first + 1, what: format!("expected one of `{all}`") }
    })?;
    let signature = value(first + 2, "signature: ")?.to_owned();
    let mut schema = String::new();
    while let Some((_, line)) = next() {
        schema.push_str(&line[INDENT.len()..]);
        schema.push('\n');
    }
    let schema = text::parse(&schema).map_err(|error| match error.line {
        0 => ParseError { line: first, what: format!("the types of this method: {}", error.what) },
        line => ParseError { line: first + 2 + line, what: error.what },
    })?;
    Ok(Method { kind, signature, schema })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
services 1

service Empty

service Stock

method store
  kind: unary
  signature: (Item) -> u64 #2
  argument item: #0
  result: #1
  #0 struct { id: #1 }
  #1 u64

method watch
  kind: stream of results
  signature: () -> stream u64

service a.b

method c
  kind: streams both ways
  signature: (stream u8) -> stream u8
";

    #[test]
    fn a_text_is_written_as_it_was() {
        let parsed = parse(TEXT).unwrap();
        assert_eq!(parsed.to_string(), TEXT);
        let names: Vec<_> = parsed.methods().map(|(name, _)| name).collect();
        assert_eq!(names, ["Stock.store", "Stock.watch", "a.b.c"]);
        assert_eq!(parse("services 1\n").unwrap(), Services::default());
    }

    #[test]
    fn errors_name_the_line() {
        for (from, to, expected) in [
            ("services 1", "services 2", "line 1: expected `services 1`"),
            ("service Empty", "servise Empty", "line 3: expected `service NAME` or"),
            ("service Empty\n\nservice Stock\n\n", "", "line 3: expected `service NAME` before"),
            ("service Empty", "service Stock", "line 5: it must be sorted"),
            ("\n\nservice Stock", "\nservice Stock", "line 4: expected an empty line"),
            ("service Empty", "service A b", "line 3: \"A b\" cannot be written"),
            ("kind: unary", "kind: simple", "line 8: expected one of `unary`"),
            ("  kind: unary\n", "", "line 8: expected `  kind: ..`"),
            ("  signature: (Item)", "  (Item)", "line 9: expected `  signature: ..`"),
            ("(Item) -> u64", "(Item)  -> u64", "line 7: \"(Item)  -> u64"),
            ("#1 u64", "#1 u65", "line 13: no such kind"),
            ("  #1 u64\n", "", "line 7: the types of this method: type #0 refers"),
            ("method watch", "method store", "line 15: it must be sorted"),
            ("method watch", "method watch it", "line 15: \"watch it\" cannot"),
        ] {
            assert!(TEXT.contains(from), "{from}");
            let error = parse(&TEXT.replacen(from, to, 1)).map(|it| it.to_string());
            let error = error.expect_err(to).to_string();
            assert!(error.contains(expected), "{to:?}: {error}");
        }
        let cut = parse(TEXT.trim_end()).unwrap_err().to_string();
        assert!(cut.contains("its end is missing"), "{cut}");
        assert!(parse("").is_err() && parse("services 1\n\n").is_err());
    }

    #[test]
    fn what_no_line_can_have_is_refused() {
        let mut services = Services::default();
        let method = |signature: &str| Method {
            kind: Kind::Unary,
            signature: signature.to_owned(),
            schema: Schema::default(),
        };
        let good = method("() -> ()");
        for (service, name, method) in [
            ("a\n", "b", good.clone()),
            ("a", "b\u{202e}", good.clone()),
            ("", "b", good.clone()),
            ("a", "b", method("()\nmethod c")),
        ] {
            let added = services.add(service, name, method);
            assert!(matches!(added, Err(AddError::Unwritable(_))), "{service:?} {name:?}");
        }
        services.add("a", "b", good.clone()).unwrap();
        assert_eq!(services.add("a", "b", good), Err(AddError::Twice("a.b".to_owned())));
    }
}
