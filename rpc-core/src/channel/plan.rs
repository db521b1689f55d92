//! Which of a channel's end points are to get calls now: the priority and the zone.
//!
//! End points are in an order in which those that belong together are neighbours: by priority,
//! those of the channel's own zone first, and those that drain behind all others. So a choice is a
//! range of positions.
//!
//! Invariants:
//! 1. A priority gets the calls if at least half of its end points are ready; if none has so many,
//!    the first one of which any is ready.
//! 2. Within it the own zone gets the calls, unless none there is ready, or calls take more than
//!    twice as long there as elsewhere.
//! 3. Of a range, an end point is drawn in proportion to its weight.

use std::ops::Range;

use super::endpoint::Endpoint;

/// How many times slower the own zone may be.
const SPILL: f64 = 2.0;

/// End points that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Class {
    all: Range<usize>,
    /// Where those of other zones begin.
    far: usize,
}

/// The order of the end points.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    classes: Vec<Class>,
    /// Where those that drain begin.
    draining: usize,
    has_choice: bool,
    /// Sums of the weights before each position, and all; empty if all are the same.
    sums: Vec<u64>,
}

impl Plan {
    /// Puts the end points in order. `zone`: that of the channel.
    #[must_use]
    pub fn new(end_points: &mut [Endpoint], zone: Option<&str>) -> Self {
        let is_far = |it: &Endpoint| zone.is_some() && it.zone() != zone;
        end_points.sort_by_key(|it| (it.is_draining(), it.priority(), is_far(it)));
        let draining = end_points.partition_point(|it| !it.is_draining());
        let mut classes = Vec::new();
        let mut from = 0;
        for class in end_points[..draining].chunk_by(|a, b| a.priority() == b.priority()) {
            let all = from..from + class.len();
            let far = from + class.partition_point(|it| !is_far(it));
            from = all.end;
            classes.push(Class { all, far });
        }
        let mut sums = Vec::new();
        if end_points.windows(2).any(|pair| pair[0].weight() != pair[1].weight()) {
            sums.push(0);
            for end_point in end_points.iter() {
                sums.push(sums.last().copied().unwrap_or(0) + u64::from(end_point.weight()));
            }
        }
        let splits = |class: &Class| class.far > class.all.start && class.far < class.all.end;
        let has_choice = classes.len() > 1 || classes.iter().any(splits);
        Self { classes, draining, has_choice, sums }
    }

    #[cfg(test)]
    pub(super) fn of_equals(count: usize) -> Self {
        Self { draining: count, ..Self::default() }
    }

    /// All that do not drain.
    #[must_use]
    pub fn lasting(&self) -> Range<usize> {
        0..self.draining
    }

    /// Whether [`Plan::choose`] has a choice.
    #[must_use]
    pub fn has_choice(&self) -> bool {
        self.has_choice
    }

    /// The end points that get calls. `slowness`: how long calls take; `None`: it is not ready.
    pub fn choose(&self, mut slowness: impl FnMut(usize) -> Option<f64>) -> Range<usize> {
        let mut fallback = None;
        for class in &self.classes {
            let times: Vec<_> = class.all.clone().map(&mut slowness).collect();
            let ready = times.iter().flatten().count();
            if ready == 0 {
                continue;
            }
            let (near, far) = times.split_at(class.far - class.all.start);
            let range = match (mean(near), mean(far)) {
                (Some(near), Some(far)) if near > far * SPILL => class.all.clone(),
                (Some(_), _) => class.all.start..class.far,
                (None, _) => class.all.clone(),
            };
            if ready * 2 >= times.len() {
                return range;
            }
            fallback.get_or_insert(range);
        }
        fallback.unwrap_or(self.lasting())
    }

    /// The positions of two random ones of a range, in proportion to the weights. They differ where
    /// all weights are the same and there is more than one. `random` is a uniformly distributed
    /// number; `None`: the range is empty.
    #[must_use]
    pub fn draw_two(&self, range: &Range<usize>, random: u64) -> Option<[usize; 2]> {
        let count = range.len();
        if count == 0 {
            return None;
        }
        let (high, low) = (random >> 32, random & 0xffff_ffff);
        let scaled = |bits: u64, most: u64| (bits * most) >> 32;
        if let (Some(from), Some(to)) = (self.sums.get(range.start), self.sums.get(range.end)) {
            let of = |bits| {
                let at = from + scaled(bits, to - from);
                (self.sums.partition_point(|sum| *sum <= at) - 1).min(range.end - 1)
            };
            return Some([of(high), of(low)]);
        }
        let index = |bits, most: usize| usize::try_from(scaled(bits, most as u64)).unwrap_or(0);
        let first = index(high, count);
        let mut second = first;
        if count > 1 {
            second += 1 + index(low, count - 1);
            if second >= count {
                second -= count;
            }
        }
        Some([range.start + first, range.start + second])
    }

