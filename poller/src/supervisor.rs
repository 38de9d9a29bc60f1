//! What the service manager is told, by systemd's notify protocol; nothing where `$NOTIFY_SOCKET` is not set.

use std::time::Duration;

use sd_notify::NotifyState;

use crate::daemon::Daemon;
use crate::health::Health;
use crate::metrics::Figures;

/// How often the line of status is renewed.
const STATUS_EVERY: Duration = Duration::from_secs(10);
/// How old the store's figures may be before the status says so; they are read every 10 s.
const STALE: Duration = Duration::from_secs(30);

/// Says that start-up is over, then again and again that the worker's loop turns and how the backlog stands. It goes on
/// through the drain, which is no reason to be killed.
pub async fn attend(daemon: Daemon) {
    tell(&[NotifyState::Ready, NotifyState::Status("ready")]);
    let mut ticks = tokio::time::interval(STATUS_EVERY);
    // systemd kills after the whole interval; half of it is what its manual advises.
    let watched = sd_notify::watchdog_enabled().map(|interval| interval / 2);
    let mut alive = tokio::time::interval(watched.unwrap_or(STATUS_EVERY).max(Duration::from_millis(10)));
    loop {
        tokio::select! {
            _ = alive.tick(), if watched.is_some() => feed(&daemon.health),
            _ = ticks.tick(), if !daemon.shutdown.is_draining() => tell(&[NotifyState::Status(&status(&daemon))]),
        }
    }
}

/// Says that the configuration is being read again.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now, NotifyState::Status("reloading")]),
        Err(error) => tracing::debug!(%error, "the service manager cannot be told"),
    }
}

/// Says that it was, and what became of it.
pub fn reloaded(daemon: &Daemon) {
    tell(&[NotifyState::Ready, NotifyState::Status(&status(daemon))]);
}

/// Says that the drain has begun.
pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("draining")]);
}

/// The watchdog is the worker's loop and nothing else: a database that is away, or a server, is no reason for a restart.
fn feed(health: &Health) {
    if health.is_live() {
        tell(&[NotifyState::Watchdog]);
    }
}

/// How it stands. Of a configuration that is not in effect it says only that: a reason may take many lines.
fn status(daemon: &Daemon) -> String {
    let line = line(&daemon.metrics.figures(daemon.clock.now_ms()), daemon.health.polls());
    match daemon.live.last_reload().error {
        None => line,
        Some(_) => format!("{line}; the configuration was changed and is not in effect, see the log"),
    }
}

fn line(figures: &Figures, polls: bool) -> String {
    let Some(age) = figures.age else { return "ready; the store's figures are not read yet".into() };
    if age > STALE {
        return format!("the store has not told its figures for {} s", age.as_secs());
    }
    let role = if polls { "" } else { ", none of them polled here" };
    let workers = if figures.workers == 1 { "1 worker".into() } else { format!("{} workers", figures.workers) };
    format!("{} active tasks{role}; {} due and waiting; {workers}", figures.active, figures.due)
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the service manager cannot be told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_the_backlog_and_says_when_nobody_knows_it() {
        let figures = Figures { active: 40, due: 3, workers: 1, age: Some(Duration::from_secs(9)) };
        assert_eq!(line(&figures, true), "40 active tasks; 3 due and waiting; 1 worker");
        let figures = Figures { workers: 2, ..figures };
        assert_eq!(line(&figures, false), "40 active tasks, none of them polled here; 3 due and waiting; 2 workers");
        let old = Figures { age: Some(Duration::from_secs(31)), ..figures };
        assert_eq!(line(&old, true), "the store has not told its figures for 31 s");
        assert!(line(&Figures { age: None, ..figures }, true).contains("not read yet"));
    }
}
