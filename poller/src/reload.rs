//! SIGHUP: both configuration files are read again, and what was in effect stays where they cannot be used.
//!
//! `extensions_config.json` takes effect, as after any edit of it. `config.yaml` is in effect from a start only; here it is
//! checked, and whoever reloads is told which keys wait for a restart, so that nobody believes in a change that is none.

use mcp_taskd_core::config::{ConfigError, Settings};

use crate::daemon::Daemon;
use crate::supervisor;
use crate::wiring::{self, Origins};

/// What is compared with what the files say now.
pub struct Reload {
    /// Where the files are.
    pub origins: Origins,
    /// `config.yaml` as it is in effect.
    pub running: Settings,
    /// Whose extensions are followed.
    pub daemon: Daemon,
}

impl Reload {
    /// Reloads at every hang-up.
    pub async fn attend(self, mut hangups: Hangups) {
        while hangups.next().await {
            supervisor::reloading();
            let settings = self.reread();
            match &settings {
                Ok(()) => tracing::info!("reloading: config.yaml is as it was at the start"),
                Err(error) => tracing::error!(%error, "reloading: config.yaml is not in effect as it is now"),
            }
            self.daemon.live.reread_settings(settings);
            self.daemon.live.follow().await;
            supervisor::reloaded(&self.daemon);
        }
    }

    fn reread(&self) -> Result<(), ConfigError> {
        let changed = self.running.differences(&wiring::settings(&self.origins)?.settings);
        if changed.is_empty() {
            return Ok(());
        }
        Err(ConfigError(format!("config.yaml: a restart is needed for {}", changed.join(", "))))
    }
}

/// The hang-ups that this process is sent; from when this exists, none of them ends it.
#[cfg(unix)]
pub struct Hangups(tokio::signal::unix::Signal);

#[cfg(unix)]
impl Hangups {
    /// Listens for them.
    pub fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        signal(SignalKind::hangup()).map(Self)
    }

    async fn next(&mut self) -> bool {
        self.0.recv().await.is_some()
    }
}

/// There are none.
#[cfg(not(unix))]
pub struct Hangups;

#[cfg(not(unix))]
impl Hangups {
    /// Listens for nothing.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> bool {
        std::future::pending().await
    }
}
