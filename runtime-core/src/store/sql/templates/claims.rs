//! Claims: of what is due soonest, whichever server's it is, and of listed servers alone.

use crate::store::sql::statements::{Sql, Template};

/// A claim of the rows that `$sqlite` and `$postgres` pick.
///
/// The limit's rows are picked once, into an array: a join could run the pick again for each row (FAILURES 10), and might scan
/// the whole table where a prepared plan does not know the limit.
macro_rules! claim {
    ($name:literal, $parameters:literal, $sqlite:expr, $postgres:expr) => {
        Template::split(
            $name,
            $parameters,
            concat!(
                "UPDATE mcp_tasks SET lease_owner = $1, lease_epoch = lease_epoch + 1 WHERE id IN (",
                $sqlite,
                ") RETURNING {tracked}"
            ),
            concat!(
                "WITH me AS MATERIALIZED (SELECT id FROM workers WHERE id = $1 AND live = 1 FOR KEY SHARE),
                picked AS MATERIALIZED (",
                $postgres,
                "),
                taken AS (UPDATE mcp_tasks AS t SET lease_owner = $1, lease_epoch = t.lease_epoch + 1
                    WHERE t.id = ANY (ARRAY(SELECT id FROM picked)) RETURNING t.*)
                SELECT {tracked} FROM taken"
            ),
        )
    };
}

/// `$1` worker, `$2` servers, `$3` due before, `$4` due before for any server but `$6` and any driver but `$7`, `$5` limit.
macro_rules! claim_any {
    ($name:literal, $cancel:literal) => {
        claim!(
            $name,
            "ttiiitt",
            concat!(
                "SELECT id FROM mcp_tasks WHERE {claimable_any} AND cancel_requested_at ",
                $cancel,
                " AND EXISTS (SELECT 1 FROM workers WHERE workers.id = $1 AND live = 1)
                ORDER BY next_due_at, id LIMIT $5"
            ),
            concat!(
                "SELECT id FROM mcp_tasks WHERE {claimable_any} AND cancel_requested_at ",
                $cancel,
                " AND EXISTS (SELECT 1 FROM me)
                ORDER BY next_due_at, id LIMIT $5 FOR UPDATE SKIP LOCKED"
            )
        )
    };
}

/// `$1` worker, `$2` servers, `$3` due before, `$4` limit, `$5` drivers.
///
/// Each server's index entries are read from their own beginning, no further than the limit: what waits of the others, be it
/// hundreds of thousands of rows, is not looked at (FAILURES 42). To PostgreSQL the drivers are an array, a mere filter: a
/// subquery would be a join, of which it expects so much work that it would compile the statement.
macro_rules! claim_of {
    ($name:literal, $cancel:literal) => {
        claim!(
            $name,
            "ttiit",
            concat!(
                "SELECT t.id FROM ({texts:2}) AS s JOIN mcp_tasks AS t ON t.id IN (
                    SELECT id FROM mcp_tasks WHERE server_name = s.value AND server_name <> '' AND {claimable} AND cancel_requested_at ",
                $cancel,
                " AND driver IN ({texts:5}) ORDER BY next_due_at, id LIMIT $4)
                WHERE EXISTS (SELECT 1 FROM workers WHERE workers.id = $1 AND live = 1)
                ORDER BY t.next_due_at, t.id LIMIT $4"
            ),
            concat!(
                "SELECT t.id FROM ({texts:2}) AS s CROSS JOIN LATERAL (
                    SELECT id, next_due_at FROM mcp_tasks
                    WHERE server_name = s.value AND server_name <> '' AND {claimable} AND cancel_requested_at ",
                $cancel,
                " AND driver = ANY (ARRAY({texts:5})) AND EXISTS (SELECT 1 FROM me)
                    ORDER BY next_due_at, id LIMIT $4 FOR UPDATE SKIP LOCKED) AS t
                ORDER BY t.next_due_at, t.id LIMIT $4"
            )
        )
    };
}

impl Sql {
    pub(super) fn of_claims(self) -> Option<Template> {
        Some(match self {
            Self::ClaimPolls => claim_any!("claim_polls", "IS NULL"),
            Self::ClaimCancels => claim_any!("claim_cancels", "IS NOT NULL"),
            Self::ClaimPollsOf => claim_of!("claim_polls_of", "IS NULL"),
            Self::ClaimCancelsOf => claim_of!("claim_cancels_of", "IS NOT NULL"),
            _ => return None,
        })
    }
}
