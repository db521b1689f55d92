//! The types allowed in a signature, and how they are decoded.
//!
//! Owns the rules for argument and result types: which references, lifetimes and kinds of types are
//! refused, how an argument is decoded, and the client's type of a result.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::{
    GenericArgument, Lifetime, Path, PathArguments, PathSegment, Type, TypeImplTrait,
    TypeParamBound, TypePath, TypeReference,
};

use crate::parse::Errors;

/// Maximum number of fields of a tuple for which serde implements its traits; the arguments of a
/// method are such a tuple.
pub(crate) const MAX_FIELDS: usize = 16;

/// How the server receives an argument.
pub(crate) struct Decoded {
    /// The decoded type.
    pub(crate) ty: Type,
    /// Whether the method takes a reference to it.
    pub(crate) lent: bool,
}

/// Strips parentheses and invisible groups.
pub(crate) fn bare(mut ty: &Type) -> &Type {
    loop {
        ty = match ty {
            Type::Paren(inner) => &inner.elem,
            Type::Group(inner) => &inner.elem,
            other => return other,
        };
    }
}

/// The last segment of a plain path type.
pub(crate) fn last_segment(ty: &Type) -> Option<&PathSegment> {
    match bare(ty) {
        Type::Path(TypePath { qself: None, path, .. }) => path.segments.last(),
        _ => None,
    }
}

/// The type arguments of a path segment.
pub(crate) fn type_arguments(segment: &PathSegment) -> Vec<&Type> {
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return Vec::new() };
    let types = arguments.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    types.collect()
}

/// The `E` of a `CallError<E>`.
pub(crate) fn inside_call_error(ty: &Type) -> Option<&Type> {
    let segment = last_segment(ty).filter(|segment| segment.ident == "CallError")?;
    match *type_arguments(segment) {
        [error] => Some(error),
        _ => None,
    }
}

pub(crate) fn is_ident(ty: &Type, name: &str) -> bool {
    matches!(bare(ty), Type::Path(path) if path.qself.is_none() && path.path.is_ident(name))
}

fn is_byte_slice(ty: &Type) -> bool {
    matches!(bare(ty), Type::Slice(slice) if is_ident(&slice.elem, "u8"))
}

/// `Vec<u8>` or an option of it: moved into the encoder instead of borrowed.
fn is_byte_vector(ty: &Type) -> bool {
    let Some(segment) = last_segment(ty) else { return false };
    match (&*segment.ident.to_string(), &*type_arguments(segment)) {
        ("Vec", [element]) => is_ident(element, "u8"),
        ("Option", [inner]) => is_byte_vector(inner),
        _ => false,
    }
}

/// `&str` and `&[u8]`: types that can be borrowed from a message.
fn is_borrowable(reference: &TypeReference) -> bool {
    is_ident(&reference.elem, "str") || is_byte_slice(&reference.elem)
}

