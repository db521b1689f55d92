//! A checked method, and the checks of methods.

use proc_macro2::Ident;
use quote::{ToTokens, format_ident};
use syn::ext::IdentExt;
use syn::{
    Attribute, Block, FnArg, Generics, LitInt, LitStr, Pat, PatType, Path, Receiver, ReceiverKind,
    ReturnType, Safety, Signature, TraitItem, TraitItemFn, Type,
};

use crate::attributes::{allowed, client_attributes, select};
use crate::parse::{ArgumentOptions, Errors, MethodOptions, ServiceOptions};
use crate::signature;
use crate::streams::{self, Download, Upload};
use crate::types::{self, Decoded};

/// Longest name on the wire of a service or method, bytes.
const MAX_NAME_BYTES: usize = 128;

/// A method without mistakes.
pub(crate) struct Method {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) cfgs: Vec<Attribute>,
    /// The attributes of the client's method: documentation, deprecation, lints, and `#[cfg]`s.
    pub(crate) client_attributes: Vec<Attribute>,
    /// The lints that the user allows in it.
    pub(crate) allowed: Vec<Attribute>,
    pub(crate) ident: Ident,
    /// `Service.method`.
    pub(crate) wire_name: String,
    pub(crate) signature: String,
    /// As written, for the trait.
    pub(crate) written: Signature,
    pub(crate) default: Option<Block>,
    pub(crate) arguments: Vec<Argument>,
    /// The stream of arguments, which is the last argument.
    pub(crate) upload: Option<Upload>,
    pub(crate) returns: Returns,
    pub(crate) idempotent: bool,
    pub(crate) no_cancel: bool,
    pub(crate) spawn: bool,
    pub(crate) in_msgpack: bool,
    /// The deadline restarts with each item.
    pub(crate) idle_deadline: bool,
}

impl Method {
    /// Whether it has a stream in either direction.
    pub(crate) fn has_stream(&self) -> bool {
        self.upload.is_some() || matches!(self.returns, Returns::Stream(_))
    }
}

/// An argument.
pub(crate) struct Argument {
    pub(crate) ident: Ident,
    pub(crate) ty: Type,
    pub(crate) decoded: Decoded,
    /// It has its type's default if a caller lacks it.
    pub(crate) has_default: bool,
}

/// A result.
pub(crate) enum Returns {
    /// `-> T`, or nothing.
    Plain(Type),
    /// `-> Result<T, E>`.
    Result { ok: Box<Type>, error: Box<Type> },
    /// `-> Result<T, CallError<E>>`: the method may also end with a status. `error` is `E`.
    OrStatus { ok: Box<Type>, error: Box<Type> },
    /// `-> Alias<..>`, marked with `result`.
    Alias(Type),
    /// `-> impl Stream<..>`, or a result of it.
    Stream(Box<Download>),
}

/// Checks the methods of one trait.
pub(crate) struct Checker<'a> {
    pub(crate) krate: &'a Path,
    pub(crate) options: &'a ServiceOptions,
    /// Of the service.
    pub(crate) wire_name: &'a str,
    pub(crate) errors: Errors,
}

