//! Who may call which methods.
//!
//! Owns the rules, and which connections were granted something. A caller is looked at when it
//! first calls a method on a connection, which is when the request carries the method's signature:
//! later calls, which do not carry it, cost nothing.
//!
//! Invariants:
//! 1. Nobody may call what no rule allows, whether or not it exists; only `rpc.Health` is free.
//! 2. When the rules have been replaced, each connection to which something was granted that is no
//!    longer allowed is closed. A grant is noted before the rules are read, and they are replaced
//!    before the notes are read, so a call that is granted meanwhile by the old rules is found.

use std::fmt;
use std::sync::{Arc, Weak};

use arc_swap::ArcSwap;
use rpc_transport::device::PeerIdentity;
use rpc_transport::lock::Mutex;
use rpc_transport::protocol::frame::{CloseCode, CloseReason};

use crate::endpoint::connection_context::ConnectionContext;
use crate::identity::{Identity, SpiffePattern};
use crate::method::MethodDescriptor;
use crate::stats::counts::Counter;
use crate::status::Status;

/// Methods of this service are free.
const FREE: &str = "rpc.Health";
/// Services that `*` does not include: what they show, nobody should see by accident.
const BUILT_IN: &str = "rpc.";

/// A rule that cannot be understood, or a file of rules that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AllowError(pub(super) String);

/// The callers that a rule is for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Who {
    Anyone,
    /// Who has proven nothing.
    Anonymous,
    /// This process, over `mem://`.
    Myself,
    Name(String),
    Uid(u32),
    Gid(u32),
    Spiffe(SpiffePattern),
}

impl Who {
    fn parse(text: &str) -> Result<Self, AllowError> {
        let number = |text: &str| text.parse().ok();
        let who = match text.split_once(':') {
            None if text == "anyone" => Some(Self::Anyone),
            None if text == "anonymous" => Some(Self::Anonymous),
            None if text == "self" => Some(Self::Myself),
            Some(("name", name)) if !name.is_empty() => Some(Self::Name(name.to_owned())),
            Some(("uid", id)) => number(id).map(Self::Uid),
            Some(("gid", id)) => number(id).map(Self::Gid),
            Some(("spiffe", _)) => {
                let pattern = SpiffePattern::parse(text);
                return pattern.map(Self::Spiffe).map_err(|error| AllowError(error.to_string()));
            }
            _ => None,
        };
        who.ok_or_else(|| {
            AllowError(format!(
                "{text:?} names no caller: write `name:NAME`, `spiffe://DOMAIN/PATH`, `uid:NUMBER`, \
                 `gid:NUMBER`, `self`, `anonymous` or `anyone`"
            ))
        })
    }

    fn is(&self, caller: &Identity) -> bool {
        match self {
            Self::Anyone => true,
            Self::Anonymous => {
                let has_proven = caller.name().is_some() || caller.certificate().is_some();
                !has_proven && matches!(caller.peer(), PeerIdentity::Network(_))
            }
            Self::Myself => *caller.peer() == PeerIdentity::SameProcess,
            Self::Name(name) => caller.name() == Some(name),
            Self::Uid(uid) => caller.unix().is_some_and(|user| user.uid == *uid),
            Self::Gid(gid) => caller.unix().is_some_and(|user| user.gid == *gid),
            Self::Spiffe(pattern) => caller.spiffe().is_some_and(|id| pattern.matches(id)),
        }
    }
}

/// The methods that a rule is for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    /// All but those of this library.
    Everything,
    Service(String),
    Method(String),
}

impl What {
    fn parse(text: &str) -> Result<Self, AllowError> {
        let is_name = |text: &str| !text.is_empty() && !text.contains('*');
        match text.rsplit_once('.') {
            None if text == "*" => Ok(Self::Everything),
            Some((service, "*")) if is_name(service) => Ok(Self::Service(service.to_owned())),
            Some((service, method)) if is_name(service) && is_name(method) => {
                Ok(Self::Method(text.to_owned()))
            }
            _ => Err(AllowError(format!(
                "{text:?} names no methods: write `Service.method`, `Service.*` or `*`"
            ))),
        }
    }

