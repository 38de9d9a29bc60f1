//! The daemon as its operators have it: processes that are killed, stopped and started, and servers that fail, on both stores.

mod agents;
mod authentication;
mod backup;
mod callers;
mod catalogue;
mod churn;
mod cli;
mod configuration;
mod databases;
mod doctor;
mod fleet;
mod interceptors;
mod kills;
mod logs;
mod metrics;
mod native_agents;
mod native_servers;
mod oauth;
mod personal;
mod polling;
mod secrets;
mod servers;
mod shutdown;
mod startup;
mod stdio;
mod supervisor;
mod traces;
mod upgrade;
mod webhooks;

use mcp_taskd_tests::audit;
use mcp_taskd_tests::daemon::Site;
use mcp_taskd_tests::fake::{FakeOptions, FakeServer};

/// The daemon.
const PROGRAM: &str = env!("CARGO_BIN_EXE_taskd-under-test");

fn site() -> Site {
    Site::new(PROGRAM)
}

async fn fake() -> FakeServer {
    FakeServer::start(FakeOptions { journal: true, ..FakeOptions::default() }).await
}
