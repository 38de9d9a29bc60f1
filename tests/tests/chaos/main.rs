//! Daemons whose processes, database and network fail, by a seeded schedule and one fault at a time.
//!
//! The schedules here are short; `--bin chaos` runs long ones.

mod calls;
mod databases;
mod networks;
mod schedules;

use std::time::{Duration, Instant};

use mcp_taskd_tests::audit;
use mcp_taskd_tests::daemon::{LIFE, Site};
use mcp_taskd_tests::fake::{CALLER, FakeOptions, FakeServer};
use serde_json::{Value, json};

/// The daemon.
const PROGRAM: &str = env!("CARGO_BIN_EXE_taskd-under-test");
/// The lease of the sites here.
const LEASE: Duration = Duration::from_secs(5);

fn site() -> Site {
    Site::new(PROGRAM)
}

async fn fake() -> FakeServer {
    FakeServer::start(FakeOptions { journal: true, ..FakeOptions::default() }).await
}

/// What makes a daemon say who it is with each call.
fn signed() -> Value {
    json!({"headers": {CALLER: format!("${LIFE}")}})
}

/// How many status calls of `caller` have arrived since `since`.
fn polls_of(fake: &FakeServer, caller: &str, since: Instant) -> usize {
    let journal = fake.state.journal();
    let own = journal.iter().filter(|called| called.caller.as_deref() == Some(caller) && called.at >= since);
    own.filter(|called| called.tool == "get_report_status").count()
}
