//! A large catalogue, and one server of it that hangs.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mcp_taskd_tests::fake::{Era, FakeOptions, FakeServer};
use mcp_taskd_tests::wait::until;
use serde_json::{Value, json};

use crate::agents::post_mcp;
use crate::site;

const SERVERS: usize = 20;
const TOOLS: usize = 500;
/// `session_init_timeout` of the one that hangs.
const LIMIT: Duration = Duration::from_secs(6);
/// What a machine that does other things too may add.
const SLACK: Duration = Duration::from_secs(3);

/// A server with `count` tools, each with a schema of its own.
async fn with_tools(count: usize) -> FakeServer {
    let tool = |n: usize| {
        let schema =
            json!({"type": "object", "properties": {format!("argument_{n}"): {"type": "string", "maxLength": n}}});
        json!({"name": format!("tool_{n}"), "description": format!("Does the thing number {n}."), "inputSchema": schema})
    };
    let tools = Some((0..count).map(tool).collect());
    FakeServer::start(FakeOptions { tools, ..FakeOptions::default() }).await
}

/// How many tools of servers an agent is shown, and after how long.
async fn listed(url: &str) -> (usize, Duration) {
    let started = Instant::now();
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}});
    let answer = post_mcp(url, &list).await;
    let took = started.elapsed();
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    let tools = answer["result"]["tools"].as_array().expect("tools");
    (tools.iter().filter(|tool| tool["name"].as_str().is_some_and(|name| name.contains("_tool_"))).count(), took)
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_tools_of_twenty_servers_are_listed_while_one_of_them_hangs_99() {
    let hung = FakeServer::start(FakeOptions { era: Era::Stateless, ..FakeOptions::default() }).await;
    hung.state.faults.everywhere.store(true, Ordering::Relaxed);
    hung.state.faults.hang.store(true, Ordering::Relaxed);
    let plain = |more: Value| json!({"task_toolsets": [], "session_init_timeout": more});
    let mut site = site().server_with("hung", &hung.url, false, plain(json!(LIMIT.as_secs())));
    let healthy = SERVERS - 1;
    let mut fakes = Vec::new();
    for n in 0..healthy {
        let fake = with_tools(TOOLS / healthy + usize::from(n < TOOLS % healthy)).await;
        site = site.server_with(&format!("s{n}"), &fake.url, false, plain(json!(60)));
        fakes.push(fake);
    }
    let mut daemon = site.daemon("a");
    daemon.start().await;

    let (tools, first) = listed(&daemon.api.url).await;
    assert_eq!(tools, TOOLS);
    assert!(first < LIMIT + SLACK, "the first list took {first:?}");
    let asked = || hung.state.core.counters.requests.load(Ordering::Relaxed);
    // Whoever failed is asked again in the background; what is known does not wait for that.
    let before = asked();
    until("it is asked again", || async { asked() > before }).await;
    let retried = Instant::now();
    let (tools, cached) = listed(&daemon.api.url).await;
    assert_eq!(tools, TOOLS);
    assert!(retried.elapsed() < LIMIT, "the list waited for the server that hangs: {cached:?}");
    for fake in &fakes {
        assert_eq!(fake.state.core.counters.initializes.load(Ordering::Relaxed), 1, "each was asked once");
    }
    println!("{TOOLS} tools: {first:?} with a server that hangs, {cached:?} from the cache");
    daemon.stop().await;
}
