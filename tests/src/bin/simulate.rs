//! Runs the simulation: many seeds, or one with its whole history.

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use mcp_taskd_tests::sim::shrink::shrink;
use mcp_taskd_tests::sim::sweep::{Sweep, sweep};
use mcp_taskd_tests::sim::{Plan, Plant, Run, run};

/// How many failing seeds end a sweep.
const FAILURES: usize = 20;

/// The real worker and submit code of several processes, in virtual time, under every fault that a seed draws.
#[derive(Debug, Parser)]
struct Arguments {
    /// How many seeds to run.
    #[arg(long, default_value_t = 2_000)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Replays this one instead, with its whole history.
    #[arg(long)]
    seed: Option<u64>,
    /// Looks for the smallest history in which it fails.
    #[arg(long, requires = "seed")]
    shrink: bool,
    /// Plants a fault in the daemon, to see it found.
    #[arg(long)]
    plant: Option<Plant>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(seed) = arguments.seed {
        return replay(seed, &arguments);
    }
    let started = Instant::now();
    let swept = sweep(arguments.from, arguments.seeds, arguments.plant, FAILURES, |seed| {
        if (seed + 1).is_multiple_of(5_000) {
            eprintln!("{:>8} seeds after {:.0?}", seed + 1 - arguments.from, started.elapsed());
        }
    });
    summary(&swept, started);
    for (seed, violation) in &swept.failures {
        println!("seed {seed}: {violation}");
    }
    let Some(seed) = swept.failures.keys().next() else { return ExitCode::SUCCESS };
    let (plan, run) = shrink(&Plan::of(*seed), arguments.plant);
    println!("\nthe smallest history found of seed {seed}:");
    history(&plan, &run);
    let plant = arguments.plant.map(|plant| format!(" --plant {}", plant.as_str())).unwrap_or_default();
    println!("\ncargo run --release -p mcp-taskd-tests --bin simulate -- --seed {seed}{plant}");
    ExitCode::FAILURE
}

fn replay(seed: u64, arguments: &Arguments) -> ExitCode {
    let plan = Plan::of(seed);
    let (plan, run) = if arguments.shrink {
        shrink(&plan, arguments.plant)
    } else {
        let run = run(&plan, arguments.plant, true);
        (plan, run)
    };
    history(&plan, &run);
    println!("history {:016x}, {} steps, {} ms of virtual time", run.hash, run.steps, run.virtual_ms);
    if run.violation.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn history(plan: &Plan, run: &Run) {
    println!("{:#?}", plan.processes);
    plan.faults.iter().for_each(|fault| println!("{fault:?}"));
    plan.calls.iter().for_each(|call| println!("{call:?}"));
    run.lines.iter().for_each(|line| println!("{line}"));
    if let Some(violation) = &run.violation {
        println!("broken: {violation}");
    }
}

fn summary(swept: &Sweep, started: Instant) {
    let hours = swept.virtual_ms as f64 / 3_600_000.0;
    println!("seeds          {}", swept.seeds);
    println!("steps          {}", swept.steps);
    println!("virtual time   {hours:.1} h in {:.0?}", started.elapsed());
    println!("tasks checked  {}", swept.tasks);
    println!("latest poll    {} ms (healthy server, undisturbed worker)", swept.latest_ms);
    println!("outcomes");
    swept.outcomes.iter().for_each(|(name, count)| println!("  {count:>9} {name}"));
    println!("faults injected");
    swept.injected.iter().for_each(|(name, count)| println!("  {count:>9} {name}"));
    println!("failures       {}", swept.failures.len());
}
