//! The texts of the catalogue's statements.

mod claims;
pub(super) mod deliveries;
pub(super) mod keys;
pub(super) mod tokens;
mod workers;

use super::statements::{Sql, Template};

/// What a claim may take: `$3` due before. It ends before the two access paths part.
///
/// The first two conditions are spelt as in the partial indexes, so that owned and finished rows are never looked at
/// (FAILURES 14); SQLite, which has no statistics here, would rather take the index on the status, so that is withheld from it.
pub(super) const CLAIMABLE: &str = "lease_owner IS NULL AND completed_at IS NULL AND {unindexed}status IN ({active})
    AND next_due_at <= $3";

/// What a claim of any server may take: `$2` servers, `$4` due before for any server but `$6` and any driver but `$7`.
pub(super) const CLAIMABLE_ANY: &str = "{claimable} AND ((server_name IN ({texts:2}) AND driver IN ({texts:7}))
    OR (next_due_at < $4 AND NOT (server_name IN ({texts:6}) AND driver IN ({texts:7}))))";

/// Unowned rows due absurdly late, spelt as the claims' indexes are and read from their far end: where there are none, as
/// nearly always, that is one look at each. The clock is read once, in a query of its own: an index cannot be searched for what
/// may change from row to row. `$1` how far ahead is absurd.
pub(super) const FAR: &str = "lease_owner IS NULL AND completed_at IS NULL AND {unindexed}status IN ({active})
    AND next_due_at > (SELECT {now_ms} + $1)";

/// The new values of a write, from input `i` to row `t`.
pub(super) const APPLY_SET: &str = "
    status = i.status,
    result = CASE WHEN i.has_outcome = 1 THEN i.result ELSE t.result END,
    result_preview = CASE WHEN i.has_outcome = 1 THEN i.result_preview ELSE t.result_preview END,
    result_truncated = CASE WHEN i.has_outcome = 1 THEN i.result_truncated ELSE t.result_truncated END,
    result_artifact = CASE WHEN i.has_outcome = 1 THEN i.result_artifact ELSE t.result_artifact END,
    error = CASE WHEN i.has_outcome = 1 THEN i.error ELSE t.error END,
    error_code = CASE WHEN i.has_outcome = 1 THEN i.error_code ELSE t.error_code END,
    input_required = CASE WHEN i.has_outcome = 1 THEN i.input_required ELSE t.input_required END,
    snapshot_digest = CASE WHEN i.has_outcome = 1 THEN i.snapshot_digest ELSE t.snapshot_digest END,
    event_fingerprint = i.event_fingerprint,
    next_due_at = i.next_due_at,
    poll_attempt_count = i.poll_attempt_count,
    consecutive_poll_error_count = i.consecutive_poll_error_count,
    last_polled_at = i.last_polled_at,
    last_poll_error = CASE WHEN i.has_poll_error = 1 THEN i.last_poll_error ELSE t.last_poll_error END,
    cancel_attempt_count = i.cancel_attempt_count,
    last_cancel_error = CASE WHEN i.has_cancel_error = 1 THEN i.last_cancel_error ELSE t.last_cancel_error END,
    arguments = CASE WHEN i.terminal = 1 THEN NULL ELSE t.arguments END,
    completed_at = i.completed_at,
    lease_owner = CASE WHEN i.release = 1 THEN NULL ELSE t.lease_owner END,
    lease_epoch = t.lease_epoch + 1,
    updated_at = CASE
        WHEN i.has_outcome = 1 OR i.has_poll_error = 1 OR i.has_cancel_error = 1 OR i.status <> t.status THEN i.at
        ELSE t.updated_at END";

/// `$1` owner (or null), `$3` 1 to close a freed intent only.
pub(super) const APPLY_GUARD: &str = "t.id = i.id AND t.lease_epoch = i.epoch AND t.lease_owner IS NOT DISTINCT FROM $1
    AND t.completed_at IS NULL AND t.status IN ({active})
    AND ($3 = 0 OR (t.status = 'submitting' AND t.remote_task_id IS NULL))";

