//! What the handshake binds of the set-up before it, so that nobody between the ends can change it.
//!
//! Owns the bytes that are hashed and the parameters that carry the hashes. Each end sends its
//! parameters inside the authenticated handshake, and compares those of the peer with its own once
//! the handshake is complete.
//!
//! ```text
//! 0 "rpcr" | 4 version u8 | 5 protection u8 | 6 route u8 | 7 zero | 8 set-up | 40 exchange
//! ```
//!
//! The first hash is SHA-256 over a label, the request, the reply, the scheme, the place and the
//! protection; the second one over another label, the question and the answer of `auto://`, cut to
//! 20 bytes. Each item follows its length, a u16 in little-endian.
//!
//! A server of rdma or shm does not see whether the client asked it by `auto://` before. So the
//! client's route says that. Where it is [`Route::Auto`], both ends compare the second hash, which
//! a server takes from the answer that its listener gives. It is zero without such an answer.

use sha2::{Digest, Sha256};

use super::driver::{PARAMETERS_BYTES, Protection, Role};
use crate::device::Exchange;
use crate::device::handshake_failure::{FailureReason, HandshakeFailure};

/// The first bytes of the parameters.
const MAGIC: [u8; 4] = *b"rpcr";
/// The version of the parameters and of what is hashed.
const VERSION: u8 = 1;
const SET_UP_LABEL: &[u8] = b"rpc-rdma/1 set-up";
const EXCHANGE_LABEL: &[u8] = b"rpc-rdma/1 auto";
const SET_UP_BYTES: usize = 32;
const EXCHANGE_BYTES: usize = 20;

/// The set-up as one end saw it.
#[derive(Debug, Clone, Copy)]
pub struct SetUp<'a> {
    /// Private data of the request, with or without padding.
    pub request: &'a [u8],
    /// Private data of the reply, with or without padding.
    pub reply: &'a [u8],
    /// The transport: `mem`, `shm`, `tcp` or `rdma`.
    pub scheme: &'a str,
    /// Where both ends must be: boot and network namespace for `shm`, empty for others.
    pub place: &'a str,
    /// What this end insists on, over this transport.
    pub protection: Protection,
    /// The exchange of `auto://`. At a client: if it asked. At a server: if its listener answers.
    pub exchange: Option<&'a Exchange>,
}

/// How a client found the transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Route {
    /// The user named it.
    Direct = 0,
    /// By `auto://`.
    Auto = 1,
}

/// What one end says about the set-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    role: Role,
    protection: Protection,
    route: Route,
    set_up: [u8; SET_UP_BYTES],
    exchange: [u8; EXCHANGE_BYTES],
}

impl Parameters {
    /// Those of this end.
    #[must_use]
    pub fn new(role: Role, set_up: &SetUp<'_>) -> Self {
        let &SetUp { request, reply, scheme, place, protection, exchange } = set_up;
        let items = [
            named(request),
            named(reply),
            scheme.as_bytes(),
            place.as_bytes(),
            &[protection as u8],
        ];
        let hashed = exchange.map(|Exchange { question, answer }| {
            let hash = hash(EXCHANGE_LABEL, &[question, answer]);
            std::array::from_fn(|at| hash[at])
        });
        Self {
            role,
            protection,
            route: match role {
                Role::Client if exchange.is_some() => Route::Auto,
                _ => Route::Direct,
            },
            set_up: hash(SET_UP_LABEL, &items),
            exchange: hashed.unwrap_or([0; EXCHANGE_BYTES]),
        }
    }

    /// Which end this is.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.role
    }

    /// What this end insists on.
    #[must_use]
    pub const fn protection(&self) -> Protection {
        self.protection
    }

    /// For [`Start::parameters`](super::Start::parameters).
    #[must_use]
    pub fn to_bytes(&self) -> [u8; PARAMETERS_BYTES] {
        let mut bytes = [0; PARAMETERS_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..7].copy_from_slice(&[VERSION, self.protection as u8, self.route as u8]);
        bytes[8..40].copy_from_slice(&self.set_up);
        bytes[40..].copy_from_slice(&self.exchange);
        bytes
    }

    /// Compares them with the peer's, which the handshake has authenticated.
    ///
    /// # Errors
    /// [`HandshakeFailure`]: the ends differ.
    pub fn check(&self, peer: Option<&[u8]>) -> Result<(), HandshakeFailure> {
        let Some(peer) = peer.and_then(|bytes| <&[u8; PARAMETERS_BYTES]>::try_from(bytes).ok())
        else {
            return Err(broken("the peer's parameters of the handshake are missing or malformed"));
        };
        let [_, _, _, _, version, protection, route, zero, ..] = *peer;
        if peer[..4] != MAGIC || zero != 0 {
            return Err(broken("the peer's parameters of the handshake are malformed"));
        }
        if version != VERSION {
            return Err(broken("the peer's handshake is of another version"));
        }
        let own = self.protection;
        if protection != own as u8 {
            let text = format!(
                "the peer insists on protection {protection}, this end on {} ({own:?}): set the \
                 same level at both ends",
                own as u8
            );
            let told = "the ends insist on different levels of protection";
            return Err(HandshakeFailure::new(FailureReason::OtherProtection, text, told));
        }
        let is_auto = match self.role {
            Role::Client => self.route == Route::Auto,
            Role::Server => route == Route::Auto as u8,
        };
        let is_known = match self.role {
            Role::Client => route == Route::Direct as u8,
            Role::Server => route <= Route::Auto as u8,
        };
        // A server without an answer has no hash, and a client that asked always has one.
        let is_same = peer[8..40] == self.set_up
            && (!is_auto || (peer[40..] == self.exchange && self.exchange != [0; EXCHANGE_BYTES]));
        if is_known && is_same {
            return Ok(());
        }
        let told = "what both ends saw at set-up differs";
        let text = format!("{told}: somebody between them changed it");
        Err(HandshakeFailure::new(FailureReason::SetUpChanged, text, told))
    }
}

/// Private data without padding: byte 4 is its length.
fn named(private_data: &[u8]) -> &[u8] {
    let named = private_data.get(4).map(|len| usize::from(*len));
    named.and_then(|len| private_data.get(..len)).unwrap_or(private_data)
}

fn hash(label: &[u8], items: &[&[u8]]) -> [u8; SET_UP_BYTES] {
    let mut hasher = Sha256::new();
    for item in [label].iter().chain(items) {
        // Longer items do not exist, and the length is part of the hash only to separate them.
        hasher.update(u16::try_from(item.len()).unwrap_or(u16::MAX).to_le_bytes());
        hasher.update(item);
    }
    hasher.finalize().into()
}

fn broken(rule: &str) -> HandshakeFailure {
    HandshakeFailure::new(FailureReason::BrokenRule, rule, rule)
}
