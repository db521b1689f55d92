//! Writes the code of a checked service. Cannot fail.
//!
//! Owns the generated items and their hygiene: every path is absolute, and local names and names of
//! helpers cannot clash with the user's (local variables because of their span, items because they
//! are in an anonymous constant and have leading underscores).

mod call;
mod checks;
mod client;
mod client_trait;
mod schemas;
mod server;
mod streams;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote_spanned};
use syn::ext::IdentExt;
use syn::{Path, Type, Visibility};

use crate::method::{Method, Returns};
use crate::model::{Names, Service};
use crate::types::{self, located, span_of};

/// `quote!` whose own names the user's code cannot see or shadow.
macro_rules! quote {
    ($($tokens:tt)*) => { quote::quote_spanned!(proc_macro2::Span::mixed_site()=> $($tokens)*) };
}
use quote;

/// The imports that let a function's body find the shape of a type.
fn probes(krate: &Path) -> TokenStream {
    quote! {
        use #krate::__private::{
            ProbeMissing as _, ProbePut as _, ProbeTake as _, ProbeTakeOwned as _,
        };
    }
}

pub(crate) fn expand(service: &Service) -> TokenStream {
    let the_trait = the_trait(service);
    let types = types(service);
    let descriptors = descriptors(service);
    let server = server::server(service);
    let client = client::client(service);
    let blocking = client::blocking(service);
    let client_trait = client_trait::definition(service);
    let client_traits = client_trait::implementations(service);
    let checks = checks::checks(service);
    let for_arcs = for_arcs(service);
    let uses = uses(service);
    let Service { cfgs, allowed, .. } = service;
    let in_methods = service.methods.iter().flat_map(|method| &method.allowed);
    // The only lint that checks code from macros of other crates.
    let deprecated = service.is_deprecated.then(|| quote!(#[allow(deprecated)]));
    quote! {
        #the_trait
        #types
        #client_trait
        #(#cfgs)*
        #(#allowed)*
        #(#in_methods)*
        #deprecated
        const _: () = {
            #checks
            #for_arcs
            #descriptors
            #server
            #client
            #blocking
            #client_traits
            #uses
        };
    }
}

/// Uses the generated types, and through them the trait and its types, so that none of them is
/// reported as unused if a program needs only one end of the service.
fn uses(service: &Service) -> TokenStream {
    let Names { server, client, blocking, .. } = &service.names;
    let blocking = blocking.iter();
    quote! {
        const fn __used<T>() {}
        __used::<(#server<()>, #client, #(#blocking)*)>();
    }
}

/// The trait, its methods made to return futures that are `Send`.
fn the_trait(service: &Service) -> TokenStream {
    let Service { krate, attributes, visibility, trait_token, ident, supertraits, .. } = service;
    let methods = service.methods.iter().map(|method| trait_method(krate, method));
    let given = supertraits.iter();
    quote! {
        #(#attributes)*
        #visibility #trait_token #ident:
            #(#given +)* #krate::__private::Send + #krate::__private::Sync + 'static
        {
            #(#methods)*
        }
    }
}

fn trait_method(krate: &syn::Path, method: &Method) -> TokenStream {
    let Method { attributes, default, .. } = method;
    let (signature, returned) = signature_and_returned(krate, method);
    match default {
        Some(body) if streams::is_returned_at_once(method) => {
            quote! { #(#attributes)* #signature -> #returned #body }
        }
        Some(body) => quote! {
            #(#attributes)*
            #signature -> #returned { async move #body }
        },
        None => quote! { #(#attributes)* #signature -> #returned; },
    }
}

/// The signature of a method without its return type, and the future or stream that it returns.
fn signature_and_returned(krate: &Path, method: &Method) -> (syn::Signature, TokenStream) {
    let written = &method.written;
    let output: Type = match &written.output {
        syn::ReturnType::Default => syn::parse_quote!(()),
        syn::ReturnType::Type(_, ty) => (**ty).clone(),
    };
    let span = span_of(&output);
    let mut signature = written.clone();
    signature.asyncness = None;
    signature.output = syn::ReturnType::Default;
    let output = match &method.returns {
        Returns::Stream(download) => streams::output(krate, download, &output),
        _ => output.into_token_stream(),
    };
    if streams::is_returned_at_once(method) {
        return (signature, output);
    }
    let krate = located(krate, span);
    let future = quote_spanned! {span=>
        impl #krate::__private::Future<Output = #output> + #krate::__private::Send
    };
    (signature, future)
}

/// Implements the trait for an `Arc` of an implementation, if the user's supertraits allow it.
fn for_arcs(service: &Service) -> TokenStream {
    let Service { krate, ident, supertraits, methods, .. } = service;
    let given = supertraits.iter();
    let arc = quote!(#krate::__private::Arc<__Service>);
    let methods = methods.iter().map(|method| {
        let Method { cfgs, .. } = method;
        let name = types::of_the_macro(&method.ident);
        let (signature, returned) = signature_and_returned(krate, method);
        let arguments = method.arguments.iter().map(|argument| &argument.ident);
        let arguments = arguments.chain(method.upload.iter().map(|upload| &upload.ident));
        // The user's own token: another `self` would not be the one of this signature.
        let this = signature.receiver().map(|receiver| &receiver.self_token);
        quote! {
            #(#cfgs)*
            #signature -> #returned {
                <__Service as #ident>::#name(&**#this, #(#arguments),*)
            }
        }
    });
    quote! {
        impl<__Service: #ident> #ident for #arc
        where
            #arc: #(#given +)* #krate::__private::Send,
        {
            #(#methods)*
        }
    }
}

/// The structs: apart from the trait, all that users see.
fn types(service: &Service) -> TokenStream {
    let Service { krate, cfgs, docs, ident, allowed, .. } = service;
    let Names { server, client, blocking, .. } = &service.names;
    let visibility = visibility(service);
    let attributes = quote!(#(#cfgs)* #(#allowed)*);
    let link = ident.unraw();
    let server_doc = format!("Serves an implementation of [`{link}`]: pass it to a server.");
    let client_doc = format!(
        "Calls the service [`{link}`]. Cheap to clone; clones share the connection.\n\nA method \
         returns a call, which is sent when it is awaited or started."
    );
    let blocking_doc = format!(
        "Calls the service [`{link}`] and blocks until the reply arrives: for programs without a \
         runtime.\n\nCheap to clone; clones share the connection and the thread that drives it. \
         Panics inside an async runtime, which it would block."
    );
    let blocking = blocking.as_ref().map(|blocking| {
        quote! {
            #attributes
            #[doc = #blocking_doc]
            #[doc = ""]
            #(#docs)*
            #visibility struct #blocking {
                channel: #krate::__private::BlockingChannel,
            }
        }
    });
    quote! {
        #attributes
        #[doc = #server_doc]
        #visibility struct #server<S> {
            service: #krate::__private::Arc<S>,
        }

        #attributes
        #[doc = #client_doc]
        #[doc = ""]
        #(#docs)*
        #visibility struct #client {
            channel: #krate::__private::Channel,
        }

        #blocking
    }
}

/// The trait's visibility, with the span of the macro.
fn visibility(service: &Service) -> TokenStream {
    let written = |mut token: TokenTree| {
        token.set_span(token.span().resolved_at(Span::call_site()));
        token
    };
    match &service.visibility {
        Visibility::Restricted(restricted) => restricted.to_token_stream(),
        other => other.to_token_stream().into_iter().map(written).collect(),
    }
}

/// The static that describes the method at that position.
fn method_static(at: usize) -> Ident {
    format_ident!("__RPC_METHOD_{at}", span = Span::mixed_site())
}

/// The position of a method among those that are compiled in.
fn method_variant(at: usize) -> Ident {
    format_ident!("Method{at}", span = Span::mixed_site())
}

fn descriptors(service: &Service) -> TokenStream {
    let Service { krate, wire_name, methods, .. } = service;
    let Names { server, client, blocking, .. } = &service.names;
    let clients = [Some(client), blocking.as_ref()].into_iter().flatten();
    let statics = methods.iter().enumerate().map(|(at, method)| {
        let Method { cfgs, wire_name, signature, .. } = method;
        let name = method_static(at);
        let arguments = method.arguments.iter().map(|argument| argument.ident.unraw().to_string());
        let flags = [
            (method.idempotent, "idempotent"),
            (method.no_cancel, "no_cancel"),
            (method.spawn, "spawn"),
            (method.in_msgpack, "in_msgpack"),
            (method.upload.is_some(), "streams_arguments"),
            (matches!(method.returns, Returns::Stream(_)), "streams_results"),
            (method.idle_deadline, "idle_deadline"),
        ];
        let flags = flags.iter().filter(|(set, _)| *set).map(|(_, flag)| {
            let flag = format_ident!("{flag}", span = Span::mixed_site());
            quote!(.#flag())
        });
        let docs = docs(&method.attributes);
        let docs = (!docs.is_empty()).then(|| quote!(.documented(#docs)));
        let schema = schemas::schema(krate, at, method);
        let trace = schemas::function(at);
        quote! {
            #schema
            #(#cfgs)*
            static #name: #krate::__private::MethodDescriptor =
                #krate::__private::MethodDescriptor::new(
                    #wire_name, #signature, &[#(#arguments),*],
                ).traced(#trace) #docs #(#flags)*;
        }
    });
    let names: Vec<TokenStream> = each(methods, |_, method| {
        let name = &method.wire_name;
        quote!(#name)
    });
    let references = each(methods, |at, _| {
        let name = method_static(at);
        quote!(&#name)
    });
    let variants = each(methods, |at, _| method_variant(at).into_token_stream());
    let docs = docs(&service.docs);
    quote! {
        #(#statics)*
        static __RPC_SERVICE: #krate::__private::ServiceDescriptor =
            #krate::__private::ServiceDescriptor::new(#wire_name, &[#(#references),*])
                .documented(#docs);
        const _: () = #krate::__private::assert_distinct_ids([#(#names),*]);
        enum __RpcMethod { #(#variants),* }
        impl<__Service> #krate::__private::Described for #server<__Service> {
            fn service() -> &'static #krate::__private::ServiceDescriptor {
                &__RPC_SERVICE
            }
        }
        #(impl #krate::__private::Described for #clients {
            fn service() -> &'static #krate::__private::ServiceDescriptor {
                &__RPC_SERVICE
            }
        })*
    }
}

/// The text of documentation comments, without the leading space of each line. Text from a macro
/// (`include_str!`) is left out.
fn docs(attributes: &[syn::Attribute]) -> String {
    let line = |attribute: &syn::Attribute| match &attribute.meta {
        syn::Meta::NameValue(syn::MetaNameValue {
            path,
            value: syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }),
            ..
        }) if path.is_ident("doc") => Some(text.value()),
        _ => None,
    };
    let text: Vec<String> = attributes.iter().filter_map(line).collect();
    let lines = text.iter().flat_map(|text| text.split('\n'));
    let lines: Vec<&str> = lines.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    lines.join("\n").trim().to_owned()
}

/// A list element for each method, under the method's `#[cfg]`s.
fn each(methods: &[Method], element: impl Fn(usize, &Method) -> TokenStream) -> Vec<TokenStream> {
    let with_cfgs = |(at, method): (usize, &Method)| {
        let cfgs = &method.cfgs;
        let element = element(at, method);
        quote!(#(#cfgs)* #element)
    };
    methods.iter().enumerate().map(with_cfgs).collect()
}

/// The two types behind an alias of a `Result`.
fn alias_parts(krate: &syn::Path, ty: &Type) -> (Type, Type) {
    let span = span_of(ty);
    let krate = located(krate, span);
    let part = |part: &str| {
        let part = format_ident!("{part}", span = span);
        let tokens = quote_spanned!(span=> <#ty as #krate::__private::IsResult>::#part);
        Type::Verbatim(tokens)
    };
    (part("Ok"), part("Err"))
}
