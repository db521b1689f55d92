//! The checked service: everything that expansion needs, and nothing that could still be wrong.
//!
//! Owns all checks. Each mistake is reported at the user's own token, with what to do about it,
//! and all mistakes of a trait are reported together.

use std::collections::HashMap;

use proc_macro2::{Ident, Span};
use quote::{ToTokens, format_ident};
use syn::ext::IdentExt;
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Block, FnArg, Generics, ItemTrait, LitInt, LitStr, Pat, PatType, Path, Receiver,
    ReceiverKind, ReturnType, Safety, Signature, Token, TraitItem, TraitItemFn, Type,
    TypeParamBound, Visibility,
};

use crate::parse::{Errors, Input, MethodOptions, ServiceOptions};
use crate::signature;
use crate::streams::{self, Download, Upload};
use crate::types::{self, Decoded};

/// Most arguments of a method: serde's limit for tuples.
const MAX_ARGUMENTS: usize = 16;
/// Longest name on the wire of a service or method, bytes.
const MAX_NAME_BYTES: usize = 128;

/// A service without mistakes.
pub(crate) struct Service {
    pub(crate) krate: Path,
    pub(crate) attributes: Vec<Attribute>,
    /// `#[cfg]`s of the trait, for everything that is generated beside it.
    pub(crate) cfgs: Vec<Attribute>,
    pub(crate) docs: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) trait_token: Token![trait],
    pub(crate) ident: Ident,
    pub(crate) supertraits: Punctuated<TypeParamBound, Token![+]>,
    pub(crate) wire_name: String,
    /// The name of the trait over the client, if there is to be one.
    pub(crate) client_trait: Option<Ident>,
    pub(crate) methods: Vec<Method>,
}

/// A method without mistakes.
pub(crate) struct Method {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) cfgs: Vec<Attribute>,
    /// What the client's method carries: documentation, deprecation, lints, and the `#[cfg]`s.
    pub(crate) client_attributes: Vec<Attribute>,
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
    /// The deadline starts anew with each item.
    pub(crate) idle_deadline: bool,
}

impl Method {
    /// Whether items go in some direction.
    pub(crate) fn has_stream(&self) -> bool {
        self.upload.is_some() || matches!(self.returns, Returns::Stream(_))
    }
}

/// An argument.
pub(crate) struct Argument {
    pub(crate) ident: Ident,
    pub(crate) ty: Type,
    pub(crate) decoded: Decoded,
}

/// A result.
pub(crate) enum Returns {
    /// `-> T`, or nothing.
    Plain(Type),
    /// `-> Result<T, E>`.
    Result { ok: Box<Type>, error: Box<Type> },
    /// `-> Result<T, CallError<E>>`: the method may also end with a status. `error` is `E`.
    OrStatus { ok: Box<Type>, error: Box<Type> },
    /// `-> Alias<..>`, marked as a result.
    Alias(Type),
    /// `-> impl Stream<..>`, or a result of it.
    Stream(Box<Download>),
}

pub(crate) fn check(input: Input) -> syn::Result<Service> {
    let Input { options, item, mut errors } = input;
    check_trait(&item, &mut errors);
    let krate = options.krate.clone().unwrap_or_else(|| syn::parse_quote!(::rpc_core));
    let wire_name = service_name(&options, &item.ident, &krate, &mut errors);
    let mut checker = Checker { krate: &krate, options: &options, wire_name: &wire_name, errors };
    let methods: Vec<Method> =
        item.items.into_iter().filter_map(|item| checker.item(item)).collect();
    let Checker { mut errors, .. } = checker;
    check_distinct(&methods, &mut errors);
    errors.finish()?;
    Ok(Service {
        cfgs: select(&item.attrs, &["cfg"]),
        docs: select(&item.attrs, &["doc"]),
        attributes: item.attrs,
        visibility: item.vis,
        trait_token: item.trait_token,
        ident: item.ident,
        supertraits: item.supertraits,
        wire_name,
        client_trait: options.client_trait.clone(),
        methods,
        krate,
    })
}

fn check_trait(item: &ItemTrait, errors: &mut Errors) {
    if let Some(token) = &item.unsafety {
        errors.at(token, "a service cannot be an unsafe trait");
    }
    if let Some(token) = &item.modifiers.auto_token {
        errors.at(token, "a service cannot be an auto trait");
    }
    check_generics(
        &item.generics,
        "a service cannot be generic: the other side must know every type; write one trait for \
         each set of types",
        errors,
    );
}

