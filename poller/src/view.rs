//! Tasks, events and workers as JSON for those who ask (INTERFACE, REST; BEHAVIOURS 71–75).
//!
//! Users never see the remote id, tool names, lease fields or a user id; operators see some of them.

use std::collections::BTreeMap;

use mcp_taskd_core::clock::Millis;
use mcp_taskd_core::store::{Delivery, DeliveryState, EventRecord, StoreStats, WorkerRecord};
use mcp_taskd_core::task::limits::{PUBLIC_ERROR_MAX_CHARS, clip};
use mcp_taskd_core::task::{Json, Policy, Status, TaskRecord};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::value::RawValue;
use time::OffsetDateTime;
use time::macros::format_description;

/// RFC 3339 in UTC with milliseconds.
pub fn rfc3339(at: Millis) -> String {
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(at) * 1_000_000)
        .ok()
        .and_then(|time| time.format(format).ok())
        .unwrap_or_else(|| "1970-01-01T00:00:00.000Z".into())
}

/// A task in a list.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Task")]
pub struct Item<'a> {
    task_id: &'a str,
    task_name: &'a str,
    #[schemars(schema_with = "status_schema")]
    status: Status,
    #[schemars(schema_with = "time_schema")]
    created_at: String,
    #[schemars(schema_with = "time_schema")]
    updated_at: String,
    error: Option<String>,
    tracking_degraded: bool,
    cancel_requested: bool,
}

/// A task on its own.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TaskDetail")]
pub struct Detail<'a> {
    #[serde(flatten)]
    item: Item<'a>,
    server_name: &'a str,
    #[schemars(schema_with = "maybe_time_schema")]
    last_polled_at: Option<String>,
    #[schemars(schema_with = "maybe_time_schema")]
    next_poll_at: Option<String>,
    last_poll_error: Option<String>,
    last_cancel_error: Option<String>,
    poll_attempt_count: i64,
    consecutive_poll_error_count: i64,
    cancel_attempt_count: i64,
    /// How its events' deliveries stand, of several sinks the one that is furthest from delivered.
    #[schemars(schema_with = "notification_schema")]
    notification_status: &'static str,
    notification_error: Option<String>,
    notification_attempt_count: i64,
    /// Whatever the server answered, exactly.
    #[schemars(with = "serde_json::Value")]
    result: Option<&'a Json>,
    result_preview: Option<&'a str>,
    result_truncated: bool,
    #[schemars(with = "serde_json::Value")]
    result_artifact: Option<&'a Json>,
    #[schemars(with = "serde_json::Value")]
    input_required: Option<&'a Json>,
    error_code: Option<&'a str>,
    #[schemars(schema_with = "maybe_time_schema")]
    completed_at: Option<String>,
}

/// A task with what only operators see.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Operator{T}")]
pub struct Operator<'a, T> {
    #[serde(flatten)]
    task: T,
    user_id: &'a str,
    thread_id: &'a str,
    remote_task_id: Option<&'a str>,
    lease_owner: Option<&'a str>,
}

/// How the deliveries of a task's events stand (70).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    status: &'static str,
    error: Option<String>,
    attempt_count: i64,
}

/// Nobody is to hear of the task.
impl Default for Notification {
    fn default() -> Self {
        Self { status: "none", error: None, attempt_count: 0 }
    }
}

impl Notification {
    /// Of several sinks, the one that is furthest from delivered.
    pub fn of(deliveries: &[Delivery]) -> Self {
        let distance = |delivery: &&Delivery| {
            let state = match delivery.state {
                DeliveryState::DeadLetter => 4,
                DeliveryState::Retry => 3,
                DeliveryState::Pending => 1,
                DeliveryState::Delivered => 0,
            };
            (if delivery.lease_owner.is_some() { state.min(2) } else { state }, delivery.attempt_count)
        };
        deliveries.iter().max_by_key(distance).map(Self::one).unwrap_or_default()
    }

    /// Of the delivery that is just being made.
    pub fn under_way(delivery: &Delivery) -> Self {
        Self { status: "claimed", ..Self::one(delivery) }
    }

