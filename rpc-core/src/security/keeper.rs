//! The connections of one server or channel with TLS, for as long as they last.
//!
//! Owns the task that reloads files, verifies peers again, and ends connections.
//!
//! Invariants:
//! 1. No hook of the user, no verification and no work on a connection runs under a lock.
//! 2. A connection whose handshake began before the last reload is verified again when it is put
//!    here. It is noted first, and the generation read afterwards, so that one of both finds it.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rpc_transport::device::PeerIdentity;
use rpc_transport::engine::clock;
use rpc_transport::lock::Mutex;
use rpc_transport::protocol::frame::{CloseCode, CloseReason};
use rpc_transport::protocol::lock::{HandshakeFactory, HandshakeFailure, Role};
use rustls::pki_types::CertificateDer;
use tokio::task::AbortHandle;

use super::der::{self, Purpose, date};
use super::driver::Factory;
use super::life::{Life, Step, is_second_half, last_third};
use super::tls::Tls;
use super::trust::{Terms, Trusted};
use crate::channel::backoff::unit;
use crate::endpoint::connection_context::ConnectionContext;
use crate::endpoint::ended::{ConnectionEvent, OnEvent};
use crate::identity::{Certificate, Identity, Shown};
use crate::runtime::random::random;
use crate::runtime::watched::{Watch, Watched};
use crate::secured::Keep;

/// Longest time between two looks at the wall clock, which may be set at any time.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Time between two warnings of the same.
const WARN_EVERY: Duration = Duration::from_secs(6 * 60 * 60);

/// One for each server or channel.
pub(crate) struct Keeper {
    tls: Tls,
    factory: Arc<Factory>,
    /// The role of the peers.
    peers: Role,
    members: Mutex<Members>,
    task: Mutex<Option<AbortHandle>>,
    /// There is a member that is due before the task would look.
    news: Watched<u64>,
    /// A member may have been verified by what is no longer trusted.
    is_stale: AtomicBool,
}

struct Members {
    all: Vec<Member>,
    /// When the task looks at them next.
    looks_at: Instant,
}

struct Member {
    context: Weak<ConnectionContext>,
    life: Life,
    /// The channel of the connection, which is to make another one. Else go-away is sent.
    owner: Option<OnEvent>,
    generation: u64,
}

impl Keeper {
    /// # Errors
    /// [`TlsError`](super::TlsError): an option is wrong.
    pub(crate) fn new(tls: &Tls, peers: Role) -> Result<Arc<Self>, super::TlsError> {
        let factory = Arc::new(match peers {
            Role::Client => Factory::server(tls)?,
            Role::Server => Factory::client(tls)?,
        });
        let this = Self {
            tls: tls.clone(),
            factory,
            peers,
            members: Mutex::new(Members { all: Vec::new(), looks_at: clock::now() }),
            task: Mutex::new(None),
            news: Watched::default(),
            is_stale: AtomicBool::new(false),
        };
        match this.wrong_purpose() {
            Some(text) => Err(super::TlsError(text)),
            None => Ok(Arc::new(this)),
        }
    }

    /// This end's certificate is for the other role alone.
    fn wrong_purpose(&self) -> Option<String> {
        let material = self.tls.live().current();
        let (own, says) = (material.own.as_ref()?.cert.first()?, material.says.as_ref()?);
        let Purpose::Limited { server, client } = der::fields(own)?.purpose else { return None };
        let (is_for_role, role, lacks) = match self.peers {
            Role::Client => (server, "server", "serverAuth"),
            Role::Server => (client, "client", "clientAuth"),
        };
        let text = format!(
            "this end's certificate ({says}) is for no {role}: it lacks the extended key usage \
             {lacks}"
        );
        (!is_for_role).then_some(text)
    }

    /// Does what is due. Returns how long nothing will be.
    fn turn(&self) -> Duration {
        let (wall, now) = (self.tls.clock().now(), clock::now());
        let (mut wait, mut due, mut all) = (LONGEST_WAIT, Vec::new(), Vec::new());
        let mut members = self.members.lock();
        members.all.retain_mut(|member| {
            let Some(context) = member.context.upgrade() else { return false };
            let step = member.life.step(wall, now);
            match step {
                Step::Wait(left) => wait = wait.min(left),
                Step::GoAway => wait = wait.min(self.tls.rotation_grace),
                Step::Close => {}
            }
            if !matches!(step, Step::Wait(_)) {
                due.push((Arc::clone(&context), step, member.owner.clone()));
            }
            // Dropped when the lock is free.
            all.push(context);
            step != Step::Close
        });
        members.looks_at = now + wait;
        drop(members);
        for (context, step, owner) in due {
            let peer = &context.identity;
            match (step, owner) {
                (Step::Close, _) => {
                    tracing::info!(%peer, "the time of this connection is over");
                    close(&context, "this connection has not been replaced in time");
                }
                (_, Some(owner)) => owner(ConnectionEvent::PeerGoingAway),
                (_, None) => {
                    if let (Some(shard), Some((key, _))) = (context.shard.upgrade(), context.place)
                    {
                        shard.with(key, |peer| peer.session.end(now));
                    }
                }
            }
        }
        wait
    }

