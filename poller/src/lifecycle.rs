//! Starting to stop: a soft stop drains, a hard stop ends at once.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// The two stops of a process; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    soft: CancellationToken,
    hard: CancellationToken,
}

impl Shutdown {
    /// Two stops that nobody has asked for yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks for a drain.
    pub fn drain(&self) {
        self.soft.cancel();
    }

    /// Ends at once.
    pub fn abort(&self) {
        self.soft.cancel();
        self.hard.cancel();
    }

    /// Whether the process is draining.
    pub fn is_draining(&self) -> bool {
        self.soft.is_cancelled()
    }

    /// The token of the soft stop.
    pub fn soft(&self) -> &CancellationToken {
        &self.soft
    }

    /// The token of the hard stop.
    pub fn hard(&self) -> &CancellationToken {
        &self.hard
    }

    /// Watches SIGTERM and SIGINT: the first drains, for `grace` at most; a second one, or the end of that time, aborts.
    pub fn watch_signals(&self, grace: Duration) -> std::io::Result<()> {
        let mut signals = Signals::new()?;
        let this = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                name = signals.next() => tracing::info!(signal = name, grace_seconds = grace.as_secs(), "draining"),
                () = this.soft.cancelled() => tracing::info!(grace_seconds = grace.as_secs(), "draining"),
            }
            this.drain();
            tokio::select! {
                name = signals.next() => tracing::warn!(signal = name, "second signal: stopping at once"),
                () = tokio::time::sleep(grace) => tracing::warn!("the drain took too long: stopping at once"),
            }
            this.abort();
        });
        Ok(())
    }
}

#[cfg(unix)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> &'static str {
        let _ = tokio::signal::ctrl_c().await;
        "Ctrl-C"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_drain_that_outlasts_its_grace_is_cut_short() {
        let shutdown = Shutdown::new();
        shutdown.watch_signals(Duration::from_secs(30)).unwrap();
        assert!(!shutdown.is_draining());
        shutdown.drain();
        let started = tokio::time::Instant::now();
        shutdown.hard().cancelled().await;
        assert_eq!(started.elapsed().as_secs(), 30);
        assert!(shutdown.is_draining());
    }
}