    fn one(delivery: &Delivery) -> Self {
        let status = if delivery.lease_owner.is_some() { "claimed" } else { delivery.state.as_str() };
        Self { status, error: delivery.last_error.clone(), attempt_count: delivery.attempt_count }
    }
}

/// A list item.
pub fn item<'a>(task: &'a TaskRecord, policy: &Policy) -> Item<'a> {
    Item {
        task_id: &task.id,
        task_name: &task.binding.toolset.name,
        status: task.status,
        created_at: rfc3339(task.created_at),
        updated_at: rfc3339(task.updated_at),
        error: public_error(task.outcome.error.as_deref()),
        tracking_degraded: task.degraded(policy),
        cancel_requested: task.cancel_requested_at.is_some(),
    }
}

/// A task's detail.
pub fn detail<'a>(task: &'a TaskRecord, policy: &Policy, notification: &Notification) -> Detail<'a> {
    Detail {
        item: item(task, policy),
        server_name: &task.binding.server_name,
        last_polled_at: task.last_polled_at.map(rfc3339),
        next_poll_at: (!task.status.is_terminal()).then(|| rfc3339(task.next_due_at)),
        last_poll_error: public_error(task.last_poll_error.as_deref()),
        last_cancel_error: public_error(task.last_cancel_error.as_deref()),
        poll_attempt_count: task.poll_attempt_count,
        consecutive_poll_error_count: task.consecutive_poll_error_count,
        cancel_attempt_count: task.cancel_attempt_count,
        notification_status: notification.status,
        notification_error: public_error(notification.error.as_deref()),
        notification_attempt_count: notification.attempt_count,
        result: task.outcome.result.as_ref(),
        result_preview: task.outcome.result_preview.as_deref(),
        result_truncated: task.outcome.result_truncated,
        result_artifact: task.outcome.result_artifact.as_ref(),
        input_required: task.outcome.input_required.as_ref(),
        error_code: task.outcome.error_code.as_deref(),
        completed_at: task.completed_at.map(rfc3339),
    }
}

/// A list item for operators.
pub fn operator_item<'a>(task: &'a TaskRecord, policy: &Policy) -> Operator<'a, Item<'a>> {
    operator(task, item(task, policy))
}

/// A detail for operators.
pub fn operator_detail<'a>(
    task: &'a TaskRecord,
    policy: &Policy,
    notification: &Notification,
) -> Operator<'a, Detail<'a>> {
    operator(task, detail(task, policy, notification))
}

fn operator<T>(record: &TaskRecord, task: T) -> Operator<'_, T> {
    Operator {
        task,
        user_id: &record.user_id,
        thread_id: &record.thread_id,
        remote_task_id: record.remote_task_id.as_deref(),
        lease_owner: record.lease_owner.as_deref(),
    }
}

/// An event, as `events list` and server-sent events show it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Event<'a> {
    sequence: i64,
    task_id: &'a str,
    kind: &'a str,
    status: &'a str,
    #[schemars(schema_with = "time_schema")]
    created_at: String,
}

/// An event.
pub fn event(event: &EventRecord) -> Event<'_> {
    Event {
        sequence: event.sequence,
        task_id: &event.task_id,
        kind: &event.kind,
        status: &event.status,
        created_at: rfc3339(event.created_at),
    }
}

/// A worker, for operators.
#[expect(clippy::struct_field_names, reason = "the JSON's names")]
#[derive(Debug, Serialize, JsonSchema)]
pub struct Worker<'a> {
    worker_id: &'a str,
    host: &'a str,
    pid: i64,
    role: &'a str,
    version: &'a str,
    live: bool,
    polls: bool,
    held: i64,
    #[schemars(schema_with = "time_schema")]
    started_at: String,
    #[schemars(schema_with = "time_schema")]
    lease_expires_at: String,
    lease_seconds: f64,
    heartbeat_count: i64,
}