fn check_generics(generics: &Generics, message: &str, errors: &mut Errors) {
    for parameter in &generics.params {
        errors.at(parameter, message);
    }
    if let Some(clause) = &generics.where_clause {
        errors.at(clause, "a where clause has no place in a service; remove it");
    }
}

/// Refuses two methods with one id. Methods under `#[cfg]` may exclude each other, so for those
/// it is left to a check in the generated code.
fn check_distinct(methods: &[Method], errors: &mut Errors) {
    let mut seen: HashMap<u32, &Method> = HashMap::new();
    for method in methods.iter().filter(|method| method.cfgs.is_empty()) {
        if let Some(other) = seen.insert(method_id(&method.wire_name), method) {
            let message = format!(
                "`{}` and `{}` have the same id on the wire; give one of them another name with \
                 #[rpc(name = \"..\")]",
                other.ident, method.ident
            );
            errors.at(&method.ident, message);
        }
    }
}

/// Refuses names that the generated clients need for themselves.
fn check_name(ident: &Ident, errors: &mut Errors) {
    let name = ident.unraw().to_string();
    let what = match name.as_str() {
        "connect" => "makes a connection",
        "new" => "takes a channel",
        "channel" => "gives its channel",
        _ => return,
    };
    let message = format!(
        "the generated clients have a `{name}` of their own, which {what}: give the method another \
         name, and keep this one on the wire, if you wish, with #[rpc(name = \"{name}\")]"
    );
    errors.at(ident, message);
}

