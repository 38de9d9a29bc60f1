//! A fake MCP server as a process that misbehaves when it is told to, and tells when its tasks were asked about.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use mcp_taskd_tests::bench::process::{Neighbour, Talker};
use mcp_taskd_tests::fake::{Called, Era, FakeOptions, FakeServer};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader};

/// Seconds after which a busy server wants to be asked again.
const RETRY_AFTER: u64 = 2;

/// How far apart the polls of a task came, beyond its hint.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Gaps {
    /// Gaps seen.
    pub(crate) count: usize,
    /// In milliseconds.
    pub(crate) p50: f64,
    /// In milliseconds.
    pub(crate) p99: f64,
    /// In milliseconds.
    pub(crate) max: f64,
}

/// What `server` does: each line of standard input is a command, answered with a line.
///
/// `mark` begins a window, and `gaps MS` tells of it, less a hint of so many milliseconds; `hang` and
/// `busy` are what it does from then on.
pub(crate) async fn run() -> anyhow::Result<bool> {
    let options = FakeOptions { era: Era::Stateless, journal: true, ..FakeOptions::default() };
    let server = FakeServer::start(options).await;
    println!("{}", server.url);
    let mut mark = Instant::now();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let faults = &server.state.faults;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("mark", _) => {
                mark = Instant::now();
                println!("marked");
            }
            ("gaps", hint) => {
                let gaps = gaps(&server.state.journal(), mark, Duration::from_millis(hint.parse()?));
                println!("{}", serde_json::to_string(&gaps)?);
            }
            ("hang", _) => {
                faults.hang.store(true, Ordering::Relaxed);
                println!("hangs");
            }
            ("busy", _) => {
                faults.retry_after.store(RETRY_AFTER, Ordering::Relaxed);
                faults.status.store(503, Ordering::Relaxed);
                println!("is busy");
            }
            (other, _) => anyhow::bail!("unknown command {other}"),
        }
    }
    Ok(true)
}

fn gaps(journal: &[Called], since: Instant, hint: Duration) -> Gaps {
    let mut last: HashMap<&str, Instant> = HashMap::new();
    let polls = journal.iter().filter(|called| called.at >= since && called.tool == "get_report_status");
    let mut beyond: Vec<f64> = polls
        .filter_map(|called| {
            let before = last.insert(called.task_id.as_deref()?, called.at)?;
            Some((called.at.duration_since(before).as_secs_f64() - hint.as_secs_f64()) * 1_000.0)
        })
        .collect();
    beyond.sort_by(f64::total_cmp);
    let at = |quantile: f64| beyond.get((beyond.len() as f64 * quantile) as usize).copied().unwrap_or(f64::NAN);
    Gaps { count: beyond.len(), p50: at(0.5), p99: at(0.99), max: beyond.last().copied().unwrap_or(f64::NAN) }
}

/// Such a process, seen from the benchmark.
#[derive(Debug)]
pub(crate) struct Server {
    talker: Talker,
    name: &'static str,
    url: String,
}

impl Server {
    pub(crate) async fn start(name: &'static str) -> anyhow::Result<Self> {
        let mut talker = Talker::start(&["server"])?;
        let url = talker.line().await?;
        Ok(Self { talker, name, url })
    }

    /// As a daemon is configured with it.
    pub(crate) fn configured(&self) -> Neighbour<'_> {
        Neighbour { name: self.name, url: &self.url }
    }

    pub(crate) async fn tell(&mut self, command: &str) -> anyhow::Result<()> {
        self.talker.ask(command).await.map(drop)
    }

    /// Ends the process, and with it every connection to it.
    pub(crate) async fn end(&mut self) -> anyhow::Result<()> {
        self.talker.end().await
    }

    pub(crate) async fn gaps(&mut self, hint: Duration) -> anyhow::Result<Gaps> {
        let line = self.talker.ask(&format!("gaps {}", hint.as_millis())).await?;
        serde_json::from_str(&line).with_context(|| format!("no gaps: {line}"))
    }
}
