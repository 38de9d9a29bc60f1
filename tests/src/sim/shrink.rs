//! Leaves out whatever a failure does not need, until nothing more can go.

use super::{Plan, Plant, Run, run};

/// How many runs a shrinking may take.
const RUNS: usize = 250;

/// The smallest plan found that still breaks the same invariant, and its run with every line.
pub fn shrink(plan: &Plan, plant: Option<Plant>) -> (Plan, Run) {
    let broken = |run: &Run| run.violation.as_ref().map(|violation| violation.invariant.clone());
    let wanted = broken(&run(plan, plant, false));
    let mut budget = RUNS;
    let mut still_fails = |plan: &Plan| {
        budget = budget.saturating_sub(1);
        budget > 0 && broken(&run(plan, plant, false)) == wanted
    };
    let mut smallest = plan.clone();
    loop {
        let before = smallest.faults.len() + smallest.calls.len();
        smallest.faults = without(&smallest.faults, |faults| still_fails(&Plan { faults, ..smallest.clone() }));
        smallest.calls = without(&smallest.calls, |calls| still_fails(&Plan { calls, ..smallest.clone() }));
        if smallest.faults.len() + smallest.calls.len() == before {
            break;
        }
    }
    let run = run(&smallest, plant, true);
    (smallest, run)
}

/// Removes parts, large ones first, for as long as `keeps` holds without them.
fn without<T: Clone>(all: &[T], mut keeps: impl FnMut(Vec<T>) -> bool) -> Vec<T> {
    let mut kept = all.to_vec();
    let mut size = kept.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < kept.len() {
            let mut fewer = kept.clone();
            fewer.drain(at..(at + size).min(kept.len()));
            if keeps(fewer.clone()) {
                kept = fewer;
            } else {
                at += size;
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
    kept
}
