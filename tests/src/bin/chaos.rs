//! Chaos at length: `cargo run --release -p mcp-taskd-tests --bin chaos -- --store postgres|sqlite --kills 200`.
//!
//! The daemons are processes of their own, all of them this very program: so one build has everything.

use std::process::ExitCode;
use std::time::Duration;

use mcp_taskd_tests::chaos::{self, Ground, Plan};

const USAGE: &str =
    "chaos --store postgres|sqlite [--daemons N] [--kills N] [--minutes M] [--seed N] [--recovery-seconds N]";

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|command| ["serve", "migrate"].contains(&command.as_str())) {
        // The daemon reads its own command line.
        return mcp_taskd::main();
    }
    let plan = match plan(std::env::args().skip(1)) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("{error:#}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        tokio::select! {
            report = chaos::run(plan) => {
                println!("{report}logs in {}", report.folder.display());
                ExitCode::from(u8::from(!report.violations().is_empty()))
            }
            // What was started or stopped ends or goes on as the run is dropped.
            () = interrupted() => ExitCode::from(130),
        }
    })
}

async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminated = signal(SignalKind::terminate()).expect("a handler");
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated.recv() => {}
    }
}

fn plan(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<Plan> {
    let (mut ground, mut daemons) = (None, None);
    let mut plan = Plan {
        program: std::env::current_exe()?,
        ground: Ground::Postgres,
        daemons: 3,
        kills: 200,
        time: Duration::from_mins(60),
        recovery: chaos::RECOVERY,
        seed: fastrand::u64(..1_000_000),
        verbose: true,
    };
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| anyhow::anyhow!("{argument} needs a value"));
        match argument.as_str() {
            "--store" => {
                ground = Some(match value()?.as_str() {
                    "postgres" => Ground::Postgres,
                    "sqlite" => Ground::Sqlite,
                    other => anyhow::bail!("unknown store {other}"),
                });
            }
            "--daemons" => daemons = Some(value()?.parse()?),
            "--kills" => plan.kills = value()?.parse()?,
            "--minutes" => plan.time = Duration::from_mins(value()?.parse()?),
            "--recovery-seconds" => plan.recovery = Duration::from_secs(value()?.parse()?),
            "--seed" => plan.seed = value()?.parse()?,
            other => anyhow::bail!("unknown argument {other}"),
        }
    }
    plan.ground = ground.ok_or_else(|| anyhow::anyhow!("--store is missing"))?;
    plan.daemons = daemons.unwrap_or(if plan.ground == Ground::Postgres { 3 } else { 1 });
    anyhow::ensure!(plan.daemons > 0, "--daemons must be at least 1");
    Ok(plan)
}
