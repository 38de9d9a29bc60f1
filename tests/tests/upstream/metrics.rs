//! What is counted of sessions with servers.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use mcp_taskd_core::upstream::{Metrics, Options, Upstreams, build};
use mcp_taskd_tests::fake::{FakeOptions, FakeServer, FakeSse};
use prometheus::{Encoder as _, Registry, TextEncoder};
use serde_json::{Value, json};

use super::setup::{call, extensions, until};

const PATIENT: Option<Duration> = Some(Duration::from_secs(20));

struct Counted {
    registry: Registry,
    upstreams: Upstreams,
}

impl Counted {
    fn new(servers: &Value, state_dir: &Path) -> Self {
        let (registry, extensions) = (Registry::new(), extensions(servers));
        let metrics = Metrics::register(&registry, &extensions).unwrap();
        let options = Options { metrics: Some(metrics), ..Options::new(state_dir) };
        Self { upstreams: build(&extensions, &options).unwrap(), registry }
    }

    fn has(&self, line: &str) -> bool {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text).unwrap();
        String::from_utf8(text).unwrap().lines().any(|one| one == line)
    }

    async fn shows(&self, line: &str) {
        until(line, || self.has(line)).await;
    }
}

#[tokio::test]
async fn sessions_are_counted_on_every_transport() {
    let (http, sse) = (FakeServer::start(FakeOptions::default()).await, FakeSse::start(FakeOptions::default()).await);
    let state = tempfile::tempdir().unwrap();
    let servers = json!({
        "a": {"type": "http", "url": http.url},
        "b": {"type": "sse", "url": sse.url},
        "c": {"command": env!("CARGO_BIN_EXE_fake-mcp"), "args": ["--stdio"]},
        "off": {"type": "http", "url": http.url, "enabled": false},
    });
    let counted = Counted::new(&servers, state.path());
    let gauge = |server: &str, transport: &str, n: u32| {
        format!("mcp_taskd_upstream_sessions{{server=\"{server}\",transport=\"{transport}\"}} {n}")
    };
    let opened = |server: &str, transport: &str, outcome: &str, n: u32| {
        let labels = format!("outcome=\"{outcome}\",server=\"{server}\",transport=\"{transport}\"");
        format!("mcp_taskd_upstream_sessions_opened_total{{{labels}}} {n}")
    };
    for (server, transport) in [("a", "http"), ("b", "sse"), ("c", "stdio")] {
        for outcome in ["ok", "connect", "timeout", "transport", "auth", "protocol", "rpc"] {
            counted.shows(&opened(server, transport, outcome, 0)).await;
        }
        counted.shows(&gauge(server, transport, 0)).await;
        let upstream = counted.upstreams.find(server).unwrap();
        call(upstream, "echo", &json!({}), PATIENT).await.unwrap();
        counted.shows(&opened(server, transport, "ok", 1)).await;
        counted.shows(&gauge(server, transport, 1)).await;
    }
    assert!(!counted.has(&gauge("off", "http", 0)), "a server that is not used has no series");
    sse.state.drop_streams();
    counted.shows(&gauge("b", "sse", 0)).await;
    sse.state.faults.stream_status.store(401, Relaxed);
    call(counted.upstreams.find("b").unwrap(), "echo", &json!({}), PATIENT).await.unwrap_err();
    counted.shows(&opened("b", "sse", "auth", 1)).await;
    counted.upstreams.close().await;
    for (server, transport) in [("a", "http"), ("b", "sse"), ("c", "stdio")] {
        counted.shows(&gauge(server, transport, 0)).await;
    }
}

#[tokio::test]
async fn attempts_that_fail_are_counted_by_what_was_wrong() {
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = |listener: &std::net::TcpListener| format!("http://{}/mcp", listener.local_addr().unwrap());
    let servers = json!({
        "mute": {"type": "sse", "url": url(&mute), "session_init_timeout": 0.2},
        "closed": {"type": "sse", "url": url(&closed)},
        "gone": {"command": "/nowhere/at-all"},
    });
    drop(closed);
    let state = tempfile::tempdir().unwrap();
    let counted = Counted::new(&servers, state.path());
    for (server, transport, outcome) in
        [("mute", "sse", "timeout"), ("closed", "sse", "connect"), ("gone", "stdio", "connect")]
    {
        call(counted.upstreams.find(server).unwrap(), "echo", &json!({}), PATIENT).await.unwrap_err();
        let labels = format!("outcome=\"{outcome}\",server=\"{server}\",transport=\"{transport}\"");
        counted.shows(&format!("mcp_taskd_upstream_sessions_opened_total{{{labels}}} 1")).await;
    }
}
