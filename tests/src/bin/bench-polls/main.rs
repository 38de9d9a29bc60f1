//! What polling costs: `cargo run --release -p mcp-taskd-tests --bin bench-polls` (docs/BENCHMARKS.md).
//!
//! The daemon, the fake server and a bare HTTP client are processes of their own, all of them this very program: the first
//! argument says which, so that one build has everything.

mod bare;
mod child;
mod scenario;
mod server;

use std::process::ExitCode;

use clap::Parser as _;
use mcp_taskd_tests::bench::program::{measure, run};
use mcp_taskd_tests::bench::report::Report;
use scenario::{Plan, Scenario};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        // The daemon reads its own command line.
        Some("serve") => return mcp_taskd::main(),
        Some("fake-server") => return run(server::run()),
        Some("bare-client") => return run(bare::run(arguments.collect())),
        _ => {}
    }
    measure(all(Plan::parse()))
}

async fn all(plan: Plan) -> anyhow::Result<bool> {
    let mut report = Report::default();
    if plan.wants(Scenario::Throughput) {
        scenario::throughput(&plan, &mut report).await?;
    }
    if plan.wants(Scenario::Lateness) {
        scenario::lateness(&plan, &mut report).await?;
    }
    if plan.wants(Scenario::Memory) {
        scenario::memory(&plan, &mut report).await?;
    }
    Ok(report.finish())
}