    /// The weight of an end point, relative to the mean.
    #[must_use]
    pub fn weight(&self, at: usize) -> f64 {
        match (self.sums.get(at), self.sums.get(at + 1), self.sums.last()) {
            (Some(from), Some(to), Some(all)) => {
                (to - from) as f64 * (self.sums.len() - 1) as f64 / *all as f64
            }
            _ => 1.0,
        }
    }
}

fn mean(times: &[Option<f64>]) -> Option<f64> {
    let ready = times.iter().flatten();
    let count = ready.clone().count();
    (count > 0).then(|| ready.sum::<f64>() / count as f64)
}

#[cfg(test)]
mod tests {
    use test_kit::Rng;

    use super::*;

    fn end_point(number: usize) -> Endpoint {
        format!("mem://{number}").parse().unwrap()
    }

    fn plan(end_points: impl IntoIterator<Item = Endpoint>) -> Plan {
        let mut end_points: Vec<_> = end_points.into_iter().collect();
        Plan::new(&mut end_points, Some("here"))
    }

    #[test]
    fn the_next_priority_helps_when_half_is_gone() {
        let plan = plan((0..6).map(|at| end_point(at).with_priority(u8::from(at >= 4))));
        assert!(plan.has_choice());
        let choose = |dead: &[usize]| plan.choose(|at| (!dead.contains(&at)).then_some(1.0));
        assert_eq!(choose(&[]), 0..4);
        assert_eq!(choose(&[0, 3]), 0..4);
        assert_eq!(choose(&[0, 1, 3]), 4..6);
        assert_eq!(choose(&[0, 1, 3, 4, 5]), 0..4, "one is better than none");
        assert_eq!(choose(&[0, 1, 2, 3, 4]), 4..6);
        assert_eq!(choose(&[0, 1, 2, 3, 4, 5]), 0..6);
    }

    #[test]
    fn a_slow_own_zone_is_left() {
        let of = |at| end_point(at).with_zone(if at < 2 { "here" } else { "there" });
        let plan = plan((0..5).rev().map(of));
        let choose = |near: Option<f64>| plan.choose(|at| if at < 2 { near } else { Some(1.0) });
        assert_eq!(choose(Some(1.9)), 0..2);
        assert_eq!(choose(Some(2.1)), 0..5);
        assert_eq!(choose(None), 0..5);
        assert_eq!(plan.choose(|at| (at < 2).then_some(9.0)), 0..2);
    }

    #[test]
    fn those_that_drain_are_behind_all_others() {
        let mut all = vec![end_point(0).draining(), end_point(1).with_priority(9), end_point(2)];
        let plan = Plan::new(&mut all, None);
        let order: Vec<_> = all.iter().map(|it| it.address().to_string()).collect();
        assert_eq!(order, ["mem://2", "mem://1", "mem://0"]);
        assert_eq!(plan.lasting(), 0..2);
    }

    #[test]
    fn draws_are_in_proportion_to_the_weights() {
        let weights = [100, 300, 1, 599];
        let plan = plan((0..4).map(|at| end_point(at).with_weight(weights[at])));
        let (mut rng, mut hits) = (Rng::new(5), [0_u32; 4]);
        for _ in 0..100_000 {
            hits[plan.draw_two(&(0..4), rng.next()).unwrap()[rng.index(2)]] += 1;
        }
        for (at, hits) in hits.iter().enumerate() {
            let share = weights[at] * 100;
            assert!(hits.abs_diff(share) < share / 20 + 50, "{at}: {hits} of {share}");
        }
        assert!((plan.weight(3) - 2.396).abs() < 1e-9);
        for random in [0, 1, u64::MAX / 2, u64::MAX] {
            let drawn = plan.draw_two(&(1..3), random).unwrap();
            assert!(drawn.iter().all(|at| (1..3).contains(at)));
        }
    }

    /// Whatever is ready, and in whatever order it came: the choice is of it, if any is.
    #[test]
    fn random_choices_hold_somebody_who_is_ready() {
        let mut rng = Rng::new(11);
        for _ in 0..5000 {
            let count = rng.index(20);
            let any = |rng: &mut Rng, at| {
                let it = end_point(at).with_weight(rng.pick(&[1, 2, 3]));
                let it = it.with_priority(rng.pick(&[0, 1, 2])).with_zone(rng.pick(&["here", "b"]));
                if rng.chance(10) { it.draining() } else { it }
            };
            let mut all: Vec<_> = (0..count).map(|at| any(&mut rng, at)).collect();
            let plan = Plan::new(&mut all, Some("here"));
            let ready: Vec<_> = (0..count).map(|_| rng.chance(40)).collect();
            let range = plan.choose(|at| ready[at].then_some(1.0 + at as f64));
            assert!(range.end <= plan.lasting().end);
            if ready[plan.lasting()].contains(&true) {
                assert!(ready[range.clone()].contains(&true), "{all:?} {ready:?} {range:?}");
            }
            let drawn = plan.draw_two(&range, rng.next());
            assert_eq!(drawn.is_none(), range.is_empty());
            assert!(drawn.is_none_or(|drawn| drawn.iter().all(|at| range.contains(at))));
        }
    }
}
