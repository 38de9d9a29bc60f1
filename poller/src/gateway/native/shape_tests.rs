//! What clients are shown of tasks.

use serde_json::{Value, json};

use super::*;
use crate::view::tests::task as record;

const TERMS: Terms = Terms {
    policy: Policy {
        poll_interval_ms: 7_000,
        max_backoff_ms: 1,
        input_required_interval_ms: 1,
        degraded_after: 3,
        max_age_ms: None,
    },
    retention_ms: Some(1_000),
};

fn ended(status: Status, change: impl FnOnce(&mut TaskRecord)) -> TaskRecord {
    let mut task = record("mcp-task-1");
    task.tracked.status = status;
    task.completed_at = Some(task.created_at + 500);
    change(&mut task);
    task
}

fn extension(task: &TaskRecord) -> Value {
    serde_json::from_str(raw(&detailed(task, &TERMS, Answers::default())).get()).unwrap()
}

fn core(record: &TaskRecord) -> Value {
    serde_json::to_value(task(record, &TERMS, Generation::Core)).unwrap()
}

#[test]
fn a_running_task_is_working_and_is_kept_without_a_bound() {
    for status in [Status::Submitting, Status::Submitted, Status::Working] {
        let mut task = record("mcp-task-1");
        task.tracked.status = status;
        task.tracked.consecutive_poll_error_count = 0;
        let shown = extension(&task);
        assert_eq!(shown["status"], "working");
        assert_eq!(shown["taskId"], "mcp-task-1");
        assert_eq!((&shown["ttlMs"], &shown["pollIntervalMs"]), (&Value::Null, &json!(7_000)));
        assert!(shown.as_object().unwrap().contains_key("ttlMs"), "null is said: {shown}");
        assert_eq!((&core(&task)["ttl"], &core(&task)["pollInterval"]), (&Value::Null, &json!(7_000)));
        assert!(!shown.to_string().contains("remote-secret") && shown.get("statusMessage").is_none(), "{shown}");
    }
}

#[test]
fn an_ended_task_lives_as_long_as_it_is_kept() {
    let task = ended(Status::Completed, |_| {});
    assert_eq!(extension(&task)["ttlMs"], 1_500);
    assert_eq!(core(&task)["ttl"], 1_500);
    let forever = Terms { retention_ms: None, ..TERMS };
    assert_eq!(serde_json::to_value(detailed(&task, &forever, Answers::default())).unwrap()["ttlMs"], Value::Null);
}