/// `$1` worker, `$2` id, `$3` epoch, `$4` remote id, `$5` next due, `$6` now, `$7` keep.
pub(super) const RECORD_UPDATE: &str = "UPDATE mcp_tasks SET
    remote_task_id = $4, status = 'submitted', arguments = NULL, lease_epoch = lease_epoch + 1, updated_at = $6,
    lease_owner = CASE WHEN $7 = 1 AND cancel_requested_at IS NULL THEN lease_owner ELSE NULL END,
    next_due_at = CASE WHEN cancel_requested_at IS NULL THEN $5 ELSE $6 END
    WHERE id = $2 AND lease_owner = $1 AND lease_epoch = $3 AND status = 'submitting' AND remote_task_id IS NULL";

/// `$1` user, `$2` thread, `$3` status, `$4` active only, `$5` name or id, `$6` name in lower case, `$7`/`$8` after, `$9` limit.
pub(super) const TASK_FILTER: &str = "($1 IS NULL OR user_id = $1) AND ($2 IS NULL OR thread_id = $2)
    AND ($3 IS NULL OR status = $3) AND ($4 = 0 OR status IN ({active}))
    AND ($5 IS NULL OR id = $5 OR task_name = $5 OR lower(task_name) = $6)
    AND (created_at, id) < ($7, $8) ORDER BY created_at DESC, id DESC LIMIT $9";

/// Columns of an event. Nothing answers with whatever columns a table has: PostgreSQL fails a prepared statement whose columns
/// have become others, as they would while the next version's migrations run.
pub(super) const EVENT: &str = "sequence, task_id, user_id, thread_id, kind, status, created_at";

/// `$1` user, `$2` thread, `$3` status, `$4` active only, `$5` task, `$6` after, `$7` limit.
pub(super) const EVENT_FILTER: &str = "($1 IS NULL OR user_id = $1) AND ($2 IS NULL OR thread_id = $2)
    AND ($3 IS NULL OR status = $3) AND ($4 = 0 OR status IN ({active})) AND ($5 IS NULL OR task_id = $5)
    AND sequence > $6 ORDER BY sequence LIMIT $7";

impl Sql {
    pub(super) fn template(self) -> Template {
        self.of_workers()
            .or_else(|| self.of_claims())
            .or_else(|| self.of_leases())
            .or_else(|| self.of_intents())
            .or_else(|| self.of_tokens())
            .or_else(|| self.of_keys())
            .or_else(|| self.of_deliveries())
            .unwrap_or_else(|| self.of_queries())
    }

