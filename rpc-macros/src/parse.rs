//! Reads the attribute's options and the trait.
//!
//! Owns the syntax: the options and the form of their values. The model checks their combinations.
//! Mistakes in options are collected, not fatal.

use proc_macro2::{TokenStream, TokenTree};
use syn::meta::ParseNestedMeta;
use syn::parse::{ParseStream, Parser};
use syn::{
    AttrStyle, Attribute, Error, Ident, Item, ItemTrait, LitBool, LitInt, LitStr, Path, Token,
    TraitItem,
};

/// The mistakes found so far.
#[derive(Default)]
pub(crate) struct Errors(Option<Error>);

impl Errors {
    pub(crate) fn add(&mut self, error: Error) {
        match &mut self.0 {
            Some(all) => all.combine(error),
            None => self.0 = Some(error),
        }
    }

    /// Adds a mistake at the given tokens.
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
    pub(crate) codec: Option<LitStr>,
    pub(crate) krate: Option<Path>,
    pub(crate) client_trait: Option<Ident>,
    pub(crate) server: Option<Ident>,
    pub(crate) client: Option<Ident>,
    pub(crate) blocking_client: Option<BlockingClient>,
}

/// The option for the blocking client.
#[derive(Clone)]
pub(crate) enum BlockingClient {
    Named(Ident),
    /// No blocking client.
    LeftOut,
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
    pub(crate) codec: Option<LitStr>,
    pub(crate) result: Option<Ident>,
    pub(crate) plain: Option<Ident>,
}

/// Options of `#[rpc(..)]` on an argument.
#[derive(Default)]
pub(crate) struct ArgumentOptions {
    pub(crate) default: Option<Ident>,
}

