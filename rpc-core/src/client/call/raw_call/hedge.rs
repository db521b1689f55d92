//! The second attempt of a call whose first one takes long.
//!
//! Owns the attempt and the timer that sends it. When to send it, and what its end means, is
//! decided by [`Race`].
//!
//! Invariant: the second attempt is part of the call: it ends with it, however the call ends.

use std::sync::Arc;
use std::task::{Context, Poll};

use rpc_transport::engine::clock;
use rpc_transport::protocol::config::WhenFull;

use super::{RawCall, State};
use crate::channel::hedging::{Ended, HedgingPolicy, Race, SecondEnded, Verdict};
use crate::channel::picker::CallEnd;
use crate::channel::retry::Failed;
use crate::client::Connection;
use crate::client::shared::{Retries, Shared};
use crate::metadata::SCHEMA;
use crate::reply::CallOutcome;
use crate::runtime::timer::Timer;
use crate::service::MethodDescriptor;
use crate::session::CallId;
use crate::status::Code;

/// The state of a call that may be hedged.
pub(super) struct Hedge {
    race: Race,
    /// Until the second attempt is due.
    timer: Option<Timer>,
    second: Option<Box<RawCall<'static>>>,
}

impl Hedge {
    /// The first attempt is sent, perhaps once more.
    #[cold]
    pub(super) fn on_sent(
        hedge: &mut Option<Self>,
        channel: &Shared,
        method: &'static MethodDescriptor,
        policy: &HedgingPolicy,
    ) {
        let now = clock::now();
        match hedge {
            Some(hedge) => {
                hedge.race.on_sent(now);
                hedge.timer = None;
            }
            None => {
                let delay = channel.hedging.state.lock().begin(method.id, policy);
                let race = Race::new(now, delay);
                *hedge = Some(Self { race, timer: None, second: None });
            }
        }
    }

    /// The connection of the second attempt, while it runs.
    pub(super) fn second_on(&self) -> Option<&Arc<Connection>> {
        self.second.as_ref()?.on.as_ref()
    }

    /// The call is over.
    #[cold]
    pub(super) fn end(self, channel: &Shared, method: &MethodDescriptor, found: &CallOutcome) {
        if let Some(Ok(_)) = found {
            let took = self.race.took(clock::now());
            channel.hedging.state.lock().on_answer(method.id, took);
        }
        // The second attempt is dropped, if it still runs.
    }
}

