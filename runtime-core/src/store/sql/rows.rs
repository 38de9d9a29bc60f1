//! Rows to values, one by one: a row that cannot be decoded is an error of its own (FAILURES 27).

use std::collections::HashSet;
use std::sync::Arc;

use super::engine::SqlRow;
use crate::clock::Millis;
use crate::store::{
    EventRecord, Owned, Quarantined, Result, RowState, StoreError, StoreErrorKind, WorkerInfo, WorkerRecord,
};
use crate::task::{Binding, Json, Outcome, Status, TaskRecord, Toolset, Tracked};

/// How the note of a quarantined row begins; what follows is the message of the error that [`Cells`] makes. No error of a server
/// begins like this: those name the tool or the transport first.
pub(super) const QUARANTINED: &str = "quarantined: ";

/// A row's cells, with what an error about one of them names.
pub(super) struct Cells<'a> {
    row: &'a SqlRow,
    table: &'static str,
    id: Option<String>,
}

impl<'a> Cells<'a> {
    pub(super) fn new(row: &'a SqlRow, table: &'static str, id_column: &str) -> Self {
        let id = row.text(id_column).ok().flatten();
        Self { row, table, id }
    }

    /// The row's id, where at least that can be read.
    pub(super) fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    fn corrupt(&self, column: &str, why: &str) -> StoreError {
        let message = format!("{}.{column} of {:?}: {why}", self.table, self.id.as_deref().unwrap_or("?"));
        StoreError::new(StoreErrorKind::Corrupt, "decode", message)
    }

    pub(super) fn find_text(&self, column: &str) -> Result<Option<String>> {
        self.row.text(column).map_err(|error| self.corrupt(column, &error.to_string()))
    }

    pub(super) fn text(&self, column: &str) -> Result<String> {
        self.find_text(column)?.ok_or_else(|| self.corrupt(column, "absent"))
    }

    pub(super) fn find_int(&self, column: &str) -> Result<Option<i64>> {
        self.row.int(column).map_err(|error| self.corrupt(column, &error.to_string()))
    }

    pub(super) fn int(&self, column: &str) -> Result<i64> {
        self.find_int(column)?.ok_or_else(|| self.corrupt(column, "absent"))
    }

    fn flag(&self, column: &str) -> Result<bool> {
        match self.int(column)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(self.corrupt(column, &format!("{other} is neither 0 nor 1"))),
        }
    }

    fn json(&self, column: &str) -> Result<Option<Json>> {
        let Some(text) = self.find_text(column)? else { return Ok(None) };
        match serde_json::from_str::<&serde_json::value::RawValue>(&text) {
            Ok(_) => Ok(Some(Json::from_stored(text))),
            Err(error) => Err(self.corrupt(column, &error.to_string())),
        }
    }

    fn status(&self) -> Result<Status> {
        self.text("status")?
            .parse()
            .map_err(|error: crate::task::ParseStatusError| self.corrupt("status", &error.to_string()))
    }
}

/// Reads task rows; tasks of one toolset share their binding.
#[derive(Debug, Default)]
pub(super) struct TaskRows {
    bindings: HashSet<Arc<Binding>>,
}

impl TaskRows {
    pub(super) fn tracked(&mut self, row: &SqlRow) -> Result<Tracked> {
        let cells = Cells::new(row, "mcp_tasks", "id");
        let status = cells.status()?;
        let remote_task_id = cells.find_text("remote_task_id")?;
        if remote_task_id.is_none() && !status.is_terminal() && status != Status::Submitting {
            return Err(cells.corrupt("remote_task_id", &format!("absent although {status}")));
        }
        Ok(Tracked {
            id: cells.text("id")?.into(),
            user_id: cells.text("user_id")?.into(),
            thread_id: cells.text("thread_id")?.into(),
            binding: self.binding(&cells)?,
            remote_task_id: remote_task_id.map(Into::into),
            status,
            digest: cells.find_text("snapshot_digest")?.map(Into::into),
            event_fingerprint: cells.find_text("event_fingerprint")?.map(Into::into),
            next_due_at: cells.int("next_due_at")?,
            poll_attempt_count: cells.int("poll_attempt_count")?,
            consecutive_poll_error_count: cells.int("consecutive_poll_error_count")?,
            last_polled_at: cells.find_int("last_polled_at")?,
            cancel_requested_at: cells.find_int("cancel_requested_at")?,
            cancel_attempt_count: cells.int("cancel_attempt_count")?,
            lease_epoch: cells.int("lease_epoch")?,
            created_at: cells.int("created_at")?,
        })
    }

