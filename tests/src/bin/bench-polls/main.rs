//! What polling costs: `cargo run --release -p mcp-taskd-tests --bin bench-polls` (docs/BENCHMARKS.md).
//!
//! The daemon, the fake server and a bare HTTP client are processes of their own, all of them this very program: the first
//! argument says which, so that one build has everything.

mod bare;
mod child;
mod scenario;
mod server;

use std::process::ExitCode;

use mcp_taskd_tests::bench::program::{measure, run};
use mcp_taskd_tests::bench::report::Report;
use scenario::Plan;

const USAGE: &str = "bench-polls [--quick] [--only throughput|lateness|memory] [--rounds N] [--seconds N] [--tasks N] \
                     [--concurrency N] [--held N]";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        // The daemon reads its own command line.
        Some("serve") => return mcp_taskd::main(),
        Some("fake-server") => return run(server::run()),
        Some("bare-client") => return run(bare::run(arguments.collect())),
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
            "--concurrency" => plan.concurrency = value()?.parse()?,
            "--held" => plan.held = value()?.parse()?,
            other => anyhow::bail!("unknown argument {other}"),
        }
    }
    Ok(plan)
}

async fn all(plan: Plan) -> anyhow::Result<bool> {
    let mut report = Report::default();
    if plan.wants("throughput") {
        scenario::throughput(&plan, &mut report).await?;
    }
    if plan.wants("lateness") {
        scenario::lateness(&plan, &mut report).await?;
    }
    if plan.wants("memory") {
        scenario::memory(&plan, &mut report).await?;
    }
    Ok(report.finish())
}