/// A worker.
pub fn worker(worker: &WorkerRecord) -> Worker<'_> {
    Worker {
        worker_id: &worker.info.id,
        host: &worker.info.host,
        pid: worker.info.pid,
        role: &worker.info.role,
        version: &worker.info.version,
        live: worker.live,
        polls: worker.info.polls,
        held: worker.held,
        started_at: rfc3339(worker.started_at),
        lease_expires_at: rfc3339(worker.lease_expires_at),
        lease_seconds: worker.info.lease_ms as f64 / 1_000.0,
        heartbeat_count: worker.heartbeat_count,
    }
}

/// The figures of a store, for operators.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Stats {
    /// Tasks by status.
    tasks: BTreeMap<String, i64>,
    active: i64,
    /// Tasks whose tracking is degraded, by server.
    degraded: BTreeMap<String, i64>,
    due: i64,
    #[schemars(schema_with = "maybe_time_schema")]
    oldest_due_at: Option<String>,
    workers_live: i64,
    workers_polling: i64,
    /// Rows that cannot be read, at most 100 of them.
    quarantined: Vec<Quarantined>,
}

/// A row that cannot be read.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Quarantined {
    task_id: String,
    column: String,
    reason: Option<String>,
}

/// The figures of a store.
pub fn stats(stats: &StoreStats) -> Stats {
    Stats {
        tasks: stats.tasks.iter().cloned().collect(),
        active: stats.active,
        degraded: stats.degraded.iter().cloned().collect(),
        due: stats.due,
        oldest_due_at: stats.oldest_due_at.map(rfc3339),
        workers_live: stats.workers_live,
        workers_polling: stats.workers_polling,
        quarantined: stats
            .quarantined
            .iter()
            .map(|row| Quarantined {
                task_id: row.task_id.clone(),
                column: row.column.clone(),
                reason: public_error(Some(&row.reason)),
            })
            .collect(),
    }
}

/// A status.
pub fn status_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": Status::ALL.map(Status::as_str) })
}

/// What `claimed` stands for besides is the exchange itself, which rule 70 calls `dispatched`.
fn notification_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "enum": ["none", "pending", "claimed", "retry", "delivered", "dead_letter"] })
}

fn time_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

fn maybe_time_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": ["string", "null"], "format": "date-time" })
}

/// The exact text of anything that serialises.
pub fn raw(value: &impl Serialize) -> Box<RawValue> {
    // Only a corrupt row can fail here: stored text that is no JSON.
    serde_json::value::to_raw_value(value).unwrap_or_else(|error| {
        tracing::error!(%error, "a stored document is not JSON");
        RawValue::NULL.to_owned()
    })
}