/// Checks an argument's type.
pub(crate) fn argument(ty: &Type, krate: &Path, errors: &mut Errors) -> Decoded {
    let Type::Reference(reference) = bare(ty) else {
        Checker { errors, place: Place::Argument }.visit_type(ty);
        return Decoded { ty: ty.clone(), lent: false };
    };
    check_reference(reference, Place::Argument, errors);
    if is_borrowable(reference) {
        return Decoded { ty: ty.clone(), lent: false };
    }
    let mut checker = Checker { errors, place: Place::Argument };
    match bare(&reference.elem) {
        Type::Slice(slice) => {
            checker.visit_type(&slice.elem);
            let element = &slice.elem;
            Decoded { ty: syn::parse_quote!(#krate::__private::Vec<#element>), lent: true }
        }
        target => {
            if let Some((name, owned)) = unsized_name(target) {
                checker.errors.at(
                    target,
                    format!(
                        "`{name}` is unsized and cannot be decoded; take `{owned}`. (For a type of \
                         your own of that name, write `&self::{name}`)"
                    ),
                );
            } else {
                checker.visit_type(target);
            }
            Decoded { ty: target.clone(), lent: true }
        }
    }
}

/// An unsized type of the standard library and its owned counterpart. A name with a path in front
/// is another type.
fn unsized_name(ty: &Type) -> Option<(&'static str, &'static str)> {
    let Type::Path(TypePath { qself: None, path, .. }) = ty else { return None };
    let names: Vec<String> = path.segments.iter().map(|it| it.ident.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    match *names {
        ["Path"] | ["path", "Path"] | ["std", "path", "Path"] => Some(("Path", "PathBuf")),
        ["OsStr"] | ["ffi", "OsStr"] | ["std", "ffi", "OsStr"] => Some(("OsStr", "OsString")),
        _ => None,
    }
}

/// Checks a result's type, or one half of a `Result`.
pub(crate) fn result(ty: &Type, errors: &mut Errors) {
    Checker { errors, place: Place::Result }.visit_type(ty);
}

/// Checks the type of a stream's items.
pub(crate) fn item(ty: &Type, errors: &mut Errors) {
    Checker { errors, place: Place::Item }.visit_type(ty);
}

/// The client's type of a result: a `Cow` that the server may borrow from itself becomes owned.
pub(crate) fn client_result(ty: &Type) -> Type {
    let mut ty = ty.clone();
    OwnCows.visit_type_mut(&mut ty);
    ty
}

struct OwnCows;

impl VisitMut for OwnCows {
    fn visit_path_segment_mut(&mut self, segment: &mut PathSegment) {
        visit_mut::visit_path_segment_mut(self, segment);
        if segment.ident != "Cow" {
            return;
        }
        let PathArguments::AngleBracketed(arguments) = &mut segment.arguments else { return };
        let owned = Lifetime::new("'static", segment.ident.span());
        match arguments.args.first_mut() {
            Some(GenericArgument::Lifetime(lifetime)) => *lifetime = owned,
            _ => arguments.args.insert(0, GenericArgument::Lifetime(owned)),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Argument,
    Result,
    /// An item of a stream, in either direction.
    Item,
}

/// Visits a type and everything in it.
struct Checker<'a> {
    errors: &'a mut Errors,
    place: Place,
}

fn check_reference(reference: &TypeReference, place: Place, errors: &mut Errors) {
    if let Some(mutability) = &reference.mutability {
        errors.at(
            mutability,
            "the server cannot change an argument; take it by value or by `&`, and return what \
             changed",
        );
    }
    if let Some(lifetime) = &reference.lifetime {
        check_lifetime(lifetime, place, errors);
    }
}

fn check_lifetime(lifetime: &Lifetime, place: Place, errors: &mut Errors) {
    match place {
        Place::Argument if lifetime.ident == "_" => {}
        Place::Argument if lifetime.ident == "static" => errors.at(
            lifetime,
            "an argument cannot be 'static: it borrows from the request; leave the lifetime out",
        ),
        Place::Argument => errors.at(
            lifetime,
            "the lifetime of an argument cannot have a name: it is that of the request; leave it \
             out or write '_",
        ),
        Place::Result | Place::Item if lifetime.ident == "static" => {}
        Place::Item => errors.at(
            lifetime,
            "an item of a stream cannot borrow: its message is not kept; send an owned type",
        ),
        Place::Result => errors.at(
            lifetime,
            "a result cannot borrow: the client does not keep the message; return an owned type \
             (only Cow<'_, str> and Cow<'_, [u8]> may borrow from &self)",
        ),
    }
}

impl Visit<'_> for Checker<'_> {
    fn visit_type(&mut self, ty: &Type) {
        if let Type::Tuple(tuple) = ty
            && tuple.elems.len() > MAX_FIELDS
        {
            let fields = tuple.elems.len();
            self.errors.at(
                ty,
                format!(
                    "a tuple of {fields} fields cannot be sent: serde implements its traits for \
                     tuples of up to {MAX_FIELDS}; make it a struct"
                ),
            );
        }
        let complaint = match ty {
            Type::ImplTrait(impl_trait) => impl_trait_complaint(impl_trait, self.place),
            Type::TraitObject(_) => {
                "a trait object cannot be sent; name a type that implements serde's traits"
            }
            Type::FnPtr(_) => "a function cannot be sent",
            Type::Ptr(_) => "a raw pointer cannot be sent; the other side has its own memory",
            Type::Infer(_) => "a type must be written out here: it is part of the signature",
            Type::Never(_) => {
                "a method must return; leave the return type out if there is no \
                               result"
            }
            Type::Macro(_) => "a type cannot come from a macro here; write it out",
            Type::Slice(_) if self.place == Place::Result => "a slice is unsized; return a Vec",
            Type::Slice(_) if self.place == Place::Item => "a slice is unsized; send a Vec",
            _ => return visit::visit_type(self, ty),
        };
        self.errors.at(ty, complaint);
    }

    fn visit_type_reference(&mut self, reference: &TypeReference) {
        if self.place == Place::Result {
            self.errors.at(
                reference,
                "a result cannot be a reference: the client does not keep the message; return an \
                 owned type, such as String or Vec<u8>",
            );
            return;
        }
        if self.place == Place::Item {
            self.errors.at(
                reference,
                "an item of a stream cannot be a reference: its message is not kept; send an owned \
                 type, such as String or Vec<u8>",
            );
            return;
        }
        if !is_borrowable(reference) {
            self.errors.at(
                reference,
                "inside another type only &str and &[u8] can be references, since only they are in \
                 a message unencoded; use the owned type here",
            );
            return;
        }
        check_reference(reference, self.place, self.errors);
    }

    fn visit_lifetime(&mut self, lifetime: &Lifetime) {
        check_lifetime(lifetime, self.place, self.errors);
    }

    fn visit_path_segment(&mut self, segment: &PathSegment) {
        if segment.ident == "Self" {
            self.errors.at(
                &segment.ident,
                "Self is the server's type, which the client does not know; name the type",
            );
        }
        if segment.ident == "Streaming" {
            self.errors.at(segment, streaming_complaint(self.place));
            return;
        }
        if segment.ident == "Cow" && self.place == Place::Result {
            self.visit_result_cow(segment);
        } else {
            visit::visit_path_segment(self, segment);
        }
    }
}

impl Checker<'_> {
    /// The only type that is both borrowed and owned: see [`client_result`].
    fn visit_result_cow(&mut self, segment: &PathSegment) {
        let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return };
        for argument in &arguments.args {
            match argument {
                GenericArgument::Lifetime(lifetime) if lifetime.ident == "_" => {}
                GenericArgument::Type(ty) if is_byte_slice(ty) => {}
                other => self.visit_generic_argument(other),
            }
        }
    }
}

fn streaming_complaint(place: Place) -> &'static str {
    match place {
        Place::Argument => {
            "a stream of arguments must be an argument of its own, the last one: rows: Streaming<T>"
        }
        Place::Result => {
            "a method returns a stream as `impl Stream<Item = T>`, not inside another \
                          type"
        }
        Place::Item => "a stream cannot contain streams; make a call for each",
    }
}

fn impl_trait_complaint(impl_trait: &TypeImplTrait, place: Place) -> &'static str {
    let is_stream = impl_trait.bounds.iter().any(|bound| {
        let TypeParamBound::Trait(bound) = bound else { return false };
        bound.path.segments.last().is_some_and(is_stream_trait)
    });
    match place {
        Place::Argument if is_stream => {
            "write a stream of arguments as `Streaming<T>`, as the last argument; the client's \
             method takes any stream of T"
        }
        Place::Result if is_stream => {
            "a stream of results cannot be inside another type, except in the `Result` of an \
             `async fn` that may refuse the call: Result<impl Stream<Item = T>, E>"
        }
        Place::Item if is_stream => "a stream cannot contain streams; make a call for each",
        _ => "`impl Trait` cannot be sent, since the other side must know the type; name it",
    }
}

