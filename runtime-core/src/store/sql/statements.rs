//! The catalogue: every statement of the store, for both dialects.
//!
//! Placeholders are `$1`-style on both engines. A batch travels as one JSON text. `{fragments}` stand for what the dialects
//! spell differently and are expanded once, at start. A statement of several steps is one statement on PostgreSQL
//! (data-modifying CTEs, one round trip) and an immediate transaction on SQLite.

use std::sync::Arc;

use super::templates;
use crate::task::Status;

/// The two SQL dialects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Sqlite,
    Postgres,
}

/// A statement's text before expansion.
#[derive(Debug, Clone, Copy)]
pub(super) struct Template {
    /// Its name in errors and logs.
    pub(super) name: &'static str,
    /// Its parameters in order: `t` text, `i` integer.
    pub(super) parameters: &'static str,
    pub(super) sqlite: &'static str,
    pub(super) postgres: &'static str,
}

impl Template {
    /// The same text for both.
    pub(super) const fn same(name: &'static str, parameters: &'static str, sql: &'static str) -> Self {
        Self { name, parameters, sqlite: sql, postgres: sql }
    }

    /// A text for each.
    pub(super) const fn split(
        name: &'static str,
        parameters: &'static str,
        sqlite: &'static str,
        postgres: &'static str,
    ) -> Self {
        Self { name, parameters, sqlite, postgres }
    }
}

macro_rules! catalogue {
    ($($name:ident),+ $(,)?) => {
        /// A statement of the catalogue.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Sql { $($name),+ }

        impl Sql {
            pub(super) const ALL: &'static [Self] = &[$(Self::$name),+];
        }
    };
}

catalogue! {
    Register, Heartbeat, Workers, MarkDead, FreeDead, CorrectTasks, CorrectLeases, DeleteDead, Ended, PruneEvents, PruneTasks,
    ClaimPolls, ClaimCancels, ClaimPollsOf, ClaimCancelsOf, Quarantine, Owned, LoadOwned, Apply, InsertEvents, Inspect,
    InsertIntent, FindByKey, RecordSubmitted, DiscardIntent, IsTracked, RequestCancel, MakeDue,
    CountBytes,
    FindTask, TasksOfThread, TasksOfUser, TasksInStatus, TasksActive, Tasks,
    EventsOfTask, EventsOfThread, EventsOfUser, Events, News,
    CountTasks, CountDegraded, CountDue, FindQuarantined, CountWorkers, Ping, SchemaVersion, Generation, NextGeneration,
    FindChain, ClaimRefresh, RenewRefresh, ReleaseRefresh, SaveChain, RetainChains,
    InsertKey, FindKey, ListKeys, RevokeKey, TouchKey,
    SinkPosition, OpenSink, MoveSink, EventsBetween, Enrol, Revive, ClaimDeliveries, SettleDelivery, MendDeliveries,
    DeliveriesOf, CountDeliveries,
}

/// The expanded texts of one dialect.
#[derive(Debug)]
pub(super) struct Catalogue(Vec<Arc<str>>);

impl Catalogue {
    pub(super) fn new(dialect: Dialect) -> Self {
        Self(Sql::ALL.iter().map(|sql| expand(sql.template(), dialect).into()).collect())
    }

    pub(super) fn text(&self, sql: Sql) -> Arc<str> {
        Arc::clone(&self.0[sql as usize])
    }
}

/// Columns of a [`crate::task::Tracked`].
const TRACKED: &str = "id, user_id, thread_id, server_name, driver, task_name, submit_tool, status_tool, cancel_tool, \
    input_tool, idempotent_submit, remote_task_id, status, snapshot_digest, event_fingerprint, next_due_at, \
    poll_attempt_count, consecutive_poll_error_count, last_polled_at, cancel_requested_at, cancel_attempt_count, \
    lease_epoch, created_at";

/// What a [`crate::task::TaskRecord`] has besides.
const PAYLOAD: &str = "run_id, tool_call_id, result, result_preview, result_truncated, result_artifact, error, \
    error_code, input_required, last_poll_error, last_cancel_error, lease_owner, idempotency_key, body_hash, arguments, \
    updated_at, completed_at";

