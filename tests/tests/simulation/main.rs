//! The fleet in virtual time: seeds that hold, seeds that repeat, and planted faults that are found.

use mcp_taskd_tests::sim::shrink::shrink;
use mcp_taskd_tests::sim::sweep::sweep;
use mcp_taskd_tests::sim::{Plan, Plant, run};

/// Seeds in the sweep; `cargo run --release -p mcp-taskd-tests --bin simulate` runs as many as one likes.
const SEEDS: u64 = 2_000;
/// Within how many seeds a planted fault must be found.
const PLANTED: u64 = 150;

/// What is printed of a seed that fails: the smallest history, and how to see it again.
fn explain(seed: u64, plant: Option<Plant>) -> String {
    let (plan, run) = shrink(&Plan::of(seed), plant);
    let faults: Vec<_> = plan.faults.iter().map(|fault| format!("{fault:?}")).collect();
    format!(
        "seed {seed} breaks {}\n{}\n{}\ncargo run --release -p mcp-taskd-tests --bin simulate -- --seed {seed} --shrink",
        run.violation.map(|violation| violation.to_string()).unwrap_or_default(),
        faults.join("\n"),
        run.lines.join("\n"),
    )
}

#[test]
fn every_invariant_holds_whatever_goes_wrong_1_2_3_4_5_6_7_8() {
    let swept = sweep(0, SEEDS, None, 1, |_| {});
    let failed = swept.failures.keys().next().map(|seed| explain(*seed, None));
    assert!(failed.is_none(), "{}", failed.unwrap_or_default());
    assert!(swept.tasks > SEEDS && swept.injected.len() > 25, "too little was tried: {swept:?}");
}

#[test]
fn the_same_seed_is_the_same_history() {
    let seeds = 40..56;
    let hashes = || seeds.clone().map(|seed| run(&Plan::of(seed), None, false).hash).collect::<Vec<_>>();
    // On another thread, beside other work, and after other seeds.
    let again = std::thread::spawn({
        let seeds = seeds.clone();
        move || seeds.rev().map(|seed| run(&Plan::of(seed), None, false).hash).collect::<Vec<_>>()
    });
    let first = hashes();
    let mut second = again.join().expect("the same again");
    second.reverse();
    assert_eq!(first, second);
    assert_ne!(first[0], first[1], "another seed is another history");
}

#[test]
fn every_planted_fault_is_found() {
    for plant in Plant::ALL {
        let found = (0..PLANTED).any(|seed| run(&Plan::of(seed), Some(plant), false).violation.is_some());
        assert!(found, "{plant:?} is not found within {PLANTED} seeds");
    }
}

#[test]
fn a_failing_history_is_shrunk_to_what_it_needs() {
    let plant = Some(Plant::NoCancelFence);
    let seed =
        (0..PLANTED).find(|seed| run(&Plan::of(*seed), plant, false).violation.is_some()).expect("a failing seed");
    let plan = Plan::of(seed);
    let (smallest, run) = shrink(&plan, plant);
    assert!(run.violation.is_some());
    assert!(smallest.calls.len() + smallest.faults.len() < plan.calls.len() + plan.faults.len());
    assert!(run.lines.last().is_some_and(|line| line.contains("VIOLATION")), "{:?}", run.lines);
}