    fn of_leases(self) -> Option<Template> {
        Some(match self {
            Self::Quarantine => Template::same(
                "quarantine",
                "ttti",
                "UPDATE mcp_tasks SET lease_owner = NULL, lease_epoch = lease_epoch + 1, next_due_at = {now_ms} + $4,
                    last_poll_error = $3 WHERE id = $2 AND lease_owner = $1 RETURNING id",
            ),
            Self::Owned => Template::same(
                "owned",
                "t",
                "SELECT id, lease_epoch, status FROM mcp_tasks WHERE lease_owner = $1 ORDER BY id",
            ),
            Self::LoadOwned => Template::same(
                "load_owned",
                "tt",
                "SELECT {tracked} FROM mcp_tasks WHERE lease_owner = $1 AND id IN ({texts:2}) ORDER BY id",
            ),
            Self::Apply => Template::split(
                "apply",
                "tti",
                "WITH input AS MATERIALIZED ({input:2})
                UPDATE mcp_tasks AS t SET {apply_set} FROM input AS i WHERE {apply_guard} RETURNING id, lease_epoch",
                // Rows are locked in id order before any is written, so that shuffled batches cannot deadlock (FAILURES 12).
                "WITH input AS MATERIALIZED ({input:2}),
                locked AS MATERIALIZED (
                    SELECT id FROM mcp_tasks WHERE id IN (SELECT id FROM input) ORDER BY id FOR UPDATE),
                changed AS (UPDATE mcp_tasks AS t SET {apply_set} FROM input AS i JOIN locked ON locked.id = i.id
                    WHERE {apply_guard} RETURNING t.id, t.user_id, t.thread_id, t.lease_epoch),
                emitted AS (INSERT INTO task_events (task_id, user_id, thread_id, kind, status, created_at)
                    SELECT c.id, c.user_id, c.thread_id, e.kind, i.status, i.at FROM changed AS c
                    JOIN input AS i ON i.id = c.id AND i.epoch = c.lease_epoch - 1
                    CROSS JOIN LATERAL json_array_elements_text(i.events) WITH ORDINALITY AS e (kind, place)
                    ORDER BY c.id, e.place)
                SELECT id, lease_epoch FROM changed",
            ),
            Self::InsertEvents => Template::split(
                "insert_events",
                "t",
                "INSERT INTO task_events (task_id, user_id, thread_id, kind, status, created_at)
                SELECT t.id, t.user_id, t.thread_id, json_extract(e.value, '$.kind'), t.status, json_extract(e.value, '$.at')
                FROM json_each($1) AS e JOIN mcp_tasks AS t ON t.id = json_extract(e.value, '$.id') ORDER BY e.key",
                "INSERT INTO task_events (task_id, user_id, thread_id, kind, status, created_at)
                SELECT t.id, t.user_id, t.thread_id, e.kind, t.status, e.at
                FROM json_to_recordset($1::json) AS e (id text, kind text, at bigint) JOIN mcp_tasks AS t ON t.id = e.id",
            ),
            Self::Inspect => Template::same(
                "inspect",
                "t",
                "SELECT id, lease_owner, lease_epoch, status, remote_task_id FROM mcp_tasks WHERE id IN ({texts:1}) ORDER BY id",
            ),
            _ => return None,
        })
    }

    fn of_intents(self) -> Option<Template> {
        Some(match self {
            Self::InsertIntent => Template::same(
                "insert_intent",
                "ttttttttttttittttii",
                "INSERT INTO mcp_tasks (id, lease_owner, user_id, thread_id, run_id, tool_call_id, server_name, driver,
                    task_name, submit_tool, status_tool, cancel_tool, idempotent_submit, input_tool, idempotency_key,
                    body_hash, arguments, next_due_at, created_at, updated_at, status, lease_epoch)
                SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $19,
                    'submitting', 1
                FROM workers WHERE workers.id = $2 AND workers.live = 1 {key_share}
                ON CONFLICT (user_id, thread_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
                RETURNING lease_epoch",
            ),
            Self::FindByKey => Template::same(
                "find_by_key",
                "ttt",
                "SELECT {record} FROM mcp_tasks WHERE user_id = $1 AND thread_id = $2 AND idempotency_key = $3",
            ),
            Self::RecordSubmitted => Template::split(
                "record_submitted",
                "ttitiii",
                "{record_update} RETURNING {tracked}, lease_owner",
                "WITH changed AS ({record_update} RETURNING *),
                emitted AS (INSERT INTO task_events (task_id, user_id, thread_id, kind, status, created_at)
                    SELECT id, user_id, thread_id, status, status, $6 FROM changed)
                SELECT {tracked}, lease_owner FROM changed",
            ),
            Self::DiscardIntent => Template::same(
                "discard_intent",
                "tti",
                "DELETE FROM mcp_tasks WHERE id = $2 AND lease_owner = $1 AND lease_epoch = $3
                    AND status = 'submitting' AND remote_task_id IS NULL RETURNING id",
            ),
            Self::IsTracked => Template::same(
                "is_tracked",
                "tt",
                "SELECT id FROM mcp_tasks WHERE server_name = $1 AND remote_task_id = $2 LIMIT 1",
            ),
            Self::RequestCancel => Template::same(
                "request_cancel",
                "ttti",
                "UPDATE mcp_tasks SET cancel_requested_at = $4, updated_at = $4,
                    lease_epoch = CASE WHEN status = 'submitting' THEN lease_epoch ELSE lease_epoch + 1 END,
                    lease_owner = CASE WHEN status = 'submitting' THEN lease_owner ELSE NULL END,
                    next_due_at = CASE WHEN status = 'submitting' THEN next_due_at ELSE $4 END
                WHERE id = $1 AND ($2 IS NULL OR user_id = $2) AND ($3 IS NULL OR thread_id = $3)
                    AND cancel_requested_at IS NULL AND completed_at IS NULL AND status IN ({active}) RETURNING {record}",
            ),
            Self::MakeDue => Template::same(
                "make_due",
                "ti",
                "UPDATE mcp_tasks SET lease_owner = NULL, lease_epoch = lease_epoch + 1, next_due_at = $2
                WHERE id = $1 AND remote_task_id IS NOT NULL AND completed_at IS NULL AND status IN ({active})
                RETURNING {record}",
            ),
            _ => return None,
        })
    }

