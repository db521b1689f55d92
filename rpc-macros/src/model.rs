//! The checked service: everything that expansion needs, in valid form.
//!
//! Owns the checks of the trait as a whole; `method` has those of its methods. Each mistake is
//! reported at the user's own token, with a remedy, and all mistakes of a trait are reported
//! together.

use std::collections::HashMap;

use proc_macro2::Ident;
use quote::format_ident;
use syn::ext::IdentExt;
use syn::punctuated::Punctuated;
use syn::{Attribute, ItemTrait, Path, Token, TypeParamBound, Visibility};

use crate::attributes::{allowed, is_deprecated, select};
use crate::method::{Checker, Method, check_generics, wire_name};
use crate::parse::{BlockingClient, Errors, Input, ServiceOptions};
use crate::types;

/// A service without mistakes.
pub(crate) struct Service {
    pub(crate) krate: Path,
    pub(crate) attributes: Vec<Attribute>,
    /// `#[cfg]`s of the trait, for all items generated with it.
    pub(crate) cfgs: Vec<Attribute>,
    pub(crate) docs: Vec<Attribute>,
    /// As written, for the trait.
    pub(crate) visibility: Visibility,
    pub(crate) trait_token: Token![trait],
    pub(crate) ident: Ident,
    pub(crate) supertraits: Punctuated<TypeParamBound, Token![+]>,
    pub(crate) wire_name: String,
    pub(crate) names: Names,
    /// The lints that the user allows for the whole trait, which also hold for the generated items.
    pub(crate) allowed: Vec<Attribute>,
    /// Whether the trait or one of its methods is deprecated.
    pub(crate) is_deprecated: bool,
    pub(crate) methods: Vec<Method>,
}

/// The names of the items generated with the trait.
pub(crate) struct Names {
    pub(crate) server: Ident,
    pub(crate) client: Ident,
    /// `None`: no blocking client.
    pub(crate) blocking: Option<Ident>,
    /// The trait over the client, if requested.
    pub(crate) client_trait: Option<Ident>,
}

impl Names {
    fn new(options: &ServiceOptions, ident: &Ident, errors: &mut Errors) -> Self {
        let base = ident.unraw();
        let named = |given: &Option<Ident>, suffix: &str| {
            let made = || format_ident!("{base}{suffix}", span = ident.span());
            given.clone().unwrap_or_else(made)
        };
        let (server, client) = (named(&options.server, "Server"), named(&options.client, "Client"));
        let blocking = match &options.blocking_client {
            None => Some(named(&None, "BlockingClient")),
            Some(BlockingClient::Named(name)) => Some(name.clone()),
            Some(BlockingClient::LeftOut) => None,
        };
        let client_trait = options.client_trait.clone();
        let all = [
            ("the trait", Some(ident)),
            ("the server", Some(&server)),
            ("the client", Some(&client)),
            ("the blocking client", blocking.as_ref()),
            ("the trait over the client", client_trait.as_ref()),
        ];
        let mut seen: Vec<(&str, Ident)> = Vec::new();
        for (what, name) in all.into_iter().filter_map(|(what, name)| Some((what, name?))) {
            let plain = name.unraw();
            if let Some((other, _)) = seen.iter().find(|(_, seen)| *seen == plain) {
                errors.at(name, format!("{other} and {what} are both called `{plain}`"));
            }
            seen.push((what, plain));
        }
        Self {
            server: types::of_the_macro(&server),
            client: types::of_the_macro(&client),
            blocking: blocking.as_ref().map(types::of_the_macro),
            client_trait: client_trait.as_ref().map(types::of_the_macro),
        }
    }
}

pub(crate) fn check(input: Input) -> syn::Result<Service> {
    let Input { options, item, mut errors } = input;
    check_trait(&item, &mut errors);
    let krate = options.krate.clone().unwrap_or_else(|| syn::parse_quote!(::rpc_core));
    let names = Names::new(&options, &item.ident, &mut errors);
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
        allowed: allowed(&item.attrs),
        is_deprecated: is_deprecated(&item.attrs)
            || methods.iter().any(|method| is_deprecated(&method.attributes)),
        attributes: item.attrs,
        visibility: item.vis,
        trait_token: item.trait_token,
        ident: item.ident,
        supertraits: item.supertraits,
        wire_name,
        names,
        methods,
        krate: of_the_macro(&krate),
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
        "a service cannot be generic: the other side must know every type; write one trait per set \
         of types",
        errors,
    );
}

/// Refuses two methods with the same id. Methods under `#[cfg]` may exclude each other, so they are
/// left to a check in the generated code.
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

/// FNV-1a, 32 bits; the same function as in `rpc-core`, which computes the ids that are used.
fn method_id(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// The name of a service. Names of built-in services contain a dot.
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

/// The path of rpc-core, with the span of the macro, for which lints are silent.
fn of_the_macro(krate: &Path) -> Path {
    let mut krate = krate.clone();
    for segment in &mut krate.segments {
        // A `$crate` from another macro refers to that macro's crate.
        if segment.ident != "$crate" {
            segment.ident = types::of_the_macro(&segment.ident);
        }
    }
    krate
}