impl Checker<'_> {
    pub(crate) fn item(&mut self, item: TraitItem) -> Option<Method> {
        match item {
            TraitItem::Fn(item) => return Some(self.method(item)),
            TraitItem::Const(item) => self.errors.at(
                item.const_token,
                "a service has no associated constants; move them out of the trait",
            ),
            TraitItem::Type(item) => self.errors.at(
                item.type_token,
                "a service has no associated types: the client must know every type; use the \
                 concrete type in the methods",
            ),
            TraitItem::Macro(item) => {
                self.errors.at(item, "methods cannot come from a macro here; write them out");
            }
            other => self.errors.at(other, "a service has only methods"),
        }
        None
    }

    fn method(&mut self, mut item: TraitItemFn) -> Method {
        let options = MethodOptions::take(&mut item.attrs, &mut self.errors);
        let in_msgpack = self.in_msgpack(options.codec.as_ref().or(self.options.codec.as_ref()));
        check_name(&item.sig.ident, &mut self.errors);
        self.check_signature(&item.sig);
        let (arguments, upload) = self.arguments(&mut item.sig, in_msgpack);
        let is_async = item.sig.asyncness.is_some();
        let download = streams::download(&item.sig.output, is_async, &mut self.errors);
        let returns = match download {
            Some(download) => Returns::Stream(Box::new(download)),
            None => self.returns(&item.sig.output, &options),
        };
        self.check_options(&options, upload.is_some(), &returns);
        let method_name = wire_name(&options.name, &item.sig.ident, &mut self.errors);
        let version = options.version.as_ref().or(self.options.version.as_ref());
        Method {
            signature: self.signature(&arguments, upload.as_ref(), &returns, version),
            cfgs: select(&item.attrs, &["cfg"]),
            client_attributes: client_attributes(&item.attrs),
            allowed: allowed(&item.attrs),
            attributes: item.attrs,
            ident: item.sig.ident.clone(),
            wire_name: format!("{}.{method_name}", self.wire_name),
            default: item.default,
            written: item.sig,
            arguments,
            upload,
            returns,
            idempotent: options.idempotent.is_some(),
            no_cancel: options.no_cancel.is_some(),
            spawn: options.spawn.is_some(),
            in_msgpack,
            idle_deadline: options.stream_deadline.is_some(),
        }
    }

    /// Whether the option asks for MessagePack, the only value that it has.
    fn in_msgpack(&mut self, option: Option<&LitStr>) -> bool {
        if let Some(value) = option.filter(|value| value.value() != "msgpack") {
            self.errors.at(
                value,
                "the only value is codec = \"msgpack\"; a channel chooses between the other codecs: \
                 `Channel::builder().codec(..)`",
            );
        }
        option.is_some()
    }

    /// Refuses options that do not fit the method.
    fn check_options(&mut self, options: &MethodOptions, has_upload: bool, returns: &Returns) {
        let has_download = matches!(returns, Returns::Stream(_));
        let has_stream = has_upload || has_download;
        if let Some(value) = &options.stream_deadline {
            if value.value() != "idle" {
                self.errors.at(
                    value,
                    "the only value is stream_deadline = \"idle\", where each item restarts the \
                     deadline; without it the deadline covers the whole call",
                );
            } else if !has_stream {
                self.errors
                    .at(value, "this method has no stream whose items would restart the deadline");
            }
        }
        if let Some(flag) = options.no_cancel.as_ref().filter(|_| has_stream) {
            self.errors.at(
                flag,
                "a stream ends when its caller is dropped: `no_cancel` is for methods without \
                 streams",
            );
        }
        if let Some(flag) = options.idempotent.as_ref().filter(|_| has_stream) {
            self.errors.at(
                flag,
                "a call with a stream is never retried: `idempotent` is for methods without streams",
            );
        }
        for flag in [&options.result, &options.plain].into_iter().flatten() {
            if has_download {
                self.errors.at(flag, "this has no effect on a stream; remove it");
            }
        }
    }

    fn signature(
        &mut self,
        arguments: &[Argument],
        upload: Option<&Upload>,
        returns: &Returns,
        version: Option<&LitInt>,
    ) -> String {
        let version = version.and_then(|literal| match literal.base10_parse::<u64>() {
            Ok(version) => Some(version),
            Err(_) => {
                self.errors.at(literal, "a version is a number from 0 to 2^64 - 1");
                None
            }
        });
        let mut parts = signature::Parts {
            arguments: arguments.iter().map(|argument| &argument.ty).collect(),
            upload: upload.map(|upload| &upload.item),
            version,
            ..signature::Parts::default()
        };
        match returns {
            Returns::Plain(ty) | Returns::Alias(ty) => parts.result = Some(ty),
            // The two are equivalent for a caller.
            Returns::Result { ok, error } | Returns::OrStatus { ok, error } => {
                (parts.result, parts.error) = (Some(&**ok), Some(&**error));
            }
            Returns::Stream(download) => {
                (parts.result, parts.is_stream) = (Some(&download.item), true);
                parts.end = download.end.as_ref();
                parts.error = download.error.as_ref().map(|error| &error.ty);
                parts.refusal = download.refusal.as_ref().map(|refusal| &refusal.ty);
            }
        }
        signature::text(&parts)
    }

    fn check_signature(&mut self, signature: &Signature) {
        let errors = &mut self.errors;
        if signature.asyncness.is_none() && !returns_impl_trait(&signature.output) {
            errors.at(
                signature.fn_token,
                "a method of a service is a remote call, which is asynchronous: write `async fn`",
            );
        }
        if let Some(token) = &signature.constness {
            errors.at(token, "a method of a service cannot be const");
        }
        if let Safety::Unsafe(token) = &signature.safety {
            errors.at(token, "a method of a service cannot be unsafe");
        }
        if let Some(abi) = &signature.abi {
            errors.at(abi, "a method of a service has no ABI of its own");
        }
        if let Some(variadic) = &signature.variadic {
            errors.at(variadic, "a method of a service has a fixed number of arguments");
        }
        check_generics(
            &signature.generics,
            "a method of a service cannot be generic: the other side must know every type and \
             lifetime; use concrete types, and leave lifetimes out",
            errors,
        );
        match signature.inputs.first() {
            Some(FnArg::Receiver(receiver)) => check_receiver(receiver, errors),
            _ => errors
                .at(&signature.ident, "a method of a service needs `&self` as its first argument"),
        }
    }

    /// Takes the options of the arguments out of the signature, which is kept for the trait.
    fn arguments(
        &mut self,
        signature: &mut Signature,
        in_msgpack: bool,
    ) -> (Vec<Argument>, Option<Upload>) {
        let typed: Vec<&mut PatType> = signature
            .inputs
            .iter_mut()
            .filter_map(|input| match input {
                FnArg::Typed(typed) => Some(typed),
                FnArg::Receiver(_) => None,
            })
            .collect();
        let mut arguments = Vec::new();
        let count = typed.len();
        for (at, typed) in typed.into_iter().enumerate() {
            if at == types::MAX_FIELDS {
                self.errors.at(
                    &*typed,
                    format!(
                        "a method has at most {} arguments; put some of them into a struct",
                        types::MAX_FIELDS
                    ),
                );
            }
            let options = ArgumentOptions::take(&mut typed.attrs, &mut self.errors);
            let is_last = at + 1 == count;
            if let Some(segment) = streams::as_streaming(&typed.ty).filter(|_| is_last) {
                let ident = self.argument_name(typed);
                if let Some(flag) = options.default {
                    self.errors.at(flag, "a stream has no default; remove this");
                }
                let upload = streams::upload(ident, &typed.ty, segment, &mut self.errors);
                return (arguments, Some(upload));
            }
            if let Some(flag) = options.default.as_ref().filter(|_| in_msgpack) {
                self.errors.at(
                    flag,
                    "codec = \"msgpack\" reads arguments in order, so none can be missing; put \
                     them into a struct, with #[serde(default)] on its fields",
                );
            }
            arguments.push(self.argument(typed, options.default.is_some()));
        }
        (arguments, None)
    }

    fn argument(&mut self, typed: &PatType, has_default: bool) -> Argument {
        let ident = self.argument_name(typed);
        let decoded = types::argument(&typed.ty, self.krate, &mut self.errors);
        Argument { ident, ty: (*typed.ty).clone(), decoded, has_default }
    }

    fn argument_name(&mut self, typed: &PatType) -> Ident {
        for attribute in &typed.attrs {
            self.errors.at(
                attribute,
                "an argument of a service's method has no attributes but #[rpc(default)]",
            );
        }
        match &*typed.pat {
            Pat::Ident(pat) => {
                if let Some(token) = &pat.by_ref {
                    self.errors.at(token, "an argument must be a plain name, without `ref`");
                }
                if let Some(token) = &pat.mutability {
                    self.errors.at(
                        token,
                        "an argument must be a plain name; write `mut` where the method is \
                         implemented",
                    );
                }
                if let Some((_, pattern)) = &pat.subpat {
                    self.errors.at(pattern, "an argument must be a plain name, not a pattern");
                }
                pat.ident.clone()
            }
            Pat::Wild(pat) => {
                self.errors
                    .at(pat, "an argument needs a name here: the client's method uses it too");
                format_ident!("argument")
            }
            other => {
                self.errors.at(
                    other,
                    "an argument must be a plain name, not a pattern; destructure it where the \
                     method is implemented",
                );
                format_ident!("argument")
            }
        }
    }

    fn returns(&mut self, output: &ReturnType, options: &MethodOptions) -> Returns {
        if let (Some(_), Some(plain)) = (&options.result, &options.plain) {
            self.errors.at(plain, "a return type is either `result` or `plain`");
        }
        let ty: Type = match output {
            ReturnType::Default => syn::parse_quote!(()),
            ReturnType::Type(_, ty) => (**ty).clone(),
        };
        if options.plain.is_some() {
            types::result(&ty, &mut self.errors);
            return Returns::Plain(ty);
        }
        let segment = types::last_segment(&ty).filter(|segment| segment.ident == "Result");
        let parts = segment.map(types::type_arguments);
        match parts.as_deref() {
            Some([ok, error]) => {
                types::result(ok, &mut self.errors);
                types::result(error, &mut self.errors);
                let ok = Box::new((*ok).clone());
                match types::inside_call_error(error) {
                    Some(error) => Returns::OrStatus { ok, error: Box::new(error.clone()) },
                    None => Returns::Result { ok, error: Box::new((*error).clone()) },
                }
            }
            Some([_]) if options.result.is_none() => {
                self.errors.at(
                    &ty,
                    "this `Result` is an alias, and the macro cannot see its error type: write \
                     both types, or mark the method #[rpc(result)]",
                );
                Returns::Plain(ty)
            }
            _ if options.result.is_some() => {
                types::result(&ty, &mut self.errors);
                Returns::Alias(ty)
            }
            _ => {
                types::result(&ty, &mut self.errors);
                Returns::Plain(ty)
            }
        }
    }
}

