//! What a sink is told: the event, and the task as REST shows it to its user.

use bytes::Bytes;
use mcp_taskd_core::store::Delivery;
use mcp_taskd_core::task::{Policy, TaskRecord};
use serde::Serialize;

use super::post;
use crate::view::{self, Notification};

/// The largest result that a message carries, in bytes of JSON; a larger one is to be fetched.
const RESULT_MAX_BYTES: usize = 65_536;

/// The members that the Standard Webhooks specification names.
#[derive(Serialize)]
struct Envelope<'a> {
    r#type: String,
    /// When the event happened.
    timestamp: String,
    data: Data<'a>,
}

#[derive(Serialize)]
struct Data<'a> {
    sequence: i64,
    kind: &'a str,
    status: &'a str,
    task_id: &'a str,
    task_name: &'a str,
    user_id: &'a str,
    thread_id: &'a str,
    run_id: Option<&'a str>,
    tool_call_id: Option<&'a str>,
    error: Option<String>,
    /// Whether the task has a result that is too large for a message.
    result_omitted: bool,
    task: view::Detail<'a>,
}

/// The message about a delivery. Its id is that of the event: the same for every attempt, at whatever sink and from whatever
/// process, so that a receiver can tell what it has had already. The version of rule 66 is the event's sequence; the attempt is
/// left out, since an id that changed with it would be no key to that.
pub(super) fn write(delivery: &Delivery, mut task: TaskRecord, policy: &Policy) -> post::Message {
    let result = task.outcome.result.take_if(|result| result.as_str().len() > RESULT_MAX_BYTES);
    let notification = Notification::under_way(delivery);
    let envelope = Envelope {
        r#type: format!("mcp_task.{}", delivery.kind),
        timestamp: view::rfc3339(delivery.event_at),
        data: Data {
            sequence: delivery.sequence,
            kind: &delivery.kind,
            status: &delivery.status,
            task_id: &task.id,
            task_name: &task.binding.toolset.name,
            user_id: &task.user_id,
            thread_id: &task.thread_id,
            run_id: task.run_id.as_deref(),
            tool_call_id: task.tool_call_id.as_deref(),
            error: view::public_error(task.outcome.error.as_deref()),
            result_omitted: result.is_some(),
            task: view::detail(&task, policy, &notification),
        },
    };
    let body = Bytes::from(view::raw(&envelope).get().to_owned());
    post::Message { id: format!("{}:{}", delivery.task_id, delivery.sequence), body }
}

#[cfg(test)]
mod tests {
    use mcp_taskd_core::task::Json;
    use serde_json::Value;

    use super::*;
    use crate::delivery::verdict::tests::delivery;
    use crate::view::tests::task;

    #[test]
    fn a_message_says_what_happened_and_shows_the_task_as_its_user_sees_it_66_73() {
        let mut record = task("mcp-task-1");
        record.outcome.result = Some(Json::parse(r#"{"n":12345678901234567890.10}"#).unwrap());
        record.outcome.error = Some("e".repeat(600));
        let message = write(&delivery(), record, &Policy::default());
        assert_eq!(message.id, "mcp-task-1:7");
        let text = std::str::from_utf8(&message.body).unwrap();
        assert!(text.contains(r#""result":{"n":12345678901234567890.10}"#), "exact digits: {text}");
        let value: Value = serde_json::from_str(text).unwrap();
        assert_eq!(
            (&value["type"], &value["timestamp"]),
            (&"mcp_task.completed".into(), &"2027-01-15T08:00:00.000Z".into())
        );
        let data = &value["data"];
        assert_eq!(
            (&data["sequence"], &data["kind"], &data["user_id"]),
            (&7.into(), &"completed".into(), &"ada".into())
        );
        assert_eq!(data["error"].as_str().unwrap().len(), 500);
        assert_eq!((&data["result_omitted"], &data["task"]["task_id"]), (&false.into(), &"mcp-task-1".into()));
        for hidden in ["remote-secret", "start_report", "report_status", "host-1"] {
            assert!(!text.contains(hidden), "{hidden} is not for users");
        }
    }

    #[test]
    fn a_message_is_bounded_and_says_what_it_leaves_out() {
        let mut record = task("mcp-task-1");
        record.outcome.result = Some(Json::parse(&format!("\"{}\"", "x".repeat(200_000))).unwrap());
        let message = write(&delivery(), record, &Policy::default());
        assert!(message.body.len() < 5_000);
        let value: Value = serde_json::from_slice(&message.body).unwrap();
        assert_eq!((&value["data"]["result_omitted"], &value["data"]["task"]["result"]), (&true.into(), &Value::Null));
    }
}
