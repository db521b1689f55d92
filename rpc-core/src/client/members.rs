//! The end points of a channel at one time, and the choice between them.
//!
//! Owns nothing that lasts: when end points come or go, there is a new one of these, with the same
//! end points in it that stay.

use std::cell::LazyCell;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rpc_transport::engine::clock;

use super::connection::Connection;
use super::load::Load;
use super::subchannel::Subchannel;
use crate::channel::endpoint::Endpoint;
use crate::channel::picker::pick;
use crate::channel::plan::Plan;
use crate::channel::rendezvous::{address_hash, pick_for};
use crate::channel::standing::{Health, Need};
use crate::runtime::random::random;
use crate::stats::MemberStats;
use crate::status::{Code, Status};

/// How long the choice of a priority and of zones holds.
const CHOICE_HOLDS: Duration = Duration::from_millis(100);

/// The end points, in the order of the plan.
pub(super) struct Members {
    list: Vec<Arc<Subchannel>>,
    end_points: Vec<Endpoint>,
    /// Of the addresses.
    hashes: Vec<u64>,
    plan: Plan,
    base: Instant,
    /// The range that gets the calls, both ends in one word.
    chosen: AtomicU64,
    /// When to choose again, nanoseconds since `base`.
    choose_at: AtomicU64,
}

impl Default for Members {
    fn default() -> Self {
        Self::new(Vec::new(), None, |_| unreachable!("there is none"))
    }
}

impl Members {
    /// `zone`: that of the channel. `make` gives each of them its place.
    pub(super) fn new(
        mut end_points: Vec<Endpoint>,
        zone: Option<&str>,
        make: impl FnMut(&Endpoint) -> Arc<Subchannel>,
    ) -> Self {
        let plan = Plan::new(&mut end_points, zone);
        Self {
            list: end_points.iter().map(make).collect(),
            hashes: end_points.iter().map(|it| address_hash(it.address())).collect(),
            end_points,
            chosen: AtomicU64::new(packed(&plan.lasting())),
            plan,
            base: clock::now(),
            choose_at: AtomicU64::new(0),
        }
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Arc<Subchannel>> {
        self.list.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The numbers by which connections know their end points.
    pub(super) fn ids(&self) -> HashSet<usize> {
        self.list.iter().map(id).collect()
    }

    /// The connection for a call, but not to one of the `others`.
    pub(super) fn pick(&self, others: &[usize]) -> Option<Arc<Connection>> {
        let (now, random) = (LazyCell::new(clock::now), random());
        // Independent of the bits that draw the end points.
        let turn = random.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
        let cost = |need: Need, at: usize| {
            let connection = self.list[at].connection();
            let is_other = !others.is_empty() && others.contains(&id(&self.list[at]));
            let connection = connection.as_ref().filter(|_| !is_other)?;
            let weight = self.plan.weight(at);
            connection
                .load
                .as_ref()
                .map_or(Some(0.0), |load| load.look(need, || *now, turn, weight))
        };
        // Those of other priorities, and then all that may answer: there is nobody else.
        let ranges = [
            (self.range(|| *now), Need::Well),
            (self.plan.lasting(), Need::Well),
            (0..self.len(), Need::Any),
        ];
        let at = ranges.into_iter().find_map(|(range, need)| {
            let drawn = self.plan.draw_two(&range, random)?;
            pick(drawn, &range, |at| cost(need, at))
        });
        // Lost a moment ago: the caller waits for another.
        self.list[at?].connection.load_full()
    }

    /// The connection for the calls of a key.
    pub(super) fn pick_for(&self, key: u64) -> Option<Arc<Connection>> {
        let now = clock::now();
        let range = self.range(|| now);
        let found = pick_for(key, range.len(), |at| {
            let connection = self.list[range.start + at].connection();
            let standing = connection.as_ref()?.load.as_ref()?.standing();
            standing.is_well(now).then(|| (self.hashes[range.start + at], standing.load().0))
        });
        self.list[range.start + found?].connection.load_full()
    }

    /// The end points that get the calls.
    fn range(&self, now: impl FnOnce() -> Instant) -> Range<usize> {
        if !self.plan.has_choice() {
            return self.plan.lasting();
        }
        let now = now();
        let age = now.saturating_duration_since(self.base);
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if nanos(age) >= self.choose_at.load(Ordering::Relaxed) {
            let mut is_known = true;
            let range = self.plan.choose(|at| {
                let connection = self.list[at].connection();
                let slowness = connection.as_ref()?.load.as_ref()?.standing().slowness(now)?;
                is_known &= slowness > 0.0;
                Some(slowness)
            });
            // Somebody who has not answered yet gets one call, and the next choice knows more.
            let holds = if is_known { CHOICE_HOLDS } else { Duration::ZERO };
            self.choose_at.store(nanos(age + holds), Ordering::Relaxed);
            self.chosen.store(packed(&range), Ordering::Relaxed);
        }
        let chosen = self.chosen.load(Ordering::Relaxed);
        let end = |bits: u64| usize::try_from(bits & 0xffff_ffff).unwrap_or(0);
        end(chosen >> 32)..end(chosen)
    }

    /// The members as they are now.
    pub(super) fn stats(&self) -> Vec<MemberStats> {
        let now = clock::now();
        let of = |(member, end_point): (&Arc<Subchannel>, &Endpoint)| {
            let connection = member.connection();
            let load = connection.as_ref().and_then(|connection| connection.load.as_ref());
            let standing = load.map(|load| load.standing());
            let (in_flight, latency) = standing.map_or((0, None), |standing| standing.load());
            MemberStats {
                address: member.target.to_string(),
                weight: end_point.weight(),
                priority: end_point.priority(),
                zone: end_point.zone().unwrap_or_default().to_owned(),
                is_draining: end_point.is_draining(),
                is_connected: connection.is_some(),
                is_ejected: standing.is_some_and(|standing| standing.is_out(now)),
                health: standing.map_or("", |standing| standing.health().name()),
                calls_in_flight: in_flight.into(),
                latency: latency.and_then(|latency| Duration::try_from_secs_f64(latency).ok()),
            }
        };
        self.list.iter().zip(&self.end_points).map(of).collect()
    }
}

/// The number by which the connections of an end point know it.
pub(super) fn id(member: &Arc<Subchannel>) -> usize {
    Arc::as_ptr(member).addr()
}

/// The connection of an end point, as a part of the choice.
pub(super) fn load_of(member: &Subchannel) -> Option<Arc<Load>> {
    member.connection().as_ref()?.load.clone()
}

fn packed(range: &Range<usize>) -> u64 {
    (range.start as u64) << 32 | range.end as u64
}

/// What the health of a member says, if it is connected and gets no calls for that.
pub(super) fn ill(member: &Subchannel) -> Option<Health> {
    let health = load_of(member)?.standing().health();
    matches!(health, Health::Unknown | Health::NotServing).then_some(health)
}

pub(super) fn not_serving(member: &Subchannel) -> Status {
    let text = format!("the health of the server at {} does not say that it serves", member.target);
    Status::new(Code::Unavailable, text).with_retryable(true)
}
