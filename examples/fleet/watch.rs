//! Samples of what the fleet does, and what was done to it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::load::Load;
use super::member::{Member, State};

/// Most servers in a run of an hour, and samples of each: what a plot can show.
const MAX_SAMPLES: usize = 20_000;
/// Events that the picture shows.
const RECENT: usize = 8;

/// A server, at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) number: usize,
    pub(crate) address: String,
    pub(crate) state: State,
    /// Per second, since the last sample.
    pub(crate) calls: f64,
    pub(crate) errors: f64,
    /// The clients that have a connection to it, and those that have ejected it.
    pub(crate) connected: usize,
    pub(crate) ejected: usize,
    totals: (u64, u64),
}

/// All servers, at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    /// Since the start, seconds.
    pub(crate) at: f64,
    pub(crate) rows: Vec<Row>,
}

/// The course of a run.
pub(crate) struct Course {
    begin: Instant,
    last: Instant,
    pub(crate) samples: VecDeque<Sample>,
    /// Each with its time in seconds.
    pub(crate) events: Vec<(f64, String)>,
    /// Each with the time of its begin.
    pub(crate) phases: Vec<(f64, &'static str)>,
}

impl Course {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            begin: now,
            last: now,
            samples: VecDeque::new(),
            events: Vec::new(),
            phases: Vec::new(),
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    pub(crate) fn on_event(&mut self, text: impl Into<String>) {
        self.events.push((self.elapsed().as_secs_f64(), text.into()));
    }

    pub(crate) fn on_phase(&mut self, name: &'static str) {
        self.phases.push((self.elapsed().as_secs_f64(), name));
    }

    pub(crate) fn phase(&self) -> &'static str {
        self.phases.last().map_or("", |(_, name)| name)
    }

    pub(crate) fn recent(&self) -> &[(f64, String)] {
        &self.events[self.events.len().saturating_sub(RECENT)..]
    }

    /// Looks at all servers.
    pub(crate) fn sample(&mut self, members: &[Member], load: &Load) {
        use std::sync::atomic::Ordering::Relaxed;
        let (now, before) = (Instant::now(), self.samples.back());
        let seconds = now.duration_since(self.last).as_secs_f64().max(1e-3);
        let seen: Vec<_> = load.channels.iter().flat_map(|it| it.stats().members).collect();
        let rows = members.iter().map(|member| {
            let totals = (member.done(), member.counts.failed.load(Relaxed));
            let known = before.and_then(|it| it.rows.iter().find(|it| it.number == member.number));
            let earlier = known.map_or((0, 0), |it| it.totals);
            let of_it = || seen.iter().filter(|it| it.address == member.address);
            let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
            Row {
                number: member.number,
                address: member.address.clone(),
                state: member.state,
                calls: rate(totals.0, earlier.0),
                errors: rate(totals.1, earlier.1),
                connected: of_it().filter(|it| it.is_connected).count(),
                ejected: of_it().filter(|it| it.is_ejected).count(),
                totals,
            }
        });
        let sample = Sample { at: self.begin.elapsed().as_secs_f64(), rows: rows.collect() };
        self.last = now;
        if self.samples.len() == MAX_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }
}

#[cfg(test)]
impl Course {
    /// A course with two servers, one of which fails calls.
    pub(crate) fn example() -> Self {
        let mut course = Self::new();
        for at in 0..10_u8 {
            let row = |number: usize, errors: f64| Row {
                number,
                address: format!("tcp://10.0.0.{number}:7000"),
                state: if number == 2 { State::Ill } else { State::Ready },
                calls: 100.0 + f64::from(at),
                errors,
                connected: 3,
                ejected: usize::from(number == 2),
                totals: (0, 0),
            };
            let rows = vec![row(1, 0.0), row(2, 7.0)];
            course.samples.push_back(Sample { at: f64::from(at), rows });
        }
        course.phases.push((2.0, "errors"));
        course.events.push((2.0, "server 2 answers with errors".to_owned()));
        course
    }
}
