//! The text of a method's signature, whose hash both sides compare.
//!
//! Owns the normal form. Two signatures have the same text if their values have the same encoding
//! and the types have the same names. The rules are part of the wire format:
//!
//! - whitespace, lifetimes and references are left out; of a path, the last segment counts;
//! - `str`, `String` and `Cow`, `Box`, `Arc`, `Rc` of them are `str`;
//! - `[u8]`, `Vec<u8>`, `Bytes`, `Bulk` and `Cow`, `Box`, `Arc`, `Rc` of them are `bytes`;
//! - other `[T]` and `Vec<T>` are `[T]`; `Box`, `Arc`, `Rc`, `Cow` of any `T` are `T`;
//! - the whole is `(A, B) -> T`, then ` / E` for a method with an error type, then ` #2` for
//!   version 2;
//! - a stream of arguments is its last argument, `stream A`; a stream of results is `stream T`,
//!   with ` then R` for a value after the items, and ` refused X` for an early refusal's error
//!   type.

use quote::ToTokens;
use syn::{GenericArgument, PathArguments, PathSegment, Type};

use crate::types::{bare, type_arguments};

/// The types of a method.
#[derive(Default)]
pub(crate) struct Parts<'a> {
    pub(crate) arguments: Vec<&'a Type>,
    /// The items of a stream of arguments.
    pub(crate) upload: Option<&'a Type>,
    /// The result, or the items of a stream of results.
    pub(crate) result: Option<&'a Type>,
    pub(crate) is_stream: bool,
    /// The value after the items.
    pub(crate) end: Option<&'a Type>,
    pub(crate) error: Option<&'a Type>,
    /// The error type of an early refusal.
    pub(crate) refusal: Option<&'a Type>,
    pub(crate) version: Option<u64>,
}

/// The text for the types of a method.
pub(crate) fn text(parts: &Parts<'_>) -> String {
    let mut arguments: Vec<String> = parts.arguments.iter().map(|ty| normal(ty)).collect();
    arguments.extend(parts.upload.map(|item| format!("stream {}", normal(item))));
    let result = parts.result.map_or("()".to_owned(), normal);
    let stream = if parts.is_stream { "stream " } else { "" };
    let mut text = format!("({}) -> {stream}{result}", arguments.join(", "));
    let named = [(" then ", parts.end), (" / ", parts.error), (" refused ", parts.refusal)];
    for (before, ty) in named {
        text.extend(ty.map(|ty| format!("{before}{}", normal(ty))));
    }
    text.extend(parts.version.map(|version| format!(" #{version}")));
    text
}

fn list<'a>(types: impl Iterator<Item = &'a Type>) -> String {
    types.map(normal).collect::<Vec<_>>().join(", ")
}

fn normal(ty: &Type) -> String {
    match bare(ty) {
        Type::Reference(reference) => normal(&reference.elem),
        Type::Slice(slice) => sequence(&slice.elem),
        Type::Array(array) => format!("[{}; {}]", normal(&array.elem), tokens(&array.len)),
        Type::Tuple(tuple) => format!("({})", list(tuple.elems.iter())),
        Type::Path(path) => match path.path.segments.last() {
            Some(segment) if path.qself.is_none() => normal_segment(segment),
            _ => tokens(path),
        },
        other => tokens(other),
    }
}

fn sequence(element: &Type) -> String {
    match normal(element).as_str() {
        "u8" => "bytes".to_owned(),
        element => format!("[{element}]"),
    }
}

fn normal_segment(segment: &PathSegment) -> String {
    let name = segment.ident.to_string();
    let name = name.strip_prefix("r#").unwrap_or(&name);
    match (name, type_arguments(segment).as_slice()) {
        ("String", []) => "str".to_owned(),
        ("Bytes" | "Bulk", []) => "bytes".to_owned(),
        ("Vec", [element]) => sequence(element),
        ("Box" | "Arc" | "Rc" | "Cow", [target]) => normal(target),
        _ => format!("{name}{}", generics(segment)),
    }
}

fn generics(segment: &PathSegment) -> String {
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else {
        return String::new();
    };
    let arguments: Vec<String> = arguments
        .args
        .iter()
        .filter_map(|argument| match argument {
            GenericArgument::Lifetime(_) => None,
            GenericArgument::Type(ty) => Some(normal(ty)),
            other => Some(tokens(other)),
        })
        .collect();
    if arguments.is_empty() { String::new() } else { format!("<{}>", arguments.join(", ")) }
}

/// Tokens without spaces: their spacing is not specified, so it is dropped.
fn tokens(tokens: impl ToTokens) -> String {
    tokens.to_token_stream().to_string().split_whitespace().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> String {
        normal(&syn::parse_str::<Type>(text).unwrap())
    }

    #[test]
    fn types_with_equal_encoding_have_equal_text() {
        for (types, expected) in [
            (&["&str", "String", "std::string::String", "Cow<'_, str>", "Box<str>"][..], "str"),
            (
                &[
                    "&[u8]",
                    "Vec<u8>",
                    "bytes::Bytes",
                    "Bytes",
                    "Bulk",
                    "rpc_core::Bulk",
                    "Cow<[u8]>",
                    "&Vec<u8>",
                ],
                "bytes",
            ),
            (&["&[u32]", "Vec<u32>", "Box<[u32]>"], "[u32]"),
            (&["Option<&[u8]>", "Option<Vec<u8>>", "std::option::Option<Bytes>"], "Option<bytes>"),
            (&["Foo", "&Foo", "Foo<'_>", "m::Foo", "Box<Foo>", "(Foo)", "Arc<Foo>"], "Foo"),
            (&["HashMap<String, Vec<Foo<'_, u8>>>"], "HashMap<str, [Foo<u8>]>"),
            (&["[u8; 16]", "&[u8; 16]"], "[u8; 16]"),
            (&["(u8, &str)"], "(u8, str)"),
            (&["()"], "()"),
            (&["r#type"], "type"),
        ] {
            for ty in types {
                assert_eq!(of(ty), expected, "{ty}");
            }
        }
    }

    #[test]
    fn the_whole_names_error_and_version() {
        let ty = |text: &str| syn::parse_str::<Type>(text).unwrap();
        let (a, b, t, e) = (ty("&str"), ty("&[u8]"), ty("u64"), ty("KvError"));
        let (result, error) = (Some(&t), Some(&e));
        let parts =
            Parts { arguments: vec![&a, &b], result, error, version: Some(2), ..Parts::default() };
        assert_eq!(text(&parts), "(str, bytes) -> u64 / KvError #2");
        assert_eq!(text(&Parts::default()), "() -> ()");
        let parts = Parts {
            arguments: vec![&a],
            upload: Some(&b),
            result,
            is_stream: true,
            end: Some(&a),
            error,
            refusal: error,
            version: None,
        };
        let expected = "(str, stream bytes) -> stream u64 then str / KvError refused KvError";
        assert_eq!(text(&parts), expected);
    }
}
