//! The fake MCP server as a process: stateless, and it tells how many calls it has answered when asked.

use std::sync::atomic::Ordering;

use mcp_taskd_tests::fake::{Era, FakeOptions, FakeServer};
use tokio::io::{AsyncBufReadExt as _, BufReader};

/// Serves until standard input ends; each line on it is answered with the number of tool calls so far.
pub(crate) async fn run() -> anyhow::Result<bool> {
    let server = FakeServer::start(FakeOptions { era: Era::Stateless, ..FakeOptions::default() }).await;
    println!("{}", server.url);
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while lines.next_line().await?.is_some() {
        println!("{}", server.state.core.counters.calls.load(Ordering::Relaxed));
    }
    Ok(true)
}
