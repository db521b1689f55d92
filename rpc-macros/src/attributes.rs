//! The user's attributes that generated items carry, too.

use proc_macro2::{Ident, Span};
use quote::ToTokens;
use syn::Attribute;

/// The attributes with one of these names.
pub(crate) fn select(attributes: &[Attribute], names: &[&str]) -> Vec<Attribute> {
    let wanted = |attribute: &&Attribute| names.iter().any(|name| attribute.path().is_ident(name));
    attributes.iter().filter(wanted).cloned().collect()
}

/// The attributes that mean the same on a client's method as on the trait's.
pub(crate) fn client_attributes(attributes: &[Attribute]) -> Vec<Attribute> {
    const CARRIED: [&str; 6] = ["doc", "cfg", "cfg_attr", "deprecated", "warn", "deny"];
    let mut carried = select(attributes, &CARRIED);
    carried.extend(allowed(attributes));
    carried
}

/// The lints that the user allows. An `expect`ed one may not fire in generated code, so it becomes
/// an `allow`.
pub(crate) fn allowed(attributes: &[Attribute]) -> Vec<Attribute> {
    let mut allowed = select(attributes, &["allow", "expect"]);
    for attribute in &mut allowed {
        if let syn::Meta::List(list) = &mut attribute.meta {
            list.path = Ident::new("allow", Span::call_site()).into();
        }
    }
    allowed
}

pub(crate) fn is_deprecated(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        let says_so = || attribute.to_token_stream().to_string().contains("deprecated");
        path.is_ident("deprecated") || path.is_ident("cfg_attr") && says_so()
    })
}