pub(crate) fn check_generics(generics: &Generics, message: &str, errors: &mut Errors) {
    for parameter in &generics.params {
        errors.at(parameter, message);
    }
    if let Some(clause) = &generics.where_clause {
        errors.at(clause, "a service cannot have a where clause; remove it");
    }
}

/// Refuses names that the generated clients need for themselves.
fn check_name(ident: &Ident, errors: &mut Errors) {
    let name = ident.unraw().to_string();
    let what = match name.as_str() {
        "connect" => "makes a connection",
        "new" => "takes a channel",
        "channel" => "returns the client's channel",
        _ => return,
    };
    let message = format!(
        "the generated clients already have a method `{name}`, which {what}: rename this method; \
         to keep its name on the wire, add #[rpc(name = \"{name}\")]"
    );
    errors.at(ident, message);
}

pub(crate) fn wire_name(given: &Option<LitStr>, ident: &Ident, errors: &mut Errors) -> String {
    let Some(literal) = given else { return ident.unraw().to_string() };
    let name = literal.value();
    let allowed = |c: char| c.is_alphanumeric() || c == '_';
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(allowed) {
        errors.at(
            literal,
            format!("a name has 1 to {MAX_NAME_BYTES} bytes of letters, digits and underscores"),
        );
    }
    name
}

