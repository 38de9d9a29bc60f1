//! The processes that are measured, each ended with its handle.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use futures_util::stream::{self, TryStreamExt as _};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::Instant;

use super::measure::Metrics;

/// How long a process may take over what is asked of it.
const PATIENCE: Duration = Duration::from_secs(60);
/// Submits at a time.
const SUBMITS: usize = 64;

/// This program as a child that answers a line with a line.
#[derive(Debug)]
pub struct Talker {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Talker {
    /// Starts it with these arguments.
    pub fn start(arguments: &[&str]) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let input = child.stdin.take().context("a pipe")?;
        let output = BufReader::new(child.stdout.take().context("a pipe")?).lines();
        Ok(Self { child, input, output })
    }

    /// The next line that it writes.
    pub async fn line(&mut self) -> anyhow::Result<String> {
        let line = tokio::time::timeout(PATIENCE, self.output.next_line()).await.context("no line in time")??;
        line.context("the process ended early")
    }

    /// The line with which it answers `line`.
    pub async fn ask(&mut self, line: &str) -> anyhow::Result<String> {
        self.input.write_all(format!("{line}\n").as_bytes()).await?;
        self.line().await
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    /// Kills it.
    pub async fn end(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }
}

/// A server with the fake server's tools, as the configuration names it.
#[derive(Debug, Clone, Copy)]
pub struct Neighbour<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its endpoint.
    pub url: &'a str,
}

/// A daemon on SQLite in a folder of its own.
#[derive(Debug)]
pub struct Daemon {
    folder: tempfile::TempDir,
    url: String,
    child: Child,
    client: reqwest::Client,
}

impl Daemon {
    /// Starts it with these members of `mcp_tasks` and these servers, and waits until it is ready. `tool_call_timeout` is
    /// that of the servers, in seconds.
    pub async fn start(
        servers: &[Neighbour<'_>],
        mcp_tasks: Value,
        tool_call_timeout: Option<u64>,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix("bench").tempdir()?;
        // The port is free now, and nobody else here wants it.
        let listen = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
        let state: PathBuf = folder.path().join("state");
        let settings = json!({"server": {"listen": listen, "state_dir": state}, "mcp_tasks": mcp_tasks});
        let servers = servers.iter().map(|server| {
            let toolset = json!({
                "name": "report",
                "submit_tool": "submit_report",
                "status_tool": "get_report_status",
                "cancel_tool": "cancel_report",
            });
            let timeout = json!(tool_call_timeout);
            let server_config =
                json!({"type": "http", "url": server.url, "tool_call_timeout": timeout, "task_toolsets": [toolset]});
            (server.name.to_owned(), server_config)
        });
        let extensions = json!({"mcpServers": servers.collect::<serde_json::Map<_, _>>()});
        let files = [("config.yaml", settings), ("extensions_config.json", extensions)];
        for (name, content) in &files {
            std::fs::write(folder.path().join(name), content.to_string())?;
        }
        let log = std::fs::File::create(folder.path().join("daemon.log"))?;
        let child = Command::new(std::env::current_exe()?)
            .arg("serve")
            .arg("--config")
            .arg(folder.path().join("config.yaml"))
            .arg("--extensions-config")
            .arg(folder.path().join("extensions_config.json"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        let client = reqwest::Client::builder().no_proxy().build()?;
        let mut daemon = Self { folder, url: format!("http://{listen}"), child, client };
        daemon.wait_until_ready().await?;
        Ok(daemon)
    }

    async fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            let answer = self.client.get(format!("{}/readyz", self.url)).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                let log = std::fs::read_to_string(self.folder.path().join("daemon.log"))?;
                bail!("the daemon ended with {status}:\n{log}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("the daemon is not ready after {PATIENCE:?}")
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    /// What it counts, now.
    pub async fn metrics(&self) -> anyhow::Result<Metrics> {
        let answer = self.client.get(format!("{}/metrics", self.url)).send().await?.error_for_status()?;
        Ok(Metrics::read(&answer.text().await?))
    }

    /// Submits tasks to `server` that never end and whose status answers carry this hint; submits a second.
    pub async fn submit(&self, server: &str, tasks: usize, hint: Option<f64>) -> anyhow::Result<f64> {
        let started = Instant::now();
        let arguments = json!({"script": {"end": "never", "poll_after_seconds": hint}});
        let body = json!({"server": server, "task": "report", "arguments": arguments}).to_string();
        let one = || async {
            let request = self
                .client
                .post(format!("{}/api/threads/bench/mcp-tasks", self.url))
                .header("content-type", "application/json")
                .header("x-user-id", "bench")
                .body(body.clone());
            let answer = request.send().await?;
            if answer.status().is_success() {
                return Ok(());
            }
            bail!("a submit was answered with {}: {}", answer.status(), answer.text().await?)
        };
        stream::iter((0..tasks).map(Ok)).try_for_each_concurrent(SUBMITS, |_| one()).await?;
        Ok(tasks as f64 / started.elapsed().as_secs_f64())
    }

    /// Waits until every one of `tasks` has been polled, the first of which writes a row, and no row is on its way.
    pub async fn settle(&self, tasks: usize) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            let metrics = self.metrics().await?;
            if metrics.sum("rows_written_total", "statement=\"poll\"") >= tasks as f64 {
                return Ok(());
            }
            if started.elapsed() > PATIENCE {
                bail!("the tasks are not all polled after {PATIENCE:?}: {metrics:?}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Stops the process where it stands, so that something else can be measured.
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    pub fn thaw(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(self.pid().cast_signed()).context("the daemon has ended")?;
        Ok(kill_process(pid, signal)?)
    }
}
