//! The demo's daemon: this very program as a child process, so that it can be killed and started again.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::time::Instant;

/// How long the daemon may take to be ready.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// A daemon on an embedded SQLite file.
pub(super) struct Daemon {
    folder: PathBuf,
    /// Where its API is.
    pub(super) url: String,
    child: Option<Child>,
}

impl Daemon {
    /// Writes the two configuration files of a newcomer's setup into `folder`.
    pub(super) fn configure(folder: &Path, report_server: &str) -> anyhow::Result<Self> {
        // The port is free now, and the demo is the only one that wants it.
        let listen = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?;
        let settings = format!(
            "server: {{ listen: {listen}, state_dir: {} }}\n\
             mcp_tasks: {{ poll_interval_seconds: 1, lease_seconds: 15 }}\n",
            json!(folder.join("state")),
        );
        std::fs::write(folder.join("config.yaml"), settings)?;
        let extensions = json!({"mcpServers": {"reports": {
            "type": "http",
            "url": report_server,
            "task_toolsets": [{
                "name": "report",
                "submit_tool": "submit_report",
                "status_tool": "get_report_status",
                "cancel_tool": "cancel_report",
                "input_tool": "answer_report",
            }],
        }}});
        std::fs::write(folder.join("extensions_config.json"), serde_json::to_string_pretty(&extensions)?)?;
        Ok(Self { folder: folder.to_owned(), url: format!("http://{listen}"), child: None })
    }

    /// Starts it and waits until it is ready; how long that took.
    pub(super) async fn start(&mut self, client: &reqwest::Client) -> anyhow::Result<Duration> {
        let started = Instant::now();
        let log = std::fs::File::options().create(true).append(true).open(self.log())?;
        let child = Command::new(std::env::current_exe()?)
            .arg("serve")
            .arg("--config")
            .arg(self.folder.join("config.yaml"))
            .arg("--extensions-config")
            .arg(self.folder.join("extensions_config.json"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .context("starting the daemon")?;
        self.child = Some(child);
        let ready = format!("{}/readyz", self.url);
        while started.elapsed() < READY_WITHIN {
            if let Ok(answer) = client.get(&ready).send().await
                && answer.status().is_success()
            {
                return Ok(started.elapsed());
            }
            if let Some(status) = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten()) {
                bail!("the daemon ended with {status}; its log is {}", self.log().display());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("the daemon is not ready after {READY_WITHIN:?}; its log is {}", self.log().display())
    }

    /// The process id, while it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// `kill -9`.
    pub(super) async fn kill(&mut self) -> anyhow::Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().await.context("killing the daemon")?;
        }
        Ok(())
    }

    /// SIGTERM, and the wait for the drain; how long it took.
    pub(super) async fn stop(&mut self) -> anyhow::Result<Duration> {
        let started = Instant::now();
        if let Some(mut child) = self.child.take() {
            #[cfg(unix)]
            if let Some(pid) = child.id().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed())) {
                rustix::process::kill_process(pid, rustix::process::Signal::TERM).context("stopping the daemon")?;
            }
            #[cfg(not(unix))]
            child.start_kill()?;
            child.wait().await?;
        }
        Ok(started.elapsed())
    }

    /// Waits until it ends.
    pub(super) async fn wait(&mut self) -> anyhow::Result<()> {
        if let Some(child) = &mut self.child {
            child.wait().await?;
        }
        Ok(())
    }

    /// Where it logs.
    pub(super) fn log(&self) -> PathBuf {
        self.folder.join("daemon.log")
    }
}
