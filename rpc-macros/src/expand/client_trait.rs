//! Writes the trait over a client (`client_trait = Name`), which fakes and wrappers implement too.
//!
//! Owns the signatures of its methods, which return the output of the client's calls.

use proc_macro2::TokenStream;

use super::call::{client_result, parameters};
use super::{quote, streams, visibility};
use crate::method::{Method, Returns};
use crate::model::{Names, Service};
use crate::types;

/// The trait itself, visible to user code.
pub(super) fn definition(service: &Service) -> TokenStream {
    let Service { krate, cfgs, allowed, methods, .. } = service;
    let Names { client, client_trait, .. } = &service.names;
    let Some(name) = client_trait else { return TokenStream::new() };
    let visibility = visibility(service);
    let doc = format!(
        "The methods of [`{client}`] as a trait: for code that takes the real client, a wrapper \
         around it or a fake.\n\nA call here is just a future: deadlines and metadata are set on \
         [`{client}`]'s own methods, or by its channel. Dropping the future cancels the call."
    );
    let methods = methods.iter().map(|method| {
        let Method { client_attributes, .. } = method;
        let signature = signature(krate, method);
        quote! { #(#client_attributes)* #signature; }
    });
    quote! {
        #(#cfgs)*
        #(#allowed)*
        #[doc = #doc]
        #visibility trait #name: #krate::__private::Send + #krate::__private::Sync {
            #(#methods)*
        }
    }
}

/// Its implementations for the client, and for references and `Arc`s of any implementation.
pub(super) fn implementations(service: &Service) -> TokenStream {
    let Service { krate, methods, .. } = service;
    let Names { client, client_trait, .. } = &service.names;
    let Some(name) = client_trait else { return TokenStream::new() };
    let forwarded = |target: TokenStream, this: TokenStream| {
        let methods = methods.iter().map(move |method| {
            let cfgs = &method.cfgs;
            let ident = types::of_the_macro(&method.ident);
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
    let ident = types::of_the_macro(&method.ident);
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
