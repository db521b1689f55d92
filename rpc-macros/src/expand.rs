//! Writes the code of a checked service. Cannot fail.
//!
//! Owns the generated items and their hygiene: every path is absolute, every local name and every
//! name of a helper is out of reach of the user's (local variables by span, items by living in an
//! anonymous constant and by their leading underscores).

mod call;
mod checks;
mod client;
mod client_trait;
mod schemas;
mod server;
mod streams;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote_spanned};
use syn::ext::IdentExt;
use syn::{Path, Type};

use crate::model::{Method, Returns, Service};
use crate::types::{located, span_of};

/// `quote!` whose own names the user's code cannot see or shadow.
macro_rules! quote {
    ($($tokens:tt)*) => { quote::quote_spanned!(proc_macro2::Span::mixed_site()=> $($tokens)*) };
}
use quote;

/// Lints that a user may have switched on and cannot act on in generated code.
fn allowed() -> TokenStream {
    quote! {
        #[allow(
            dead_code, deprecated, unused_qualifications, unused_lifetimes, unreachable_pub,
            elided_lifetimes_in_paths, single_use_lifetimes, non_snake_case, unknown_lints,
            mismatched_lifetime_syntaxes,
            clippy::all, clippy::pedantic, clippy::nursery, clippy::restriction
        )]
    }
}

/// The imports that let a function's body find the shape of a type.
fn probes(krate: &Path) -> TokenStream {
    quote! {
        #[allow(unused_imports)]
        use #krate::__private::{
            ProbeMissing as _, ProbePut as _, ProbeTake as _, ProbeTakeOwned as _,
        };
    }
}

/// The names of the generated types.
struct Names {
    server: Ident,
    client: Ident,
    blocking: Ident,
}

impl Names {
    fn new(service: &Service) -> Self {
        let base = service.ident.unraw();
        let named = |suffix: &str| format_ident!("{base}{suffix}", span = service.ident.span());
        Self { server: named("Server"), client: named("Client"), blocking: named("BlockingClient") }
    }
}

pub(crate) fn expand(service: &Service) -> TokenStream {
    let names = Names::new(service);
    let the_trait = the_trait(service);
    let types = types(service, &names);
    let descriptors = descriptors(service);
    let server = server::server(service, &names.server);
    let client = client::client(service, &names.client);
    let blocking = client::blocking(service, &names.blocking);
    let client_trait = client_trait::definition(service, &names.client);
    let client_traits = client_trait::implementations(service, &names.client);
    let checks = checks::checks(service);
    let for_arcs = for_arcs(service);
    let cfgs = &service.cfgs;
    let allowed = allowed();
    quote! {
        #the_trait
        #types
        #client_trait
        #(#cfgs)*
        #allowed
        const _: () = {
            #checks
            #for_arcs
            #descriptors
            #server
            #client
            #blocking
            #client_traits
        };
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
            #[allow(clippy::manual_async_fn)]
            #signature -> #returned { async move #body }
        },
        None => quote! { #(#attributes)* #signature -> #returned; },
    }
}

/// A method without what it returns, and the future or stream that it returns.
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
        let Method { cfgs, ident: name, .. } = method;
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

/// The structs, which are what a user sees beside the trait.
fn types(service: &Service, names: &Names) -> TokenStream {
    let Service { krate, cfgs, visibility, docs, ident, .. } = service;
    let Names { server, client, blocking } = names;
    let link = ident.unraw();
    let server_doc = format!("Serves an implementation of [`{link}`]: hand it to a server.");
    let client_doc = format!(
        "Calls the service [`{link}`]. Cheap to clone; clones share the connection.\n\n\
         A method returns a call, which is made when it is awaited or started."
    );
    let blocking_doc = format!(
        "Calls the service [`{link}`] and waits for the replies: for programs without a runtime.\n\n\
         Cheap to clone; clones share the connection and the thread that drives it. Panics when \
         it is used inside an async runtime, which it would block."
    );
    let allowed = allowed();
    quote! {
        #(#cfgs)*
        #[doc = #server_doc]
        #allowed
        #visibility struct #server<S> {
            service: #krate::__private::Arc<S>,
        }

        #(#cfgs)*
        #[doc = #client_doc]
        #[doc = ""]
        #(#docs)*
        #allowed
        #visibility struct #client {
            channel: #krate::__private::Channel,
        }

        #(#cfgs)*
        #[doc = #blocking_doc]
        #[doc = ""]
        #(#docs)*
        #allowed
        #visibility struct #blocking {
            channel: #krate::__private::BlockingChannel,
        }
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
    let statics = methods.iter().enumerate().map(|(at, method)| {
        let Method { cfgs, wire_name, signature, .. } = method;
        let name = method_static(at);
        let arguments = method.arguments.iter().map(|argument| argument.ident.unraw().to_string());
        let flags = [
            (method.idempotent, "idempotent"),
            (method.no_cancel, "no_cancel"),
            (method.spawn, "spawn"),
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
    }
}

/// The text of documentation comments, without the space that each line of them begins with. What a
/// macro gives (`include_str!`) is left out.
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
