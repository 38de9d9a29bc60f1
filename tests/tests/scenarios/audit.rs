//! What must hold after any disaster: the store says what the servers know, and everything ended once.

use std::collections::HashMap;

use futures_util::StreamExt as _;
use mcp_taskd_tests::daemon::{Api, has_ended, id_of};
use mcp_taskd_tests::fake::{End, FakeServer, Truth};
use mcp_taskd_tests::wait::until;
use serde_json::Value;

/// Every task in detail.
pub(crate) async fn details(api: &Api) -> Vec<Value> {
    let tasks = api.tasks().await.expect("the list");
    let ids: Vec<String> = tasks.iter().map(id_of).collect();
    futures_util::stream::iter(ids)
        .map(|id| async move { api.task(&id).await.expect("a listed task") })
        .buffer_unordered(8)
        .collect()
        .await
}

/// Whether every one of at least `count` tasks has ended.
pub(crate) async fn all_ended(api: &Api, count: usize) -> bool {
    api.tasks().await.is_ok_and(|tasks| tasks.len() >= count && tasks.iter().all(has_ended))
}

/// Every task that has ended has exactly one terminal event, of its status, and no other has any (invariant 2).
pub(crate) async fn ended_once(api: &Api) {
    let tasks = api.tasks().await.expect("the list");
    let ended = tasks.iter().filter(|task| has_ended(task)).count();
    // On PostgreSQL, events behind a gap in the sequence are withheld for a while: somebody might still fill it.
    until("every end is listed", || async { ends(api).await.len() >= ended }).await;
    let ends = ends(api).await;
    for task in tasks {
        let end = has_ended(&task).then(|| task["status"].as_str().unwrap_or_default().to_owned());
        let expected: Vec<_> = end.into_iter().collect();
        assert_eq!(ends.get(&id_of(&task)).map_or(&[][..], Vec::as_slice), expected, "the ends of {task}");
    }
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

fn unknown(task: &Value) -> bool {
    task["error_code"] == "submit_outcome_unknown"
}

/// Every task says what its server's own record says; none is missing, none is there twice; and no remote task is left
/// that is neither tracked, nor cancelled, nor covered by a row that admits it. `tasks` are the acknowledged ones, by
/// their idempotency keys.
pub(crate) async fn matches_the_truth(api: &Api, fakes: &[(&str, &FakeServer)], tasks: &HashMap<String, String>) {
    let rows = details(api).await;
    assert_eq!(rows.len(), tasks.len(), "as many rows as acknowledged submits");
    let by_id: HashMap<String, &Value> = rows.iter().map(|row| (id_of(row), row)).collect();
    for (key, id) in tasks {
        assert!(by_id.contains_key(id), "the acknowledged submit {key} is missing");
    }
    let mut tracked: HashMap<(&str, &str), &Value> = HashMap::new();
    for row in &rows {
        match (row["server_name"].as_str(), row["remote_task_id"].as_str()) {
            (Some(server), Some(remote)) => assert!(tracked.insert((server, remote), row).is_none(), "twice: {row}"),
            _ => assert!(unknown(row), "a row without a remote task: {row}"),
        }
    }
    for (server, fake) in fakes {
        for truth in fake.state.core.truths() {
            if let Some(row) = tracked.get(&(*server, truth.id.as_str())) {
                assert!(agrees(row, &truth), "{row} is not what the server knows: {truth:?}");
            } else {
                let row = truth.idempotency_key.as_ref().and_then(|key| by_id.get(key));
                let admitted = row.is_some_and(|row| unknown(row));
                let cancelled = truth.cancels > 0 && truth.end.is_some();
                assert!(admitted || cancelled, "an orphan on {server}: {truth:?}");
            }
        }
    }
    ended_once(api).await;
}

fn agrees(row: &Value, truth: &Truth) -> bool {
    let status = match truth.end {
        Some(End::Completed) => "completed",
        Some(End::Failed) => "failed",
        Some(End::Cancelled) => "cancelled",
        Some(End::NotFound) => return row["status"] == "failed" && row["error_code"] == "task_not_found",
        Some(End::Never) | None => return false,
    };
    row["status"] == status && !unknown(row)
}
