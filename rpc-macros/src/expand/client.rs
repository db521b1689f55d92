//! Writes the clients: their constructors, and one method for each method of the service.

use proc_macro2::{Ident, TokenStream};

use super::call::{client_result, has_docs, parameters, put_arguments};
use super::{method_static, probes, quote, streams, visibility};
use crate::method::Method;
use crate::model::Service;
use crate::types;

/// The methods of a client. `note` is the line added to their documentation.
///
/// They are compiled where they are called, so that a crate with many services does not pay for the
/// unused ones.
fn client_methods<'a>(
    service: &'a Service,
    note: &'a str,
    is_blocking: bool,
) -> impl Iterator<Item = TokenStream> + 'a {
    let krate = &service.krate;
    let (probes, visibility) = (probes(krate), visibility(service));
    service.methods.iter().enumerate().map(move |(at, method)| {
        let Method { client_attributes, wire_name, .. } = method;
        let ident = types::of_the_macro(&method.ident);
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
            #[inline]
            #visibility fn #ident(&self, #(#parameters),*) -> #returned {
                #probes
                self.channel.call(&#descriptor, #arguments, #decode)
            }
        }
    })
}

pub(super) fn client(service: &Service) -> TokenStream {
    let Service { krate, names, .. } = service;
    let (client, visibility) = (&names.client, visibility(service));
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

pub(super) fn blocking(service: &Service) -> TokenStream {
    let Service { krate, names, .. } = service;
    let Some(blocking) = &names.blocking else { return TokenStream::new() };
    let visibility = visibility(service);
    let methods = client_methods(service, "Calls and blocks on", true);
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

/// The parts common to both clients.
fn common(service: &Service, client: &Ident, channel: &TokenStream) -> TokenStream {
    let krate = &service.krate;
    let (name, visibility) = (client.to_string(), visibility(service));
    let new = quote! {
        /// Creates a client that calls through an existing channel.
        #visibility fn new(channel: #channel) -> Self {
            Self { channel }
        }
    };
    let accessor = quote! {
        /// The channel of the client.
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
