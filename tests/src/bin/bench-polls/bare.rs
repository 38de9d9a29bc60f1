//! The yardstick: a pooled HTTP client in a loop that posts the bodies a poll posts, reads the answers, and does nothing
//! with them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::header;
use reqwest::Client;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::time::Instant;

/// What its loops share.
struct Bare {
    client: Client,
    url: reqwest::Url,
    remote_ids: Vec<String>,
    next_id: AtomicU64,
}

/// `bare-client URL TASKS CONCURRENCY`: after `ready`, each line of milliseconds on standard input is a round, answered with
/// the number of polls made in it.
pub(crate) async fn run(arguments: Vec<String>) -> anyhow::Result<bool> {
    let [url, tasks, concurrency] = &*arguments else { anyhow::bail!("bare-client URL TASKS CONCURRENCY") };
    let (tasks, concurrency): (usize, usize) = (tasks.parse()?, concurrency.parse()?);
    let client = Client::builder().no_proxy().tcp_nodelay(true).pool_max_idle_per_host(4_096).build()?;
    let mut bare = Bare { client, url: url.parse()?, remote_ids: Vec::new(), next_id: AtomicU64::new(1) };
    for _ in 0..tasks {
        let id = bare.submit().await?;
        bare.remote_ids.push(id);
    }
    println!("ready");
    let bare = Arc::new(bare);
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let until = Instant::now() + Duration::from_millis(line.trim().parse()?);
        let loops = (0..concurrency).map(|_| tokio::spawn(Arc::clone(&bare).poll_until(until)));
        let mut polls = 0;
        for polled in loops.collect::<Vec<_>>() {
            polls += polled.await??;
        }
        println!("{polls}");
    }
    Ok(true)
}

impl Bare {
    async fn submit(&self) -> anyhow::Result<String> {
        let call = json!({"jsonrpc": "2.0", "id": 0, "method": "tools/call", "params": {
            "name": "submit_report",
            "arguments": {"script": {"end": "never", "poll_after_seconds": 0.1}},
        }});
        let answer: Value = serde_json::from_slice(&self.post(call.to_string()).await?)?;
        let id = answer["result"]["structuredContent"]["task_id"].as_str();
        Ok(id.context("a submit answers a task_id")?.to_owned())
    }

    async fn poll_until(self: Arc<Self>, until: Instant) -> anyhow::Result<u64> {
        let mut polls = 0;
        while Instant::now() < until {
            let id = self.next_id.fetch_add(1, Ordering::Relaxed);
            let remote_id = &self.remote_ids[id as usize % self.remote_ids.len()];
            let body = format!(
                "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":{{\"name\":\"get_report_status\",\
                 \"arguments\":{{\"task_id\":\"{remote_id}\"}}}}}}"
            );
            ensure!(!self.post(body).await?.is_empty(), "an answer has a body");
            polls += 1;
        }
        Ok(polls)
    }

    async fn post(&self, body: String) -> anyhow::Result<Bytes> {
        let request = self
            .client
            .post(self.url.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, text/event-stream")
            .header("mcp-protocol-version", "2025-11-25")
            .body(body);
        Ok(request.send().await?.error_for_status()?.bytes().await?)
    }
}
