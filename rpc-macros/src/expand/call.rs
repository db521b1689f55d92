//! The parts of every method of a client: parameters, arguments, and a result to decode.

use proc_macro2::TokenStream;
use quote::quote_spanned;
use syn::{Attribute, Type};

use super::{alias_parts, quote};
use crate::method::{Argument, Method, Returns};
use crate::types::{self, located, span_of};

/// The return type of the client's method, and the function that decodes it.
pub(super) fn client_result(krate: &syn::Path, returns: &Returns) -> (TokenStream, TokenStream) {
    match returns {
        Returns::Plain(ty) => {
            let ty = types::client_result(ty);
            let shape = types::shape(&ty, "take_owned_shape", krate);
            let span = span_of(&ty);
            let there = located(krate, span);
            (
                quote!(#krate::__private::Result<#ty, #krate::__private::Status>),
                quote_spanned!(span=> #there::__private::plain::<#ty, _>(#shape)),
            )
        }
        Returns::Result { ok, error } | Returns::OrStatus { ok, error } => {
            let ok = types::client_result(ok);
            let error = types::client_result(error);
            result_parts(krate, &ok, &error)
        }
        Returns::Alias(ty) => {
            let (ok, error) = alias_parts(krate, &types::client_result(ty));
            result_parts(krate, &ok, &error)
        }
        // Methods with streams are written in `streams`.
        Returns::Stream(_) => (TokenStream::new(), TokenStream::new()),
    }
}

fn result_parts(krate: &syn::Path, ok: &Type, error: &Type) -> (TokenStream, TokenStream) {
    let shape = types::shape(ok, "take_owned_shape", krate);
    let error_shape = types::shape_of_error(error, "take_error_shape", krate);
    let span = span_of(ok);
    let there = located(krate, span);
    (
        quote!(#krate::__private::Result<#ok, #krate::__private::CallError<#error>>),
        quote_spanned!(span=>
            #there::__private::result(#shape, #error_shape)),
    )
}

/// The arguments as a tuple of values with their shapes.
pub(super) fn put_arguments(krate: &syn::Path, arguments: &[Argument]) -> TokenStream {
    let puts =
        arguments.iter().map(|Argument { ident, ty, .. }| types::put(&quote!(#ident), ty, krate));
    quote!(&(#(#puts,)*))
}

/// `ident: type` for each argument.
pub(super) fn parameters(method: &Method) -> impl Iterator<Item = TokenStream> {
    method.arguments.iter().map(|Argument { ident, ty, .. }| quote!(#ident: #ty))
}

/// Whether a method is documented by the user.
pub(super) fn has_docs(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident("doc"))
}
