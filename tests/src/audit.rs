//! What must hold after any disaster: the store says what the servers know, and everything ended once.

use std::collections::HashMap;
use std::hash::BuildHasher;

use futures_util::StreamExt as _;
use serde_json::Value;

use crate::daemon::{Api, has_ended, id_of};
use crate::fake::{End, FakeServer, Truth};
use crate::wait::until;

/// What does not hold, by kind; each entry says what and where.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Findings {
    /// Acknowledged tasks that are not there.
    pub lost: Vec<String>,
    /// Tasks whose terminal events are not exactly the one of their end.
    pub ended_wrongly: Vec<String>,
    /// Remote tasks that are neither tracked, nor cancelled, nor covered by a row that admits them.
    pub orphans: Vec<String>,
    /// Rows that say something else than their server.
    pub disagreements: Vec<String>,
}

impl Findings {
    /// Every finding.
    pub fn all(&self) -> impl Iterator<Item = &String> {
        [&self.lost, &self.ended_wrongly, &self.orphans, &self.disagreements].into_iter().flatten()
    }

    /// Panics with the findings, where there are any.
    pub fn assert_none(&self) {
        let all: Vec<_> = self.all().collect();
        assert!(all.is_empty(), "{all:#?}");
    }
}

/// Every task in detail.
pub async fn details(api: &Api) -> Vec<Value> {
    let tasks = api.tasks().await.expect("the list");
    let ids: Vec<String> = tasks.iter().map(id_of).collect();
    futures_util::stream::iter(ids)
        .map(|id| async move { api.task(&id).await.expect("a listed task") })
        .buffer_unordered(8)
        .collect()
        .await
}

/// Whether every one of at least `count` tasks has ended.
pub async fn all_ended(api: &Api, count: usize) -> bool {
    api.tasks().await.is_ok_and(|tasks| tasks.len() >= count && tasks.iter().all(has_ended))
}

/// Every task that has ended has exactly one terminal event, of its status, and no other has any (invariant 2).
pub async fn ended_once(api: &Api) {
    let findings = Findings { ended_wrongly: wrong_ends(api).await, ..Findings::default() };
    findings.assert_none();
}

/// Every task says what its server's own record says; none is missing, none is there twice; and no remote task is left
/// that is neither tracked, nor cancelled, nor covered by a row that admits it. `tasks` are the acknowledged ones, by
/// their idempotency keys.
pub async fn matches_the_truth(
    api: &Api,
    fakes: &[(&str, &FakeServer)],
    tasks: &HashMap<String, String, impl BuildHasher>,
) {
    let rows = details(api).await;
    assert_eq!(rows.len(), tasks.len(), "as many rows as acknowledged submits");
    examine(api, &rows, fakes, tasks.values()).await.assert_none();
}

/// Compares `rows`, all of the store's in detail, with the servers' own record; `acknowledged` have to be among them.
pub async fn examine(
    api: &Api,
    rows: &[Value],
    fakes: &[(&str, &FakeServer)],
    acknowledged: impl Iterator<Item = &String>,
) -> Findings {
    let mut findings = Findings { ended_wrongly: wrong_ends(api).await, ..Findings::default() };
    let by_id: HashMap<String, &Value> = rows.iter().map(|row| (id_of(row), row)).collect();
    findings.lost.extend(acknowledged.filter(|id| !by_id.contains_key(*id)).cloned());
    let mut tracked: HashMap<(&str, &str), &Value> = HashMap::new();
    for row in rows {
        match (row["server_name"].as_str(), row["remote_task_id"].as_str()) {
            (Some(server), Some(remote)) => {
                if tracked.insert((server, remote), row).is_some() {
                    findings.disagreements.push(format!("twice: {row}"));
                }
            }
            _ if outcome_is_unknown(row) => {}
            _ => findings.disagreements.push(format!("a row without a remote task: {row}")),
        }
    }
    for (server, fake) in fakes {
        for truth in fake.state.core.truths() {
            if let Some(row) = tracked.get(&(*server, truth.id.as_str())) {
                if !agrees(row, &truth) {
                    findings.disagreements.push(format!("{row} is not what the server knows: {truth:?}"));
                }
            } else {
                let row = truth.idempotency_key.as_ref().and_then(|key| by_id.get(key));
                let admitted = row.is_some_and(|row| outcome_is_unknown(row));
                let cancelled = truth.cancels > 0 && truth.end.is_some();
                if !admitted && !cancelled {
                    findings.orphans.push(format!("on {server}: {truth:?}, row {row:?}"));
                }
            }
        }
    }
    findings
}

/// Whether a row admits that nobody knows what became of its submit.
pub fn outcome_is_unknown(task: &Value) -> bool {
    task["error_code"] == "submit_outcome_unknown"
}

/// The tasks whose terminal events are not what they should be.
async fn wrong_ends(api: &Api) -> Vec<String> {
    let tasks = api.tasks().await.expect("the list");
    let ended = tasks.iter().filter(|task| has_ended(task)).count();
    // On PostgreSQL, events behind a gap in the sequence are withheld for a while: somebody might still fill it.
    until("every end is listed", || async { ends(api).await.len() >= ended }).await;
    let ends = ends(api).await;
    let wrong = tasks.iter().filter_map(|task| {
        let expected: Vec<_> =
            has_ended(task).then(|| task["status"].as_str().unwrap_or_default()).into_iter().collect();
        let ends = ends.get(&id_of(task)).map_or(&[][..], Vec::as_slice);
        (ends != expected).then(|| format!("the ends of {task} are {ends:?}"))
    });
    wrong.collect()
}

/// The terminal events of each task that has any.
async fn ends(api: &Api) -> HashMap<String, Vec<String>> {
    let mut ends: HashMap<String, Vec<String>> = HashMap::new();
    for event in api.events().await.expect("the events") {
        if has_ended(&event) && event["kind"] == event["status"] {
            ends.entry(id_of(&event)).or_default().push(event["kind"].as_str().unwrap_or_default().to_owned());
        }
    }
    ends
}

fn agrees(row: &Value, truth: &Truth) -> bool {
    let status = match truth.end {
        Some(End::Completed) => "completed",
        Some(End::Failed) => "failed",
        Some(End::Cancelled) => "cancelled",
        Some(End::NotFound) => return row["status"] == "failed" && row["error_code"] == "task_not_found",
        Some(End::Never) | None => return false,
    };
    row["status"] == status && !outcome_is_unknown(row)
}