/// An error text as it may be shown: at most 500 characters (25).
pub fn public_error(text: Option<&str>) -> Option<String> {
    text.map(|text| clip(text, PUBLIC_ERROR_MAX_CHARS))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use mcp_taskd_core::task::{Binding, Outcome, Toolset, Tracked};

    use super::*;

    /// A task to show in tests.
    pub(crate) fn task(id: &str) -> TaskRecord {
        let toolset = Toolset::new("report", "start_report", "report_status", "report_cancel");
        let binding = Binding { server_name: "reports".into(), driver: "tools".into(), toolset };
        TaskRecord {
            tracked: Tracked {
                remote_task_id: Some("remote-secret".into()),
                status: Status::Working,
                next_due_at: 1_800_000_005_000,
                poll_attempt_count: 4,
                consecutive_poll_error_count: 3,
                last_polled_at: Some(1_800_000_000_123),
                lease_epoch: 7,
                created_at: 1_800_000_000_000,
                ..Tracked::new(id, "ada", "t1", Arc::new(binding))
            },
            run_id: None,
            tool_call_id: None,
            outcome: Outcome::default(),
            last_poll_error: None,
            last_cancel_error: None,
            lease_owner: Some("host-1".into()),
            idempotency_key: None,
            body_hash: None,
            arguments: None,
            updated_at: 1_800_000_001_000,
            completed_at: None,
        }
    }

    #[test]
    fn times_are_rfc3339_in_utc_with_milliseconds() {
        assert_eq!(rfc3339(1_800_000_000_123), "2027-01-15T08:00:00.123Z");
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
    }

    #[test]
    fn an_item_shows_what_71_lists_and_nothing_else_73() {
        let text = raw(&item(&task("mcp-task-1"), &Policy::default())).get().to_owned();
        assert_eq!(
            text,
            r#"{"task_id":"mcp-task-1","task_name":"report","status":"working","created_at":"2027-01-15T08:00:00.000Z","updated_at":"2027-01-15T08:00:01.000Z","error":null,"tracking_degraded":true,"cancel_requested":false}"#
        );
    }

    #[test]
    fn a_detail_adds_what_72_lists_and_hides_what_73_forbids() {
        let mut task = task("mcp-task-1");
        task.outcome.result = Some(Json::parse(r#"{"n":12345678901234567890.10}"#).unwrap());
        task.outcome.error = Some("e".repeat(600));
        let text = raw(&detail(&task, &Policy::default(), &Notification::default())).get().to_owned();
        assert!(text.contains(r#""result":{"n":12345678901234567890.10}"#), "exact digits (151): {text}");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["error"].as_str().unwrap().chars().count(), 500);
        assert_eq!(value["notification_status"], "none");
        assert_eq!(value["notification_attempt_count"], 0);
        assert_eq!(value["next_poll_at"], "2027-01-15T08:00:05.000Z");
        let keys: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            keys.join(" "),
            "task_id task_name status created_at updated_at error tracking_degraded cancel_requested server_name \
             last_polled_at next_poll_at last_poll_error last_cancel_error poll_attempt_count \
             consecutive_poll_error_count cancel_attempt_count notification_status notification_error \
             notification_attempt_count result result_preview result_truncated result_artifact input_required \
             error_code completed_at"
        );
        for hidden in ["remote-secret", "start_report", "report_status", "host-1", "ada"] {
            assert!(!text.contains(hidden), "{hidden} is not for users");
        }
    }

    #[test]
    fn of_several_sinks_the_one_furthest_from_delivered_is_shown_70() {
        let row = crate::delivery::tests::delivery();
        let of = |state, lease_owner: Option<&str>| Delivery {
            state,
            lease_owner: lease_owner.map(Into::into),
            last_error: Some("e".repeat(600)),
            attempt_count: 2,
            ..row.clone()
        };
        let delivered = of(DeliveryState::Delivered, None);
        let status = |deliveries: &[Delivery]| Notification::of(deliveries).status;
        assert_eq!(status(&[]), "none");
        assert_eq!(status(std::slice::from_ref(&delivered)), "delivered");
        assert_eq!(status(&[of(DeliveryState::Pending, None), delivered.clone()]), "pending");
        assert_eq!(status(&[delivered.clone(), of(DeliveryState::Retry, Some("w"))]), "claimed");
        assert_eq!(status(&[of(DeliveryState::Retry, None), of(DeliveryState::Pending, Some("w"))]), "retry");
        let dead = Notification::of(&[delivered, of(DeliveryState::DeadLetter, None)]);
        assert_eq!((dead.status, dead.attempt_count), ("dead_letter", 2));
        let task = task("mcp-task-1");
        let shown = serde_json::to_value(detail(&task, &Policy::default(), &dead)).unwrap();
        assert_eq!(shown["notification_error"].as_str().unwrap().len(), 500);
    }

    #[test]
    fn operators_see_the_owner_and_the_remote_id_too() {
        let mut task = task("mcp-task-1");
        task.outcome.result = Some(Json::parse("1e400").unwrap());
        let text = raw(&operator_detail(&task, &Policy::default(), &Notification::default())).get().to_owned();
        assert!(text.contains(r#""result":1e400"#));
        let tail = r#""user_id":"ada","thread_id":"t1","remote_task_id":"remote-secret","lease_owner":"host-1"}"#;
        assert!(text.ends_with(tail), "{text}");
    }

    #[test]
    fn an_ended_task_has_no_next_poll() {
        let mut task = task("mcp-task-1");
        task.tracked.status = Status::Completed;
        let value = serde_json::to_value(detail(&task, &Policy::default(), &Notification::default())).unwrap();
        assert_eq!(value["next_poll_at"], serde_json::Value::Null);
    }
}