/// FNV-1a, 32 bits; the same function as in `rpc-core`, which computes the ids that are used.
fn method_id(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The name of a service. Those of the framework itself have a dot.
fn service_name(
    options: &ServiceOptions,
    ident: &Ident,
    krate: &Path,
    errors: &mut Errors,
) -> String {
    match &options.name {
        Some(name) if krate.is_ident("crate") && name.value().starts_with("rpc.") => name.value(),
        given => wire_name(given, ident, errors),
    }
}

fn wire_name(given: &Option<LitStr>, ident: &Ident, errors: &mut Errors) -> String {
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

/// The attributes with one of these names.
fn select(attributes: &[Attribute], names: &[&str]) -> Vec<Attribute> {
    let wanted = |attribute: &&Attribute| names.iter().any(|name| attribute.path().is_ident(name));
    attributes.iter().filter(wanted).cloned().collect()
}

/// The attributes that mean the same on a client's method as on the trait's.
fn client_attributes(attributes: &[Attribute]) -> Vec<Attribute> {
    const CARRIED: [&str; 7] = ["doc", "cfg", "cfg_attr", "deprecated", "allow", "warn", "deny"];
    let mut carried = select(attributes, &CARRIED);
    // An `expect`ed lint may not fire on the client's method, so it becomes an `allow`.
    for mut attribute in select(attributes, &["expect"]) {
        if let syn::Meta::List(list) = &mut attribute.meta {
            list.path = Ident::new("allow", Span::call_site()).into();
        }
        carried.push(attribute);
    }
    carried
}

struct Checker<'a> {
    krate: &'a Path,
    options: &'a ServiceOptions,
    wire_name: &'a str,
    errors: Errors,
}

impl Checker<'_> {
    fn item(&mut self, item: TraitItem) -> Option<Method> {
        match item {
            TraitItem::Fn(item) => return Some(self.method(item)),
            TraitItem::Const(item) => self.errors.at(
                item.const_token,
                "a service has no associated constants; put them beside the trait",
            ),
            TraitItem::Type(item) => self.errors.at(
                item.type_token,
                "a service has no associated types: the client must know every type; name the \
                 type in the methods",
            ),
            TraitItem::Macro(item) => {
                self.errors.at(item, "a macro cannot stand for methods here; write them out");
            }
            other => self.errors.at(other, "a service has only methods"),
        }
        None
    }

    fn method(&mut self, mut item: TraitItemFn) -> Method {
        let options = MethodOptions::take(&mut item.attrs, &mut self.errors);
        check_name(&item.sig.ident, &mut self.errors);
        self.check_signature(&item.sig);
        let (arguments, upload) = self.arguments(&item.sig);
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
            idle_deadline: options.stream_deadline.is_some(),
        }
    }

    /// Refuses options that do not go with the method's shape.
    fn check_options(&mut self, options: &MethodOptions, has_upload: bool, returns: &Returns) {
        let has_download = matches!(returns, Returns::Stream(_));
        let has_stream = has_upload || has_download;
        if let Some(value) = &options.stream_deadline {
            if value.value() != "idle" {
                self.errors.at(
                    value,
                    "there is stream_deadline = \"idle\", where each item starts the time anew; \
                     without it the deadline is that of the whole call",
                );
            } else if !has_stream {
                self.errors.at(
                    value,
                    "this method has no stream, whose items would start the \
                 time anew",
                );
            }
        }
        if let Some(flag) = options.no_cancel.as_ref().filter(|_| has_stream) {
            self.errors.at(
                flag,
                "a stream ends with its caller: `no_cancel` is for methods without streams",
            );
        }
        if let Some(flag) = options.idempotent.as_ref().filter(|_| has_stream) {
            self.errors.at(
                flag,
                "a stream is never resumed or made again by itself: `idempotent` is for methods \
                 without streams",
            );
        }
        for flag in [&options.result, &options.plain].into_iter().flatten() {
            if has_download {
                self.errors.at(flag, "this says nothing about a stream; remove it");
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
            // A caller sees no difference between the two.
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
                "a method of a service is a remote call, which waits: write `async fn`",
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
             lifetime; name the types, and leave lifetimes out",
            errors,
        );
        match signature.inputs.first() {
            Some(FnArg::Receiver(receiver)) => check_receiver(receiver, errors),
            _ => errors
                .at(&signature.ident, "a method of a service needs `&self` as its first argument"),
        }
    }

    fn arguments(&mut self, signature: &Signature) -> (Vec<Argument>, Option<Upload>) {
        let typed: Vec<&PatType> = signature
            .inputs
            .iter()
            .filter_map(|input| match input {
                FnArg::Typed(typed) => Some(typed),
                FnArg::Receiver(_) => None,
            })
            .collect();
        let mut arguments = Vec::new();
        let count = typed.len();
        for (at, typed) in typed.into_iter().enumerate() {
            if at == MAX_ARGUMENTS {
                self.errors.at(
                    typed,
                    format!(
                        "a method has at most {MAX_ARGUMENTS} arguments; put some of them \
                             into a struct"
                    ),
                );
            }
            let is_last = at + 1 == count;
            if let Some(segment) = streams::as_streaming(&typed.ty).filter(|_| is_last) {
                let ident = self.argument_name(typed);
                let upload = streams::upload(ident, &typed.ty, segment, &mut self.errors);
                return (arguments, Some(upload));
            }
            arguments.push(self.argument(typed));
        }
        (arguments, None)
    }

    fn argument(&mut self, typed: &PatType) -> Argument {
        let ident = self.argument_name(typed);
        let decoded = types::argument(&typed.ty, self.krate, &mut self.errors);
        Argument { ident, ty: (*typed.ty).clone(), decoded }
    }

    fn argument_name(&mut self, typed: &PatType) -> Ident {
        for attribute in &typed.attrs {
            self.errors.at(attribute, "an argument of a service's method has no attributes");
        }
        match &*typed.pat {
            Pat::Ident(pat) => {
                if let Some(token) = &pat.by_ref {
                    self.errors.at(token, "an argument here is a plain name, without `ref`");
                }
                if let Some(token) = &pat.mutability {
                    self.errors.at(
                        token,
                        "an argument here is a plain name; write `mut` where the method is \
                         implemented",
                    );
                }
                if let Some((_, pattern)) = &pat.subpat {
                    self.errors.at(pattern, "an argument here is a plain name, not a pattern");
                }
                pat.ident.clone()
            }
            Pat::Wild(pat) => {
                self.errors
                    .at(pat, "an argument needs a name here: the client's method has it too");
                format_ident!("argument")
            }
            other => {
                self.errors.at(
                    other,
                    "an argument here is a plain name, not a pattern; take it apart where the \
                     method is implemented",
                );
                format_ident!("argument")
            }
        }
    }

    fn returns(&mut self, output: &ReturnType, options: &MethodOptions) -> Returns {
        if let (Some(_), Some(plain)) = (&options.result, &options.plain) {
            self.errors.at(plain, "a return type is either a `result` or `plain`");
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
                    "this `Result` is an alias, whose error type cannot be seen here: write both \
                     types, or mark the method #[rpc(result)]",
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

/// Whether the method returns `impl Trait`, or a `Result` of it; then the error about the return type
/// is enough.
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
            "a call cannot have the service to itself: many calls share it; write `&self` and \
             keep what changes behind a lock or in an atomic",
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