    /// Verifies all peers again, each distinct chain once, and asks the user about all of them.
    fn verify_all(&self) {
        let all: Vec<_> =
            self.members.lock().all.iter().filter_map(|member| member.context.upgrade()).collect();
        let trusted = self.tls.live().current();
        let mut seen: HashMap<*const Shown, Result<(), String>> = HashMap::new();
        for context in all {
            let Some(proof) = context.identity.proof() else { continue };
            let verdict = match &proof.shown {
                None => Ok(()),
                Some(shown) => seen
                    .entry(Arc::as_ptr(shown))
                    .or_insert_with(|| self.verify(shown, &trusted.trusted))
                    .clone(),
            };
            let asked = || self.tls.ask(&context.identity).map_err(|failure| failure.told);
            if let Err(reason) = verdict.and_then(|()| asked()) {
                tracing::info!(peer = %context.identity, reason, "no longer trusted");
                close(&context, &format!("no longer trusted: {reason}"));
            }
        }
    }

    fn verify(&self, Shown(chain): &Shown, trusted: &Trusted) -> Result<(), String> {
        let chain: Vec<_> = chain.iter().map(|der| CertificateDer::from(&der[..])).collect();
        let Some((end_entity, intermediates)) = chain.split_first() else { return Ok(()) };
        let algorithms = self.tls.live().algorithms();
        let (own_domain, now) = (self.tls.expected_domain(), self.tls.clock().unix());
        let terms = Terms { peer: self.peers, own_domain, now, algorithms };
        let verdict = trusted.check(end_entity, intermediates, &terms);
        verdict.map(|_| ()).map_err(|refusal| refusal.text)
    }

    /// This end has another certificate: connections that were made with the old one are replaced,
    /// within a tenth of what was left of it.
    fn renew(&self, old: &Certificate) {
        let (wall, now) = (self.tls.clock().now(), clock::now());
        let left = old.not_after().and_then(|ends| ends.duration_since(wall).ok());
        let spread = left.unwrap_or_default() / 10;
        let generation = self.tls.live().generation();
        for member in self.members.lock().all.iter_mut().filter(|it| it.generation < generation) {
            if let Some(at) = now.checked_add(spread.mul_f64(unit(random()))) {
                member.life.replace_by(at);
            }
        }
    }

    /// What will soon be too old.
    fn warnings(&self) -> Vec<String> {
        let (material, wall) = (self.tls.live().current(), self.tls.clock().now());
        let mut all = Vec::new();
        if let Some(says) = &material.says
            && let (Some(_), Some(ends)) = (last_third(says, wall), says.not_after())
        {
            let (is_over, ends) = (ends <= wall, date(ends));
            all.push(match is_over {
                true => format!(
                    "this end's certificate ({says}) ended on {ends}, so peers refuse it: renew it"
                ),
                false => format!("this end's certificate ({says}) ends on {ends}: renew it"),
            });
        }
        all.extend(self.wrong_purpose().map(|text| format!("{text}: peers refuse it")));
        if let Trusted::Authorities(trust) = &material.trusted {
            let now = self.tls.clock().unix();
            let idle = [&trust.own].into_iter().chain(trust.domains.values());
            let idle = idle.flat_map(|authorities| authorities.idle(now));
            all.extend(
                idle.map(|text| format!("peers are not trusted because of {text}: renew it")),
            );
            let late = trust.revoked.iter().filter(|it| is_second_half(it.made, it.ends, wall));
            all.extend(late.map(|list| {
                let (name, ends) = (&list.name, date(list.ends));
                format!("the revocation list {name} ends on {ends}: fetch a newer one")
            }));
        }
        all
    }
}

fn close(context: &ConnectionContext, text: &str) {
    if let (Some(shard), Some((key, _))) = (context.shard.upgrade(), context.place) {
        shard.close(key, CloseReason::new(CloseCode::Application, text));
    }
}