    fn of_queries(self) -> Template {
        match self {
            Self::FindTask => Template::same(
                "find_task",
                "ttt",
                "SELECT {record} FROM mcp_tasks
                WHERE id = $1 AND ($2 IS NULL OR user_id = $2) AND ($3 IS NULL OR thread_id = $3)",
            ),
            // One text for each access path: SQLite plans a statement once, without looking at its values.
            Self::TasksOfThread => Template::same(
                "tasks_of_thread",
                "tttittiti",
                "SELECT {record} FROM mcp_tasks WHERE thread_id = $2 AND {task_filter}",
            ),
            Self::TasksOfUser => Template::same(
                "tasks_of_user",
                "tttittiti",
                "SELECT {record} FROM mcp_tasks WHERE user_id = $1 AND {task_filter}",
            ),
            Self::TasksInStatus => Template::same(
                "tasks_in_status",
                "tttittiti",
                "SELECT {record} FROM mcp_tasks WHERE status = $3 AND {task_filter}",
            ),
            Self::TasksActive => Template::same(
                "tasks_active",
                "tttittiti",
                "SELECT {record} FROM mcp_tasks WHERE status IN ({active}) AND {task_filter}",
            ),
            Self::EventsOfTask => Template::same(
                "events_of_task",
                "tttitii",
                "SELECT {now_ms} AS now_ms, {event} FROM task_events WHERE task_id = $5 AND {event_filter}",
            ),
            Self::EventsOfThread => Template::same(
                "events_of_thread",
                "tttitii",
                "SELECT {now_ms} AS now_ms, {event} FROM task_events WHERE thread_id = $2 AND {event_filter}",
            ),
            Self::EventsOfUser => Template::same(
                "events_of_user",
                "tttitii",
                "SELECT {now_ms} AS now_ms, {event} FROM task_events WHERE user_id = $1 AND {event_filter}",
            ),
            Self::Events => Template::same(
                "events",
                "tttitii",
                "SELECT {now_ms} AS now_ms, {event} FROM task_events WHERE {event_filter}",
            ),
            Self::News => Template::same(
                "news",
                "ii",
                "SELECT sequence, task_id, thread_id FROM task_events WHERE sequence > $1 ORDER BY sequence DESC LIMIT $2",
            ),
            // Counts look at no more than a cap of index entries each. The range instead of an equality keeps the order, and with
            // it the planner, on the one index that has it (FAILURES 35).
            Self::CountTasks => Template::same(
                "count_tasks",
                "ti",
                "SELECT s.value AS label, (SELECT count(*) FROM (SELECT 1 FROM mcp_tasks AS t
                    WHERE t.status >= s.value AND t.status <= s.value ORDER BY t.status, t.created_at LIMIT $2) AS bounded)
                    AS total FROM ({texts:1}) AS s",
            ),
            Self::CountDegraded => Template::same(
                "count_degraded",
                "ii",
                "SELECT server_name AS label, count(*) AS total FROM (SELECT server_name FROM mcp_tasks
                    WHERE completed_at IS NULL AND consecutive_poll_error_count > 0
                        AND consecutive_poll_error_count >= $1
                    ORDER BY consecutive_poll_error_count LIMIT $2) AS bounded GROUP BY server_name ORDER BY server_name",
            ),
            Self::CountDue => Template::same(
                "count_due",
                "ii",
                "SELECT count(*) AS total, min(next_due_at) AS oldest FROM (
                    SELECT next_due_at FROM (SELECT next_due_at FROM mcp_tasks WHERE lease_owner IS NULL
                        AND completed_at IS NULL AND cancel_requested_at IS NULL AND next_due_at <= $1
                        ORDER BY next_due_at LIMIT $2) AS polls
                    UNION ALL
                    SELECT next_due_at FROM (SELECT next_due_at FROM mcp_tasks WHERE lease_owner IS NULL
                        AND completed_at IS NULL AND cancel_requested_at IS NOT NULL AND next_due_at <= $1
                        ORDER BY next_due_at LIMIT $2) AS cancels) AS due",
            ),
            // What is quarantined is unowned and due last: the indexes of the claims are read from that end, and no further than
            // a bound.
            Self::FindQuarantined => Template::same(
                "find_quarantined",
                "ii",
                "SELECT id, last_poll_error FROM (
                    SELECT id, last_poll_error FROM (SELECT id, last_poll_error FROM mcp_tasks WHERE lease_owner IS NULL
                        AND completed_at IS NULL AND cancel_requested_at IS NULL AND next_due_at > $1
                        ORDER BY next_due_at DESC LIMIT $2) AS polls
                    UNION ALL
                    SELECT id, last_poll_error FROM (SELECT id, last_poll_error FROM mcp_tasks WHERE lease_owner IS NULL
                        AND completed_at IS NULL AND cancel_requested_at IS NOT NULL AND next_due_at > $1
                        ORDER BY next_due_at DESC LIMIT $2) AS cancels) AS later
                WHERE last_poll_error LIKE 'quarantined: %' ORDER BY id LIMIT 100",
            ),
            Self::CountWorkers => Template::same(
                "count_workers",
                "",
                "SELECT count(*) AS total, CAST(coalesce(sum(polls), 0) AS BIGINT) AS polling FROM workers
                WHERE live = 1 AND lease_expires_at > {now_ms}",
            ),
            // The sizes of files: neither engine reads a row for it.
            Self::CountBytes => Template::split(
                "count_bytes",
                "",
                "SELECT page_count * page_size AS total, freelist_count * page_size AS free
                FROM pragma_page_count(), pragma_page_size(), pragma_freelist_count()",
                "SELECT pg_total_relation_size('mcp_tasks') + pg_total_relation_size('task_events') AS total,
                    CAST(0 AS BIGINT) AS free",
            ),
            // A standby answers SELECT 1 gladly, and can do nothing for us (FAILURES 22).
            Self::Ping => Template::split(
                "ping",
                "",
                "SELECT 0 AS read_only",
                "SELECT CAST(CASE WHEN current_setting('transaction_read_only') = 'on' THEN 1 ELSE 0 END AS BIGINT) AS read_only",
            ),
            Self::SchemaVersion => {
                Template::same("schema_version", "", "SELECT max(version) AS version FROM schema_migrations")
            }
            Self::Generation => Template::same("generation", "t", "SELECT name, value FROM shared_state WHERE name = $1"),
            Self::NextGeneration => Template::same(
                "next_generation",
                "t",
                "INSERT INTO shared_state (name, value) VALUES ($1, 1)
                ON CONFLICT (name) DO UPDATE SET value = shared_state.value + 1 RETURNING name, value",
            ),
            // What is left lists every task.
            _ => Template::same("tasks", "tttittiti", "SELECT {record} FROM mcp_tasks WHERE {task_filter}"),
        }
    }
}