/// The expression that finds the shape of a type: `how` is the probe's method. Tuples are split
/// into their fields, so that byte strings in them are found.
pub(crate) fn shape(ty: &Type, how: &str, krate: &Path) -> TokenStream {
    if let Type::Tuple(tuple) = bare(ty) {
        let shapes = tuple.elems.iter().map(|element| shape(element, how, krate));
        return quote!((#(#shapes,)*));
    }
    probe(ty, how, krate, &TokenStream::new())
}

/// The expression that prepares a value of type `ty` for encoding. The encoder takes ownership of
/// the value if that saves a copy.
pub(crate) fn put(value: &TokenStream, ty: &Type, krate: &Path) -> TokenStream {
    let span = span_of(ty);
    if is_byte_vector(ty) {
        let probe = probe(ty, "own", krate, &quote!(#value));
        return quote_spanned!(span=> #probe);
    }
    let shape = shape(ty, "put_shape", krate);
    let krate = located(krate, span);
    quote_spanned!(span=> #krate::__private::put(&#value, #shape))
}

/// The expression that finds how a method's own error is sent: `how` is the probe's method.
pub(crate) fn shape_of_error(ty: &Type, how: &str, krate: &Path) -> TokenStream {
    probe(ty, how, krate, &TokenStream::new())
}

// The reference handles types that serde does not support: see `rpc-core`'s `shape.rs`.
fn probe(ty: &Type, how: &str, krate: &Path, argument: &TokenStream) -> TokenStream {
    let span = span_of(ty);
    let krate = located(krate, span);
    let how = format_ident!("{how}", span = span);
    quote_spanned!(span=> (&#krate::__private::Probe::<#ty>::new()).#how(#argument))
}

/// A span for code generated from the user's `tokens`: errors point to them, but user code cannot
/// see the generated names.
pub(crate) fn span_of(tokens: &impl Spanned) -> Span {
    tokens.span().resolved_at(Span::mixed_site())
}

/// A name that user code can see, but with the span of the macro: lints ignore code from another
/// crate's macro, so no `allow` is needed, which a `forbid` would reject.
pub(crate) fn of_the_macro(name: &Ident) -> Ident {
    let mut name = name.clone();
    name.set_span(name.span().resolved_at(Span::call_site()));
    name
}

/// A path with unchanged resolution, but located at `span`.
pub(crate) fn located(path: &Path, span: Span) -> TokenStream {
    let place = |mut token: TokenTree| {
        token.set_span(token.span().located_at(span));
        token
    };
    path.to_token_stream().into_iter().map(place).collect()
}

/// Whether it is one of the traits for streams of results.
pub(crate) fn is_stream_trait(segment: &PathSegment) -> bool {
    segment.ident == "Stream" || segment.ident == "Producer"
}