    fn is(&self, method: &str) -> bool {
        match self {
            Self::Everything => !method.starts_with(BUILT_IN),
            Self::Service(service) => service_of(method) == service,
            Self::Method(name) => name == method,
        }
    }
}

/// The name of a built-in method, which a server may lack.
#[cfg(feature = "macros")]
fn built_in(id: u32) -> Option<&'static str> {
    use crate::__private::Described;
    use crate::builtin::health::HealthClient;
    use crate::builtin::reflect::{ReflectClient, StatsClient};

    let services = [HealthClient::service(), ReflectClient::service(), StatsClient::service()];
    let mut methods = services.into_iter().flat_map(|service| service.methods);
    methods.find(|method| method.id == id).map(|method| method.name)
}

#[cfg(not(feature = "macros"))]
const fn built_in(_: u32) -> Option<&'static str> {
    None
}

fn service_of(method: &str) -> &str {
    method.rsplit_once('.').map_or(method, |(service, _)| service)
}

#[derive(Debug, Clone, Default)]
pub(super) struct Rules(Vec<(Vec<Who>, Vec<What>)>);

impl Rules {
    pub(super) fn add<T: AsRef<str>>(&mut self, who: &[T], call: &[T]) -> Result<(), AllowError> {
        let who = who.iter().map(|text| Who::parse(text.as_ref())).collect::<Result<_, _>>()?;
        let call = call.iter().map(|text| What::parse(text.as_ref())).collect::<Result<_, _>>()?;
        self.0.push((who, call));
        Ok(())
    }

    fn of<'a>(&'a self, caller: &Identity) -> impl Iterator<Item = &'a What> {
        let is_for = |who: &Vec<Who>| who.iter().any(|who| who.is(caller));
        self.0.iter().filter(move |(who, _)| is_for(who)).flat_map(|(_, call)| call)
    }

    fn allow(&self, caller: &Identity, method: &str) -> bool {
        self.of(caller).any(|what| what.is(method))
    }
}

/// Rules by which callers may call methods of a server: [`allow`]. What no rule allows is denied.
/// Clones are the same rules.
///
/// [`allow`]: crate::ServerBuilder::allow
///
/// A caller is `name:NAME` (the name that
/// [`authenticate`](crate::ServerBuilder::authenticate) has given to it), the SPIFFE id of its
/// certificate, `uid:NUMBER` or `gid:NUMBER` (over `shm://`), `self` (this process, over `mem://`),
/// `anonymous` (over a network, without a name and a certificate) or `anyone`. In a SPIFFE id, `*`
/// is one whole segment of the path, as in `spiffe://prod.example/ns/*/sa/cart`; the trust domain
/// is always written out. Methods are `Service.method`, `Service.*` or `*`: all but those of the
/// built-in services, such as `rpc.Reflect.*` and `rpc.Stats.*`, which have to be named.
/// `rpc.Health` is free for everybody.
///
/// With the feature `rules` they come from a TOML file, `Allow::from_file`:
///
/// ```toml
/// [[allow]]
/// who = ["name:cart", "spiffe://prod.example/ns/*/sa/cart", "uid:1000"]
/// call = ["Kv.get", "Kv.put"]
///
/// [[allow]]
/// who = ["name:operator"]
/// call = ["*", "rpc.Reflect.*", "rpc.Stats.*"]
/// ```
#[derive(Clone)]
pub struct Allow(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) rules: ArcSwap<Rules>,
    /// Connections that were granted something, and some that have ended.
    granted: Mutex<Vec<Weak<ConnectionContext>>>,
    /// Calls that were refused.
    denied: Counter,
    #[cfg(feature = "rules")]
    pub(super) file: Option<RulesFile>,
}

