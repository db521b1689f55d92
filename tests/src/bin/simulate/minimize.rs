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
        let mut is_smaller = false;
        for cut in Plan::draw(world.seed).without_all(&world.cuts).cuts() {
            // Others that were cut meanwhile may have left nothing of it.
            if Plan::draw(world.seed).without_all(&world.cuts).without(cut).is_none() {
                continue;
            }
            let cuts = world.cuts.iter().copied().chain([cut]).collect();
            let without = World { seed: world.seed, cuts };
            let found = without.run(None);
            if found.findings.iter().any(|finding| finding.rule == rule) {
                (world, report, is_smaller) = (without, found, true);
            }
        }
        if !is_smaller {
            return (world, report);
        }
    }
}
