//! Writes the clients: their constructors, and one method for each of the service's.

use proc_macro2::{Ident, TokenStream};
use quote::quote_spanned;
use syn::{Attribute, Type};

use super::{alias_parts, method_static, probes, quote, streams};
use crate::model::{Argument, Method, Returns, Service};
use crate::types::{self, located, span_of};

/// What the client's method returns, and the function that decodes it.
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
        // A stream's methods are written in `streams`.
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

/// The methods of a client. `note` is the line of documentation.
fn client_methods<'a>(
    service: &'a Service,
    note: &'a str,
    is_blocking: bool,
) -> impl Iterator<Item = TokenStream> + 'a {
    let Service { krate, visibility, .. } = service;
    let probes = probes(krate);
    service.methods.iter().enumerate().map(move |(at, method)| {
        let Method { client_attributes, ident, wire_name, .. } = method;
        if method.has_stream() {
            return streams::client_method(service, at, method, note, is_blocking);
        }
        let descriptor = method_static(at);
        let parameters = parameters(method);
        let arguments = put_arguments(krate, &method.arguments);
        let (returned, decode) = client_result(krate, &method.returns);
        let returned = match is_blocking {
            true => returned,
            false => quote!(#krate::__private::Call<'_, #returned>),
        };
        let note = format!("{note} `{wire_name}`.");
        let gap = has_docs(client_attributes).then(|| quote!(#[doc = ""]));
        quote! {
            #(#client_attributes)*
            #gap
            #[doc = #note]
            #visibility fn #ident(&self, #(#parameters),*) -> #returned {
                #probes
                self.channel.call(&#descriptor, #arguments, #decode)
            }
        }
    })
}

pub(super) fn has_docs(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident("doc"))
}

pub(super) fn client(service: &Service, client: &Ident) -> TokenStream {
    let Service { krate, visibility, .. } = service;
    let methods = client_methods(service, "Calls", false);
    let connect = quote! {
        /// Connects to a server: `auto://host:port`, `rdma://`, `tcp://`, `shm://` or `mem://`.
        ///
        /// # Errors
        /// Why the server cannot be reached.
        #visibility async fn connect(
            address: impl #krate::__private::AsRef<str>,
        ) -> #krate::__private::Result<Self, #krate::__private::ConnectError> {
            match #krate::__private::Channel::connect(address).await {
                #krate::__private::Result::Ok(channel) => {
                    #krate::__private::Result::Ok(Self { channel })
                }
                #krate::__private::Result::Err(error) => #krate::__private::Result::Err(error),
            }
        }
    };
    let channel_type = quote!(#krate::__private::Channel);
    let common = common(service, client, &channel_type);
    quote! {
        impl #client {
            #connect
            #(#methods)*
        }
        #common
    }
}

pub(super) fn blocking(service: &Service, blocking: &Ident) -> TokenStream {
    let Service { krate, visibility, .. } = service;
    let methods = client_methods(service, "Waits for the reply of", true);
    let connect = quote! {
        /// Starts a thread that drives the connection, and connects to a server:
        /// `auto://host:port`, `rdma://`, `tcp://`, `shm://` or `mem://`.
        ///
        /// # Errors
        /// Why the server cannot be reached.
        ///
        /// # Panics
        /// Inside an async runtime.
        #visibility fn connect(
            address: impl #krate::__private::AsRef<str>,
        ) -> #krate::__private::Result<Self, #krate::__private::ConnectError> {
            match #krate::__private::BlockingChannel::connect(address) {
                #krate::__private::Result::Ok(channel) => {
                    #krate::__private::Result::Ok(Self { channel })
                }
                #krate::__private::Result::Err(error) => #krate::__private::Result::Err(error),
            }
        }
    };
    let channel_type = quote!(#krate::__private::BlockingChannel);
    let common = common(service, blocking, &channel_type);
    quote! {
        impl #blocking {
            #connect
            #(#methods)*
        }
        #common
    }
}

/// What both clients have.
fn common(service: &Service, client: &Ident, channel: &TokenStream) -> TokenStream {
    let Service { krate, visibility, .. } = service;
    let name = client.to_string();
    let new = quote! {
        /// Calls through a channel that is there already.
        #visibility fn new(channel: #channel) -> Self {
            Self { channel }
        }
    };
    let accessor = quote! {
        /// The channel that calls go through.
        #visibility fn channel(&self) -> &#channel {
            &self.channel
        }
    };
    quote! {
        impl #client {
            #new
            #accessor
        }

        impl #krate::__private::From<#channel> for #client {
            fn from(channel: #channel) -> Self {
                Self { channel }
            }
        }

        impl #krate::__private::AsRef<#channel> for #client {
            fn as_ref(&self) -> &#channel {
                &self.channel
            }
        }

        impl #krate::__private::Clone for #client {
            fn clone(&self) -> Self {
                Self { channel: #krate::__private::Clone::clone(&self.channel) }
            }
        }

        impl #krate::__private::fmt::Debug for #client {
            fn fmt(
                &self,
                f: &mut #krate::__private::fmt::Formatter<'_>,
            ) -> #krate::__private::fmt::Result {
                f.debug_tuple(#name).field(&self.channel).finish()
            }
        }
    }
}
