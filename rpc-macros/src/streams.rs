//! The forms of streams in a signature.
//!
//! Owns how a stream of arguments (`Streaming<T>`) and a stream of results (`impl Stream`,
//! `impl Producer`) are recognized and parsed, and the errors about other forms.

use proc_macro2::Ident;
use syn::punctuated::Punctuated;
use syn::{
    AssocType, GenericArgument, PathArguments, PathSegment, ReturnType, Token, Type, TypeImplTrait,
    TypeParamBound,
};

use crate::parse::Errors;
use crate::types::{self, bare, is_stream_trait, last_segment, type_arguments};

/// The stream of a method's arguments: its last argument, `name: Streaming<T>`.
pub(crate) struct Upload {
    pub(crate) ident: Ident,
    pub(crate) item: Type,
}

/// The stream of a method's results.
pub(crate) struct Download {
    /// The stream is returned by an `async fn`.
    pub(crate) is_async: bool,
    /// `impl Stream<..>`, as written.
    pub(crate) written: TypeImplTrait,
    /// The error of an early refusal: `async fn .. -> Result<impl Stream<..>, X>`.
    pub(crate) refusal: Option<ErrorType>,
    pub(crate) item: Type,
    /// The error that ends the stream, from `Item = Result<T, E>` or `Output = Result<R, E>`.
    pub(crate) error: Option<ErrorType>,
    /// The value after the items: `impl Producer<Item = T, Output = R>`.
    pub(crate) end: Option<Type>,
}

/// An error type of the method.
pub(crate) struct ErrorType {
    pub(crate) ty: Type,
    /// It is written as `CallError<E>`, and `ty` is `E`: it can also be a status.
    pub(crate) or_status: bool,
    pub(crate) written: Type,
}

impl ErrorType {
    fn new(written: &Type, errors: &mut Errors) -> Self {
        types::result(written, errors);
        let inside = types::inside_call_error(written);
        let ty = inside.unwrap_or(written).clone();
        Self { ty, or_status: inside.is_some(), written: written.clone() }
    }
}

/// `Streaming<..>`.
pub(crate) fn as_streaming(ty: &Type) -> Option<&PathSegment> {
    last_segment(ty).filter(|segment| segment.ident == "Streaming")
}

/// Checks the stream of a method's arguments.
pub(crate) fn upload(
    ident: Ident,
    ty: &Type,
    segment: &PathSegment,
    errors: &mut Errors,
) -> Upload {
    let item = match &*type_arguments(segment) {
        [item] => {
            types::item(item, errors);
            (*item).clone()
        }
        [_, ..] => {
            errors.at(
                ty,
                "a stream of arguments has a single type parameter, the type of its \
                           items: Streaming<T>",
            );
            ty.clone()
        }
        [] => {
            errors.at(ty, "a stream needs the type of its items: Streaming<T>");
            ty.clone()
        }
    };
    Upload { ident, item }
}

/// An `impl Stream` or `impl Producer`, and the bound that makes it one.
fn as_stream(ty: &Type) -> Option<(&TypeImplTrait, &PathSegment)> {
    let Type::ImplTrait(written) = bare(ty) else { return None };
    let segments = written.bounds.iter().filter_map(|bound| match bound {
        TypeParamBound::Trait(bound) => bound.path.segments.last(),
        _ => None,
    });
    let mut streams = segments.filter(|segment| is_stream_trait(segment));
    Some((written, streams.next()?))
}

/// Checks the stream of a method's results. `None`: there is none.
pub(crate) fn download(
    output: &ReturnType,
    is_async: bool,
    errors: &mut Errors,
) -> Option<Download> {
    let ReturnType::Type(_, ty) = output else { return None };
    if let Some((written, segment)) = as_stream(ty) {
        return Some(parts(written, segment, is_async, None, errors));
    }
    let result = last_segment(ty).filter(|segment| segment.ident == "Result")?;
    let arguments = type_arguments(result);
    let (written, segment) = as_stream(arguments.first()?)?;
    if !is_async {
        errors.at(
            ty,
            "whether there is a stream is only known after an await: write `async fn`, or end the \
             stream with the error: `impl Stream<Item = Result<T, E>>`",
        );
    }
    let refusal = match &*arguments {
        [_, refusal] => Some(ErrorType::new(refusal, errors)),
        _ => {
            errors.at(
                ty,
                "this `Result` is an alias, and the macro cannot see its error type: write both \
                 types",
            );
            None
        }
    };
    Some(parts(written, segment, is_async, refusal, errors))
}

fn parts(
    written: &TypeImplTrait,
    segment: &PathSegment,
    is_async: bool,
    refusal: Option<ErrorType>,
    errors: &mut Errors,
) -> Download {
    let is_producer = segment.ident == "Producer";
    let item = associated(segment, "Item");
    if item.is_none() {
        errors.at(segment, "a stream needs the type of its items: impl Stream<Item = T>");
    }
    let item = item.unwrap_or_else(|| syn::parse_quote!(()));
    let (item, error) = fallible(&item, errors);
    types::item(&item, errors);
    let mut download =
        Download { is_async, written: written.clone(), refusal, item, error, end: None };
    if is_producer {
        if let Some(error) = &download.error {
            errors.at(
                &error.written,
                "a producer returns its error in its output: impl Producer<Item = T, Output = \
                 Result<R, E>>",
            );
        }
        let Some(output) = associated(segment, "Output") else {
            errors.at(
                segment,
                "a producer needs the type of the value after its items: impl Producer<Item = T, \
                 Output = R>; if there is no such value, use impl Stream<Item = T>",
            );
            return download;
        };
        let (end, error) = fallible(&output, errors);
        types::result(&end, errors);
        (download.end, download.error) = (Some(end), error);
    }
    download
}

/// The type of `Name = Type` among a trait's arguments.
fn associated(segment: &PathSegment, name: &str) -> Option<Type> {
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else { return None };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::AssocType(AssocType { ident, ty, .. }) if ident == name => {
            Some(ty.clone())
        }
        _ => None,
    })
}

/// The two types of a `Result<T, E>`.
fn fallible(ty: &Type, errors: &mut Errors) -> (Type, Option<ErrorType>) {
    let Some(segment) = last_segment(ty).filter(|segment| segment.ident == "Result") else {
        return (ty.clone(), None);
    };
    match &*type_arguments(segment) {
        [ok, error] => ((*ok).clone(), Some(ErrorType::new(error, errors))),
        _ => {
            errors.at(
                ty,
                "this `Result` is an alias, and the macro cannot see its error type: write both \
                 types",
            );
            (ty.clone(), None)
        }
    }
}

/// Bounds with `Send` added: a stream is pumped by the server's tasks.
pub(crate) fn with_send(
    written: &TypeImplTrait,
    send: TypeParamBound,
) -> Punctuated<TypeParamBound, Token![+]> {
    let mut bounds = written.bounds.clone();
    bounds.push(send);
    bounds
}
