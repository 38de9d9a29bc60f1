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
    let truths: Vec<_> = fakes.iter().map(|(server, fake)| (*server, fake.state.core.truths())).collect();
    Findings { ended_wrongly: wrong_ends(api).await, ..compare(rows, &truths, acknowledged) }
}

fn compare<'a>(
    rows: &[Value],
    truths: &[(&str, Vec<Truth>)],
    acknowledged: impl Iterator<Item = &'a String>,
) -> Findings {
    let mut findings = Findings::default();
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
    for (server, truth) in truths.iter().flat_map(|(server, truths)| truths.iter().map(|truth| (*server, truth))) {
        if let Some(row) = tracked.remove(&(server, truth.id.as_str())) {
            if !agrees(row, truth) {
                findings.disagreements.push(format!("{row} is not what the server knows: {truth:?}"));
            }
            continue;
        }
        let row = truth.idempotency_key.as_ref().and_then(|key| by_id.get(key));
        let admitted = row.is_some_and(|row| outcome_is_unknown(row));
        let cancelled = truth.cancels > 0 && truth.end.is_some();
        if !admitted && !cancelled {
            findings.orphans.push(format!("on {server}: {truth:?}, row {row:?}"));
        }
    }
    findings.disagreements.extend(tracked.values().map(|row| format!("the server does not know of {row}")));
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
    let listed = || async { ends(&api.events().await.expect("the events")).len() >= ended };
    until("every end is listed", listed).await;
    compare_ends(&tasks, &api.events().await.expect("the events"))
}

fn compare_ends(tasks: &[Value], events: &[Value]) -> Vec<String> {
    let ends = ends(events);
    let wrong = tasks.iter().filter_map(|task| {
        let expected: Vec<_> =
            has_ended(task).then(|| task["status"].as_str().unwrap_or_default()).into_iter().collect();
        let ends = ends.get(&id_of(task)).map_or(&[][..], Vec::as_slice);
        (ends != expected).then(|| format!("the ends of {task} are {ends:?}"))
    });
    wrong.collect()
}

/// The terminal events of each task that has any.
fn ends(events: &[Value]) -> HashMap<String, Vec<&str>> {
    let mut ends: HashMap<String, Vec<&str>> = HashMap::new();
    for event in events.iter().filter(|event| has_ended(event) && event["kind"] == event["status"]) {
        ends.entry(id_of(event)).or_default().push(event["kind"].as_str().unwrap_or_default());
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn truth(id: &str, end: Option<End>) -> Truth {
        let key = Some("mcp-task-1".to_owned());
        Truth { id: id.to_owned(), idempotency_key: key, submits: 1, polls: 1, cancels: 0, inputs: 0, end }
    }

    fn row(remote: Option<&str>, status: &str, code: Option<&str>) -> Value {
        json!({"task_id": "mcp-task-1", "server_name": "s", "remote_task_id": remote, "status": status, "error_code": code})
    }

    fn found(rows: &[Value], truths: Vec<Truth>) -> [usize; 3] {
        let acknowledged = ["mcp-task-1".to_owned()];
        let findings = compare(rows, &[("s", truths)], acknowledged.iter());
        [findings.lost.len(), findings.orphans.len(), findings.disagreements.len()]
    }

    #[test]
    fn a_record_that_says_what_the_server_says_is_in_order() {
        let unknown = row(None, "failed", Some("submit_outcome_unknown"));
        let cancelled = Truth { cancels: 1, ..truth("r-2", Some(End::Cancelled)) };
        let completed = row(Some("r-1"), "completed", None);
        assert_eq!(found(&[completed], vec![truth("r-1", Some(End::Completed)), cancelled]), [0, 0, 0]);
        assert_eq!(found(std::slice::from_ref(&unknown), vec![truth("r-1", None)]), [0, 0, 0], "admitted");
        assert_eq!(found(&[unknown], vec![]), [0, 0, 0], "never executed");
    }

    #[test]
    fn what_is_lost_orphaned_or_wrong_is_found() {
        let completed = || row(Some("r-1"), "completed", None);
        let end = |end| truth("r-1", Some(end));
        assert_eq!(found(&[], vec![]), [1, 0, 0], "acknowledged and gone");
        assert_eq!(found(&[], vec![end(End::Completed)]), [1, 1, 0], "and its remote task runs");
        assert_eq!(
            found(&[completed()], vec![end(End::Completed), truth("r-2", None)]),
            [0, 1, 0],
            "a second remote task"
        );
        assert_eq!(found(&[completed()], vec![end(End::Failed)]), [0, 0, 1], "another end");
        assert_eq!(found(&[completed()], vec![truth("r-1", None)]), [0, 0, 1], "an end before the end");
        assert_eq!(found(&[completed()], vec![]), [0, 0, 1], "a task that never was");
        assert_eq!(found(&[completed(), completed()], vec![end(End::Completed)]), [0, 0, 1], "twice");
        assert_eq!(found(&[row(None, "working", None)], vec![]), [0, 0, 1], "nothing to poll");
    }

    #[test]
    fn an_end_that_is_told_never_twice_or_otherwise_is_found() {
        let event = |status: &str| json!({"task_id": "mcp-task-1", "kind": status, "status": status});
        let wrong = |status: &str, events: &[Value]| compare_ends(&[row(Some("r-1"), status, None)], events).len();
        assert_eq!(wrong("completed", &[event("working"), event("completed")]), 0);
        assert_eq!(wrong("completed", &[event("working")]), 1);
        assert_eq!(wrong("completed", &[event("completed"), event("completed")]), 1);
        assert_eq!(wrong("completed", &[event("failed")]), 1);
        assert_eq!(wrong("working", &[event("failed")]), 1);
    }
}
