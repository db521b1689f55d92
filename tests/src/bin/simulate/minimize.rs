//! Makes a failing world smaller: takes out what it has, one by one, and keeps out whatever is not
//! needed to break the same rule.

use crate::plan::Plan;
use crate::process::World;
use crate::report::Report;

/// The smallest world that was found, and what came of it.
pub(crate) fn minimize(world: World, report: Report) -> (World, Report) {
    let Some(rule) = report.findings.first().map(|finding| finding.rule) else {
        return (world, report);
    };
    let (mut world, mut report) = (world, report);
    loop {
        let plan = Plan::draw(world.seed).without_all(&world.cuts);
        let found = plan.cuts().into_iter().find_map(|cut| {
            let mut cuts = world.cuts.clone();
            cuts.push(cut);
            let smaller = World { seed: world.seed, cuts };
            let report = smaller.run(None);
            let is_same = report.findings.iter().any(|finding| finding.rule == rule);
            is_same.then_some((smaller, report))
        });
        match found {
            Some(found) => (world, report) = found,
            None => return (world, report),
        }
    }
}
