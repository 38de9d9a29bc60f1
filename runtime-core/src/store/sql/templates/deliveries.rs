//! The statements about deliveries.

use crate::store::sql::statements::{Sql, Template};

/// Columns of a delivery.
pub(in crate::store::sql) const DELIVERY: &str =
    "task_id, sink, sequence, kind, status, event_at, state, attempt_count,
    failure_count, last_error, next_due_at, lease_owner, lease_epoch, updated_at, ended_at";

/// What an enrolment does to the row that a task has for the sink: a newer event bumps the version, and is nothing to a
/// delivery under way (65). `$4` is when an earlier version's next attempt is due at the latest.
pub(in crate::store::sql) const ENROL: &str = "ON CONFLICT (task_id, sink) DO UPDATE SET
        sequence = excluded.sequence, kind = excluded.kind, status = excluded.status, event_at = excluded.event_at,
        state = 'pending', attempt_count = 0, failure_count = 0, last_error = NULL, ended_at = NULL,
        updated_at = excluded.updated_at,
        next_due_at = CASE WHEN d.ended_at IS NOT NULL THEN excluded.next_due_at
            WHEN d.next_due_at > $4 THEN $4 ELSE d.next_due_at END
    WHERE d.sequence < excluded.sequence RETURNING task_id";

/// `$1` worker, `$2` task, `$3` sink, `$4` epoch, `$5` the version that was sent, `$6` state, `$7` attempts, `$8` failures,
/// `$9` error, `$10` next due, `$11` now. A newer version that came meanwhile is pending.
const SETTLE: &str = "UPDATE event_deliveries SET lease_owner = NULL, lease_epoch = lease_epoch + 1,
        state = CASE WHEN sequence > $5 THEN 'pending' ELSE $6 END,
        attempt_count = CASE WHEN sequence > $5 THEN 0 ELSE $7 END,
        failure_count = CASE WHEN sequence > $5 THEN 0 ELSE $8 END,
        last_error = CASE WHEN sequence > $5 THEN NULL ELSE $9 END,
        ended_at = CASE WHEN sequence > $5 OR $6 IN ('pending', 'retry') THEN NULL ELSE $11 END,
        next_due_at = $10, updated_at = $11
    WHERE task_id = $2 AND sink = $3 AND lease_owner = $1 AND lease_epoch = $4 RETURNING state";