#[test]
fn a_completed_result_is_exact_and_fits_the_output_schema_of_the_submit_tool_151() {
    let task = ended(Status::Completed, |task| {
        task.outcome.result = Some(Json::parse(r#"{"n":12345678901234567890.10}"#).unwrap());
    });
    let text = raw(&detailed(&task, &TERMS, Answers::default())).get().to_owned();
    assert!(text.contains(r#""result":{"n":12345678901234567890.10}"#), "{text}");
    let result = extension(&task)["result"].clone();
    for required in ["task_id", "task_name", "status", "message"] {
        assert!(result["structuredContent"][required].is_string(), "{required}: {result}");
    }
    assert_eq!(result["isError"], false);
    assert_eq!(result["content"][0]["type"], "text");
    let said: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(said, result["structuredContent"], "the text says the same");
    assert_eq!(result.get("_meta"), None, "the extension has no related task");
}

#[test]
fn a_large_result_is_shown_as_preview_and_artifact_27() {
    let task = ended(Status::Completed, |task| {
        task.outcome.result_preview = Some("begin".into());
        task.outcome.result_truncated = true;
        task.outcome.result_artifact = Some(Json::parse(r#"{"uri":"s3://x","mime_type":"text/csv"}"#).unwrap());
    });
    let content = extension(&task)["result"]["structuredContent"].clone();
    assert_eq!(content["result_preview"], "begin");
    assert_eq!(content["result_truncated"], true);
    assert_eq!(content["result_artifact"]["uri"], "s3://x");
    assert_eq!(content.get("result"), None);
}

#[test]
fn work_that_its_server_calls_failed_is_a_tools_error_and_ours_is_json_rpcs() {
    let by_server = ended(Status::Failed, |task| {
        task.outcome.error = Some("x".repeat(600));
        task.outcome.error_code = Some("quota".into());
    });
    let shown = extension(&by_server);
    assert_eq!(shown["status"], "completed", "the extension keeps failed for JSON-RPC errors");
    assert_eq!(shown["result"]["isError"], true);
    assert_eq!(shown["result"]["structuredContent"]["error_code"], "quota");
    assert_eq!(shown["result"]["structuredContent"]["status"], "failed");
    assert_eq!(shown["statusMessage"].as_str().unwrap().chars().count(), 500);
    assert_eq!(core(&by_server)["status"], "failed", "2025-11-25 has it for tools' errors too");
    let result: Value = serde_json::from_str(super::ended(&by_server).unwrap().get()).unwrap();
    assert_eq!(result["isError"], true);
    assert_eq!(result["_meta"]["io.modelcontextprotocol/related-task"]["taskId"], "mcp-task-1");

    for code in FAULTS {
        let by_us = ended(Status::Failed, |task| {
            task.outcome.error = Some("it broke the contract".into());
            task.outcome.error_code = Some(code.into());
        });
        let shown = extension(&by_us);
        assert_eq!(shown["status"], "failed");
        assert_eq!(
            shown["error"],
            json!({ "code": -32603, "message": "it broke the contract", "data": { "error_code": code } })
        );
        assert_eq!(shown.get("result"), None);
        assert_eq!(super::ended(&by_us).unwrap_err().code.0, -32603);
    }
}

#[test]
fn a_status_says_what_goes_on() {
    let mut task = record("mcp-task-1");
    task.tracked.consecutive_poll_error_count = 3;
    task.last_poll_error = Some("connection refused".into());
    assert!(extension(&task)["statusMessage"].as_str().unwrap().contains("connection refused"));
    task.tracked.cancel_requested_at = Some(1);
    assert!(extension(&task)["statusMessage"].as_str().unwrap().contains("cancel is requested"));
    let cancelled = ended(Status::Cancelled, |_| {});
    assert_eq!(extension(&cancelled)["status"], "cancelled");
    assert!(extension(&cancelled)["statusMessage"].as_str().unwrap().contains("cancelled"));
    let result: Value = serde_json::from_str(super::ended(&cancelled).unwrap().get()).unwrap();
    assert_eq!(result["isError"], true, "there is no result to give");
}

#[test]
fn a_question_is_shown_while_it_is_open_and_always_as_a_map() {
    let mut task = record("mcp-task-1");
    task.outcome.input_required = Some(Json::parse(r#"{"question":"Which quarter?"}"#).unwrap());
    task.tracked.status = Status::InputRequired;
    let shown = extension(&task);
    assert_eq!((&shown["status"], &shown["statusMessage"]), (&json!("input_required"), &json!("Which quarter?")));
    assert_eq!(shown["inputRequests"], json!({}), "this client cannot be asked");
    task.tracked.status = Status::Working;
    assert_eq!(extension(&task).get("inputRequests"), None);
}

#[test]
fn a_new_task_is_flat_in_the_extension_and_nested_in_the_core() {
    let task = record("mcp-task-1");
    let made = |generation| serde_json::from_str::<Value>(created(&task, &TERMS, generation, "go on").get()).unwrap();
    let flat = made(Generation::Extension);
    assert_eq!(
        (&flat["resultType"], &flat["taskId"], &flat["status"]),
        (&json!("task"), &json!("mcp-task-1"), &json!("working"))
    );
    let nested = made(Generation::Core);
    assert_eq!(nested["task"]["taskId"], "mcp-task-1");
    assert_eq!(nested["_meta"]["io.modelcontextprotocol/model-immediate-response"], "go on");
    assert_eq!(nested.get("resultType"), None);
}

#[test]
fn what_a_server_of_mcp_tasks_said_is_said_again() {
    let native = |status, code: &str| {
        ended(status, |task| {
            let mut binding = (*task.tracked.binding).clone();
            binding.driver = Toolset::NATIVE.into();
            task.tracked.binding = binding.into();
            task.outcome.error = Some("no such sheet".into());
            task.outcome.error_code = Some(code.into());
        })
    };
    let rpc = native(Status::Failed, "-32050");
    assert_eq!((&extension(&rpc)["status"], &extension(&rpc)["error"]["code"]), (&json!("failed"), &json!(-32050)));
    assert_eq!(super::ended(&rpc).unwrap_err().code.0, -32050);
    let tools_error = native(Status::Completed, code::TOOL_ERROR);
    assert_eq!(extension(&tools_error)["status"], "completed");
    assert_eq!(extension(&tools_error)["result"]["isError"], true);
    assert_eq!(core(&tools_error)["status"], "failed", "2025-11-25 calls it so");
    let number = ended(Status::Failed, |task| task.outcome.error_code = Some("500".into()));
    assert_eq!(extension(&number)["status"], "completed", "a server's own code is no JSON-RPC error");
}