impl RawCall<'_> {
    /// `first` is the state of the first attempt. Ready when the call has ended.
    #[cold]
    pub(super) fn poll_race(
        &mut self,
        first: Poll<CallOutcome>,
        cx: &mut Context<'_>,
    ) -> Poll<CallOutcome> {
        if !self.is_here() {
            self.leak_timers();
            return if first.is_ready() { first } else { self.poll_attempt(cx) };
        }
        let mut verdict = match &first {
            Poll::Ready(found) => {
                // Once only.
                if !matches!(self.state, State::Over) {
                    self.heed_pushback(found);
                }
                // No handler has run: the other attempt may reach one.
                let ended = if self.is_refused() { Ended::Failed } else { ended(found) };
                let hedge = self.extras.as_mut().and_then(|extras| extras.hedge.as_mut());
                hedge.map_or(Verdict::First, |hedge| hedge.race.on_first(ended))
            }
            Poll::Pending => {
                self.send_second(cx);
                Verdict::GoesOn
            }
        };
        let mut second = None;
        if verdict == Verdict::GoesOn {
            (verdict, second) = self.poll_second(cx);
        }
        match (verdict, first) {
            (Verdict::First, first) => first,
            (Verdict::Second, first) => {
                self.second_has_won(first);
                Poll::Ready(second)
            }
            (Verdict::GoesOn, Poll::Ready(found)) => {
                // The next poll finds it again.
                self.over(found);
                Poll::Pending
            }
            (Verdict::GoesOn, Poll::Pending) => Poll::Pending,
        }
    }

    /// A server that names a time wants no further attempt before that.
    fn heed_pushback(&self, found: &CallOutcome) {
        if let Some(Err(status)) = found
            && let Some(wait) = status.retry_after()
        {
            self.via.channel().hedging.on_pushback(wait);
        }
    }

    /// Sends the second attempt, if it is time.
    fn send_second(&mut self, cx: &mut Context<'_>) {
        let channel = self.via.channel();
        let Some(extras) = self.extras.as_deref_mut() else { return };
        let Some(hedge) = &mut extras.hedge else { return };
        let (now, again) = loop {
            let Some(at) = hedge.race.next() else { return };
            let timer = hedge.timer.get_or_insert_with(|| Timer::at(at));
            if timer.poll(cx, &channel.demand.home).is_pending() {
                return;
            }
            hedge.timer = None;
            // The timer's clock may be a little behind.
            let now = clock::now().max(at);
            let (Some(body), Some(on), State::InFlight) = (&extras.kept, &self.on, self.state)
            else {
                break (now, None);
            };
            let other = match extras.refusals.as_deref() {
                Some(refusals) => refusals.elsewhere(channel, on).unwrap_or_else(|| Arc::clone(on)),
                None => channel.another(on),
            };
            // In the same line the second one would wait behind the first, or be refused.
            if Arc::ptr_eq(&other, on) && is_in_line(on, self.id) {
                hedge.race.on_in_line(now);
                continue;
            }
            break (now, Some((body, other)));
        };
        let sends = {
            let mut hedging = channel.hedging.state.lock();
            let throttle = channel.retry.as_ref().map(Retries::throttle);
            hedge.race.on_time(now, again.is_some(), &mut hedging, throttle.as_deref())
        };
        let Some((body, other)) = again.filter(|_| sends) else { return };
        let mut second = RawCall::new(channel, self.method, Some(body.copied()));
        (second.deadline, second.whose) = (self.deadline, self.whose);
        second.on = Some(other);
        let of_second = second.extras_mut();
        of_second.metadata = extras.metadata.clone();
        // That is for a server that has refused the first attempt.
        of_second.metadata.remove(SCHEMA);
        of_second.is_second = true;
        of_second.when_full = Some(WhenFull::Refuse);
        of_second.wait_for_ready = Some(false);
        hedge.second = Some(Box::new(second.into_detached()));
    }

    /// Polls the second attempt, if it runs. Gives its outcome, once it has one.
    fn poll_second(&mut self, cx: &mut Context<'_>) -> (Verdict, CallOutcome) {
        let channel = self.via.channel();
        let hedge = self.extras.as_mut().and_then(|extras| extras.hedge.as_mut());
        let Some(hedge) = hedge else { return (Verdict::GoesOn, None) };
        let Some(second) = &mut hedge.second else { return (Verdict::GoesOn, None) };
        let Poll::Ready(found) = second.poll(cx) else { return (Verdict::GoesOn, None) };
        let how = if matches!(second.state, State::Over) {
            // The status of an attempt that never left is this end's own, and no answer.
            channel.hedging.state.lock().on_unsent();
            SecondEnded::NeverSent
        } else if second.is_refused() {
            // No handler has run, so the first attempt decides.
            SecondEnded::NeverSent
        } else if ended(&found) == Ended::Answered {
            SecondEnded::Answered
        } else {
            let lost = second.on.as_ref().filter(|on| on.close_cause().is_some());
            SecondEnded::Failed(
                lost.map_or(Failed::Refused(None), |on| Failed::Lost(on.end_point(), on.epoch())),
            )
        };
        let verdict = match &channel.retry {
            Some(retries) => {
                let mut throttle = retries.throttle();
                let verdict = hedge.race.on_second(how, Some(&mut throttle));
                retries.on_throttle(&throttle);
                verdict
            }
            None => hedge.race.on_second(how, None),
        };
        if verdict != Verdict::Second {
            if let Some(load) = second.take_load() {
                load.end_with(&found, second.method);
            }
            hedge.second = None;
        }
        self.heed_pushback(&found);
        (verdict, found)
    }

    /// The call ends with what the second attempt has found: the first is cancelled, unless it has
    /// failed.
    fn second_has_won(&mut self, first: Poll<CallOutcome>) {
        if let (State::InFlight, Some(connection)) = (self.state, &self.on) {
            super::cancel(connection, self.id, self.method);
        }
        self.state = State::Done;
        if let Some(load) = self.take_load() {
            match first {
                Poll::Ready(found) => load.end_with(&found, self.method),
                Poll::Pending => load.end(CallEnd::GivenUp),
            }
        }
        let Some(extras) = &mut self.extras else { return };
        extras.wait = None;
        let second = extras.hedge.as_mut().and_then(|hedge| hedge.second.as_mut());
        if let Some(second) = second {
            self.on = second.on.take();
            extras.load = second.take_load();
        }
    }
}

/// Whether a call waits until it may be sent.
fn is_in_line(on: &Connection, call: CallId) -> bool {
    on.shard.look(on.key, |peer| peer.session.is_in_line(call)) == Some(true)
}

/// Whether another attempt may end otherwise.
fn ended(found: &CallOutcome) -> Ended {
    match found {
        Some(Err(status)) if status.is_retryable() || status.code() == Code::Unavailable => {
            Ended::Failed
        }
        _ => Ended::Answered,
    }
}