impl Keep for Keeper {
    fn begin(self: Arc<Self>) {
        let mut task = self.task.lock();
        if task.as_ref().is_none_or(AbortHandle::is_finished) {
            let (news, changes) = (self.news.watch(), self.tls.live().changes());
            let running = run(Arc::downgrade(&self), news, changes, self.tls.reload_every);
            *task = Some(tokio::spawn(running).abort_handle());
        }
    }

    fn handshakes(&self, peer: Option<&PeerIdentity>) -> Arc<dyn HandshakeFactory> {
        match peer {
            Some(peer) => Arc::new(self.factory.with(peer)),
            None => Arc::clone(&self.factory) as _,
        }
    }

    fn ask(&self, peer: &Identity) -> Result<(), HandshakeFailure> {
        self.tls.ask(peer)
    }

    fn keep(&self, context: &Arc<ConnectionContext>, owner: Option<OnEvent>) {
        let Some(proof) = context.identity.proof() else { return };
        let generation = proof.generation;
        let ends = proof.certificate.as_ref().and_then(Certificate::not_after);
        let max_age = self.tls.max_session_age.filter(|_| self.peers == Role::Client);
        let now = clock::now();
        let life = Life::new(ends, max_age, self.tls.rotation_grace, now);
        let due = match life.clone().step(self.tls.clock().now(), now) {
            Step::Wait(left) => now.checked_add(left),
            Step::GoAway | Step::Close => Some(now),
        };
        let member = Member { context: Arc::downgrade(context), life, owner, generation };
        let is_early = {
            let Members { all, looks_at } = &mut *self.members.lock();
            if all.len() == all.capacity() {
                all.retain(|member| member.context.strong_count() > 0);
            }
            all.push(member);
            due.is_some_and(|due| due < *looks_at)
        };
        let is_stale = self.tls.live().generation() != generation;
        if is_stale {
            self.is_stale.store(true, Ordering::SeqCst);
        }
        // The task looks at all of them, which is too much for each new one.
        if is_early || is_stale {
            self.news.tell();
        }
    }
}

async fn run(
    keeper: Weak<Keeper>,
    mut news: Watch<u64>,
    mut changes: Watch<u64>,
    reload_every: Option<Duration>,
) {
    let later = |every: Duration| clock::now().checked_add(every);
    let mut reload_at = reload_every.and_then(later);
    let mut warn_at: Option<Instant> = None;
    let mut own = keeper.upgrade().and_then(|keeper| keeper.tls.live().current().says.clone());
    loop {
        let Some(this) = keeper.upgrade() else { return };
        let now = clock::now();
        if warn_at.is_none_or(|at| at <= now) {
            let warnings = this.warnings();
            warnings.iter().for_each(|text| tracing::warn!("{text}"));
            warn_at = (!warnings.is_empty()).then_some(now + WARN_EVERY);
        }
        let wake = now + this.turn();
        let wake = reload_at.map_or(wake, |at| wake.min(at));
        drop(this);
        let has_changed = tokio::select! {
            () = tokio::time::sleep_until(wake.into()) => false,
            _ = news.changed() => false,
            changed = changes.changed() => changed.is_ok(),
        };
        let Some(this) = keeper.upgrade() else { return };
        if reload_at.is_some_and(|at| at <= clock::now()) {
            read_again(&this.tls).await;
            reload_at = reload_every.and_then(later);
        }
        if has_changed {
            let says = this.tls.live().current().says.clone();
            if let Some(old) = own.filter(|old| says.as_ref() != Some(old)) {
                this.renew(&old);
            }
            (own, warn_at) = (says, None);
        }
        if this.is_stale.swap(false, Ordering::SeqCst) || has_changed {
            // Its end matters, not its result: a panic of a hook is caught.
            let _ = crate::runtime::blocking(move || this.verify_all()).await;
        }
    }
}

/// Reloads where that blocks nobody, and logs what came of it.
pub(super) async fn read_again(tls: &Tls) {
    let tls = tls.clone();
    match crate::runtime::blocking(move || tls.reload()).await {
        Ok(Ok(true)) => tracing::info!("certificates and keys have been read again"),
        Ok(Err(error)) => tracing::warn!(%error, "certificates and keys stay as they are"),
        Ok(Ok(false)) | Err(_) => {}
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members = self.members.lock().all.len();
        f.debug_struct("Keeper").field("members", &members).finish_non_exhaustive()
    }
}
