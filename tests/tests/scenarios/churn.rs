//! A stdio server that is started and stopped again and again leaves nothing behind in the daemon.
//!
//! A hundred cycles in an ordinary test run, and as many as `CYCLES` says in a long one:
//!
//! ```sh
//! CYCLES=1000 cargo test -p mcp-taskd-tests --test scenarios churn:: -- --nocapture
//! ```

use std::time::{Duration, Instant};

use mcp_taskd_tests::bench::measure;
use mcp_taskd_tests::daemon::{Api, Site};
use mcp_taskd_tests::family::{children, descendants};
use mcp_taskd_tests::wait::until;
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::agents::post_mcp;
use crate::site;

/// Cycles before the first measurement: caches and pools fill.
const WARM_UP: usize = 20;
/// How much larger the daemon may be afterwards. What is allocated and freed leaves the allocator some room.
const GROWTH_MIB: f64 = 4.0;
/// Threads that wait for blocking work come and go.
const THREADS: usize = 8;

/// What a process holds.
#[derive(Debug)]
struct Footprint {
    descriptors: usize,
    threads: usize,
    memory_mib: f64,
}

impl Footprint {
    fn of(pid: u32) -> Self {
        Self {
            descriptors: descriptors(pid),
            threads: measure::threads(pid).expect("it runs"),
            memory_mib: measure::memory_mib(pid, "VmRSS").expect("it runs"),
        }
    }
}

fn descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count()
}

/// A daemon with a stdio server behind a shell, as npx and uvx put one there.
fn churning() -> Site {
    let tools = json!([{"name": "where", "inputSchema": {}}, {"name": "crash", "inputSchema": {}}]).to_string();
    let arguments = ["-c", "\"$@\"; true", "sh", env!("CARGO_BIN_EXE_fake-mcp"), "--stdio", "--tools", &tools];
    site().server_with(
        "s",
        "",
        false,
        json!({"type": "stdio", "command": "sh", "args": arguments, "task_toolsets": []}),
    )
}

async fn call(api: &Api, tool: &str) -> Value {
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": {}}});
    let answer: Value = serde_json::from_str(&post_mcp(&api.url, &call).await).expect("JSON");
    answer["result"].clone()
}

/// The server's process, started if need be. A call on one that was killed just now fails, and the next one starts another.
async fn process(api: &Api) -> Pid {
    for _ in 0..100 {
        let answer = call(api, "s_where").await;
        let pid = answer["structuredContent"]["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            return pid;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no process answers");
}

/// Starts the server's process, and has it end in one of three ways.
async fn cycle(api: &Api, n: usize) {
    let process = process(api).await;
    match n % 3 {
        0 => reset(api).await,
        1 => assert_eq!(call(api, "s_crash").await["isError"], true),
        _ => kill_process(process, Signal::KILL).expect("it runs"),
    }
}

async fn reset(api: &Api) {
    let scope = json!({"scope": "process"});
    api.request(Method::POST, "/api/mcp/cache/reset", Some(&scope), None).await.expect("a reset");
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_descriptors_and_memory_do_not_grow_over_cycles_of_a_stdio_server() {
    let cycles = std::env::var("CYCLES").ok().and_then(|text| text.parse().ok()).unwrap_or(100);
    let site = churning();
    let mut daemon = site.daemon("a");
    daemon.start().await;
    let pid = daemon.pid();
    let at_rest = || async {
        reset(&daemon.api).await;
        // But for the one that ends the others if the daemon is killed.
        until("every process has ended and was collected", || async {
            children(pid) == 1 && descendants(pid).len() == 1
        })
        .await;
    };
    for n in 0..WARM_UP {
        cycle(&daemon.api, n).await;
    }
    at_rest().await;
    let (before, started) = (Footprint::of(pid), Instant::now());
    for n in 0..cycles {
        cycle(&daemon.api, n).await;
    }
    at_rest().await;
    until("no descriptor is left", || async { descriptors(pid) <= before.descriptors }).await;
    let after = Footprint::of(pid);
    println!("{cycles} cycles in {:.1?}: {before:?} became {after:?}", started.elapsed());
    assert!(after.threads <= before.threads + THREADS, "{before:?} became {after:?}");
    assert!(after.memory_mib <= before.memory_mib + GROWTH_MIB, "{before:?} became {after:?}");
    daemon.stop().await;
}
