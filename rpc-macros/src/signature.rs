//! The text of a method's signature, whose hash both sides compare.
//!
//! Owns the normal form. Two signatures have the same text when their values have the same bytes
//! and the types have the same names. The rules are part of the wire format:
//!
//! - whitespace, lifetimes and references are left out; of a path, the last segment counts;
//! - `str`, `String` and `Cow`, `Box`, `Arc`, `Rc` of them are `str`;
//! - `[u8]`, `Vec<u8>`, `Bytes`, `Bulk` and `Cow`, `Box`, `Arc`, `Rc` of them are `bytes`;
//! - other `[T]` and `Vec<T>` are `[T]`; `Box`, `Arc`, `Rc`, `Cow` of any `T` are `T`;
//! - the whole is `(A, B) -> T`, then ` / E` for a method with an error type, then ` #2` for
//!   version 2.

use quote::ToTokens;
use syn::{GenericArgument, PathArguments, PathSegment, Type};

use crate::types::{bare, type_arguments};

/// The text for arguments, result, error type and version.
pub(crate) fn text(
    arguments: &[&Type],
    result: Option<&Type>,
    error: Option<&Type>,
    version: Option<u64>,
) -> String {
    let mut text = format!("({})", list(arguments.iter().copied()));
    text.push_str(" -> ");
    text.push_str(&result.map_or("()".to_owned(), normal));
    if let Some(error) = error {
        text.push_str(" / ");
        text.push_str(&normal(error));
    }
    if let Some(version) = version {
        text.push_str(&format!(" #{version}"));
    }
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

/// Tokens with nothing between them: how they print is not specified, so blanks are dropped.
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
    fn types_with_the_same_bytes_have_the_same_text() {
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
        assert_eq!(
            text(&[&a, &b], Some(&t), Some(&e), Some(2)),
            "(str, bytes) -> u64 / KvError #2"
        );
        assert_eq!(text(&[], None, None, None), "() -> ()");
    }
}
