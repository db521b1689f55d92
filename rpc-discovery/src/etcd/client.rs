//! Requests to the members of an etcd cluster, over its JSON gateway.
//!
//! Invariants:
//! 1. Each request to a member has a time limit. A member that does not answer is followed by the
//!    next one, each once.
//! 2. A token that etcd no longer knows is replaced once for a request.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::Method;
use rpc_core::transport::HostPort;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::http::{Answer, Asked, HttpError, LineReader, Security, ask};
use crate::protocol::etcd_messages::{AuthenticateReply, Refusal, authenticate};

/// Why etcd has not done what it was asked.
#[derive(Debug, Clone)]
pub(crate) enum EtcdError {
    /// No member answers; what the last one did.
    Unreachable(HttpError),
    Refused(Refusal),
    /// An answer that is none.
    Malformed(String),
    /// A watch that is over, and why.
    Over(String),
}

impl fmt::Display for EtcdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => {
                write!(f, "{error}; check that etcd runs there, and that this host can reach it")
            }
            Self::Refused(refusal) => {
                let text = rpc_core::text::printable(&refusal.message).to_string();
                write!(f, "etcd refuses: {text}")?;
                match refusal.code {
                    3 | 7 | Refusal::UNAUTHENTICATED => {
                        f.write_str("; check the user, the password and the user's roles")
                    }
                    _ => Ok(()),
                }
            }
            Self::Malformed(what) => write!(f, "an answer that is not etcd's: {what}"),
            Self::Over(why) => f.write_str(why),
        }
    }
}

impl EtcdError {
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(refusal) if refusal.code == Refusal::NOT_FOUND)
    }

    fn is_of_the_member(&self) -> bool {
        match self {
            Self::Unreachable(_) => true,
            Self::Refused(refusal) => refusal.is_of_the_member(),
            Self::Malformed(_) | Self::Over(_) => false,
        }
    }
}

/// A cluster.
pub(crate) struct Client {
    members: Vec<HostPort>,
    /// The member that is asked first: the last one that answered.
    first: AtomicUsize,
    user: Option<(String, String)>,
    token: Mutex<Option<Arc<str>>>,
    limit: Duration,
    security: Security,
}

impl Client {
    /// `members` is not empty. `limit`: of a request to one of them.
    pub(crate) fn new(
        members: Vec<HostPort>,
        user: Option<(String, String)>,
        limit: Duration,
        security: Security,
    ) -> Self {
        let (first, token) = Default::default();
        Self { members, first, user, token, limit, security }
    }

    /// Asks the members, until one answers. Gives which one that was.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub(crate) async fn call<R: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<(usize, R), EtcdError> {
        let first = self.first.load(Ordering::Relaxed);
        let mut last = None;
        for turn in 0..self.members.len() {
            let member = (first + turn) % self.members.len();
            match self.call_at(member, path, body).await {
                Ok(reply) => {
                    self.first.store(member, Ordering::Relaxed);
                    return Ok((member, reply));
                }
                Err(error) if error.is_of_the_member() => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| EtcdError::Malformed("there is no member".to_owned())))
    }

    /// Asks one member.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub(crate) async fn call_at<R: DeserializeOwned>(
        &self,
        member: usize,
        path: &str,
        body: &Value,
    ) -> Result<R, EtcdError> {
        read(self.answer(member, path, body).await?).await
    }

    /// Asks one member for a stream of messages.
    ///
    /// # Errors
    /// [`EtcdError`].
    pub(crate) async fn stream_at(
        &self,
        member: usize,
        path: &str,
        body: &Value,
    ) -> Result<LineReader, EtcdError> {
        Ok(self.answer(member, path, body).await?.lines())
    }

    /// The next request begins with another member than this one.
    pub(crate) fn avoid(&self, member: usize) {
        self.first.store((member + 1) % self.members.len(), Ordering::Relaxed);
    }

    async fn answer(&self, member: usize, path: &str, body: &Value) -> Result<Answer, EtcdError> {
        let mut is_new = false;
        loop {
            let token = self.token(member, &mut is_new).await?;
            let answer = self.send(member, path, body, token.as_deref()).await?;
            if answer.status.is_success() {
                return Ok(answer);
            }
            let refused = refusal(answer).await?;
            let is_old_token = refused.code == Refusal::UNAUTHENTICATED
                || refused.message.contains("invalid auth token");
            if !is_old_token || is_new || token.is_none() {
                return Err(EtcdError::Refused(refused));
            }
            *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// The token for a request, if there is a user. Sets whether it is a new one.
    async fn token(&self, member: usize, is_new: &mut bool) -> Result<Option<Arc<str>>, EtcdError> {
        let Some((user, password)) = &self.user else { return Ok(None) };
        let known = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if known.is_some() {
            return Ok(known);
        }
        let body = authenticate(user, password);
        let answer = self.send(member, "auth/authenticate", &body, None).await?;
        if !answer.status.is_success() {
            return Err(EtcdError::Refused(refusal(answer).await?));
        }
        let token: Arc<str> = read::<AuthenticateReply>(answer).await?.token.into();
        *is_new = true;
        let mut place = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(Arc::clone(&token));
        Ok(Some(token))
    }

    async fn send(
        &self,
        member: usize,
        path: &str,
        body: &Value,
        authorization: Option<&str>,
    ) -> Result<Answer, EtcdError> {
        let asked = Asked {
            at: &self.members[member],
            method: Method::POST,
            path: &format!("/v3/{path}"),
            authorization,
            body: body.to_string(),
            limit: self.limit,
            security: &self.security,
        };
        ask(asked).await.map_err(EtcdError::Unreachable)
    }
}

async fn read<R: DeserializeOwned>(answer: Answer) -> Result<R, EtcdError> {
    let body = answer.read().await.map_err(EtcdError::Unreachable)?;
    serde_json::from_slice(&body).map_err(|error| EtcdError::Malformed(error.to_string()))
}

/// Why an answer is not a success.
async fn refusal(answer: Answer) -> Result<Refusal, EtcdError> {
    let status = answer.status;
    let body = answer.read().await.map_err(EtcdError::Unreachable)?;
    let refusal = serde_json::from_slice::<Refusal>(&body).ok();
    refusal.filter(|it| it.code != 0).ok_or_else(|| {
        let text = String::from_utf8_lossy(&body);
        let text = rpc_core::text::printable(&text).at_most(128).to_string();
        EtcdError::Malformed(format!("{status}, {text:?}; etcd 3.4 or later is needed"))
    })
}