/// The fields of a write as they travel in JSON; see `input.rs`. Integers are marked.
const INPUT: &[(&str, bool)] = &[
    ("id", false),
    ("epoch", true),
    ("status", false),
    ("terminal", true),
    ("has_outcome", true),
    ("result", false),
    ("result_preview", false),
    ("result_truncated", true),
    ("result_artifact", false),
    ("error", false),
    ("error_code", false),
    ("input_required", false),
    ("snapshot_digest", false),
    ("next_due_at", true),
    ("poll_attempt_count", true),
    ("consecutive_poll_error_count", true),
    ("last_polled_at", true),
    ("has_poll_error", true),
    ("last_poll_error", false),
    ("cancel_attempt_count", true),
    ("has_cancel_error", true),
    ("last_cancel_error", false),
    ("event_fingerprint", false),
    ("completed_at", true),
    ("release", true),
    ("at", true),
];

fn expand(template: Template, dialect: Dialect) -> String {
    let text = match dialect {
        Dialect::Sqlite => template.sqlite,
        Dialect::Postgres => template.postgres,
    };
    let active: Vec<String> =
        Status::ALL.iter().filter(|status| !status.is_terminal()).map(|status| format!("'{status}'")).collect();
    let mut text = text
        .replace("{record_update}", templates::RECORD_UPDATE)
        .replace("{apply_set}", templates::APPLY_SET)
        .replace("{apply_guard}", templates::APPLY_GUARD)
        .replace("{task_filter}", templates::TASK_FILTER)
        .replace("{event_filter}", templates::EVENT_FILTER)
        .replace("{claimable_any}", templates::CLAIMABLE_ANY)
        .replace("{claimable}", templates::CLAIMABLE)
        .replace("{far}", templates::FAR)
        .replace("{record}", &format!("{TRACKED}, {PAYLOAD}"))
        .replace("{tracked}", TRACKED)
        .replace("{chain}", templates::tokens::CHAIN)
        .replace("{event}", templates::EVENT)
        .replace("{key}", templates::keys::KEY)
        .replace("{delivery}", templates::deliveries::DELIVERY)
        .replace("{enrol}", templates::deliveries::ENROL)
        .replace("{active}", &active.join(", "));
    for parameter in 1..=9 {
        text = text
            .replace(&format!("{{texts:{parameter}}}"), &texts(parameter, dialect))
            .replace(&format!("{{input:{parameter}}}"), &input(parameter, dialect));
    }
    let (now_ms, key_share, unindexed) = match dialect {
        Dialect::Sqlite => ("CAST(unixepoch('subsec') * 1000 AS INTEGER)", "", "+"),
        Dialect::Postgres => ("(extract(epoch FROM clock_timestamp()) * 1000)::bigint", "FOR KEY SHARE", ""),
    };
    text.replace("{now_ms}", now_ms).replace("{key_share}", key_share).replace("{unindexed}", unindexed)
}

/// The strings of a JSON array, one a row, as `value`.
fn texts(parameter: usize, dialect: Dialect) -> String {
    match dialect {
        Dialect::Sqlite => format!("SELECT value FROM json_each(${parameter})"),
        Dialect::Postgres => format!("SELECT value FROM json_array_elements_text(${parameter}::json)"),
    }
}

/// The writes of a batch, one a row.
fn input(parameter: usize, dialect: Dialect) -> String {
    let columns = |column: fn(&str, bool) -> String| {
        INPUT.iter().map(|&(name, integer)| column(name, integer)).collect::<Vec<_>>().join(", ")
    };
    match dialect {
        Dialect::Sqlite => {
            let columns = columns(|name, _| format!("json_extract(value, '$.{name}') AS {name}"));
            format!("SELECT {columns} FROM json_each(${parameter})")
        }
        Dialect::Postgres => {
            let columns = columns(|name, integer| format!("{name} {}", if integer { "bigint" } else { "text" }));
            format!("SELECT * FROM json_to_recordset(${parameter}::json) AS fields ({columns}, events json)")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fragment_is_expanded_and_every_parameter_is_used() {
        for dialect in [Dialect::Sqlite, Dialect::Postgres] {
            let catalogue = Catalogue::new(dialect);
            for &sql in Sql::ALL {
                let text = catalogue.text(sql);
                let name = sql.template().name;
                assert!(!text.contains('{'), "{name}: {text}");
                let count = sql.template().parameters.len();
                for parameter in 1..=count {
                    assert!(text.contains(&format!("${parameter}")), "{name} does not use ${parameter}");
                }
                assert!(!text.contains(&format!("${}", count + 1)), "{name} uses more than it declares");
            }
        }
    }

    #[test]
    fn no_two_statements_share_a_name() {
        let mut names: Vec<_> = Sql::ALL.iter().map(|sql| sql.template().name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Sql::ALL.len());
    }
}