/// Where rules come from.
#[cfg(feature = "rules")]
pub(super) struct RulesFile {
    pub(super) path: std::path::PathBuf,
    /// As it was last read.
    pub(super) text: Mutex<String>,
    pub(super) every: Option<std::time::Duration>,
}

impl Allow {
    /// No rules yet: nobody may call anything.
    #[must_use]
    pub fn nobody() -> Self {
        Self::of(Rules::default())
    }

    pub(super) fn of(rules: Rules) -> Self {
        Self(Arc::new(Shared {
            rules: ArcSwap::from_pointee(rules),
            granted: Mutex::new(Vec::new()),
            denied: Counter::default(),
            #[cfg(feature = "rules")]
            file: None,
        }))
    }

    /// These rules, and one more: all of these callers may call all of these methods.
    ///
    /// # Errors
    /// [`AllowError`] for a caller or a method that is not written as [above](Allow), and if the
    /// rules are those of a file, which would replace this one.
    pub fn rule<T: AsRef<str>>(self, who: &[T], call: &[T]) -> Result<Self, AllowError> {
        #[cfg(feature = "rules")]
        if self.0.file.is_some() {
            return Err(AllowError("write this rule into the file of the others".to_owned()));
        }
        let mut rules = Rules::clone(&self.0.rules.load());
        rules.add(who, call)?;
        Ok(Self::of(rules))
    }

    /// Whether the caller of a connection may call a method, from now on.
    ///
    /// # Errors
    /// [`PermissionDenied`](crate::Code::PermissionDenied).
    #[cold]
    pub(super) fn check(
        &self,
        method: &MethodDescriptor,
        caller: &Arc<ConnectionContext>,
    ) -> Result<(), Status> {
        if service_of(method.name) == FREE {
            return Ok(());
        }
        let is_allowed = || self.0.rules.load().allow(&caller.identity, method.name);
        if is_allowed() {
            self.note(method.name, caller);
            // They may have been replaced before the note was there (invariant 2).
            if is_allowed() {
                return Ok(());
            }
        }
        Err(self.denied(caller))
    }

    /// What the caller of a method that does not exist learns: that, if it may call everything, or
    /// if it may call this method of ours where it exists.
    #[cold]
    pub(super) fn unknown(&self, id: u32, status: Status, caller: &ConnectionContext) -> Status {
        let rules = self.0.rules.load();
        let may_call = |name| service_of(name) == FREE || rules.allow(&caller.identity, name);
        if rules.of(&caller.identity).any(|what| *what == What::Everything)
            || built_in(id).is_some_and(may_call)
        {
            status
        } else {
            self.denied(caller)
        }
    }

    #[cold]
    fn denied(&self, caller: &ConnectionContext) -> Status {
        self.0.denied.add_shared(1);
        let caller = &caller.identity;
        Status::permission_denied(format!(
            "the rules of this server do not allow this to {caller}, or there is no such method"
        ))
    }

    /// Calls that were refused so far.
    pub(super) fn denied_calls(&self) -> u64 {
        self.0.denied.get()
    }

    fn note(&self, method: &'static str, caller: &Arc<ConnectionContext>) {
        let is_first = {
            let mut granted = caller.granted.lock();
            if granted.contains(&method) {
                return;
            }
            granted.push(method);
            granted.len() == 1
        };
        if is_first {
            let mut all = self.0.granted.lock();
            if all.len() == all.capacity() {
                all.retain(|other| other.strong_count() > 0);
            }
            all.push(Arc::downgrade(caller));
        }
    }

    /// Replaces these rules by others, for all servers that have them. Connections that have called
    /// what they may no longer call are closed, with their calls and streams.
    pub fn replace(&self, rules: &Self) {
        let rules = rules.0.rules.load_full();
        self.0.rules.store(Arc::clone(&rules));
        let granted: Vec<_> = self.0.granted.lock().iter().filter_map(Weak::upgrade).collect();
        for caller in granted {
            let revoked = caller
                .granted
                .lock()
                .iter()
                .copied()
                .find(|method| !rules.allow(&caller.identity, method));
            if let (Some(method), Some(shard), Some((key, _))) =
                (revoked, caller.shard.upgrade(), caller.place)
            {
                tracing::info!(caller = %caller.identity, method, "no longer allowed");
                let text = "the rules of this server allow this caller less than before";
                shard.close(key, CloseReason::new(CloseCode::Application, text));
            }
        }
    }
}

