//! The `mcp-taskd` daemon: command line, REST API and MCP gateway around `mcp-taskd-core`.

mod api;
mod auth;
mod daemon;
mod demo;
mod exit;
mod gateway;
mod health;
mod lifecycle;
mod metrics;
mod telemetry;
mod view;

use std::process::ExitCode;

/// The program.
pub fn main() -> ExitCode {
    ExitCode::SUCCESS
}
