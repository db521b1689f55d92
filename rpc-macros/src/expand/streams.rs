//! Writes the code of methods with streams.
//!
//! Owns the pump of a server's stream, the receiver of a stream of arguments, and the clients'
//! methods.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::{Path, Type, TypeParamBound};

use super::{call, method_static, probes, quote, visibility};
use crate::method::{Method, Returns};
use crate::model::Service;
use crate::streams::{Download, ErrorType, Upload, with_send};
use crate::types::{self, located, span_of};

/// Whether the trait's method returns its stream without a future around it.
pub(super) fn is_returned_at_once(method: &Method) -> bool {
    matches!(&method.returns, Returns::Stream(download) if !download.is_async)
}

/// The return type of the trait's method (in its future, if it has one): as written, plus `Send`.
pub(super) fn output(krate: &Path, download: &Download, written: &Type) -> TokenStream {
    let span = span_of(written);
    let there = located(krate, span);
    let send: TypeParamBound = syn::parse_quote_spanned!(span=> #there::__private::Send);
    let bounds = with_send(&download.written, send);
    match &download.refusal {
        None => quote!(impl #bounds),
        Some(refusal) => {
            let refusal = &refusal.written;
            quote!(#krate::__private::Result<impl #bounds, #refusal>)
        }
    }
}

/// The function that encodes an item.
fn encoder(krate: &Path, item: &Type) -> TokenStream {
    let put = types::put(&quote!(item), item, krate);
    quote!(|item, encoder| encoder.put(#put))
}

/// The function that decodes an item.
fn decoder(krate: &Path, item: &Type) -> TokenStream {
    let shape = types::shape(item, "take_owned_shape", krate);
    let span = span_of(item);
    let there = located(krate, span);
    quote_spanned!(span=> #there::__private::item_decoder::<#item, _>(#shape))
}

/// The stream of arguments, as passed to the server's method.
pub(super) fn receiver(krate: &Path, descriptor: &Ident, upload: &Upload) -> TokenStream {
    let decoder = decoder(krate, &upload.item);
    quote!(port.receive(&#descriptor, #decoder),)
}

/// Calls the method and sends its stream; the block's value is the reply.
pub(super) fn pump(
    krate: &Path,
    descriptor: &Ident,
    download: &Download,
    called: &TokenStream,
) -> TokenStream {
    let Download { is_async, refusal, item, error, end, .. } = download;
    let encoder = encoder(krate, item);
    let wait = is_async.then(|| quote!(.await));
    // The match arms for an error of the method; `wrap` is the pattern around it.
    let failed = |error: &ErrorType, wrap: &dyn Fn(TokenStream) -> TokenStream| {
        let ErrorType { ty, or_status, .. } = error;
        let shape = types::shape_of_error(ty, "put_error_shape", krate);
        let there = located(krate, span_of(ty));
        let reply = quote_spanned! {span_of(ty)=>
            #there::__private::Incoming::reply_error(&incoming, &#descriptor, &error, #shape)
        };
        if !or_status {
            let pattern = wrap(quote!(#krate::__private::Result::Err(error)));
            return quote!(#pattern => #reply,);
        }
        let user = quote!(#krate::__private::CallError::User(error));
        let user = wrap(quote!(#krate::__private::Result::Err(#user)));
        let status = quote!(#krate::__private::CallError::Status(status));
        let status = wrap(quote!(#krate::__private::Result::Err(#status)));
        quote! {
            #user => #reply,
            #status => #krate::__private::Reply::Status(status),
        }
    };
    let in_ok = |pattern: TokenStream| quote!(#krate::__private::Result::Ok(#pattern));
    let value = |end: &Type| {
        let put = types::put(&quote!(value), end, krate);
        quote!(incoming.reply(&#descriptor, &#put))
    };
    let pumped = |how: &str| {
        let how = quote::format_ident!("{how}", span = proc_macro2::Span::mixed_site());
        quote!(port.#how(&#descriptor, stream, #encoder).await)
    };
    let pumped = match (end, error) {
        (None, None) => {
            let pumped = pumped("pump");
            quote! {
                match #pumped {
                    #krate::__private::Result::Ok(()) => incoming.reply(&#descriptor, &()),
                    #krate::__private::Result::Err(reply) => reply,
                }
            }
        }
        (None, Some(error)) => {
            let (pumped, failed) = (pumped("pump_results"), failed(error, &in_ok));
            quote! {
                match #pumped {
                    #krate::__private::Result::Ok(#krate::__private::Result::Ok(())) => {
                        incoming.reply(&#descriptor, &())
                    }
                    #failed
                    #krate::__private::Result::Err(reply) => reply,
                }
            }
        }
        (Some(end), None) => {
            let (pumped, value) = (pumped("pump_producer"), value(end));
            quote! {
                match #pumped {
                    #krate::__private::Result::Ok(value) => #value,
                    #krate::__private::Result::Err(reply) => reply,
                }
            }
        }
        (Some(end), Some(error)) => {
            let (pumped, value) = (pumped("pump_producer"), value(end));
            let failed = failed(error, &in_ok);
            quote! {
                match #pumped {
                    #krate::__private::Result::Ok(#krate::__private::Result::Ok(value)) => #value,
                    #failed
                    #krate::__private::Result::Err(reply) => reply,
                }
            }
        }
    };
    match refusal {
        None => quote! {
            let stream = #called #wait;
            #pumped
        },
        Some(refusal) => {
            let refused = failed(refusal, &|pattern| pattern);
            quote! {
                match #called #wait {
                    #refused
                    #krate::__private::Result::Ok(stream) => { #pumped }
                }
            }
        }
    }
}

/// The error type of a stream, as the client sees it, and the decoder of a reply with a value of
/// type `ok` or this error.
fn ending(krate: &Path, ok: &Type, error: &Option<ErrorType>) -> (TokenStream, TokenStream) {
    let error = error.as_ref().map(|error| &error.ty);
    let returns = match error {
        None => Returns::Plain(ok.clone()),
        Some(error) => Returns::Result { ok: Box::new(ok.clone()), error: Box::new(error.clone()) },
    };
    let (_, decode) = call::client_result(krate, &returns);
    let error = match error {
        None => quote!(#krate::__private::Status),
        Some(error) => {
            let error = types::client_result(error);
            quote!(#krate::__private::CallError<#error>)
        }
    };
    (error, decode)
}

/// The method of a client.
pub(super) fn client_method(
    service: &Service,
    at: usize,
    method: &Method,
    note: &str,
    is_blocking: bool,
) -> TokenStream {
    let krate = &service.krate;
    let Method { client_attributes, wire_name, .. } = method;
    let ident = types::of_the_macro(&method.ident);
    let (probes, visibility) = (probes(krate), visibility(service));
    let descriptor = method_static(at);
    let parameters = call::parameters(method);
    let arguments = call::put_arguments(krate, &method.arguments);
    let note = format!("{note} `{wire_name}`.");
    let gap = call::has_docs(client_attributes).then(|| quote!(#[doc = ""]));
    let source = method.upload.as_ref().map(|upload| source(krate, upload, is_blocking));
    let Source { generics, parameter, bounds, ty, value } = source.unwrap_or_default();
    let (returned, called) = match &method.returns {
        Returns::Stream(download) => {
            let returned = stream_call(krate, download, &ty, is_blocking);
            let value = match value.is_empty() {
                true => quote!(#krate::stream::NoUpload::default()),
                false => value,
            };
            let decoders = decoders(krate, download);
            (returned, quote!(call_stream(&#descriptor, #arguments, #value, #decoders)))
        }
        returns => {
            let (output, decode) = call::client_result(krate, returns);
            let returned = match is_blocking {
                true => output,
                false => quote!(#krate::client::UploadCall<'_, #output, #ty>),
            };
            (returned, quote!(call_upload(&#descriptor, #arguments, #value, #decode)))
        }
    };
    quote! {
        #(#client_attributes)*
        #gap
        #[doc = #note]
        #[inline]
        #visibility fn #ident #generics(&self, #(#parameters,)* #parameter) -> #returned
        #bounds
        {
            #probes
            self.channel.#called
        }
    }
}

/// The pieces of a client's method that sends a stream.
struct Source {
    generics: TokenStream,
    parameter: TokenStream,
    bounds: TokenStream,
    /// The source of the items.
    ty: TokenStream,
    value: TokenStream,
}

impl Default for Source {
    /// The method sends no items.
    fn default() -> Self {
        let nothing = TokenStream::new;
        let (generics, parameter, bounds, ty) = (nothing(), nothing(), nothing(), nothing());
        Self { generics, parameter, bounds, ty, value: TokenStream::new() }
    }
}

fn source(krate: &Path, upload: &Upload, is_blocking: bool) -> Source {
    let Upload { ident, item, .. } = upload;
    let encoder = encoder(krate, item);
    let (of, stream) = match is_blocking {
        false => (quote!(#krate::stream::Stream), quote!(__Rows)),
        true => (
            quote!(#krate::__private::IntoIterator),
            quote!(#krate::stream::Iter<__Rows::IntoIter>),
        ),
    };
    let source = match is_blocking {
        false => ident.to_token_stream(),
        true => quote!(#krate::stream::iter(#ident)),
    };
    Source {
        generics: quote!(<__Rows>),
        parameter: quote!(#ident: __Rows),
        bounds: quote! {
            where
                __Rows: #of,
                __Rows::Item: #krate::stream::IntoItem<#item>,
        },
        ty: quote!(#krate::stream::Upload<#stream, #item>),
        value: quote!(#krate::stream::Upload::new(#source, #encoder)),
    }
}

fn decoders(krate: &Path, download: &Download) -> TokenStream {
    let Download { refusal, item, error, end, .. } = download;
    let unit: Type = syn::parse_quote!(());
    let item = decoder(krate, &types::client_result(item));
    let (_, end) = ending(krate, end.as_ref().unwrap_or(&unit), error);
    let (_, refusal) = ending(krate, &unit, refusal);
    quote!(#krate::__private::StreamDecoders::new(#item, #end, #refusal))
}

/// The return type of a method with a stream of results, in the trait over the client.
pub(super) fn client_output(krate: &Path, download: &Download) -> TokenStream {
    let Download { refusal, item, error, end, .. } = download;
    let unit: Type = syn::parse_quote!(());
    let item = types::client_result(item);
    let (error, _) = ending(krate, &unit, error);
    let (refusal, _) = ending(krate, &unit, refusal);
    let stream = match end.as_ref().map(types::client_result) {
        None => quote!(
            #krate::stream::Stream<Item = #krate::__private::Result<#item, #error>>
        ),
        Some(end) => quote!(
            #krate::stream::Producer<
                Item = #item,
                Output = #krate::__private::Result<#end, #error>,
            >
        ),
    };
    quote!(
        #krate::__private::Result<impl #stream + #krate::__private::Send, #refusal>
    )
}

/// The type of a call of a method with a stream of results.
fn stream_call(
    krate: &Path,
    download: &Download,
    upload: &TokenStream,
    is_blocking: bool,
) -> TokenStream {
    let Download { refusal, item, error, end, .. } = download;
    let unit: Type = syn::parse_quote!(());
    let item = types::client_result(item);
    let end = end.as_ref().map_or(unit.clone(), types::client_result);
    let (error, _) = ending(krate, &end, error);
    let (refusal, _) = ending(krate, &unit, refusal);
    let upload = match upload.is_empty() {
        true => quote!(#krate::stream::NoUpload),
        false => upload.clone(),
    };
    match is_blocking {
        false => quote!(
            #krate::client::StreamCall<'_, #item, #end, #error, #refusal, #upload>
        ),
        true => quote!(
            #krate::__private::Result<
                #krate::stream::BlockingStreaming<#item, #end, #error, #upload>,
                #refusal,
            >
        ),
    }
}
