//! Writes the trait over a client (`client_trait = Name`), which fakes and wrappers implement too.
//!
//! Owns its methods' signatures: they say what the client's calls give once they are awaited.

use proc_macro2::{Ident, TokenStream};

use super::call::{client_result, parameters};
use super::{allowed, quote, streams};
use crate::model::{Method, Returns, Service};

/// The trait itself, which the user's code sees.
pub(super) fn definition(service: &Service, client: &Ident) -> TokenStream {
    let Service { krate, cfgs, visibility, client_trait, methods, .. } = service;
    let Some(name) = client_trait else { return TokenStream::new() };
    let doc = format!(
        "What [`{client}`] can do, as a trait: for code that takes the real client, a wrapper around it \
         or a fake.\n\n\
         A call here is a future alone: deadlines and metadata are set on [`{client}`]'s own methods, or \
         by its channel. Dropping the future cancels the call."
    );
    let methods = methods.iter().map(|method| {
        let Method { client_attributes, .. } = method;
        let signature = signature(krate, method);
        quote! { #(#client_attributes)* #signature; }
    });
    let allowed = allowed();
    quote! {
        #(#cfgs)*
        #[doc = #doc]
        #allowed
        #visibility trait #name: #krate::__private::Send + #krate::__private::Sync {
            #(#methods)*
        }
    }
}

/// Its implementations for the client, and for references and `Arc`s of any implementation.
pub(super) fn implementations(service: &Service, client: &Ident) -> TokenStream {
    let Service { krate, client_trait, methods, .. } = service;
    let Some(name) = client_trait else { return TokenStream::new() };
    let forwarded = |target: TokenStream, this: TokenStream| {
        let methods = methods.iter().map(move |method| {
            let Method { cfgs, ident, .. } = method;
            let signature = signature(krate, method);
            let arguments = method.arguments.iter().map(|argument| &argument.ident);
            let arguments = arguments.chain(method.upload.iter().map(|upload| &upload.ident));
            quote! { #(#cfgs)* #signature { #target::#ident(#this, #(#arguments),*) } }
        });
        quote!(#(#methods)*)
    };
    let by_client = forwarded(quote!(#client), quote!(self));
    let by_target = forwarded(quote!(<__Client as #name>), quote!(&**self));
    quote! {
        impl #name for #client {
            #by_client
        }

        impl<__Client: #name> #name for &__Client {
            #by_target
        }

        impl<__Client: #name> #name for #krate::__private::Arc<__Client> {
            #by_target
        }
    }
}

fn signature(krate: &syn::Path, method: &Method) -> TokenStream {
    let Method { ident, .. } = method;
    let parameters = parameters(method);
    let source = method.upload.iter().map(|upload| {
        let (name, item) = (&upload.ident, &upload.item);
        quote!(#name: impl #krate::stream::Stream<Item = #item> + #krate::__private::Send)
    });
    let output = match &method.returns {
        Returns::Stream(download) => streams::client_output(krate, download),
        returns => client_result(krate, returns).0,
    };
    quote! {
        fn #ident(&self, #(#parameters,)* #(#source)*)
            -> impl #krate::__private::Future<Output = #output> + #krate::__private::Send
    }
}
