//! What few calls have beside them while they are under way: a share of the load, interceptors, a copy to be
//! sent again, a time.

use std::cell::Cell;
use std::thread::LocalKey;

use rpc_transport::message::outgoing::OutBuf;

use super::RawCall;
use crate::client::load::Loaded;
use crate::interceptor::client::Watch;
use crate::observability::stats::counts::Timed;
use crate::runtime::recycled::{self, Link, List, Recycle};
use crate::service::reply::CallOutcome;
use crate::status::Code;

thread_local! {
    static KEPT: List<Beside> = const { Cell::new(None) };
}

/// All of it: what has to be let go of, or told, when the call ends. Options of the call are in its
/// [`Extras`](super::Extras). Kept together and used again, so that it costs other calls one word, and these no allocation.
#[derive(Default)]
pub(super) struct Beside {
    /// Its share of the load, where there are several end points.
    pub(super) load: Option<Loaded>,
    pub(super) watch: Watch,
    /// The body once more, if the call may be sent again after its handler has begun.
    pub(super) kept: Option<OutBuf>,
    /// When the attempt in flight was sent, if it is one that is timed.
    pub(super) began: Option<Timed>,
    link: Link<Self>,
}

impl Recycle for Beside {
    fn is_empty(&self) -> bool {
        let Self { load, watch, kept, began, link: _ } = self;
        load.is_none() && watch.is_empty() && kept.is_none() && began.is_none()
    }

    #[inline]
    fn link(&mut self) -> &mut Link<Self> {
        &mut self.link
    }

    #[inline]
    fn list() -> &'static LocalKey<List<Self>> {
        &KEPT
    }
}

impl Loaded {
    /// What the end point has answered is known.
    #[inline]
    pub(super) fn let_go(self, found: &CallOutcome) {
        match found {
            Some(Err(status)) if status.code() == Code::Unavailable => self.refused(),
            _ => self.answered(),
        }
    }
}

impl RawCall<'_> {
    /// The body once more.
    #[inline]
    pub(super) fn kept(&self) -> Option<&OutBuf> {
        self.beside.as_ref()?.kept.as_ref()
    }

    /// The call's share of the load, if it has one.
    #[inline]
    pub(super) fn take_load(&mut self) -> Option<Loaded> {
        self.beside.as_mut()?.load.take()
    }

    #[cold]
    pub(super) fn set_load(&mut self, load: Loaded) {
        self.beside.get_or_insert_with(recycled::take).load = Some(load);
    }
}
