//! Writes the code of a checked service. Cannot fail.
//!
//! Owns the generated items and their hygiene: every path is absolute, every local name and every
//! name of a helper is out of reach of the user's (local variables by span, items by living in an
//! anonymous constant and by their leading underscores).

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Attribute, Type};

use crate::model::{Argument, Method, Returns, Service};
use crate::types::{self, bare};

/// `quote!` whose own names the user's code cannot see or shadow.
macro_rules! quote {
    ($($tokens:tt)*) => { quote_spanned!(Span::mixed_site()=> $($tokens)*) };
}

/// Lints that a user may have switched on and cannot act on in generated code.
fn allowed() -> TokenStream {
    quote! {
        #[allow(
            dead_code, deprecated, unused_qualifications, unused_lifetimes, unreachable_pub,
            elided_lifetimes_in_paths, single_use_lifetimes, non_snake_case,
            clippy::all, clippy::pedantic, clippy::nursery, clippy::restriction
        )]
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
    let server = server(service, &names);
    let client = client(service, &names);
    let blocking = blocking(service, &names);
    let cfgs = &service.cfgs;
    let allowed = allowed();
    quote! {
        #the_trait
        #types
        #(#cfgs)*
        #allowed
        const _: () = {
            #descriptors
            #server
            #client
            #blocking
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
    let Method { attributes, written, default, .. } = method;
    let output: Type = match &written.output {
        syn::ReturnType::Default => syn::parse_quote!(()),
        syn::ReturnType::Type(_, ty) => (**ty).clone(),
    };
    let span = output.span().resolved_at(Span::mixed_site());
    let future = quote_spanned! {span=>
        impl #krate::__private::Future<Output = #output> + #krate::__private::Send
    };
    let mut signature = written.clone();
    signature.asyncness = None;
    signature.output = syn::ReturnType::Default;
    match default {
        Some(body) => quote! {
            #(#attributes)*
            #[allow(clippy::manual_async_fn)]
            #signature -> #future { async move #body }
        },
        None => quote! { #(#attributes)* #signature -> #future; },
    }
}

/// The structs, which are what a user sees beside the trait.
fn types(service: &Service, names: &Names) -> TokenStream {
    let Service { krate, cfgs, visibility, docs, ident, .. } = service;
    let Names { server, client, blocking } = names;
    let link = ident.unraw();
    let server_doc = format!("Serves an implementation of [`{link}`]: hand it to a server.");
    let client_doc = format!(
        "Calls a [`{link}`] service. Cheap to clone; clones share the connection.\n\n\
         A method returns a call, which is made when it is awaited or started."
    );
    let blocking_doc = format!(
        "Calls a [`{link}`] service and waits for the replies: for programs without a runtime.\n\n\
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
        ];
        let flags = flags.iter().filter(|(set, _)| *set).map(|(_, flag)| {
            let flag = format_ident!("{flag}", span = Span::mixed_site());
            quote!(.#flag())
        });
        quote! {
            #(#cfgs)*
            static #name: #krate::__private::MethodDescriptor =
                #krate::__private::MethodDescriptor::new(
                    #wire_name, #signature, &[#(#arguments),*],
                ) #(#flags)*;
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
    quote! {
        #(#statics)*
        static __RPC_SERVICE: #krate::__private::ServiceDescriptor =
            #krate::__private::ServiceDescriptor::new(#wire_name, &[#(#references),*]);
        const _: () = #krate::__private::assert_distinct_ids(&[#(#names),*]);
        enum __RpcMethod { #(#variants),* }
    }
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

fn server(service: &Service, names: &Names) -> TokenStream {
    let Service { krate, visibility, ident, methods, .. } = service;
    let server = &names.server;
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
        impl<S> #server<S> {
            /// Serves `service`.
            #visibility fn new(service: S) -> Self {
                Self { service: #krate::__private::Arc::new(service) }
            }

            /// Serves a service that others use too.
            #visibility fn from_arc(service: #krate::__private::Arc<S>) -> Self {
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
                #[allow(unused_imports)]
                use #krate::__private::ProbePlain as _;
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
    let decoded = method.arguments.iter().map(|argument| &argument.decoded.ty);
    let shapes = method
        .arguments
        .iter()
        .map(|argument| types::shape(&argument.decoded.ty, "take_shape", krate));
    let passed = method.arguments.iter().zip(&locals).map(|(argument, local)| {
        if argument.decoded.lent { quote!(&#local) } else { quote!(#local) }
    });
    let name = &method.ident;
    let reply = reply(krate, &descriptor, method);
    quote! {{
        let service = #krate::__private::Clone::clone(&self.service);
        let (context, incoming) = #krate::__private::split(request);
        #krate::__private::Handler::new(context, async move {
            let arguments: #krate::__private::Result<(#(#decoded,)*), #krate::__private::Reply> =
                incoming.arguments(&#descriptor, (#(#shapes,)*));
            match arguments {
                #krate::__private::Result::Err(reply) => reply,
                #krate::__private::Result::Ok((#(#locals,)*)) => {
                    let output = <__Service as #the_trait>::#name(&*service, #(#passed),*).await;
                    #reply
                }
            }
        })
    }}
}

/// Encodes what the method returned.
fn reply(krate: &syn::Path, descriptor: &Ident, method: &Method) -> TokenStream {
    let value = |value: TokenStream, ty: &Type| {
        let shape = result_shape(ty, "put_shape", krate);
        let span = ty.span().resolved_at(Span::mixed_site());
        quote_spanned!(span=> incoming.reply(&#descriptor, #value, #shape))
    };
    let split = |ok: TokenStream, error_span: Span| {
        let error = quote_spanned!(error_span.resolved_at(Span::mixed_site())=>
            incoming.reply_error(&#descriptor, &error));
        quote! {
            match output {
                #krate::__private::Result::Ok(value) => #ok,
                #krate::__private::Result::Err(error) => #error,
            }
        }
    };
    match &method.returns {
        Returns::Plain(ty) => value(quote!(&output), ty),
        Returns::Result { ok, error } => split(value(quote!(&value), ok), error.span()),
        Returns::Alias(ty) => {
            let ok: Type = syn::parse_quote!(<#ty as #krate::__private::IsResult>::Ok);
            split(value(quote!(&value), &ok), ty.span())
        }
    }
}

/// The shape of a result; its elided lifetimes are inferred.
fn result_shape(ty: &Type, how: &str, krate: &syn::Path) -> TokenStream {
    types::shape(bare(ty), how, krate)
}

/// What the client's method returns, and the function that decodes it.
fn client_result(krate: &syn::Path, returns: &Returns) -> (TokenStream, TokenStream) {
    match returns {
        Returns::Plain(ty) => {
            let ty = types::client_result(ty);
            let shape = result_shape(&ty, "take_owned_shape", krate);
            let span = ty.span().resolved_at(Span::mixed_site());
            (
                quote!(#krate::__private::Result<#ty, #krate::__private::Status>),
                quote_spanned!(span=> #krate::__private::plain::<#ty, _>(#shape)),
            )
        }
        Returns::Result { ok, error } => {
            let ok = types::client_result(ok);
            let error = types::client_result(error);
            result_parts(krate, &ok, &error)
        }
        Returns::Alias(ty) => {
            let ty = types::client_result(ty);
            let ok: Type = syn::parse_quote!(<#ty as #krate::__private::IsResult>::Ok);
            let error: Type = syn::parse_quote!(<#ty as #krate::__private::IsResult>::Err);
            result_parts(krate, &ok, &error)
        }
    }
}

fn result_parts(krate: &syn::Path, ok: &Type, error: &Type) -> (TokenStream, TokenStream) {
    let shape = result_shape(ok, "take_owned_shape", krate);
    let span = ok.span().resolved_at(Span::mixed_site());
    (
        quote!(#krate::__private::Result<#ok, #krate::__private::CallError<#error>>),
        quote_spanned!(span=> #krate::__private::result::<#ok, #error, _>(#shape)),
    )
}

/// The arguments as a tuple of values with their shapes.
fn put_arguments(krate: &syn::Path, arguments: &[Argument]) -> TokenStream {
    let puts = arguments.iter().map(|Argument { ident, ty, .. }| {
        let shape = types::shape(ty, "put_shape", krate);
        let span = ty.span().resolved_at(Span::mixed_site());
        quote_spanned!(span=> #krate::__private::Put(&#ident, #shape))
    });
    quote!(&(#(#puts,)*))
}

/// `ident: type` for each argument.
fn parameters(method: &Method) -> impl Iterator<Item = TokenStream> {
    method.arguments.iter().map(|Argument { ident, ty, .. }| quote!(#ident: #ty))
}

/// The methods of a client. `wrap` makes the return type, `note` is the line of documentation.
fn client_methods<'a>(
    service: &'a Service,
    note: &'a str,
    wrap: impl Fn(TokenStream) -> TokenStream + 'a,
) -> impl Iterator<Item = TokenStream> + 'a {
    let Service { krate, visibility, .. } = service;
    service.methods.iter().enumerate().map(move |(at, method)| {
        let Method { client_attributes, ident, wire_name, .. } = method;
        let descriptor = method_static(at);
        let parameters = parameters(method);
        let arguments = put_arguments(krate, &method.arguments);
        let (returned, decode) = client_result(krate, &method.returns);
        let returned = wrap(returned);
        let note = format!("{note} `{wire_name}`.");
        let gap = has_docs(client_attributes).then(|| quote!(#[doc = ""]));
        quote! {
            #(#client_attributes)*
            #gap
            #[doc = #note]
            #visibility fn #ident(&self, #(#parameters),*) -> #returned {
                #[allow(unused_imports)]
                use #krate::__private::ProbePlain as _;
                self.channel.call(&#descriptor, #arguments, #decode)
            }
        }
    })
}

fn has_docs(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident("doc"))
}

/// A constructor or accessor, unless the service has a method of that name.
fn unless_taken(service: &Service, name: &str, item: TokenStream) -> TokenStream {
    let taken = service.methods.iter().any(|method| method.ident.unraw() == name);
    if taken { TokenStream::new() } else { item }
}

fn client(service: &Service, names: &Names) -> TokenStream {
    let Service { krate, visibility, .. } = service;
    let client = &names.client;
    let methods =
        client_methods(service, "Calls", |returned| quote!(#krate::__private::Call<'_, #returned>));
    let connect = unless_taken(
        service,
        "connect",
        quote! {
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
        },
    );
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

fn blocking(service: &Service, names: &Names) -> TokenStream {
    let Service { krate, visibility, .. } = service;
    let blocking = &names.blocking;
    let methods = client_methods(service, "Waits for the reply of", |returned| returned);
    let connect = unless_taken(
        service,
        "connect",
        quote! {
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
        },
    );
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
    let new = unless_taken(
        service,
        "new",
        quote! {
            /// Calls through a channel that is there already.
            #visibility fn new(channel: #channel) -> Self {
                Self { channel }
            }
        },
    );
    let accessor = unless_taken(
        service,
        "channel",
        quote! {
            /// The channel that calls go through.
            #visibility fn channel(&self) -> &#channel {
                &self.channel
            }
        },
    );
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