impl Sql {
    pub(super) fn of_deliveries(self) -> Option<Template> {
        Some(match self {
            Self::SinkPosition => {
                Template::same("sink_position", "t", "SELECT name, position FROM event_sinks WHERE name = $1")
            }
            Self::OpenSink => Template::same(
                "open_sink",
                "t",
                "INSERT INTO event_sinks (name, position) SELECT $1, coalesce(max(sequence), 0) FROM task_events WHERE TRUE
                ON CONFLICT (name) DO NOTHING RETURNING name",
            ),
            Self::MoveSink => Template::same(
                "move_sink",
                "ti",
                "UPDATE event_sinks SET position = $2 WHERE name = $1 AND position < $2 RETURNING name",
            ),
            Self::EventsBetween => Template::same(
                "events_between",
                "iii",
                "SELECT {event} FROM task_events WHERE sequence > $1 AND sequence < $2 ORDER BY sequence LIMIT $3",
            ),
            // Rows are written in the order of their tasks, so that two replicas cannot deadlock (FAILURES 12).
            Self::Enrol => Template::split(
                "enrol",
                "ttii",
                "INSERT INTO event_deliveries AS d (task_id, sink, sequence, kind, status, event_at, state, attempt_count,
                    failure_count, next_due_at, lease_epoch, updated_at)
                SELECT t.id, $1, json_extract(e.value, '$.sequence'), json_extract(e.value, '$.kind'),
                    json_extract(e.value, '$.status'), json_extract(e.value, '$.event_at'), 'pending', 0, 0, $3, 0, $3
                FROM json_each($2) AS e JOIN mcp_tasks AS t ON t.id = json_extract(e.value, '$.task_id') WHERE TRUE
                {enrol}",
                "INSERT INTO event_deliveries AS d (task_id, sink, sequence, kind, status, event_at, state, attempt_count,
                    failure_count, next_due_at, lease_epoch, updated_at)
                SELECT t.id, $1, e.sequence, e.kind, e.status, e.event_at, 'pending', 0, 0, $3, 0, $3
                FROM json_to_recordset($2::json) AS e (task_id text, sequence bigint, kind text, status text, event_at bigint)
                JOIN mcp_tasks AS t ON t.id = e.task_id ORDER BY t.id {enrol}",
            ),
            Self::Revive => Template::same(
                "revive",
                "tti",
                "UPDATE event_deliveries SET state = 'pending', attempt_count = 0, failure_count = 0, last_error = NULL,
                    ended_at = NULL, next_due_at = $3, updated_at = $3
                WHERE sink = $1 AND task_id IN ({texts:2}) AND ended_at IS NOT NULL RETURNING task_id",
            ),
            Self::ClaimDeliveries => Template::split(
                "claim_deliveries",
                "ttii",
                "UPDATE event_deliveries SET lease_owner = $1, lease_epoch = lease_epoch + 1
                WHERE sink = $2 AND task_id IN (
                    SELECT task_id FROM event_deliveries WHERE lease_owner IS NULL AND ended_at IS NULL AND sink = $2
                        AND next_due_at <= $3 AND EXISTS (SELECT 1 FROM workers WHERE workers.id = $1 AND live = 1)
                    ORDER BY next_due_at, task_id LIMIT $4) RETURNING {delivery}",
                "WITH me AS MATERIALIZED (SELECT id FROM workers WHERE id = $1 AND live = 1 FOR KEY SHARE),
                picked AS MATERIALIZED (
                    SELECT task_id FROM event_deliveries WHERE lease_owner IS NULL AND ended_at IS NULL AND sink = $2
                        AND next_due_at <= $3 AND EXISTS (SELECT 1 FROM me)
                    ORDER BY next_due_at, task_id LIMIT $4 FOR UPDATE SKIP LOCKED)
                UPDATE event_deliveries AS d SET lease_owner = $1, lease_epoch = d.lease_epoch + 1
                WHERE d.sink = $2 AND d.task_id = ANY (ARRAY(SELECT task_id FROM picked)) RETURNING {delivery}",
            ),
            Self::SettleDelivery => Template::same("settle_delivery", "tttiitiitii", SETTLE),
            Self::MendDeliveries => Template::same(
                "mend_deliveries",
                "tttii",
                "UPDATE event_deliveries SET lease_owner = NULL, lease_epoch = lease_epoch + 1,
                    next_due_at = CASE WHEN next_due_at > $4 + $5 THEN $4 ELSE next_due_at END
                WHERE sink = $2 AND ((lease_owner = $1 AND task_id NOT IN ({texts:3}))
                    OR (lease_owner IS NULL AND ended_at IS NULL AND next_due_at > $4 + $5)) RETURNING task_id",
            ),
            Self::DeliveriesOf => Template::same(
                "deliveries_of",
                "t",
                "SELECT {delivery} FROM event_deliveries WHERE task_id = $1 ORDER BY sink",
            ),
            Self::CountDeliveries => Template::same(
                "count_deliveries",
                "ti",
                "SELECT s.value AS label, (SELECT count(*) FROM (SELECT 1 FROM event_deliveries AS d
                        WHERE d.sink = s.value AND d.ended_at IS NULL ORDER BY d.event_at LIMIT $2) AS bounded) AS total,
                    (SELECT min(d.event_at) FROM event_deliveries AS d WHERE d.sink = s.value AND d.ended_at IS NULL)
                        AS oldest
                FROM ({texts:1}) AS s",
            ),
            _ => return None,
        })
    }
}
