//! The second attempt of a call whose first one takes long.
//!
//! Owns the attempt and the timer that sends it. When to send it, and what its end means, is decided
//! by [`Race`].
//!
//! Invariant: the second attempt is part of the call: it ends with it, however the call ends.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use rpc_transport::engine::clock;
use rpc_transport::protocol::config::WhenFull;
use tokio::time::Sleep;

use super::{Extras, RawCall, State};
use crate::channel::hedging::{Ended, HedgingPolicy, Race, SecondEnded, Verdict};
use crate::channel::retry::Failed;
use crate::client::load::Loaded;
use crate::client::shared::{Retries, Shared};
use crate::service::MethodDescriptor;
use crate::service::reply::CallOutcome;
use crate::status::Code;

/// What a call that may be hedged has.
pub(super) struct Hedge {
    race: Race,
    /// Until the second attempt is due.
    timer: Option<Pin<Box<Sleep>>>,
    second: Option<Box<RawCall<'static>>>,
}

impl Hedge {
    /// A timer for the time at which the race wants to be asked, if there is none.
    fn set_timer(&mut self, channel: &Shared, at: Instant) -> &mut Pin<Box<Sleep>> {
        self.timer.get_or_insert_with(|| {
            // Calls may be awaited outside of any runtime.
            let _here = channel.demand.runtime().enter();
            Box::pin(tokio::time::sleep_until(at.into()))
        })
    }
}

impl Extras {
    /// The first attempt is sent, perhaps once more.
    #[cold]
    pub(super) fn on_sent(
        &mut self,
        channel: &Shared,
        method: &'static MethodDescriptor,
        policy: &HedgingPolicy,
    ) {
        let now = clock::now();
        match &mut self.hedge {
            Some(hedge) => {
                hedge.race.on_sent(now);
                hedge.timer = None;
            }
            None => {
                let delay = channel.hedging.state.lock().begin(method.id, policy);
                let race = Race::new(now, delay);
                self.hedge = Some(Hedge { race, timer: None, second: None });
            }
        }
    }
}

impl RawCall<'_> {
    /// The first attempt has ended, with what was found, or runs. Ready when the call has ended.
    #[cold]
    pub(super) fn poll_race(
        &mut self,
        has_ended: bool,
        cx: &mut Context<'_>,
        found: &mut CallOutcome,
    ) -> Poll<()> {
        let mut verdict = if has_ended {
            // Not for the second time.
            if !matches!(self.state, State::Over) {
                self.heed_pushback(found);
            }
            self.race(|race| race.on_first(ended(found)))
        } else {
            self.send_second(cx);
            Verdict::GoesOn
        };
        let mut others = None;
        if verdict == Verdict::GoesOn {
            verdict = self.poll_second(cx, &mut others);
        }
        match verdict {
            Verdict::First => Poll::Ready(()),
            Verdict::Second => {
                let refused = is_unavailable(&std::mem::replace(found, others));
                self.second_has_won(refused);
                Poll::Ready(())
            }
            Verdict::GoesOn => {
                if has_ended {
                    // Found again by the next poll.
                    self.over(std::mem::take(found));
                }
                Poll::Pending
            }
        }
    }

    /// A server that names a time wants no further attempt before.
    fn heed_pushback(&self, found: &CallOutcome) {
        if let Some(Err(status)) = found
            && let Some(wait) = status.retry_after()
        {
            self.via.channel().hedging.on_pushback(wait);
        }
    }

    fn race(&mut self, ask: impl FnOnce(&mut Race) -> Verdict) -> Verdict {
        let hedge = self.extras.as_mut().and_then(|extras| extras.hedge.as_mut());
        hedge.map_or(Verdict::First, |hedge| ask(&mut hedge.race))
    }

    /// Sends the second attempt, if it is time.
    fn send_second(&mut self, cx: &mut Context<'_>) {
        let channel = self.via.channel();
        let Some(extras) = &mut *self.extras else { return };
        let Some(hedge) = &mut extras.hedge else { return };
        let Some(at) = hedge.race.next() else { return };
        if hedge.set_timer(channel, at).as_mut().poll(cx).is_pending() {
            return;
        }
        hedge.timer = None;
        let kept = self.beside.as_ref().and_then(|beside| beside.kept.as_ref());
        let again = match (kept, &self.on) {
            (Some(body), Some(on)) if matches!(self.state, State::InFlight(_)) => Some((body, on)),
            _ => None,
        };
        // The timer's clock may be a little behind.
        let now = clock::now().max(at);
        let sends = {
            let mut hedging = channel.hedging.state.lock();
            let throttle = channel.retry.as_ref().map(Retries::throttle);
            hedge.race.on_time(now, again.is_some(), &mut hedging, throttle.as_deref())
        };
        let Some((body, on)) = again.filter(|_| sends) else { return };
        let mut second = RawCall::new(channel, self.method, Some(body.copied()));
        second.deadline = self.deadline;
        second.on = Some(channel.another(on));
        let of_second = second.extras.get_or_insert_default();
        of_second.metadata = extras.metadata.clone();
        of_second.is_second = true;
        of_second.when_full = Some(WhenFull::Refuse);
        of_second.wait_for_ready = Some(false);
        hedge.second = Some(Box::new(second.into_detached()));
    }

    fn poll_second(&mut self, cx: &mut Context<'_>, found: &mut CallOutcome) -> Verdict {
        let channel = self.via.channel();
        let hedge = self.extras.as_mut().and_then(|extras| extras.hedge.as_mut());
        let Some(hedge) = hedge else { return Verdict::GoesOn };
        let Some(second) = &mut hedge.second else { return Verdict::GoesOn };
        if second.poll(cx, found).is_pending() {
            return Verdict::GoesOn;
        }
        let how = if matches!(second.state, State::Over) {
            // What this end says of an attempt that never left is no answer.
            SecondEnded::NeverSent
        } else if ended(found) == Ended::Answered {
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
            second.take_load().iter().for_each(Loaded::refused);
            hedge.second = None;
        }
        self.heed_pushback(found);
        verdict
    }

    /// The call ends with what the second attempt has found: the first is cancelled, unless the end
    /// point has refused it.
    fn second_has_won(&mut self, refused: bool) {
        if let (State::InFlight(call), Some(connection)) = (self.state, &self.on) {
            super::cancel(connection, call, self.method);
        }
        self.state = State::Done;
        if let Some(load) = self.take_load() {
            if refused {
                load.refused();
            } else {
                // It would have taken longer still.
                load.answered();
            }
        }
        let Some(extras) = &mut *self.extras else { return };
        extras.wait = None;
        let second = extras.hedge.as_mut().and_then(|hedge| hedge.second.as_mut());
        if let Some(second) = second {
            self.on = second.on.take();
            if let Some(load) = second.take_load() {
                self.set_load(load);
            }
        }
    }
}

impl Hedge {
    /// The call is over.
    #[cold]
    pub(super) fn end(self, channel: &Shared, method: &MethodDescriptor, found: &CallOutcome) {
        if let Some(Ok(_)) = found {
            let took = self.race.took(clock::now());
            channel.hedging.state.lock().on_answer(method.id, took);
        }
        // With it goes the second attempt, if it runs still.
    }
}

fn is_unavailable(found: &CallOutcome) -> bool {
    matches!(found, Some(Err(status)) if status.code() == Code::Unavailable)
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
