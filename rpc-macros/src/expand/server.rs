//! Writes the server: its constructors and its dispatch.
//!
//! Arguments are decoded in the handler's future, which owns the service and the message, so that
//! they may borrow from the message.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote_spanned};
use syn::Type;

use super::{alias_parts, method_static, method_variant, probes, quote, streams, visibility};
use crate::method::{Method, Returns};
use crate::model::Service;
use crate::types::{self, located, span_of};

pub(super) fn server(service: &Service) -> TokenStream {
    let Service { krate, names, ident, methods, .. } = service;
    let (server, visibility, probes) = (&names.server, visibility(service), probes(krate));
    let name = server.to_string();
    let arms = methods.iter().enumerate().map(|(at, method)| {
        let cfgs = &method.cfgs;
        let variant = method_variant(at);
        let body = dispatch_arm(service, at, method);
        quote! {
            #(#cfgs)*
            __position if __position == __RpcMethod::#variant as usize => #body
        }
    });
    quote! {
        impl<__Service: #ident> #server<__Service> {
            /// Serves `service`.
            #visibility fn new(service: __Service) -> Self {
                Self { service: #krate::__private::Arc::new(service) }
            }

            /// Serves a service in an `Arc`, which other code uses too.
            #visibility fn from_arc(service: #krate::__private::Arc<__Service>) -> Self {
                Self { service }
            }
        }

        impl<S> #krate::__private::Clone for #server<S> {
            fn clone(&self) -> Self {
                Self { service: #krate::__private::Clone::clone(&self.service) }
            }
        }

        impl<S> #krate::__private::fmt::Debug for #server<S> {
            fn fmt(
                &self,
                f: &mut #krate::__private::fmt::Formatter<'_>,
            ) -> #krate::__private::fmt::Result {
                f.write_str(#name)
            }
        }

        impl<__Service: #ident> #krate::__private::Dispatch for #server<__Service> {
            fn descriptor(&self) -> &'static #krate::__private::ServiceDescriptor {
                &__RPC_SERVICE
            }

            fn dispatch(
                &self,
                method: usize,
                request: #krate::__private::Request,
            ) -> #krate::__private::Handler {
                #probes
                match method {
                    #(#arms)*
                    _ => #krate::__private::unknown_method(&__RPC_SERVICE, method),
                }
            }
        }
    }
}

/// Decodes in the handler's future, which owns the service and the message, so that arguments may
/// borrow from the message.
fn dispatch_arm(service: &Service, at: usize, method: &Method) -> TokenStream {
    let Service { krate, ident: the_trait, .. } = service;
    let descriptor = method_static(at);
    let locals: Vec<Ident> = (0..method.arguments.len())
        .map(|at| format_ident!("argument{at}", span = Span::mixed_site()))
        .collect();
    let seeds = method.arguments.iter().map(|argument| {
        let ty = &argument.decoded.ty;
        let shape = types::shape(ty, "take_shape", krate);
        let span = span_of(ty);
        let krate = located(krate, span);
        if argument.has_default {
            let default = quote_spanned!(span=> <#ty as #krate::__private::Default>::default);
            return quote_spanned! {span=>
                #krate::__private::seed_or_default::<#ty, _>(#shape, #default)
            };
        }
        quote_spanned!(span=> #krate::__private::seed::<#ty, _>(#shape))
    });
    let passed = method.arguments.iter().zip(&locals).map(|(argument, local)| {
        if argument.decoded.lent { quote!(&#local) } else { quote!(#local) }
    });
    let name = types::of_the_macro(&method.ident);
    let rows = method.upload.as_ref().map(|upload| streams::receiver(krate, &descriptor, upload));
    let called = quote!(<__Service as #the_trait>::#name(&*service, #(#passed,)* #rows));
    let reply = match &method.returns {
        Returns::Stream(download) => streams::pump(krate, &descriptor, download, &called),
        _ => {
            let reply = reply(krate, &descriptor, method);
            quote! {
                let output = #called.await;
                #reply
            }
        }
    };
    let split = match method.has_stream() {
        true => quote!(let (context, incoming, port) = #krate::__private::split_stream(request);),
        false => quote!(let (context, incoming) = #krate::__private::split(request);),
    };
    quote! {{
        let service = #krate::__private::Clone::clone(&self.service);
        #split
        #krate::__private::Handler::new(context, async move {
            let seeds = #krate::__private::Seeds((#(#seeds,)*));
            match incoming.arguments(&#descriptor, seeds) {
                #krate::__private::Result::Err(reply) => reply,
                #krate::__private::Result::Ok((#(#locals,)*)) => { #reply }
            }
        })
    }}
}

/// Encodes what the method returned.
fn reply(krate: &syn::Path, descriptor: &Ident, method: &Method) -> TokenStream {
    let value = |value: TokenStream, ty: &Type| {
        let put = types::put(&value, ty, krate);
        quote!(incoming.reply(&#descriptor, &#put))
    };
    let reply_error = |error: &Type, span: Span| {
        let shape = types::shape_of_error(error, "put_error_shape", krate);
        let krate = located(krate, span);
        quote_spanned! {span=>
            #krate::__private::Incoming::reply_error(&incoming, &#descriptor, &error, #shape)
        }
    };
    let split = |output: TokenStream, ok: TokenStream, error: &Type, span: Span| {
        let reply = reply_error(error, span);
        quote! {
            match #output {
                #krate::__private::Result::Ok(value) => #ok,
                #krate::__private::Result::Err(error) => #reply,
            }
        }
    };
    match &method.returns {
        Returns::Plain(ty) => value(quote!(output), ty),
        Returns::Result { ok, error } => {
            let ok = value(quote!(value), ok);
            split(quote!(output), ok, error, span_of(error))
        }
        Returns::OrStatus { ok, error } => {
            let ok = value(quote!(value), ok);
            let reply = reply_error(error, span_of(error));
            quote! {
                match output {
                    #krate::__private::Result::Ok(value) => #ok,
                    #krate::__private::Result::Err(#krate::__private::CallError::User(error)) => {
                        #reply
                    }
                    #krate::__private::Result::Err(
                        #krate::__private::CallError::Status(status)
                    ) => #krate::__private::Reply::Status(status),
                }
            }
        }
        Returns::Alias(ty) => {
            let span = span_of(ty);
            let (ok, error) = alias_parts(krate, ty);
            let output = {
                let krate = located(krate, span);
                quote_spanned!(span=> <#ty as #krate::__private::IsResult>::into_result(output))
            };
            split(output, value(quote!(value), &ok), &error, span)
        }
        // See `streams::pump`.
        Returns::Stream(_) => TokenStream::new(),
    }
}
