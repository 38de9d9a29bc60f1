//! The store: whether it answers, its schema, its clock against this machine's, who works on it.

use std::time::Duration;

use mcp_taskd_core::clock::{Clock as _, SystemClock};
use mcp_taskd_core::config::{Backend, Settings};
use mcp_taskd_core::store::{SharedStore, StoreError, StoreStats, Workers};
use serde_json::{Value, json};

use super::{Check, Status, webhooks};
use crate::exit::{Exit, Failure};
use crate::metrics::COUNT_CAP;
use crate::view;
use crate::wiring;

/// How long the store may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// From this difference of the clocks on, it is worth knowing.
const MAX_SKEW_MS: i64 = 2_000;

/// What the store said.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) workers: Value,
    pub(super) stats: Value,
}

#[derive(Debug, Default)]
pub(super) struct Looked {
    pub(super) checks: Vec<Check>,
    pub(super) said: Said,
    /// What was found of the webhooks, whose events wait in the store.
    pub(super) webhooks: Vec<Check>,
}

/// Looks at the store, and changes nothing in it.
pub(super) async fn look(settings: &Settings) -> Looked {
    let mut looked = Looked::default();
    match tokio::time::timeout(PATIENCE, wiring::connect(settings)).await {
        Err(_) => looked.checks = vec![away("it does not answer")],
        Ok(Err(error)) => looked.checks = vec![failed("store", error)],
        Ok(Ok(backing)) => {
            let asked = tokio::time::timeout(PATIENCE, ask(&backing.store, settings)).await;
            looked = asked.unwrap_or_else(|_| Looked { checks: vec![away("it does not answer")], ..Looked::default() });
            let deliveries = backing.deliveries();
            let answers = looked.checks.iter().all(|check| check.status != Status::Failed);
            looked.webhooks = webhooks::look(&settings.webhooks, answers.then_some(&*deliveries)).await;
            backing.close().await;
            return looked;
        }
    }
    looked.webhooks = webhooks::look(&settings.webhooks, None).await;
    looked
}

fn away(detail: &str) -> Check {
    Check::failed("store", detail).exits(Exit::Unavailable)
}

fn failed(check: &str, error: StoreError) -> Check {
    let text = error.to_string();
    Check::failed(check, text).exits(Failure::from(error).exit)
}

async fn ask(store: &SharedStore, settings: &Settings) -> Looked {
    let mut looked = Looked::default();
    if let Err(error) = store.ping().await {
        looked.checks.push(failed("store", error));
        return looked;
    }
    looked.checks.push(Check::ok("store", format!("{} answers", store.backend())));
    let (schema, is_there) = schema(store.schema_version().await, settings.database.backend == Backend::Sqlite);
    looked.checks.push(schema);
    if !is_there {
        return looked;
    }
    let sent = SystemClock.now_ms();
    match store.workers().await {
        Ok(workers) => {
            looked.checks.push(clock(workers.now_ms, sent, SystemClock.now_ms()));
            looked.checks.push(pollers(&workers));
            looked.said.workers = workers.rows.iter().map(|row| json!(view::worker(row))).collect();
        }
        Err(error) => looked.checks.push(failed("workers", error)),
    }
    let degraded = settings.mcp_tasks.policy().degraded_after;
    match store.stats(SystemClock.now_ms(), degraded, COUNT_CAP).await {
        Ok(stats) => {
            looked.checks.push(tasks(&stats));
            looked.said.stats = json!(view::stats(&stats));
        }
        Err(error) => looked.checks.push(failed("tasks", error)),
    }
    looked
}

/// The schema, and whether it is there to be looked at. Where the daemon `migrates` by itself, a missing one is no fault (157).
fn schema(version: Result<(i64, Option<i64>), StoreError>, migrates: bool) -> (Check, bool) {
    let check = match version {
        Err(error) => failed("schema", error),
        Ok((known, Some(applied))) if applied >= known => {
            let newer = if applied > known { ", of a newer version of this program" } else { "" };
            return (Check::ok("schema", format!("version {applied}{newer}")), true);
        }
        Ok((known, applied)) => {
            let applied = applied.map_or("none yet".to_owned(), |applied| format!("version {applied}"));
            let detail = format!("{applied}, this program needs {known}");
            if migrates {
                Check::ok("schema", format!("{detail}: its start sees to that"))
            } else {
                Check::failed("schema", format!("{detail}: run `mcp-taskd migrate up`")).exits(Exit::Config)
            }
        }
    };
    (check, false)
}

/// The store's clock, read between `sent` and `received` on this machine's.
fn clock(store: i64, sent: i64, received: i64) -> Check {
    let skew = if store < sent { store - sent } else { (store - received).max(0) };
    let detail = format!("the store's is {:+.1} s from this machine's", skew as f64 / 1_000.0);
    if skew.abs() > MAX_SKEW_MS {
        Check::warning("clocks", format!("{detail}; leases and due times go by the store's"))
    } else {
        Check::ok("clocks", detail)
    }
}

fn pollers(workers: &Workers) -> Check {
    let live = workers.rows.iter().filter(|worker| worker.live).count();
    let polling = workers.rows.iter().filter(|worker| worker.live && worker.info.polls).count();
    if polling == 0 {
        Check::warning("workers", format!("{live} live, none polls: start one with `mcp-taskd serve`"))
    } else {
        Check::ok("workers", format!("{live} live, {polling} polling"))
    }
}

fn tasks(stats: &StoreStats) -> Check {
    let degraded: i64 = stats.degraded.iter().map(|(_, count)| count).sum();
    let detail = format!("{} active, {} due, {degraded} degraded", stats.active, stats.due);
    if !stats.quarantined.is_empty() {
        Check::warning("tasks", format!("{detail}, {} cannot be read (see /api/stats)", stats.quarantined.len()))
    } else if degraded > 0 {
        Check::warning("tasks", format!("{detail}: their servers do not answer as they should"))
    } else {
        Check::ok("tasks", detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_may_differ_by_what_the_question_took_and_a_little() {
        assert_eq!(clock(1_000, 900, 1_100).status, Status::Ok);
        assert_eq!(clock(3_000, 900, 1_100).status, Status::Ok);
        let ahead = clock(63_100, 900, 1_100);
        assert_eq!(ahead.status, Status::Warning);
        assert!(ahead.detail.starts_with("the store's is +62.0 s"), "{}", ahead.detail);
        assert!(clock(-59_100, 900, 1_100).detail.starts_with("the store's is -60.0 s"));
    }

    #[test]
    fn an_old_schema_names_the_command_157() {
        let (check, is_there) = schema(Ok((3, Some(2))), false);
        assert_eq!((check.status, check.exit, is_there), (Status::Failed, Exit::Config, false));
        assert!(check.detail.contains("migrate up"), "{}", check.detail);
        let (check, is_there) = schema(Ok((3, Some(4))), false);
        assert_eq!((check.status, is_there), (Status::Ok, true), "a newer one during a rolling upgrade");
        for applied in [None, Some(2)] {
            let (check, is_there) = schema(Ok((3, applied)), true);
            assert_eq!((check.status, is_there), (Status::Ok, false), "a start on SQLite migrates: {}", check.detail);
        }
    }
}
