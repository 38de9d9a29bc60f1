//! Chaos at length: `cargo run --release -p mcp-taskd-tests --bin chaos -- --store postgres|sqlite --kills 200`.
//!
//! The daemons are processes of their own, all of them this very program: so one build has everything.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use mcp_taskd_tests::chaos::{self, Ground, Plan};

/// Kills, stops and cuts off real daemons while clients use them; then everything must agree with the servers' own records.
#[derive(Debug, Parser)]
struct Arguments {
    /// What the daemons share.
    #[arg(long, value_enum)]
    store: Ground,
    /// How many daemons [default: 3 on PostgreSQL, 1 on SQLite].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    daemons: Option<u32>,
    /// Processes to kill before the end.
    #[arg(long, default_value_t = 200)]
    kills: u64,
    /// The end, however many were killed.
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// How long a fleet may take to recover.
    #[arg(long, default_value_t = chaos::RECOVERY.as_secs())]
    recovery_seconds: u64,
    /// What decides about everything that is random [default: another each time].
    #[arg(long)]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|command| ["serve", "migrate"].contains(&command.as_str())) {
        // The daemon reads its own command line.
        return mcp_taskd::main();
    }
    let plan = match plan(&Arguments::parse()) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("{error:#}");
            return ExitCode::FAILURE;
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

fn plan(arguments: &Arguments) -> anyhow::Result<Plan> {
    let daemons = arguments.daemons.unwrap_or(if arguments.store == Ground::Postgres { 3 } else { 1 });
    Ok(Plan {
        program: std::env::current_exe()?,
        ground: arguments.store,
        daemons: daemons as usize,
        kills: arguments.kills,
        time: Duration::from_mins(arguments.minutes),
        recovery: Duration::from_secs(arguments.recovery_seconds),
        seed: arguments.seed.unwrap_or_else(|| fastrand::u64(..1_000_000)),
        verbose: true,
    })
}