/// Whether the method returns `impl Trait`, or a `Result` of it: then the error about the return
/// type is enough.
fn returns_impl_trait(output: &ReturnType) -> bool {
    let is_impl = |ty: &Type| matches!(types::bare(ty), Type::ImplTrait(_));
    let ReturnType::Type(_, ty) = output else { return false };
    let result = types::last_segment(ty).filter(|segment| segment.ident == "Result");
    is_impl(ty)
        || result.is_some_and(|segment| {
            types::type_arguments(segment).first().is_some_and(|ok| is_impl(ok))
        })
}

fn check_receiver(receiver: &Receiver, errors: &mut Errors) {
    let ReceiverKind::Reference(_, lifetime, mutability) = &receiver.kind else {
        let complaint = match receiver.kind {
            ReceiverKind::Value => {
                "a call cannot take the service by value: many calls share it; write `&self`"
            }
            _ => "the receiver of a service's method is written `&self`",
        };
        errors.at(receiver, complaint);
        return;
    };
    if let Some(token) = mutability {
        errors.at(
            token,
            "a call cannot borrow the service mutably: many calls share it; write `&self` and keep \
             mutable state behind a lock or in an atomic",
        );
    }
    if let Some(lifetime) = lifetime {
        errors.at(
            lifetime.to_token_stream(),
            "a lifetime of an argument cannot have a name; write `&self`",
        );
    }
    for attribute in &receiver.attrs {
        errors.at(attribute, "an argument of a service's method has no attributes");
    }
}
