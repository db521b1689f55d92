//! Writes the description of a method's types: a function that passes each of them to a tracer,
//! with its decoder and its encoder.

use proc_macro2::{Ident, TokenStream};
use quote::{format_ident, quote_spanned};
use syn::{Path, Type};

use super::{alias_parts, method_static, probes, quote};
use crate::method::{Method, Returns};
use crate::streams::Download;
use crate::types::{self, located, span_of};

/// The function for the method at that position.
pub(super) fn function(at: usize) -> Ident {
    let method = method_static(at);
    format_ident!("__trace_{}", method, span = method.span())
}

pub(super) fn schema(krate: &Path, at: usize, method: &Method) -> TokenStream {
    let name = function(at);
    let cfgs = &method.cfgs;
    let probes = probes(krate);
    let seed = |ty: &Type, how: &str| {
        let (shape, put) = match how {
            "take_error_shape" => (
                types::shape_of_error(ty, how, krate),
                types::shape_of_error(ty, "put_error_shape", krate),
            ),
            _ => (types::shape(ty, how, krate), types::shape(ty, "put_shape", krate)),
        };
        let span = span_of(ty);
        let krate = located(krate, span);
        quote_spanned!(span=> #krate::__private::seed::<#ty, _>(#shape), #put)
    };
    let arguments = method.arguments.iter().map(|argument| {
        let seed = seed(&argument.decoded.ty, "take_shape");
        match argument.has_default {
            true => quote!(tracer.argument_or_default(#seed);),
            false => quote!(tracer.argument(#seed);),
        }
    });
    let result = |ty: &Type| seed(&types::client_result(ty), "take_owned_shape");
    let error = |ty: &Type| seed(&types::client_result(ty), "take_error_shape");
    let returns = match &method.returns {
        Returns::Plain(ty) => {
            let result = result(ty);
            quote!(tracer.result(#result);)
        }
        Returns::Result { ok, error: own } | Returns::OrStatus { ok, error: own } => {
            let (result, error) = (result(ok), error(own));
            quote!(tracer.result(#result); tracer.error(#error);)
        }
        Returns::Alias(ty) => {
            let (ok, own) = alias_parts(krate, &types::client_result(ty));
            let (result, error) = (seed(&ok, "take_owned_shape"), seed(&own, "take_error_shape"));
            quote!(tracer.result(#result); tracer.error(#error);)
        }
        Returns::Stream(download) => {
            let Download { item, end, error: own, refusal, .. } = &**download;
            let item = result(item);
            let end = end.as_ref().map(|ty| {
                let seed = result(ty);
                quote!(tracer.result(#seed);)
            });
            let own = own.as_ref().map(|own| {
                let seed = error(&own.ty);
                quote!(tracer.error(#seed);)
            });
            let refusal = refusal.as_ref().map(|refusal| {
                let seed = error(&refusal.ty);
                quote!(tracer.refusal(#seed);)
            });
            quote!(tracer.item(#item); #end #own #refusal)
        }
    };
    let sent = method.upload.as_ref().map(|upload| {
        let seed = result(&upload.item);
        quote!(tracer.sent_item(#seed);)
    });
    quote! {
        #(#cfgs)*
        fn #name(tracer: &mut #krate::__private::Tracer) {
            #probes
            #(#arguments)*
            #sent
            #returns
        }
    }
}
