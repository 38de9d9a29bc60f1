//! The `mcp-taskd` daemon: command line, REST API and MCP gateway around `mcp-taskd-core`.

#![expect(unreachable_pub, reason = "only `main` leaves the crate; inside, `pub` says what leaves a module")]

mod api;
mod app;
mod auth;
mod cli;
mod daemon;
mod delivery;
mod demo;
mod exit;
mod gateway;
mod health;
mod lifecycle;
mod listener;
mod metrics;
mod reload;
#[cfg(test)]
mod snapshot;
#[cfg(test)]
mod stub;
mod supervisor;
mod telemetry;
mod trace;
mod view;
mod wiring;

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;

use mcp_taskd_core::upstream::guard;

use cli::{Cli, Command};
use exit::{Exit, Failure};

/// The first argument with which this program is the guard of another instance's child processes.
const GUARD: &str = "guard-processes";

/// The program: everything of `mcp-taskd` but the name of its binary.
pub fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == GUARD) {
        guard::watch(std::io::stdin().lock());
        return ExitCode::SUCCESS;
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Standard output may be gone already; there is nobody left to tell.
            let _ = error.print();
            return usage_code(&error).into();
        }
    };
    // Another provider than this one may have been installed by whoever called; either does.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let serves = matches!(cli.command, None | Some(Command::Serve { .. } | Command::Mcp { .. }));
    // The SDK tells of every stateless request at info; that is per-call noise here.
    telemetry::init(cli.global.log_format(), if serves { "info,rmcp=warn" } else { "warn,rmcp=error" });
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(&Failure::from(anyhow::Error::from(error).context("no runtime"))),
    };
    let code = runtime.block_on(cli::run(cli));
    // A read of standard input that nobody can interrupt must not hold the exit up.
    runtime.shutdown_timeout(Duration::from_millis(200));
    match code {
        Ok(code) => code.into(),
        Err(failure) => report(&failure),
    }
}

fn report(failure: &Failure) -> ExitCode {
    eprintln!("mcp-taskd: {:#}", failure.error);
    (failure.exit as u8).into()
}

/// The exit code of a command line that was not run: help and version are what was asked for.
fn usage_code(error: &clap::Error) -> u8 {
    if error.use_stderr() { Exit::Usage as u8 } else { 0 }
}