impl fmt::Debug for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Allow({} rules)", self.0.rules.load().0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Proof;

    fn rules(who: &str, call: &str) -> Rules {
        let mut rules = Rules::default();
        rules.add(&[who], &[call]).unwrap();
        rules
    }

    #[test]
    fn only_what_a_rule_names_is_allowed() {
        let cart = Identity::from(PeerIdentity::SameProcess)
            .with(&crate::identity::Verified::named("cart"));
        let user = Identity::from(PeerIdentity::Process { pid: 5, uid: 1000, gid: 10 });
        let far = Identity::from(PeerIdentity::Network(([10, 0, 0, 1], 9).into()));
        let far = far.proven(Some(Arc::new(Proof::with_id("spiffe://prod/ns/a/sa/cart"))));
        for (who, is) in [
            ("anyone", [true, true, true]),
            ("anonymous", [false, false, false]),
            ("self", [true, false, false]),
            ("name:cart", [true, false, false]),
            ("name:car", [false, false, false]),
            ("uid:1000", [false, true, false]),
            ("uid:100", [false, false, false]),
            ("gid:10", [false, true, false]),
            ("spiffe://prod/ns/*/sa/cart", [false, false, true]),
            ("spiffe://prod/ns/*/sa/kv", [false, false, false]),
            ("spiffe://test/ns/*/sa/cart", [false, false, false]),
            ("spiffe://prod/ns/*", [false, false, false]),
        ] {
            let rules = rules(who, "Kv.get");
            assert_eq!([&cart, &user, &far].map(|caller| rules.allow(caller, "Kv.get")), is);
            assert!(!rules.allow(&cart, "Kv.put") && !rules.allow(&cart, "Kv"));
        }
        for (call, is) in [
            ("*", [true, true, true, false]),
            ("Kv.*", [true, true, false, false]),
            ("Kv.put", [false, true, false, false]),
            ("rpc.Stats.*", [false, false, false, true]),
        ] {
            let methods = ["Kv.get", "Kv.put", "Kv.Log.get", "rpc.Stats.server"];
            assert_eq!(
                methods.map(|method| rules("self", call).allow(&cart, method)),
                is,
                "{call}"
            );
        }
        assert!(!Rules::default().allow(&cart, "Kv.get"));
        let plain = Identity::from(PeerIdentity::Network(([10, 0, 0, 1], 9).into()));
        for who in ["anonymous", "anyone"] {
            assert!(rules(who, "Kv.get").allow(&plain, "Kv.get"), "{who}");
        }
        let named = plain.with(&crate::identity::Verified::named("cart"));
        assert!(!rules("anonymous", "Kv.get").allow(&named, "Kv.get"));
    }

    #[test]
    fn bad_rules_say_what_to_write() {
        for who in ["", "everyone", "name:", "uid:-1", "uid:x", "user:1", "*", "Anyone"] {
            let error = Rules::default().add(&[who], &["*"]).unwrap_err();
            assert!(error.to_string().contains("`uid:NUMBER`"), "{error}");
        }
        for who in ["spiffe:prod", "spiffe://*/x", "spiffe://prod/a*"] {
            let error = Rules::default().add(&[who], &["*"]).unwrap_err();
            assert!(error.to_string().contains("is no SPIFFE id"), "{error}");
        }
        for call in ["", "Kv", "Kv.", ".get", "Kv.g*", "*.get", "*.*", ".*", "**"] {
            let error = Rules::default().add(&["self"], &[call]).unwrap_err();
            assert!(error.to_string().contains("`Service.*`"), "{error}");
        }
    }
}