pub(crate) fn parse(options: TokenStream, item: TokenStream) -> syn::Result<Input> {
    let item = match syn::parse2::<Item>(item)? {
        Item::Trait(item) => with_outer_attributes(item),
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

/// Turns inner attributes of the trait, or of a method's body, into outer ones, since the generated
/// code has no place for inner attributes.
fn with_outer_attributes(mut item: ItemTrait) -> ItemTrait {
    let outer = |attributes: &mut Vec<Attribute>| {
        for attribute in attributes {
            attribute.style = AttrStyle::Outer;
        }
    };
    outer(&mut item.attrs);
    for item in &mut item.items {
        if let TraitItem::Fn(method) = item {
            outer(&mut method.attrs);
        }
    }
    item
}

impl ServiceOptions {
    fn read(&mut self, meta: &ParseNestedMeta<'_>) -> syn::Result<()> {
        if meta.path.is_ident("name") {
            once(&mut self.name, meta, meta.value()?.parse()?)
        } else if meta.path.is_ident("version") {
            once(&mut self.version, meta, meta.value()?.parse()?)
        } else if meta.path.is_ident("codec") {
            once(&mut self.codec, meta, meta.value()?.parse()?)
        } else if meta.path.is_ident("crate") {
            once(&mut self.krate, meta, meta.value()?.call(Path::parse_mod_style)?)
        } else if meta.path.is_ident("client_trait") {
            let name = name(meta, "the name of the trait, without quotes: client_trait = KvCalls")?;
            once(&mut self.client_trait, meta, name)
        } else if meta.path.is_ident("server") {
            let name = name(meta, "the name of the server, without quotes: server = KvService")?;
            once(&mut self.server, meta, name)
        } else if meta.path.is_ident("client") {
            let name = name(meta, "the name of the client, without quotes: client = KvCaller")?;
            once(&mut self.client, meta, name)
        } else if meta.path.is_ident("blocking_client") {
            let said = blocking_client(meta)?;
            once(&mut self.blocking_client, meta, said)
        } else {
            Err(meta.error(
                "unknown option of #[service]; the options are name = \"..\", version = N, codec = \
                 \"msgpack\", server = Name, client = Name, blocking_client = Name or false, \
                 client_trait = Name and crate = path",
            ))
        }
    }
}

fn name(meta: &ParseNestedMeta<'_>, wanted: &str) -> syn::Result<Ident> {
    name_of(meta.value()?, wanted)
}

fn name_of(value: ParseStream<'_>, wanted: &str) -> syn::Result<Ident> {
    value.parse::<Ident>().map_err(|error| Error::new(error.span(), wanted))
}

fn blocking_client(meta: &ParseNestedMeta<'_>) -> syn::Result<BlockingClient> {
    let wanted = "the name of the blocking client, without quotes, or false for none: \
                  blocking_client = KvWaiter, blocking_client = false";
    let value = meta.value()?;
    if !value.peek(LitBool) {
        return name_of(value, wanted).map(BlockingClient::Named);
    }
    let literal: LitBool = value.parse()?;
    match literal.value {
        false => Ok(BlockingClient::LeftOut),
        true => Err(Error::new(literal.span, wanted)),
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

/// Reads all `#[rpc(..)]` attributes among `attributes` and removes them.
fn take_options(
    attributes: &mut Vec<Attribute>,
    errors: &mut Errors,
    mut read: impl FnMut(&ParseNestedMeta<'_>) -> syn::Result<()>,
) {
    attributes.retain(|attribute| {
        if attribute.path().is_ident("cfg_attr") && names_rpc(attribute) {
            errors.at(
                attribute,
                "the macro cannot see what a `cfg_attr` adds; write the method twice, each under \
                 its own #[cfg(..)], with its own #[rpc(..)]",
            );
            return false;
        }
        if !attribute.path().is_ident("rpc") {
            return true;
        }
        if let Err(error) = attribute.parse_nested_meta(|meta| read(&meta)) {
            errors.add(error);
        }
        false
    });
}

/// Reads an option without a value.
fn flag(place: &mut Option<Ident>, meta: &ParseNestedMeta<'_>, flag: &Ident) -> syn::Result<()> {
    if !meta.input.is_empty() && !meta.input.peek(Token![,]) {
        let message = format!("`{flag}` takes no value");
        return Err(Error::new(meta.input.span(), message));
    }
    once(place, meta, flag.clone())
}

impl ArgumentOptions {
    pub(crate) fn take(attributes: &mut Vec<Attribute>, errors: &mut Errors) -> Self {
        let mut options = Self::default();
        take_options(attributes, errors, |meta| match meta.path.get_ident() {
            Some(name) if name == "default" => flag(&mut options.default, meta, name),
            _ => Err(meta.error("unknown option of an argument; the only one is #[rpc(default)]")),
        });
        options
    }
}

impl MethodOptions {
    pub(crate) fn take(attributes: &mut Vec<Attribute>, errors: &mut Errors) -> Self {
        let mut options = Self::default();
        take_options(attributes, errors, |meta| options.read(meta));
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
        if meta.path.is_ident("codec") {
            return once(&mut self.codec, meta, meta.value()?.parse()?);
        }
        let Some(name) = meta.path.get_ident() else { return Err(unknown(meta)) };
        let place = match name.to_string().as_str() {
            "idempotent" => &mut self.idempotent,
            "no_cancel" => &mut self.no_cancel,
            "spawn" => &mut self.spawn,
            "result" => &mut self.result,
            "plain" => &mut self.plain,
            _ => return Err(unknown(meta)),
        };
        flag(place, meta, name)
    }
}

fn unknown(meta: &ParseNestedMeta<'_>) -> Error {
    meta.error(
        "unknown option of #[rpc]; the options are name = \"..\", version = N, idempotent, \
         no_cancel, spawn, stream_deadline = \"idle\", codec = \"msgpack\", result and plain",
    )
}

fn once<T>(place: &mut Option<T>, meta: &ParseNestedMeta<'_>, value: T) -> syn::Result<()> {
    if place.is_some() {
        return Err(meta.error("this option is given twice"));
    }
    *place = Some(value);
    Ok(())
}
