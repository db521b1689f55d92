//! Writes the checks that the types of a service can be sent: one error for each type that cannot,
//! at the user's own token, whatever it lacks and however many methods use it.
//!
//! Owns the errors about such types. Elsewhere generated code accepts any type (see `rpc-core`'s
//! `shape.rs`), so that no other errors appear.

use std::collections::HashMap;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote_spanned};
use syn::ext::IdentExt;
use syn::{GenericArgument, Path, PathArguments, Type};

use super::{alias_parts, quote};
use crate::method::{Method, Returns};
use crate::model::Service;
use crate::streams::Download;
use crate::types::{self, bare, is_ident, located, span_of};

/// The use of a type.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Role {
    /// The client encodes it, and the server decodes it, borrowing.
    Argument,
    /// One end encodes it, and the other decodes it, owning: a result, or an item of a stream.
    Result,
    /// The method's own error: as `Result`, unless it is a `Status`.
    Error,
}

/// A type in a signature, on its own or inside another type, as the server uses it.
struct Check {
    ty: Type,
    /// All uses of the types that contain it.
    roles: Vec<Role>,
    /// Indices of the types in the signature that contain it, itself included if it is one.
    wholes: Vec<usize>,
    cfgs: TokenStream,
}

pub(super) fn checks(service: &Service) -> TokenStream {
    let mut checks = Checks::default();
    for method in &service.methods {
        checks.method(&service.krate, method);
    }
    let all = checks.all.iter().map(|check| checks.expand(check, &service.krate));
    quote!(#(#all)*)
}

#[derive(Default)]
struct Checks {
    all: Vec<Check>,
    /// The index in `all` of a type under these `#[cfg]`s.
    known: HashMap<String, usize>,
}

impl Checks {
    fn method(&mut self, krate: &Path, method: &Method) {
        for argument in &method.arguments {
            self.add(method, &argument.decoded.ty, Role::Argument);
        }
        if let Some(upload) = &method.upload {
            self.add(method, &upload.item, Role::Result);
        }
        match &method.returns {
            Returns::Plain(ty) => self.add(method, ty, Role::Result),
            Returns::Result { ok, error } | Returns::OrStatus { ok, error } => {
                self.add(method, ok, Role::Result);
                self.add(method, error, Role::Error);
            }
            Returns::Alias(ty) => {
                let (ok, error) = alias_parts(krate, ty);
                self.add(method, &ok, Role::Result);
                self.add(method, &error, Role::Error);
            }
            Returns::Stream(download) => {
                let Download { item, end, error, refusal, .. } = &**download;
                for result in [Some(item), end.as_ref()].into_iter().flatten() {
                    self.add(method, result, Role::Result);
                }
                for error in [error, refusal].into_iter().flatten() {
                    self.add(method, &error.ty, Role::Error);
                }
            }
        }
    }

    fn add(&mut self, method: &Method, ty: &Type, role: Role) {
        if let Type::Tuple(tuple) = bare(ty) {
            // The fields are encoded one by one.
            for element in &tuple.elems {
                self.add(method, element, role);
            }
            return;
        }
        let whole = self.place(method, ty);
        self.note(whole, role, whole);
        for part in parts(ty) {
            let part = self.place(method, part);
            self.note(part, role, whole);
        }
    }

    fn place(&mut self, method: &Method, ty: &Type) -> usize {
        let cfgs = &method.cfgs;
        let cfgs = quote!(#(#cfgs)*);
        let key = format!("{cfgs} {}", ty.to_token_stream());
        let at = *self.known.entry(key).or_insert(self.all.len());
        if at == self.all.len() {
            let (roles, wholes) = (Vec::new(), Vec::new());
            self.all.push(Check { ty: ty.clone(), roles, wholes, cfgs });
        }
        at
    }

    fn note(&mut self, at: usize, role: Role, whole: usize) {
        let Check { roles, wholes, .. } = &mut self.all[at];
        if !roles.contains(&role) {
            roles.push(role);
        }
        if !wholes.contains(&whole) {
            wholes.push(whole);
        }
    }

    /// Reports the innermost type: an error is for a type if it and a type that contains it lack
    /// something, but no type inside it does.
    fn expand(&self, check: &Check, krate: &Path) -> TokenStream {
        let Check { ty, roles, wholes, cfgs } = check;
        let has_all = |ty: &Type, roles: &[Role]| {
            let (sent, received) = abilities(ty, roles, krate);
            quote!(#sent && #received)
        };
        let wholes = wholes.iter().map(|at| &self.all[*at]);
        let wholes = wholes.map(|whole| has_all(&whole.ty, &whole.roles));
        let parts = parts(ty);
        let parts = parts.iter().map(|part| has_all(part, roles));
        let verdict = verdict(ty, roles, krate);
        let span = span_of(ty);
        let there = located(krate, span);
        quote_spanned! {span=>
            #cfgs
            const _: () = {
                use #there::__private::Lacking as _;
                if !(true #(&& #wholes)*) && (true #(&& #parts)*) {
                    #verdict
                }
            };
        }
    }
}

/// Whether a type can be encoded, and whether it can be decoded, for all these uses.
fn abilities(ty: &Type, roles: &[Role], krate: &Path) -> (TokenStream, TokenStream) {
    let span = span_of(ty);
    let krate = located(krate, span);
    let client = types::client_result(ty);
    let of = |ty: &Type, what: &str| {
        let what = quote::format_ident!("{what}", span = span);
        quote_spanned!(span=> #krate::__private::Probe::<#ty>::#what)
    };
    let any = |ty: &Type, whats: &[&str]| {
        let whats = whats.iter().map(|what| of(ty, what));
        quote_spanned!(span=> (#(#whats)||*))
    };
    let sent = roles.iter().map(|role| match role {
        Role::Argument | Role::Result => any(ty, &["SERIALIZES", "PUTS"]),
        Role::Error => any(ty, &["SERIALIZES", "IS_STATUS"]),
    });
    let received = roles.iter().map(|role| match role {
        Role::Argument => any(ty, &["DESERIALIZES", "TAKES"]),
        Role::Result => any(&client, &["DESERIALIZES_OWNED", "TAKES_OWNED"]),
        Role::Error => any(&client, &["DESERIALIZES_OWNED", "IS_STATUS"]),
    });
    (quote_spanned!(span=> (#(#sent)&&*)), quote_spanned!(span=> (#(#received)&&*)))
}

/// An expression that panics during const evaluation if the type lacks something.
fn verdict(ty: &Type, roles: &[Role], krate: &Path) -> TokenStream {
    let (sent, received) = abilities(ty, roles, krate);
    let (neither, serialize, deserialize) = (
        complaint(
            ty,
            "cannot be sent",
            "implements neither serde's `Serialize` nor its `Deserialize`",
            "both",
        ),
        complaint(ty, "cannot be sent", "does not implement serde's `Serialize`", "it"),
        complaint(ty, "cannot be received", "does not implement serde's `Deserialize`", "it"),
    );
    let span = span_of(ty);
    let krate = located(krate, span);
    let panic = |text: String| quote_spanned!(span=> #krate::__private::panic!(#text));
    let hidden = roles.contains(&Role::Error).then(|| {
        let text = panic(
            "this error type is an alias of `CallError`: write `Result<T, CallError<E>>` out in \
             the trait, so that the client can return its `E`"
                .to_owned(),
        );
        quote_spanned!(span=> if #krate::__private::Probe::<#ty>::IS_CALL_ERROR { #text })
    });
    let (neither, serialize, deserialize) = (panic(neither), panic(serialize), panic(deserialize));
    quote_spanned! {span=>
        #hidden
        match (#sent, #received) {
            (true, true) => {}
            (false, false) => #neither,
            (false, true) => #serialize,
            (true, false) => #deserialize,
        }
    }
}

fn complaint(ty: &Type, verb: &str, lacks: &str, what: &str) -> String {
    let advice = match bare(ty) {
        Type::Array(_) => {
            "serde implements its traits for arrays of up to 32 elements; send a `Vec`".to_owned()
        }
        _ => format!(
            "derive {what} if the type is yours; if it is another crate's, enable that crate's \
             serde feature (for `Arc` and `Rc`: serde's `rc`), or send a type of your own instead"
        ),
    };
    let text = format!("`{}` {verb}: it {lacks}; {advice}", name(ty));
    // The text is a format string.
    text.replace('{', "{{").replace('}', "}}")
}

/// The types inside a type as written, innermost first.
fn parts(ty: &Type) -> Vec<&Type> {
    let mut found = Vec::new();
    match bare(ty) {
        Type::Path(path) if path.qself.is_none() => {
            for segment in &path.path.segments {
                let PathArguments::AngleBracketed(arguments) = &segment.arguments else { continue };
                for argument in &arguments.args {
                    match argument {
                        GenericArgument::Type(inner) if !may_be_constant(inner) => {
                            collect(inner, &mut found);
                        }
                        _ => {}
                    }
                }
            }
        }
        Type::Tuple(tuple) => tuple.elems.iter().for_each(|inner| collect(inner, &mut found)),
        Type::Array(array) => collect(&array.elem, &mut found),
        _ => {}
    }
    found
}

/// Whether a type argument may be the name of a constant, which looks like a type until names are
/// resolved: a single name that is not in the case of types. A type of such a name (`URL`) is
/// checked as part of the enclosing type.
fn may_be_constant(ty: &Type) -> bool {
    const PRIMITIVES: [&str; 17] = [
        "bool", "char", "f32", "f64", "i8", "i16", "i32", "i64", "i128", "isize", "str", "u8",
        "u16", "u32", "u64", "u128", "usize",
    ];
    let Type::Path(path) = bare(ty) else { return false };
    let Some(name) = path.path.get_ident().filter(|_| path.qself.is_none()) else { return false };
    let name = name.unraw().to_string();
    let is_camel_case =
        name.starts_with(char::is_uppercase) && name.contains(|c: char| c.is_lowercase());
    !is_camel_case && !PRIMITIVES.contains(&name.as_str())
}

fn collect<'a>(ty: &'a Type, found: &mut Vec<&'a Type>) {
    found.extend(parts(ty));
    // An unsized type is decoded by the type that contains it.
    if matches!(bare(ty), Type::Path(_) | Type::Array(_)) && !is_ident(ty, "str") {
        found.push(ty);
    }
}

/// A type as written, with conventional spacing.
fn name(ty: &Type) -> String {
    let tokens: String = ty.to_token_stream().to_string().split_whitespace().collect();
    tokens.replace(',', ", ").replace(';', "; ").replace("&'_", "&'_ ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_part_is_asked_first() {
        let ty: Type = syn::parse_quote!(HashMap<String, Vec<(Handle, [Other; 3])>>);
        let found: Vec<String> = parts(&ty).into_iter().map(name).collect();
        assert_eq!(found, ["String", "Handle", "Other", "[Other; 3]", "Vec<(Handle, [Other; 3])>"]);
        let ty: Type = syn::parse_quote!(Arc<str>);
        assert!(parts(&ty).is_empty());
    }

    #[test]
    fn a_part_may_be_a_constant() {
        let ty: Type = syn::parse_quote!(Option<Grid<Cell, WIDTH, { HEIGHT }, 4, N>>);
        let found: Vec<String> = parts(&ty).into_iter().map(name).collect();
        assert_eq!(found, ["Cell", "Grid<Cell, WIDTH, {HEIGHT}, 4, N>"]);
    }
}
