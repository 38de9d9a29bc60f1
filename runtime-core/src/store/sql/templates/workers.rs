//! The register of workers, takeover, and what is brought back or deleted.

use crate::store::sql::statements::{Sql, Template};

impl Sql {
    pub(super) fn of_workers(self) -> Option<Template> {
        Some(match self {
            Self::Register => Template::same(
                "register",
                "ttittii",
                "INSERT INTO workers (id, host, pid, role, version, polls, lease_ms, live, heartbeat_count,
                    lease_expires_at, started_at, held)
                VALUES ($1, $2, $3, $4, $5, $6, $7, 1, 0, {now_ms} + $7, {now_ms}, 0) RETURNING started_at AS now_ms",
            ),
            Self::Heartbeat => Template::same(
                "heartbeat",
                "ti",
                "UPDATE workers SET lease_expires_at = {now_ms} + lease_ms, heartbeat_count = heartbeat_count + 1, held = $2
                WHERE id = $1 AND live = 1 RETURNING lease_expires_at - lease_ms AS now_ms",
            ),
            Self::Workers => Template::same(
                "workers",
                "",
                "SELECT n.now_ms, w.id, w.host, w.pid, w.role, w.version, w.polls, w.lease_ms, w.live, w.heartbeat_count,
                    w.lease_expires_at, w.started_at, w.held
                FROM (SELECT {now_ms} AS now_ms) AS n LEFT JOIN workers AS w ON TRUE ORDER BY w.started_at, w.id",
            ),
            // FOR UPDATE conflicts with the KEY SHARE of claims and intents, while a heartbeat's own lock does not:
            // a claim and this serialise, and heartbeats wait for neither.
            Self::MarkDead => Template::split(
                "mark_dead",
                "tti",
                "UPDATE workers SET live = 0 WHERE id = $2 AND live = 1 AND ($3 IS NULL OR heartbeat_count = $3)
                    AND EXISTS (SELECT 1 FROM workers AS marker WHERE marker.id = $1 AND marker.live = 1)
                RETURNING id",
                "WITH marker AS MATERIALIZED (SELECT id FROM workers WHERE id = $1 AND live = 1 FOR KEY SHARE),
                target AS MATERIALIZED (
                    SELECT id FROM workers WHERE id = $2 AND live = 1 AND ($3 IS NULL OR heartbeat_count = $3)
                        AND EXISTS (SELECT 1 FROM marker) FOR UPDATE)
                UPDATE workers AS w SET live = 0 FROM target WHERE w.id = target.id AND w.live = 1
                    AND ($3 IS NULL OR w.heartbeat_count = $3) RETURNING w.id",
            ),
            Self::FreeDead => Template::split(
                "free_dead",
                "iii",
                "UPDATE mcp_tasks SET lease_owner = NULL, lease_epoch = lease_epoch + 1,
                    next_due_at = max(next_due_at, $1 + abs(random() % max($3, 1)))
                WHERE id IN (SELECT id FROM mcp_tasks
                    WHERE lease_owner IN (SELECT id FROM workers WHERE live = 0) LIMIT $2) RETURNING id",
                "WITH picked AS MATERIALIZED (
                    SELECT id FROM mcp_tasks WHERE lease_owner IN (SELECT id FROM workers WHERE live = 0)
                    LIMIT $2 FOR UPDATE SKIP LOCKED)
                UPDATE mcp_tasks AS t SET lease_owner = NULL, lease_epoch = t.lease_epoch + 1,
                    next_due_at = GREATEST(t.next_due_at, $1 + floor(random() * $3)::bigint)
                WHERE t.id = ANY (ARRAY(SELECT id FROM picked)) RETURNING t.id",
            ),
            Self::CorrectTasks => Template::split(
                "correct_tasks",
                "iii",
                "UPDATE mcp_tasks SET lease_epoch = lease_epoch + 1,
                    next_due_at = {now_ms} + abs(random() % max($3, 1))
                WHERE id IN (SELECT id FROM (SELECT id FROM mcp_tasks WHERE {far} AND cancel_requested_at IS NULL
                        ORDER BY next_due_at DESC LIMIT $2)
                    UNION ALL SELECT id FROM (SELECT id FROM mcp_tasks WHERE {far} AND cancel_requested_at IS NOT NULL
                        ORDER BY next_due_at DESC LIMIT $2)) RETURNING id",
                "WITH polls AS MATERIALIZED (SELECT id FROM mcp_tasks WHERE {far} AND cancel_requested_at IS NULL
                    ORDER BY next_due_at DESC LIMIT $2 FOR UPDATE SKIP LOCKED),
                cancels AS MATERIALIZED (SELECT id FROM mcp_tasks WHERE {far} AND cancel_requested_at IS NOT NULL
                    ORDER BY next_due_at DESC LIMIT $2 FOR UPDATE SKIP LOCKED)
                UPDATE mcp_tasks AS t SET lease_epoch = t.lease_epoch + 1,
                    next_due_at = {now_ms} + floor(random() * $3)::bigint
                WHERE t.id = ANY (ARRAY(SELECT id FROM polls UNION ALL SELECT id FROM cancels)) RETURNING t.id",
            ),
            Self::CorrectLeases => Template::same(
                "correct_leases",
                "i",
                "UPDATE workers SET lease_expires_at = {now_ms} + CASE WHEN lease_ms < $1 THEN lease_ms ELSE $1 END
                WHERE live = 1 AND lease_expires_at > {now_ms} + $1 RETURNING id",
            ),
            Self::DeleteDead => Template::same(
                "delete_dead",
                "",
                "DELETE FROM workers WHERE live = 0
                    AND NOT EXISTS (SELECT 1 FROM mcp_tasks WHERE mcp_tasks.lease_owner = workers.id) RETURNING id",
            ),
            Self::Ended => Template::same(
                "ended",
                "ii",
                "SELECT id FROM mcp_tasks WHERE completed_at IS NOT NULL AND completed_at < $1
                ORDER BY completed_at, id LIMIT $2",
            ),
            Self::PruneEvents => Template::same(
                "prune_events",
                "t",
                "DELETE FROM task_events WHERE task_id IN ({texts:1}) RETURNING sequence",
            ),
            Self::PruneTasks => Template::same(
                "prune_tasks",
                "t",
                "DELETE FROM mcp_tasks WHERE id IN ({texts:1}) AND completed_at IS NOT NULL RETURNING id",
            ),
            _ => return None,
        })
    }
}
