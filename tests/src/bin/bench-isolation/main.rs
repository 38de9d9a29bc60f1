//! What a healthy server's tasks notice of its neighbours: `cargo run --release -p mcp-taskd-tests --bin bench-isolation`
//! (docs/BENCHMARKS.md).
//!
//! The daemons and the servers are processes of their own, all of them this very program: the first argument says which.

mod scenario;
mod server;

use std::process::ExitCode;

use mcp_taskd_tests::bench::program::{measure, run};
use mcp_taskd_tests::bench::report::Report;
use scenario::Plan;

const USAGE: &str =
    "bench-isolation [--quick] [--only hole|flood|gone|busy] [--rounds N] [--seconds N] [--tasks N] [--slots N]";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        // The daemon reads its own command line.
        Some("serve") => return mcp_taskd::main(),
        Some("server") => return run(server::run()),
        _ => {}
    }
    measure(USAGE, plan(std::env::args().skip(1)), all)
}

fn plan(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<Plan> {
    let mut plan = Plan::default();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| anyhow::anyhow!("{argument} needs a value"));
        match argument.as_str() {
            "--quick" => plan = Plan { only: plan.only, ..Plan::quick() },
            "--only" => plan.only = Some(value()?),
            "--rounds" => plan.rounds = value()?.parse()?,
            "--seconds" => plan.seconds = value()?.parse()?,
            "--tasks" => plan.tasks = value()?.parse()?,
            "--slots" => plan.slots = value()?.parse()?,
            other => anyhow::bail!("unknown argument {other}"),
        }
    }
    Ok(plan)
}

async fn all(plan: Plan) -> anyhow::Result<bool> {
    let mut report = Report::default();
    scenario::run(&plan, &mut report).await?;
    Ok(report.finish())
}