    pub(super) fn record(&mut self, row: &SqlRow) -> Result<TaskRecord> {
        let cells = Cells::new(row, "mcp_tasks", "id");
        Ok(TaskRecord {
            tracked: self.tracked(row)?,
            run_id: cells.find_text("run_id")?,
            tool_call_id: cells.find_text("tool_call_id")?,
            outcome: Outcome {
                result: cells.json("result")?,
                result_preview: cells.find_text("result_preview")?,
                result_truncated: cells.flag("result_truncated")?,
                result_artifact: cells.json("result_artifact")?,
                error: cells.find_text("error")?,
                error_code: cells.find_text("error_code")?,
                input_required: cells.json("input_required")?,
            },
            last_poll_error: cells.find_text("last_poll_error")?,
            last_cancel_error: cells.find_text("last_cancel_error")?,
            lease_owner: cells.find_text("lease_owner")?,
            idempotency_key: cells.find_text("idempotency_key")?,
            body_hash: cells.find_text("body_hash")?,
            arguments: cells.find_text("arguments")?,
            updated_at: cells.int("updated_at")?,
            completed_at: cells.find_int("completed_at")?,
        })
    }

    fn binding(&mut self, cells: &Cells<'_>) -> Result<Arc<Binding>> {
        let binding = Binding {
            server_name: cells.text("server_name")?,
            driver: cells.text("driver")?,
            toolset: Toolset {
                name: cells.text("task_name")?,
                submit_tool: cells.text("submit_tool")?,
                status_tool: cells.text("status_tool")?,
                cancel_tool: cells.text("cancel_tool")?,
                input_tool: cells.find_text("input_tool")?,
                idempotent_submit: cells.flag("idempotent_submit")?,
            },
        };
        if let Some(known) = self.bindings.get(&binding) {
            return Ok(Arc::clone(known));
        }
        let binding = Arc::new(binding);
        self.bindings.insert(Arc::clone(&binding));
        Ok(binding)
    }
}

pub(super) fn owned(row: &SqlRow) -> Result<Owned> {
    let cells = Cells::new(row, "mcp_tasks", "id");
    Ok(Owned {
        id: cells.text("id")?.into(),
        epoch: cells.int("lease_epoch")?,
        status: cells.text("status")?.parse().ok(),
    })
}

pub(super) fn row_state(row: &SqlRow) -> Result<RowState> {
    let cells = Cells::new(row, "mcp_tasks", "id");
    Ok(RowState {
        id: cells.text("id")?.into(),
        owner: cells.find_text("lease_owner")?.map(Into::into),
        epoch: cells.int("lease_epoch")?,
        status: cells.text("status")?.parse().ok(),
        remote_task_id: cells.find_text("remote_task_id")?,
    })
}

/// The store's time that a statement answered.
pub(super) fn now_ms(row: &SqlRow) -> Result<Millis> {
    Cells::new(row, "workers", "now_ms").int("now_ms")
}

/// A worker's row; `None` for the placeholder that carries the time where there is none.
pub(super) fn worker(row: &SqlRow) -> Result<Option<WorkerRecord>> {
    let cells = Cells::new(row, "workers", "id");
    let Some(id) = cells.find_text("id")? else { return Ok(None) };
    Ok(Some(WorkerRecord {
        info: WorkerInfo {
            id: id.into(),
            host: cells.text("host")?,
            pid: cells.int("pid")?,
            role: cells.text("role")?,
            version: cells.text("version")?,
            lease_ms: cells.int("lease_ms")?,
            polls: cells.flag("polls")?,
        },
        live: cells.flag("live")?,
        heartbeat_count: cells.int("heartbeat_count")?,
        lease_expires_at: cells.int("lease_expires_at")?,
        started_at: cells.int("started_at")?,
        held: cells.int("held")?,
    }))
}

pub(super) fn event(row: &SqlRow) -> Result<EventRecord> {
    let cells = Cells::new(row, "task_events", "task_id");
    Ok(EventRecord {
        sequence: cells.int("sequence")?,
        task_id: cells.text("task_id")?,
        user_id: cells.text("user_id")?,
        thread_id: cells.text("thread_id")?,
        kind: cells.text("kind")?,
        status: cells.text("status")?,
        created_at: cells.int("created_at")?,
    })
}

/// What a quarantine's note tells; see [`QUARANTINED`].
pub(super) fn quarantined(row: &SqlRow) -> Result<Quarantined> {
    let cells = Cells::new(row, "mcp_tasks", "id");
    let note = cells.text("last_poll_error")?;
    let told = note.strip_prefix(QUARANTINED).unwrap_or(&note);
    let (place, reason) = told.split_once(": ").unwrap_or((told, ""));
    let column = place.split_once('.').and_then(|(_, column)| column.split(' ').next()).unwrap_or_default();
    Ok(Quarantined { task_id: cells.text("id")?, column: column.to_owned(), reason: reason.to_owned() })
}

/// The rows that can be decoded; the others are skipped, and logged.
pub(super) fn readable<T>(rows: &[SqlRow], mut decode: impl FnMut(&SqlRow) -> Result<T>) -> Vec<T> {
    rows.iter()
        .filter_map(|row| match decode(row) {
            Ok(value) => Some(value),
            Err(error) => {
                tracing::warn!(%error, "skipped a row that cannot be decoded");
                None
            }
        })
        .collect()
}
