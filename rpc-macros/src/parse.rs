//! Reads the attribute's options and the trait.
//!
//! Owns the syntax: which options there are and what their values look like. What they mean
//! together is the model's business. Mistakes in options are collected, not fatal.

use proc_macro2::{TokenStream, TokenTree};
use syn::meta::ParseNestedMeta;
use syn::parse::Parser;
use syn::{Attribute, Error, Ident, Item, ItemTrait, LitInt, LitStr, Path, Token};

/// Mistakes found so far.
#[derive(Default)]
pub(crate) struct Errors(Option<Error>);

impl Errors {
    pub(crate) fn add(&mut self, error: Error) {
        match &mut self.0 {
            Some(all) => all.combine(error),
            None => self.0 = Some(error),
        }
    }

    /// Adds a mistake at the tokens it is about.
    pub(crate) fn at(&mut self, tokens: impl quote::ToTokens, message: impl std::fmt::Display) {
        self.add(Error::new_spanned(tokens, message));
    }

    pub(crate) fn finish(self) -> syn::Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}

/// The trait and its options, as written.
pub(crate) struct Input {
    pub(crate) options: ServiceOptions,
    pub(crate) item: ItemTrait,
    pub(crate) errors: Errors,
}

/// Options of `#[service(..)]`.
#[derive(Default)]
pub(crate) struct ServiceOptions {
    pub(crate) name: Option<LitStr>,
    pub(crate) version: Option<LitInt>,
    pub(crate) krate: Option<Path>,
    pub(crate) client_trait: Option<Ident>,
}

/// Options of `#[rpc(..)]` on a method.
#[derive(Default)]
pub(crate) struct MethodOptions {
    pub(crate) name: Option<LitStr>,
    pub(crate) version: Option<LitInt>,
    pub(crate) idempotent: Option<Ident>,
    pub(crate) no_cancel: Option<Ident>,
    pub(crate) spawn: Option<Ident>,
    pub(crate) stream_deadline: Option<LitStr>,
    pub(crate) result: Option<Ident>,
    pub(crate) plain: Option<Ident>,
}

pub(crate) fn parse(options: TokenStream, item: TokenStream) -> syn::Result<Input> {
    let item = match syn::parse2::<Item>(item)? {
        Item::Trait(item) => item,
        other => {
            return Err(Error::new_spanned(
                other,
                "#[service] belongs on a trait; its methods become remote calls",
            ));
        }
    };
    let mut errors = Errors::default();
    let mut service = ServiceOptions::default();
    let parser = syn::meta::parser(|meta| service.read(&meta));
    if let Err(error) = parser.parse2(options) {
        errors.add(error);
    }
    Ok(Input { options: service, item, errors })
}

impl ServiceOptions {
    fn read(&mut self, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
        if meta.path.is_ident("name") {
            once(&mut self.name, meta, meta.value()?.parse()?)
        } else if meta.path.is_ident("version") {
            once(&mut self.version, meta, meta.value()?.parse()?)
        } else if meta.path.is_ident("crate") {
            once(&mut self.krate, meta, meta.value()?.call(Path::parse_mod_style)?)
        } else if meta.path.is_ident("client_trait") {
            let value = meta.value()?;
            let name = value.parse::<Ident>().map_err(|error| {
                Error::new(
                    error.span(),
                    "the name of the trait, without quotes: client_trait = KvCalls",
                )
            })?;
            once(&mut self.client_trait, meta, name)
        } else {
            Err(meta.error(
                "unknown option of #[service]; there are name = \"..\", version = N, \
                 client_trait = Name and crate = path",
            ))
        }
    }
}

/// Whether one of the attributes in a `cfg_attr` is `rpc(..)`.
fn names_rpc(attribute: &Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    let mut tokens = list.tokens.clone().into_iter();
    // The first part is the condition.
    tokens.by_ref().find(|token| matches!(token, TokenTree::Punct(it) if it.as_char() == ','));
    tokens.any(|token| matches!(token, TokenTree::Ident(it) if it == "rpc"))
}

impl MethodOptions {
    /// Reads all `#[rpc(..)]` attributes among `attributes` and removes them.
    pub(crate) fn take(attributes: &mut Vec<Attribute>, errors: &mut Errors) -> Self {
        let mut options = Self::default();
        attributes.retain(|attribute| {
            if attribute.path().is_ident("cfg_attr") && names_rpc(attribute) {
                errors.at(
                    attribute,
                    "what a `cfg_attr` adds is not known here; write the method twice, each under its \
                     own #[cfg(..)], with its own #[rpc(..)]",
                );
                return false;
            }
            if !attribute.path().is_ident("rpc") {
                return true;
            }
            if let Err(error) = attribute.parse_nested_meta(|meta| options.read(&meta)) {
                errors.add(error);
            }
            false
        });
        options
    }

    fn read(&mut self, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
        if meta.path.is_ident("name") {
            return once(&mut self.name, meta, meta.value()?.parse()?);
        }
        if meta.path.is_ident("version") {
            return once(&mut self.version, meta, meta.value()?.parse()?);
        }
        if meta.path.is_ident("stream_deadline") {
            return once(&mut self.stream_deadline, meta, meta.value()?.parse()?);
        }
        let Some(flag) = meta.path.get_ident() else { return Err(unknown(meta)) };
        let place = match flag.to_string().as_str() {
            "idempotent" => &mut self.idempotent,
            "no_cancel" => &mut self.no_cancel,
            "spawn" => &mut self.spawn,
            "result" => &mut self.result,
            "plain" => &mut self.plain,
            _ => return Err(unknown(meta)),
        };
        if !meta.input.is_empty() && !meta.input.peek(Token![,]) {
            let message = format!("`{flag}` takes no value: it is there or not");
            return Err(Error::new(meta.input.span(), message));
        }
        once(place, meta, flag.clone())
    }
}

fn unknown(meta: &ParseNestedMeta<'_>) -> Error {
    meta.error(
        "unknown option of #[rpc]; there are name = \"..\", version = N, idempotent, no_cancel, \
         spawn, stream_deadline = \"idle\", result and plain",
    )
}

fn once<T>(place: &mut Option<T>, meta: &ParseNestedMeta<'_>, value: T) -> syn::Result<()> {
    if place.is_some() {
        return Err(meta.error("this option is given twice"));
    }
    *place = Some(value);
    Ok(())
}
