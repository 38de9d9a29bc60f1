//! What a healthy server's tasks notice of its neighbours: `cargo run --release -p mcp-taskd-tests --bin bench-isolation`
//! (docs/BENCHMARKS.md).
//!
//! The daemons and the servers are processes of their own, all of them this very program: the first argument says which.

mod scenario;
mod server;

use std::process::ExitCode;

use clap::Parser as _;
use mcp_taskd_tests::bench::program::{measure, run};
use mcp_taskd_tests::bench::report::Report;
use scenario::Plan;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        // The daemon reads its own command line.
        Some("serve") => return mcp_taskd::main(),
        Some("server") => return run(server::run()),
        _ => {}
    }
    measure(all(Plan::parse()))
}

async fn all(plan: Plan) -> anyhow::Result<bool> {
    let mut report = Report::default();
    scenario::run(&plan, &mut report).await?;
    Ok(report.finish())
}
